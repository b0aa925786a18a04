"""Options by variables, as a user meets them: what is wrong is told by the variable that it came from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def serve(*arguments: str, **told: str) -> tuple[int, str]:
    """The exit status of `penstock serve`, which has nothing to serve, and what it says."""
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "nothing-there", *arguments],
        env={**os.environ, "COLUMNS": "200", **told},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ran.returncode, " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PENSTOCK_SERVE_PORT", "high", "Invalid value for '--port' (PENSTOCK_SERVE_PORT)"),
        ("PENSTOCK_SERVE_PORT", "65536", "Invalid value for '--port' (PENSTOCK_SERVE_PORT)"),
        ("PENSTOCK_SERVE_ISOLATE", "perhaps", "Invalid value for '--isolate' (PENSTOCK_SERVE_ISOLATE)"),
        ("PENSTOCK_SERVE_LOG_FORMAT", "xml", "(--log-format is PENSTOCK_SERVE_LOG_FORMAT's)"),
        ("PENSTOCK_SERVE_GRPC_PORT", "8000", "(--grpc-port is PENSTOCK_SERVE_GRPC_PORT's)"),
        ("PENSTOCK_SERVE_PROT", "8000", "PENSTOCK_SERVE_PROT: is no variable of penstock's"),
    ],
)
def test_what_is_wrong_with_a_variable_is_told_by_its_name(name: str, value: str, said: str) -> None:
    status, stderr = serve(**{name: value})
    assert status == 2
    assert said in stderr


def test_the_command_line_holds_where_both_say_something() -> None:
    status, stderr = serve("--log-format", "yaml", PENSTOCK_SERVE_LOG_FORMAT="json")
    assert (status, "'yaml'" in stderr, "PENSTOCK" in stderr) == (2, True, False)


def test_an_empty_variable_and_a_link_of_kubernetes_say_nothing() -> None:
    status, stderr = serve(PENSTOCK_SERVE_PORT="tcp://10.0.0.1:80", PENSTOCK_SERVE_LOG_FORMAT="")
    assert (status, "nothing-there" in stderr) == (2, True)


def test_health_asks_where_the_same_environment_has_a_server_listen(tmp_path: Path) -> None:
    from penstock.health import own_url

    assert own_url({}) == "http://127.0.0.1:8000"
    assert own_url({"PENSTOCK_SERVE_HOST": "0.0.0.0", "PENSTOCK_SERVE_PORT": "9"}) == "http://127.0.0.1:9"
    assert own_url({"PENSTOCK_SERVE_HOST": "::", "PENSTOCK_SERVE_TLS_CERT": "c"}) == "https://[::1]:8000"
    assert own_url({"PENSTOCK_SERVE_HOST": "10.0.0.2", "PENSTOCK_SERVE_PORT": "tcp://h:1"}) == "http://10.0.0.2:8000"

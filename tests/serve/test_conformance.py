"""`penstock check`: all green on our server, and red on one that does otherwise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from penstock import cli
from penstock.errors import PenstockError
from penstock.serve.conformance import run
from penstock.serve.conformance.checks import every
from penstock.serve.conformance.target import connect

if TYPE_CHECKING:
    from tests.serve.conftest import Server


class Yes(BaseHTTPRequestHandler):
    """A server that says yes to everything, always with the same answer."""

    said = {
        **{"name": "yes", "version": "1", "platform": "", "versions": ["1"], "model_name": "yes"},
        "extensions": ["binary_tensor_data"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}],
    }

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps([self.said] if self.path.endswith("index") else self.said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def yes() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Yes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("model", [None, "digits-onnx-int8"])
def test_every_check_passes_on_our_server(server: Server, model: str | None, tmp_path: Path) -> None:
    words = ["check", server.url, "--junit", str(tmp_path / "check.xml"), *(["--model", model] if model else [])]
    done = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "0 failed" in done.output.splitlines()[-1]
    suites = ElementTree.parse(tmp_path / "check.xml").getroot()
    counts = [sum(int(suite.attrib[key]) for suite in suites) for key in ("tests", "failures")]
    assert counts == [len(every()), 0]
    assert counts[0] >= 80


def test_a_server_that_says_yes_to_everything_fails(yes: str) -> None:
    verdicts = list(run.run(connect(yes, None, 5)))
    failed = {verdict.check.rule: verdict.why for verdict in verdicts if verdict.result == "failed"}
    assert "an unknown model is an error" in failed
    assert "a header length that is no number is refused" in failed
    assert "a wrong method is 404 or 405" in failed
    assert "two rows give two rows" in failed
    strict = [verdict for verdict in verdicts if verdict.check.group == "strictness"]
    assert [verdict.check.rule for verdict in strict if verdict.result == "passed"] == ["the server is well afterwards"]
    skipped = {verdict.check.group for verdict in verdicts if verdict.result == "skipped"}
    assert {"statistics", "logging", "classification"} <= skipped  # it does not claim them


def test_the_command_ends_with_1_where_a_check_fails(yes: str) -> None:
    done = CliRunner().invoke(cli.app, ["check", yes], catch_exceptions=False)
    assert done.exit_code == 1
    assert "failed: strictness: " in done.output


def test_who_speaks_no_such_protocol_is_told_so() -> None:
    with pytest.raises(PenstockError, match="speaks no Open Inference Protocol: does not answer"):
        connect("http://127.0.0.1:9", None, 1)


def test_a_model_that_is_not_there_is_told(yes: str, server: Server) -> None:
    with pytest.raises(PenstockError, match="has no model that answers one row of ones; name one with --model"):
        connect(server.url, "nobody", 5)

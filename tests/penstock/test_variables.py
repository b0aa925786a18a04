"""Which variables are penstock's, which are Kubernetes', and which are nobody's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import cli, variables
from penstock.commands.environment import variable_names
from penstock.errors import PenstockError

ROOT = Path(__file__).parents[2]
OPTIONS = ("PENSTOCK_SERVE_PORT", "PENSTOCK_SERVE_MAX_DELAY_MS")
# Of services called penstock, penstock-gpu and penstock-serve, as Kubernetes makes them.
LINKS = {
    "PENSTOCK_SERVICE_HOST": "10.0.0.11",
    "PENSTOCK_SERVICE_PORT": "8000",
    "PENSTOCK_SERVICE_PORT_HTTP": "8000",
    "PENSTOCK_PORT": "tcp://10.0.0.11:8000",
    "PENSTOCK_PORT_8000_TCP": "tcp://10.0.0.11:8000",
    "PENSTOCK_PORT_8000_TCP_PROTO": "tcp",
    "PENSTOCK_PORT_8000_TCP_PORT": "8000",
    "PENSTOCK_PORT_8000_TCP_ADDR": "10.0.0.11",
    "PENSTOCK_GPU_SERVICE_HOST": "10.0.0.12",
    "PENSTOCK_GPU_PORT_8001_TCP_ADDR": "10.0.0.12",
    "PENSTOCK_SERVE_PORT": "tcp://10.0.0.13:8000",
    "PENSTOCK_SERVE_SERVICE_PORT": "8000",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_of_kubernetes_are_told_from_variables(name: str) -> None:
    assert variables.is_link(name, LINKS[name])
    assert variables.told({name: LINKS[name]}, name) is None
    variables.check({name: LINKS[name]}, OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PENSTOCK_SERVE_PORT", "8000"),
        ("PENSTOCK_PORT", "8000"),
        ("PENSTOCK_SERVE_HOST", "tcp://h"),
        ("PORT", "tcp://h"),
    ],
)
def test_what_only_resembles_a_link_is_none(name: str, value: str) -> None:
    assert not variables.is_link(name, value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PENSTOCK_SERVE_PROT", "PENSTOCK_SERVE_PORT"),
        ("PENSTOCK_PORT", "PENSTOCK_SERVE_PORT"),
        ("PENSTOCK_MAX_DELAY_MS", "PENSTOCK_SERVE_MAX_DELAY_MS"),
        ("PENSTOCK_CASHE", "PENSTOCK_CACHE"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(PenstockError, match=f"^{name}: is no variable of penstock's; the nearest is '{near}'"):
        variables.check({name: "1"}, OPTIONS)


def test_what_is_known_and_what_is_others_is_let_through() -> None:
    others = {"PATH": "/bin", "penstock_port": "1", "PENSTOCK": "1", "PENSTOCK_PARENT": "7", "PENSTOCK_RUN_SEED": "1"}
    variables.check({**others, "PENSTOCK_CACHE": "/tmp/c", "PENSTOCK_SERVE_PORT": "1"}, OPTIONS)


def test_every_variable_that_the_code_names_is_known() -> None:
    import typer

    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    known = {name for command in commands.values() for name in variable_names(command)} | set(variables.OTHERS)
    for stage in ("penstock", "train", "export", "serve", "bench"):
        for path in sorted((ROOT / stage).glob("**/*.py")):
            if "studies" in path.parts:
                continue
            for name in re.findall(r"[\"']\$?(PENSTOCK_[A-Z_]*[A-Z])[\"']", path.read_text()):
                assert name in known | {variables.SERVE, variables.HEALTH, "PENSTOCK_PARENT"}, f"{path}: {name}"

"""SECURITY.md claims nothing without a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+::[\w*]+)`", TEXT)))


@cache
def names(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("test", NAMED)
def test_every_test_that_it_names_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in names(file) or (name == "*" and names(file))


def test_every_answer_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    told = [
        row for row in rows if not row.startswith(("| --- ", "| attack ", "| who ", "| a client ", "| a neighbour "))
    ]
    told = [row for row in told if not row.startswith(("| who makes", "| who stands"))]
    assert len(told) > 35
    assert [row for row in told if "`tests/" not in row] == []


def test_the_options_that_it_names_exist() -> None:
    import typer

    from penstock import cli

    serve = typer.main.get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    known = {option for parameter in serve.params for option in parameter.opts}
    named = set(re.findall(r"`(--(?:max|receive|idle|timeout|run|isolate|keys|mode\b)[\w-]*)", TEXT))
    assert len(named) > 8
    assert named <= known

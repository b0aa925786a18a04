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


def test_every_security_rule_that_is_passed_over_has_its_reason() -> None:
    """Of ruff's, in the product; scripts in bench/studies and bench/serving are no part of it."""
    folders = ("penstock", "train", "export", "serve", "bench")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    paths = [path for path in paths if not {"studies", "serving"} & set(path.relative_to(ROOT).parts)]
    assert len(paths) > 300
    lines = [
        (path, line) for path in paths for line in path.read_text().splitlines() if re.search(r"noqa:.*\bS\d", line)
    ]
    assert len(lines) > 10
    assert [line for _, line in lines if not re.search(r"noqa: S\d+ +\S", line)] == []


def test_the_options_that_it_names_exist() -> None:
    import typer

    from penstock import cli

    serve = typer.main.get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    known = {option for parameter in serve.params for option in parameter.opts}
    named = set(re.findall(r"`(--(?:max|receive|idle|timeout|run|isolate|keys|mode\b)[\w-]*)", TEXT))
    assert len(named) > 8
    assert named <= known

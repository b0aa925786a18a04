"""docs/deploying.md: its table of variables is what the options are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from penstock import cli, variables
from penstock.commands.environment import variable_names

PAGE = (Path(__file__).parents[2] / "docs/deploying.md").read_text()


def rows() -> list[str]:
    """A row of the table for each option: its variable, itself, and its default."""
    command: Any = typer.main.get_command(cli.app)
    found = []
    for name, option in variable_names(command.commands["serve"]).items():
        value = option.default
        default = "" if value is None else "no" if value is False else f"{value:g}" if type(value) is float else value
        found.append(f"| `{name}` | `{max(option.opts, key=len)}` | {default} |")
    return found


def test_every_option_of_serve_is_in_the_table_of_variables_with_its_default_and_nothing_else() -> None:
    table = [line for line in PAGE.splitlines() if line.startswith(f"| `{variables.SERVE}_")]
    assert table == rows()


def test_every_other_variable_is_told_of() -> None:
    command: Any = typer.main.get_command(cli.app)
    others = {*variables.OTHERS, *variable_names(command.commands["health"])}
    assert {name for name in others if f"`{name}`" not in PAGE} == set()
    named = set(re.findall(r"`(PENSTOCK_\w*[A-Z])(?:=[^`]*)?`", PAGE))
    unknown = {name for name in named if not variables.is_link(name, "tcp://")} - others
    assert unknown - {row.split("`")[1] for row in rows()} == set()

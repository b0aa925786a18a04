"""Help: it fits a screen, has examples, and leads on; so does penstock alone, and a word that is mistyped."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock import cli
from penstock.commands import brief

# A screen, in lines and columns.
LINES, COLUMNS = 50, 100


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


EVERY = sorted(commands(typer.main.get_command(cli.app)))


def help_of(words: tuple[str, ...], option: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, str(COLUMNS))
    ran = CliRunner().invoke(cli.app, brief.asked([*words, option]), terminal_width=COLUMNS)
    brief.asked([])
    assert ran.exit_code == 0
    return ran.output


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_of_every_command_fits_a_screen_and_has_examples(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = help_of(words, "--help", monkeypatch).splitlines()
    assert len(lines) <= LINES, f"{len(lines)} lines"
    assert max(map(len, lines)) <= COLUMNS
    text = " ".join(lines)
    assert re.search(rf"Examples?:.*penstock {' '.join(words)}".replace(" ", r"\s+"), text), text


@pytest.mark.parametrize("name", ["export", "serve", "bench"])
def test_all_options_are_a_word_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short, whole = (help_of((name,), option, monkeypatch) for option in ("--help", "--help-all"))
    options = {each.opts[0] for each in typer.main.get_command(cli.app).commands[name].params if each.opts[0][0] == "-"}  # type: ignore[attr-defined]
    shown, more = (set(re.findall(r"^│ (--[a-z][\w-]*)", text, re.MULTILINE)) for text in (short, whole))
    assert options <= more
    found = re.search(rf"(\d+) more options: \S*.* {name} --help-all", short)
    assert found, short
    assert int(found[1]) == len(options - shown) > 15
    again = help_of((name,), "--help", monkeypatch)
    assert again == short


def test_all_help_is_asked_for_before_what_is_no_option() -> None:
    assert brief.asked(["serve", "--help-all"]) == ["serve", "--help"]
    assert brief.asked(["predict", "--", "--help-all"]) == ["predict", "--", "--help-all"]
    brief.asked([])


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False)


def test_penstock_alone_prints_the_road_of_four_steps() -> None:
    ran = run()
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    steps = [re.match(r"  (\d)  (\w+) +penstock (\w+) ", line) for line in lines]
    assert [found.groups() for found in steps if found] == [
        (str(number), name, name) for number, name in enumerate(("train", "export", "serve", "bench"), 1)
    ]
    for word in ("penstock doctor", "penstock --help", "penstock inspect", "--install-completion"):
        assert word in ran.stdout


@pytest.mark.parametrize(
    ("words", "near"),
    [(("exprot",), "export"), (("keys", "lst"), "list"), (("serve", "m", "--prot", "1"), "--port")],
)
def test_a_mistyped_word_is_told_with_the_nearest_and_where_to_look(words: tuple[str, ...], near: str) -> None:
    ran = run(*words)
    assert ran.returncode == 2
    assert near in ran.stderr
    assert re.search(r"Try 'python -m penstock.* -h' for help", ran.stderr)


@pytest.mark.parametrize("words", [("serve", "m", "--prot", "1"), ("serve", "m", "--port", "99999"), ("serve",)])
def test_an_option_that_is_none_or_out_of_range_is_told_by_a_usage_line_as_the_pages_say(
    words: tuple[str, ...],
) -> None:
    ran = run(*words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: ")

"""The documents say what is there."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

import penstock
from penstock.export import formats, pipeline

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_the_architecture_names_every_file() -> None:
    named = set(re.findall(r"`([^`]+)`", ARCHITECTURE))
    whole = ("tests/", "docs/", "bench/results/")  # folders named once for all that is in them
    assert [path for path in tracked() if path not in named and not path.startswith(whole)] == []


def test_the_architecture_names_no_file_that_is_gone() -> None:
    paths = re.findall(r"`((?:penstock|train|export|serve|bench)/[\w/.]+\.\w+)`", ARCHITECTURE)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_s_table_holds_what_the_formats_hold() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in formats.names():
        held = importlib.import_module(f"penstock.export.formats.{name}").PRECISIONS
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}`"))
        listed = row.split("|")[2].partition("(")[0].strip().split(", ")
        assert listed == [precision for precision in pipeline.PRECISIONS if precision in held], name


def test_the_changelog_speaks_of_this_version() -> None:
    assert f"## {penstock.__version__}" in (ROOT / "CHANGELOG.md").read_text()

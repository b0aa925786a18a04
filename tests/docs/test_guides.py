"""The guides do what they say: each is gone through in an empty folder, with real servers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
from pathlib import Path

import guides
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/guides").glob("*.md"))
# Those that take longest, for transformers, ResNet-18 and ModelOpt, are run by `make test-models`.
SLOW = ("gpu", "huggingface-text-classifier", "torchvision")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A shell in which `penstock` and `python` are those of the tests."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("penstock", "-m penstock "), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": f"{ROOT}:{before}" if before else str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=pytest.mark.models if page.stem in SLOW else ()) for page in PAGES],
)
def test_a_guide_s_commands_come_to_what_it_shows(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    guide = guides.read(page.read_text())
    for program in guide.programs:
        if shutil.which(program, path=environment["PATH"]) is None:
            pytest.skip(f"{program} is not installed")
    for package in guide.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    folder = tmp_path / "reader"
    folder.mkdir()
    desk = guides.Desk(folder, environment, guides.free_ports())
    try:
        for step in guide.steps:
            desk.do(step)
    finally:
        desk.leave()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_guide_is_run_or_says_why_not(page: Path) -> None:
    guide = guides.read(page.read_text())
    assert guide.unmarked == []
    assert guide.steps or guide.left_out


def test_what_is_measured_may_differ_and_nothing_else() -> None:
    assert guides.alike("error 3.7e-07, 0.70 MB", "error 2.9e-09, 1.25 MB\n")
    assert guides.alike(
        "ready at …, gRPC at 127.0.0.1:8001", "ready at http://127.0.0.1:8000, gRPC at 127.0.0.1:8001\n"
    )
    assert guides.alike("a\n…\nz", "a\nb\nc\nz\n")
    assert not guides.alike("56 of 56 tensors", "55 of 56 tensors\n")
    assert not guides.alike("a", "a\nand more\n")
    assert not guides.alike("served fp16", "served fp32\n")


def test_a_command_that_fails_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    desk = guides.Desk(tmp_path, environment, {})
    with pytest.raises(AssertionError, match="ended with 3"):
        desk.do(guides.Command("exit 3", "", 1))
    with pytest.raises(AssertionError, match="shown"):
        desk.do(guides.Command("echo another", "one", 1))
    with pytest.raises(AssertionError, match="ended with 0"):
        desk.do(guides.Command("echo error: none", "error: none", 1))

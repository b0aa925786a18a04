"""Files that are read anew: when they change, not otherwise, and never half."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.serve import reloading
from penstock.serve.reloading import Reloaded


class Numbers:
    """A file that must hold a number; what is in use, and how often it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.reads = path, 0
        self.used: list[int] = []
        self.path.write_text("1")
        self.held = Reloaded("number", (path,), self.read, self.used.append)

    def read(self) -> int:
        self.reads += 1
        try:
            return int(self.path.read_text())
        except (OSError, ValueError):
            raise PenstockError(f"{self.path}: holds no number") from None

    def look(self, *, anew: bool = False) -> list[int]:
        asyncio.run(self.held.look(anew=anew))
        return self.used


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    return Numbers(tmp_path / "number")


def test_what_is_there_is_in_use_at_once(numbers: Numbers) -> None:
    assert numbers.used == [1]


def test_a_file_that_is_as_it_was_is_not_read_unless_it_is_asked_for(numbers: Numbers) -> None:
    assert numbers.look() == [1]
    assert numbers.reads == 1
    assert numbers.look(anew=True) == [1, 1]


def test_written_over_replaced_or_made_older_it_is_read(numbers: Numbers) -> None:
    numbers.path.write_text("22")
    assert numbers.look() == [1, 22]
    beside = numbers.path.with_name("beside")
    beside.write_text("33")
    beside.replace(numbers.path)
    assert numbers.look() == [1, 22, 33]
    os.utime(numbers.path, (0, 0))
    assert numbers.look() == [1, 22, 33, 33]


def test_a_link_that_leads_elsewhere_is_read(tmp_path: Path) -> None:
    """As Kubernetes renews what it mounts."""
    (tmp_path / "a").write_text("5")
    (tmp_path / "b").write_text("6")
    link = tmp_path / "link"
    link.symlink_to("a")
    used: list[str] = []
    held = Reloaded("text", (link,), link.read_text, used.append)
    link.unlink()
    link.symlink_to("b")
    asyncio.run(held.look())
    assert used == ["5", "6"]


def test_bad_files_leave_what_was_in_use_and_are_told_of_once(
    numbers: Numbers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    for bad in ("no number", None):
        if bad is None:
            numbers.path.unlink()
        else:
            numbers.path.write_text(bad)
        assert numbers.look() == [1]
        reads = numbers.reads
        assert numbers.look() == [1]
        assert numbers.reads == reads
    numbers.path.write_text("7")
    assert numbers.look() == [1, 7]
    told = [record.getMessage() for record in caplog.records if record.name == reloading.log.name]
    assert told == [f"{numbers.path}: holds no number; the number of before stay in use"] * 2


def test_files_that_are_bad_at_first_are_an_error(tmp_path: Path) -> None:
    def read() -> None:
        raise PenstockError("bad")

    with pytest.raises(PenstockError):
        Reloaded("number", (tmp_path / "none",), read, print)


def test_one_that_fails_unexpectedly_keeps_no_other_from_being_read(
    numbers: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "_EVERY_S", 0.01)
    other = tmp_path / "other"
    other.write_text("x")
    failing = Reloaded("other", (other,), lambda: None, lambda _: None)
    failing._use = lambda _: 1 / 0

    async def watch() -> None:
        stop = reloading.start([failing, numbers.held])
        other.write_text("changed")
        for text in ("2", "3"):
            numbers.path.write_text(text)
            for _ in range(500):
                if numbers.used[-1] == int(text):
                    break
                await asyncio.sleep(0.01)
        await stop()

    asyncio.run(watch())
    assert numbers.used == [1, 2, 3]

"""Footprints: of a process of its own, and what is said where it dies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.artifact import read
from penstock.bench import footprint
from penstock.errors import PenstockError


def test_a_footprint_has_times_memory_and_operations(repository: Path) -> None:
    found = footprint.measure(read(repository / "digits-onnx-int8"), "cpu", 1, 8)
    assert 0 < found.load_s < 60
    assert 0 < found.first_call_s < 60
    assert 0 < (found.host_bytes or 0) < (found.process_bytes or 0)
    assert found.device_bytes is None
    assert (found.multiply_adds or 0) > 1e6
    assert found.uncounted is None


def test_a_format_whose_operations_are_not_counted_says_so(repository: Path) -> None:
    found = footprint.measure(read(repository / "digits-torchscript-fp32"), "cpu", 1, 8)
    assert found.multiply_adds is None
    assert found.uncounted == "operations of torchscript are not counted"


def test_what_the_runtime_refuses_is_its_own_sentence(repository: Path) -> None:
    found = read(repository / "digits-onnx-fp32")
    with pytest.raises(PenstockError, match="no CUDA provider") as caught:
        footprint.measure(found, "cuda:0", 1, 8)
    assert not isinstance(caught.value, footprint.Died)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "batch 8 died of SIGSEGV"),
        ("import time; time.sleep(60)", "did not end"),
    ],
)
def test_a_process_that_dies_or_hangs_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr(footprint, "TIMEOUT_S", 2)
    monkeypatch.setattr(footprint.trial, "python_command", lambda *words: [sys.executable, "-c", code])
    with pytest.raises(footprint.Died, match=said):
        footprint.measure(read(repository / "digits-onnx-fp32"), "cpu", 1, 8)


def test_a_process_that_ends_without_a_word_is_told_by_its_last_line(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        footprint.trial, "python_command", lambda *words: [sys.executable, "-c", "raise SystemExit('no')"]
    )
    with pytest.raises(PenstockError, match="the process that loads it failed: no"):
        footprint.measure(read(repository / "digits-onnx-fp32"), "cpu", 1, 8)

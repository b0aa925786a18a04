"""The judgement of matrix.py: what passes, what is refused for a stated reason, what fails, and what the page says."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matrix
import pytest
import zoo

NET = next(model for model in zoo.MODELS if model.name == "KeywordOnly")
STATED = dataclasses.replace(NET, reasons={"onnx": "cannot be (captured|traced)"})
RECEIPT: dict[str, Any] = {
    "build": {"load_s": 0.26, "export_s": 1.24, "verify_s": 0.5},
    "verification": {
        "passed": True,
        "limits": {"output": {"max_error": 1e-4}},
        "distances": [{"rel_l2": 1.2e-7}, {"rel_l2": 3.4e-7}],
    },
    "signature": {"outputs": [{"name": "output"}]},
}
Run = Callable[[list[str]], matrix.Ended]


def ends(code: int | None, said: str = "", receipt: dict[str, Any] | None = None, verify: int = 0) -> Run:
    """A penstock that ends in this way, having published a receipt or nothing."""

    def run(words: list[str]) -> matrix.Ended:
        if words[0] == "verify":
            return matrix.Ended(verify, "error: the answers differ\n", 0.1)
        if receipt is not None:
            folder = Path(words[words.index("--output") + 1]) / "net" / "1"
            folder.mkdir(parents=True)
            (folder / "penstock.json").write_text(json.dumps(receipt))
        return matrix.Ended(code, said, 2.04)

    return run


def measured(monkeypatch: pytest.MonkeyPatch, run: Run, model: zoo.Model = NET) -> dict[str, Any]:
    monkeypatch.setattr(matrix, "run", run)
    return matrix.measure(model, "onnx", Path("/tmp/made/net.pth"), True)


def shown(cell: dict[str, Any]) -> list[str]:
    """The last lines of the page of one cell."""
    held = {
        "models": {NET.name: {"parameters": 1_234_567}},
        "cells": {NET.name: {"onnx": cell}},
        "machine": {"cpu": "a processor", "cores": 2, "python": "3.12.1"},
        "versions": {"torch": "2.14.1"},
        "date": "2026-01-02",
    }
    page = matrix.render([NET], ["onnx"], held)
    assert "2026-01-02, a processor, 2 cores; Python 3.12.1, torch 2.14.1" in page
    return page[page.index("| KeywordOnly") :].splitlines()


def test_a_published_model_passes_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = measured(monkeypatch, ends(0, receipt=RECEIPT))
    assert cell["state"] == "passed"
    assert shown(cell)[0].endswith(" | 1.23 | 0.3 / 1.2 / 0.5 s, 3e-07 |")


def test_a_receipt_without_seconds_shows_those_of_the_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = measured(monkeypatch, ends(0, receipt={**RECEIPT, "build": {}}))
    assert shown(cell)[0].endswith("| 2.0 s in all, 3e-07 |")


SAID = "error: net-onnx-fp32: it cannot be captured: /tmp/made/net.pth has a branch | on values, and a loop too; try\n"


def test_a_stated_reason_is_a_no_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = measured(monkeypatch, ends(2, SAID), STATED)
    assert cell["state"] == "refused"
    row, _, note = shown(cell)
    assert "| no: it cannot be captured: net.pth has a branch \\| on values, … (1) |" in row
    assert note == "1. it cannot be captured: net.pth has a branch \\| on values, and a loop too; try"


FAULTS: dict[str, tuple[Run, zoo.Model, str]] = {
    "a reason that is not stated": (ends(2, SAID), NET, "it cannot be captured"),
    "another reason than the stated": (ends(2, "error: disk full\n"), STATED, "disk full"),
    "a crash that says the stated words": (ends(1, "Traceback\nError: cannot be captured\n"), STATED, "exit code 1: "),
    "a signal": (ends(-11), STATED, "exit code -11: without a word"),
    "time": (ends(None), STATED, "ran past 560 s"),
    "a refusal that published": (ends(2, SAID, RECEIPT), STATED, "it cannot be captured"),
    "no model": (ends(0), NET, "published 0 models"),
    "a receipt without a proof": (ends(0, receipt={**RECEIPT, "verification": {}}), NET, "does not say"),
    "other outputs": (ends(0, receipt={**RECEIPT, "signature": {"outputs": [{"name": "x"}]}}), NET, "outputs x, not"),
    "an artifact that does not verify": (ends(0, receipt=RECEIPT, verify=2), NET, "verify: the answers differ"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_anything_else_is_a_failure(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, model, words = FAULTS[what]
    cell = measured(monkeypatch, run, model)
    assert (cell["state"], words in cell["reason"]) == ("failed", True), cell
    assert "| **FAILED**: " in shown(cell)[0]


def test_a_run_is_taken_up_where_it_ended_and_fails_with_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def run(words: list[str], code: int) -> matrix.Ended:
        calls.append(words[0])
        return ends(code, SAID, RECEIPT if code == 0 else None)(words)

    words = ["matrix.py", "--output", f"{tmp_path}/models.md", "--only", "KeywordOnly", "--formats", "onnx", "pt2"]
    for argv, code, exit_code, exports in (
        (words, 2, 1, 2),
        ([*words, "--resume"], 0, 0, 2),
        ([*words, "--resume"], 2, 0, 0),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(matrix, "run", lambda words, code=code: run(words, code))
        calls.clear()
        with pytest.raises(SystemExit) as ended:
            matrix.main()
        assert (ended.value.code, calls.count("export")) == (exit_code, exports)
        assert ("**FAILED**" in (tmp_path / "models.md").read_text()) == bool(exit_code)


def test_names_and_reasons_are_of_the_zoo() -> None:
    names = [model.name for model in zoo.MODELS]
    assert len(set(names)) == len(names)
    assert all(set(model.reasons) <= set(zoo.COLUMNS) for model in zoo.MODELS)

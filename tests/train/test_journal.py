"""The journal of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.train import journal, loop, recipe


def test_a_run_s_file_has_its_data_and_each_epoch(tmp_path: Path) -> None:
    said: list[str] = []
    job = recipe.load("digits", ["epochs=2", "model.kwargs.widths=[8]"])
    loop.train(job, tmp_path / "run", progress=False, say=said.append)
    lines = (tmp_path / "run/logs/run.log").read_text().splitlines()
    assert said == ["1,257 train, 180 val, 360 test; 10 classes, 121 (8) to 128 (1) of each in train"]
    assert said[0] in lines[0]
    assert [line.partition(": ")[0][-12:] for line in lines[1:]] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert "val_accuracy 0." in lines[1]


def test_an_error_is_there_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="the loss is"):
        loop.train(recipe.load("digits", ["epochs=2", "optim.lr=1e30", "optim.clip=0"]), tmp_path, progress=False)
    text = (tmp_path / "logs/run.log").read_text()
    assert "Traceback (most recent call last)" in text
    assert "the loss is nan in epoch 1" in text


def test_epochs_are_said_where_nothing_else_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_EVERY_S", 0.0)
    said: list[str] = []
    for shown in (True, False):
        with journal.kept(tmp_path, said.append, shown=shown) as told:
            told.epoch(3, 9, {"val_loss": 0.12345, "lr": 1e-5})
    assert said == ["epoch 3 of 9: val_loss 0.1235, lr 1e-05"]

"""What is learnt: how a batch comes to the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.errors import PenstockError
from penstock.train import jobs, recipe
from penstock.train.learner import Learner


def learner(folder: Path, inputs: dict[str, np.ndarray], target: str, kwargs: dict[str, object]) -> Learner:
    """Of arrays and three classes, with mixup."""
    np.savez(folder / "data.npz", **inputs, labels=np.arange(len(next(iter(inputs.values())))) % 3)
    content = {
        "name": "mixed",
        "task": "classification",
        "epochs": 1,
        "batch_size": 8,
        "dataset": {"name": "numpy", "path": str(folder / "data.npz")},
        "model": {"target": target, "kwargs": kwargs},
        "augment": {"mixup": 1.0},
        "optim": {"lr": 0.01},
        "batch": {"min": 1, "opt": 8, "max": 8},
    }
    return Learner(jobs.prepare(recipe.make(content, [], {}, "recipe", "penstock train")), folder)


def test_mixup_mixes_rows_of_numbers_too_while_they_are_learnt_from(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    learning = learner(tmp_path, {"x": rows}, "penstock.train.nets:Mlp", {"features": 4})
    batch = {"x": torch.from_numpy(rows[:8])}, torch.arange(8) % 3
    torch.manual_seed(0)
    inputs, targets = learning.ready(batch, learning=True)
    assert targets.shape == (8, 3)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    # A linear map of the rows and the targets tells one share for both: what is mixed of the one is of the other.
    moved = (inputs["x"] != batch[0]["x"]).any(1)
    assert moved.any()
    assert ((targets.max(1).values < 1) <= moved).all()
    held, plain = learning.ready(batch, learning=False)
    assert torch.equal(held["x"], batch[0]["x"])
    assert torch.equal(plain, batch[1])


def test_mixup_of_whole_numbers_is_refused_by_their_names(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(1, 9, (60, 5))
    with pytest.raises(PenstockError, match=r"augment.mixup is 1.0; it mixes one input of floats.*ids \(int64\)"):
        learner(tmp_path, {"ids": ids}, "penstock.train.nets:TextCnn", {"tokens": 10, "width": 8})


def test_a_figure_of_another_task_is_refused_with_those_that_there_are_and_no_nearest(tmp_path: Path) -> None:
    job = jobs.prepare(recipe.load("digits", ["keep.monitor=val_rmse", "model.kwargs.widths=[4]"]))
    with pytest.raises(PenstockError, match=r"'val_rmse'; task classification has val_accuracy, val_loss, train_loss$"):
        Learner(job, tmp_path)
    with pytest.raises(PenstockError, match=r"train_loss; the nearest is 'val_loss'$"):
        Learner(replace(job, recipe=recipe.load("digits", ["keep.monitor=val_los"])), tmp_path)

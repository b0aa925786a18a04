"""Jobs: what does not fit together is told in a recipe's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.train import jobs, recipe


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"target": "penstock.train.nets:Bert"}, r"Bert takes model.kwargs.config.*--set weights=FOLDER"),
        (
            {"target": "penstock.train.nets:Mlp", "kwargs": {"features": 5}},
            r"^recipe rows: penstock.train.nets:Mlp: the model fails on inputs x.*; let model.kwargs and",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_told_in_a_recipe_s_words(
    model: dict[str, Any], told: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((60, 4), np.float32), labels=np.arange(60) % 3)
    content = {
        "name": "rows",
        "task": "classification",
        "epochs": 1,
        "batch_size": 8,
        "dataset": {"name": "numpy", "path": str(tmp_path / "data.npz")},
        "model": model,
        "optim": {"lr": 0.01},
        "batch": {"min": 1, "opt": 8, "max": 8},
    }
    with pytest.raises(PenstockError, match=told) as caught:
        jobs.prepare(recipe.make(content, [], {}, "recipe", "penstock train"))
    assert "--input" not in str(caught.value)

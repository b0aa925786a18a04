"""Jobs: what does not fit together is told in a recipe's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import evaluation
from penstock.errors import PenstockError
from penstock.train import jobs, recipe


def of_arrays(folder: Path, model: dict[str, Any], **arrays: Any) -> recipe.Recipe:
    np.savez(folder / "data.npz", **arrays)
    content = {
        "name": "rows",
        "task": "classification",
        "epochs": 1,
        "batch_size": 8,
        "dataset": {"name": "numpy", "path": str(folder / "data.npz")},
        "model": model,
        "optim": {"lr": 0.01},
        "batch": {"min": 1, "opt": 8, "max": 8},
    }
    return recipe.make(content, [], {}, "recipe", "penstock train")


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
    with pytest.raises(PenstockError, match=told) as caught:
        jobs.prepare(of_arrays(tmp_path, model, x=np.zeros((60, 4), np.float32), labels=np.arange(60) % 3))
    assert "--input" not in str(caught.value)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_regression_of_two_numbers_takes_a_network_that_answers_two(outputs: int, tmp_path: Path) -> None:
    mlp = {"target": "penstock.train.nets:Mlp", "kwargs": {"classes": outputs}}
    rows = np.zeros((60, 4), np.float32)
    recipe_ = of_arrays(tmp_path, mlp, x=rows, labels=rows[:, :2]).model_copy(update={"task": "regression"})
    told = (
        rf"Mlp answers output:float32\[batch,{outputs}\]; the labels of train are of shape \[\d+, 2\]: it must answer"
    )
    with pytest.raises(PenstockError, match=rf"{told} \[batch,2\]: --set model.kwargs.classes=2$"):
        jobs.prepare(recipe_)


def test_several_labels_a_row_may_be_whole_numbers(tmp_path: Path) -> None:
    mlp = {"target": "penstock.train.nets:Mlp"}
    labels = np.arange(120).reshape(60, 2) % 3 % 2
    recipe_ = of_arrays(tmp_path, mlp, x=np.zeros((60, 4), np.float32), labels=labels)
    job = jobs.prepare(recipe_.model_copy(update={"task": "multilabel"}))
    assert str(job.card.signature.outputs[0]) == "logits:float32[batch,2]"
    again = evaluation.held_out(job.card.dataset, None, "val", job.card.task).labels
    assert again is not None
    assert again.tolist() == job.parts["val"].labels.tolist()


def test_one_array_of_rows_tells_a_network_its_features(tmp_path: Path) -> None:
    labels, mlp = np.arange(60) % 3, "penstock.train.nets:Mlp"
    own = tmp_path / "net.py"
    own.write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, features, classes):\n"
        "        super().__init__(features, classes)\n"
    )
    for target in (mlp, f"{own}:Net"):
        found = jobs.prepare(of_arrays(tmp_path, {"target": target}, x=np.zeros((60, 4), np.float32), labels=labels))
        assert found.card.architecture.kwargs == {"features": 4, "classes": 3}
    for arrays in ({"x": np.zeros((60, 4, 2), np.float32)}, {name: np.zeros((60, 4), np.float32) for name in "ab"}):
        with pytest.raises(PenstockError, match="features"):  # which is not told then
            jobs.prepare(of_arrays(tmp_path, {"target": mlp}, labels=labels, **arrays))


def test_weights_that_are_not_there_are_told_before_the_data_is_read(tmp_path: Path) -> None:
    asked = of_arrays(
        tmp_path, {"target": "penstock.train.nets:Mlp"}, x=np.zeros((8, 3), np.float32), y=np.zeros(8, int)
    )
    (tmp_path / "data.npz").unlink()
    with pytest.raises(PenstockError, match=rf"^weights {tmp_path}/no.pth: no such file; give the weights to begin"):
        jobs.prepare(asked.model_copy(update={"weights": str(tmp_path / "no.pth")}))

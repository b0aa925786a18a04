"""The history of a run: epochs out of a CSVLogger's file, and what shares a chart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.train import history


def test_the_epochs_of_a_real_run_are_read_whole(trained: Path) -> None:
    (file,) = (trained.parent / "logs").rglob("metrics.csv")
    found = history.read(file)
    assert [epoch["epoch"] for epoch in found] == [1, 2, 3]
    assert all({"train_loss", "val_loss", "val_accuracy"} <= epoch.keys() for epoch in found)
    assert found[0]["train_loss"] > found[2]["train_loss"]


def test_the_last_value_of_an_epoch_counts_and_lines_without_one_are_of_the_next(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(
        "epoch,step,val_loss,lr-SGD,train_loss\n,1,,0.1,\n,2,,0.2,\n0,2,0.9,,\n0,2,,,1.5\n,3,,0.3,\n1,4,0.7,,\n1,4,,,1.0\n"
    )
    first, second = history.read(file)
    assert first == {"epoch": 1, "step": 2, "val_loss": 0.9, "lr-SGD": 0.2, "train_loss": 1.5}
    assert second == {"epoch": 2, "step": 4, "val_loss": 0.7, "lr-SGD": 0.3, "train_loss": 1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column epoch"),
        ("a,b\n1,2\n", "has no column epoch"),
        ("epoch,x\n0,1\n1,many\n", "line 3: holds what is no number"),
        ("epoch,x\n0,1,2,3\n", "line 2: holds what is no number"),
    ],
)
def test_what_is_no_csvloggers_file_is_refused_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(text)
    with pytest.raises(PenstockError, match=said):
        history.read(file)
    with pytest.raises(PenstockError, match="cannot be read: No such file"):
        history.read(tmp_path / "gone.csv")


def test_the_loss_comes_first_the_rate_last_and_parts_share_a_chart() -> None:
    epochs = [
        {"epoch": 1, "lr": 0.1, "val_accuracy": 0.5, "train_loss": 2.0, "val_loss": 2.5, "seconds": 3},
        {"epoch": 2, "lr": 0.2, "val_accuracy": 0.7, "train_loss": 1.0, "val_loss": math.nan, "seconds": 3},
    ]
    loss, accuracy, rate = history.charts(epochs)
    assert (loss.title, accuracy.title, rate.title) == ("loss", "accuracy", "learning rate")
    training, validation = loss.curves
    assert (training.name, training.points) == ("training", ((1, 2.0), (2, 1.0)))
    assert (validation.name, validation.points) == ("validation", ((1, 2.5),))


@given(st.lists(st.dictionaries(st.sampled_from(["train_loss", "val_f1", "lr-Adam", "x"]), st.floats()), max_size=6))
def test_any_history_has_charts_of_finite_points_alone(epochs: list[dict[str, float]]) -> None:
    for kind in history.charts(epochs):
        assert kind.curves
        assert isinstance(kind.log, bool)
        for curve in kind.curves:
            assert curve.points
            assert all(math.isfinite(value) for _, value in curve.points)


def test_a_rate_over_many_powers_is_told_by_powers() -> None:
    (rate,) = history.charts([{"lr": 1e-5}, {"lr": 1e-2}])
    assert rate.log
    (rate,) = history.charts([{"lr": 0.0}, {"lr": 1e-2}])
    assert not rate.log

"""What TensorBoard is told of a run: figures, the network, its weights, pictures, the confusion matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.train import loop, recipe


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = recipe.load("digits", ["epochs=2", "model.kwargs.widths=[8]"])
    trained = loop.train(job, tmp_path_factory.mktemp("board") / "run", progress=False)
    (events,) = trained.logs.rglob("events.out.tfevents.*")
    held = EventAccumulator(str(events.parent), size_guidance={"images": 0, "histograms": 0, "scalars": 0})
    held.Reload()
    return held


def test_each_epoch_s_figures_are_scalars(told: Any) -> None:
    names = {"train_loss", "val_loss", "val_accuracy", "samples_per_s", "peak_memory_mb"}
    assert names <= set(told.Tags()["scalars"])
    assert len(told.Scalars("val_loss")) == 2
    assert [event.step for event in told.Scalars("val_loss")] == [19, 39]


def test_the_network_s_graph_is_there(told: Any) -> None:
    nodes = {node.op for node in told.Graph().node}
    assert "aten::_convolution" in nodes


def test_each_weight_has_a_histogram_an_epoch(told: Any) -> None:
    assert "weights/stem.0.weight" in told.Tags()["histograms"]
    assert len(told.Histograms("weights/head.bias")) == 2


def test_pictures_and_the_confusion_matrix_are_images(told: Any) -> None:
    from PIL import Image

    assert {"image as it is learnt from", "confusion, true by row"} <= set(told.Tags()["images"])
    first, second = told.Images("confusion, true by row")
    assert (first.width, second.height) == (320, 320)
    import io

    shares = 1 - np.asarray(Image.open(io.BytesIO(second.encoded_image_string)).convert("L"))[16::32, 16::32] / 255
    assert shares.shape == (10, 10)
    assert np.allclose(shares.sum(1), 1, atol=0.05)  # each class's answers


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_with_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PenstockError, match=rf"track.{name} needs {name}.*penstock\[track\]"):
        loop.train(recipe.load("digits", ["epochs=1", f"track.{name}=true"]), tmp_path, progress=False)

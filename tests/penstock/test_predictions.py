"""Predictions: outputs as labels with scores, class maps and values."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from penstock import predictions, scores
from penstock.predictions import NoMap
from penstock.serve.errors import explained


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_map_s_pixels_are_the_classes_whatever_they_are(classes: Any) -> None:
    image = Image.open(io.BytesIO(predictions.map_png(classes)))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), classes)


def test_the_palette_is_pascal_voc_s_with_a_colour_for_each_class() -> None:
    colours = np.frombuffer(predictions._palette(), np.uint8).reshape(256, 3)
    assert colours[[0, 1, 2, 15, 20]].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [192, 128, 128], [0, 64, 128]]
    assert len(set(map(tuple, colours.tolist()))) == 256


def test_classes_that_are_answered_as_numbers_are_the_map() -> None:
    classes = np.array([[[0, 255], [3, 3]]], np.int64)
    assert np.array_equal(predictions.class_maps(classes), classes)
    for wrong in (-1, 256):
        with pytest.raises(NoMap, match="class out of 0 to 255") as raised:
            predictions.class_maps(np.full((1, 2, 2), wrong))
        assert explained(raised.value)[0] == 422


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.floats(-(2.0**127), 2.0**127, width=32),
    )
)
def test_softmax_rows_are_probabilities_in_the_order_of_the_logits(logits: Any) -> None:
    found = scores.softmax(logits)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert np.allclose(found.sum(axis=1), 1)
    best = logits.argmax(axis=1)
    assert (found[np.arange(len(found)), best] == found.max(axis=1)).all()


def test_softmax_of_float16_is_computed_in_float64() -> None:
    found = scores.softmax(np.array([[60000, 60000 - 32]], np.float16))
    assert found.dtype == np.float64
    assert found[0, 1] == pytest.approx(np.exp(-32), rel=1e-9)


def test_fewer_labels_than_classes_leave_numbers_for_the_rest() -> None:
    assert predictions._labelled(np.array([0.1, 0.2, 0.7]), ("no", "yes"), 2) == {
        "label": "2",
        "score": 0.7,
        "top": [{"label": "2", "score": 0.7}, {"label": "yes", "score": 0.2}],
    }


def test_each_of_several_labels_has_its_own_score_and_the_likeliest_is_first() -> None:
    (said,) = predictions.of("multilabel", np.array([[-2.0, 3.0, 0.0]]), ("sun", "rain"), 2)["predictions"]
    assert [entry["label"] for entry in said["top"]] == ["rain", "2"]
    assert [entry["score"] for entry in said["top"]] == [pytest.approx(0.952574), 0.5]

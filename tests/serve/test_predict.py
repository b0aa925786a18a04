"""/predict without HTTP: images and JSON in, labels with scores out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.preprocess import BadImage
from penstock.runtimes.fake import FakeRunner
from penstock.serve import predict
from penstock.serve.errors import RequestError
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load
from penstock.signature import Signature, SignatureMismatch, Tensor

MAX_PIXELS = 1_000_000


@pytest.fixture(scope="module")
def digits(repository: Path) -> Model:
    return load(repository / "digits-onnx-fp32", Limits(), Metrics())


@pytest.fixture
def pair(pair_signature: Signature) -> Model:
    """A model of two inputs, without a receipt."""
    return Model(
        "pair", 1, pair_signature, None, lambda: RunnerBatches(FakeRunner(pair_signature)), Limits(), Metrics()
    )


def test_an_upload_becomes_exactly_the_tensor_that_training_saw(
    digits: Model, scans: tuple[Any, Any], png: Callable[[Any], bytes]
) -> None:
    images, _ = scans
    assert digits.receipt is not None
    assert digits.receipt.preprocess is not None
    expected = digits.receipt.preprocess.normalize(images[:5])
    for image, row in zip(images[:5], expected, strict=True):
        inputs = predict.image_inputs(digits, png(image), MAX_PIXELS)
        assert list(inputs) == ["image"]
        assert inputs["image"].dtype == np.float32
        assert np.array_equal(inputs["image"], row[None])


def test_a_larger_colour_upload_is_resized_to_the_input(digits: Model, png: Callable[[Any], bytes]) -> None:
    inputs = predict.image_inputs(digits, png(np.full((40, 30, 3), 255)), MAX_PIXELS)
    assert inputs["image"].shape == (1, 1, 8, 8)
    assert np.allclose(inputs["image"], (1 - 0.3) / 0.37)


@pytest.mark.parametrize("data", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_bytes_that_are_no_image_are_refused(digits: Model, data: bytes) -> None:
    with pytest.raises(BadImage, match=r"not an image|empty|damaged"):
        predict.image_inputs(digits, data, MAX_PIXELS)


def test_an_image_over_the_pixel_limit_is_refused_with_its_size(digits: Model, png: Callable[[Any], bytes]) -> None:
    with pytest.raises(BadImage, match="11x10 = 110 pixels; the limit is 100 pixels"):
        predict.image_inputs(digits, png(np.zeros((10, 11))), 100)
    assert predict.image_inputs(digits, png(np.zeros((10, 10))), 100)


def test_an_image_for_a_model_that_takes_none_is_refused_with_an_example(pair: Model) -> None:
    with pytest.raises(RequestError, match=r"no image preprocessing.*\"ids\".*\[batch, tokens\]") as raised:
        predict.image_inputs(pair, b"", MAX_PIXELS)
    assert raised.value.status == 415


def test_json_rows_of_a_model_with_one_input_need_no_name(digits: Model) -> None:
    rows = np.arange(64).reshape(1, 1, 8, 8).tolist()
    import json

    named = predict.json_inputs(digits, json.dumps({"inputs": {"image": rows}}).encode())
    bare = predict.json_inputs(digits, json.dumps({"inputs": rows}).encode())
    assert named["image"].dtype == np.float32
    assert np.array_equal(named["image"], bare["image"])
    assert named["image"].ravel().tolist() == list(range(64))


def test_json_of_several_inputs_takes_each_dtype_from_the_signature(pair: Model) -> None:
    inputs = predict.json_inputs(pair, b'{"inputs": {"weight": [1, 2.5], "ids": [[1], [2]]}}')
    assert {name: array.dtype.name for name, array in inputs.items()} == {"weight": "float32", "ids": "int64"}


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"", ["not valid JSON"]),
        (b"[]", ["JSON object with 'inputs'"]),
        (b"null", ["JSON object with 'inputs'"]),
        (b"{}", ["JSON object with 'inputs'"]),
        (b'{"inputs": [1], "top_k": 3}', ["'top_k' is unknown", "'inputs' alone"]),
        (b'{"inputs": [[1]]}', ["object with one entry", "ids, weight"]),
        (b'{"inputs": {"idz": [[1]]}}', ["input 'idz' is unknown", "ids, weight"]),
        (b'{"inputs": {"ids": [[1.5]]}}', ["inputs.ids", "whole numbers", "INT64"]),
        (b'{"inputs": {"ids": [[1], [2, 3]]}}', ["inputs.ids", "ragged"]),
        (b'{"inputs": {"weight": ["1"]}}', ["inputs.weight", "numbers", "FP32"]),
        (b'{"inputs": {"weight": [1e39]}}', ["inputs.weight", "range", "FP32"]),
        (b'{"inputs": {"weight": [true, 0.5]}}', ["inputs.weight", "numbers", "FP32"]),
        (b'{"inputs": {"weight": null}}', ["inputs.weight", "numbers", "FP32"]),
    ],
)
def test_wrong_json_is_refused_with_its_field_and_rule(pair: Model, body: bytes, parts: list[str]) -> None:
    with pytest.raises(RequestError) as raised:
        predict.json_inputs(pair, body)
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.status == 400


@pytest.mark.parametrize("body", [b'{"inputs": 5}', b'{"inputs": []}', b'{"inputs": [[]]}', b'{"inputs": {}}'])
def test_json_of_another_shape_is_left_to_the_signature_to_refuse(digits: Model, body: bytes) -> None:
    with pytest.raises(SignatureMismatch, match="input 'image'"):
        digits.signature.check(predict.json_inputs(digits, body))


def test_the_answer_of_a_classifier_is_its_labels_with_scores_best_first(digits: Model) -> None:
    logits = np.full((2, 10), -20.0, np.float32)
    logits[0, [3, 7]] = [20.0, 19.0]
    logits[1, 9] = 5.0
    said = predict.answer(digits, {"logits": logits}, top_k=2)
    assert (said["model"], said["version"]) == ("digits-onnx-fp32", 1)
    first, second = said["predictions"]
    assert first["label"] == "3"
    assert first["score"] == first["top"][0]["score"] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)
    assert [entry["label"] for entry in first["top"]] == ["3", "7"]
    assert second["label"] == "9"
    assert len(second["top"]) == 2


def test_more_labels_than_there_are_classes_gives_all_of_them(digits: Model) -> None:
    said = predict.answer(digits, {"logits": np.zeros((1, 10), np.float32)}, top_k=1000)
    assert [entry["label"] for entry in said["predictions"][0]["top"]] == [str(n) for n in range(10)]
    assert {entry["score"] for entry in said["predictions"][0]["top"]} == {0.1}


def test_the_answer_of_another_model_is_its_outputs(pair: Model) -> None:
    outputs = {"total": np.array([1.5]), "wide": np.ones((1, 2, 3), np.int32)}
    assert predict.answer(pair, outputs, top_k=3) == {
        "model": "pair",
        "version": 1,
        "outputs": {"total": [1.5], "wide": [[[1, 1, 1], [1, 1, 1]]]},
    }


def test_a_bare_vector_signature_is_named_in_the_example() -> None:
    signature = Signature(inputs=(Tensor(name="x", shape=(4,)),), outputs=(Tensor(name="y", shape=(4,)),))
    model = Model("flat", 1, signature, None, lambda: RunnerBatches(FakeRunner(signature)), Limits(), Metrics())
    with pytest.raises(RequestError, match=r'\{"inputs": \{"x": …\}\}, shape \[4\]'):
        predict.json_inputs(model, b"{}")


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.floats(-(2.0**127), 2.0**127, width=32),
    )
)
def test_softmax_rows_are_probabilities_in_the_order_of_the_logits(logits: Any) -> None:
    scores = predict.softmax(logits)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    assert np.allclose(scores.sum(axis=1), 1)
    best = logits.argmax(axis=1)
    assert (scores[np.arange(len(scores)), best] == scores.max(axis=1)).all()


def test_softmax_of_float16_is_computed_in_float64() -> None:
    scores = predict.softmax(np.array([[60000, 60000 - 32]], np.float16))
    assert scores.dtype == np.float64
    assert scores[0, 1] == pytest.approx(np.exp(-32), rel=1e-9)


def test_fewer_labels_than_classes_leave_numbers_for_the_rest() -> None:
    assert predict._labelled(np.array([0.1, 0.2, 0.7]), ("no", "yes"), 2) == {
        "label": "2",
        "score": 0.7,
        "top": [{"label": "2", "score": 0.7}, {"label": "yes", "score": 0.2}],
    }

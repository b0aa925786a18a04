"""/predict's answers without HTTP: labels, class maps, values, outputs, and in which form they go."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.serve import answers
from penstock.serve.errors import RequestError
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load
from penstock.serve.times import Times


@pytest.fixture(scope="module")
def models(forms_repository: Path) -> dict[str, Model]:
    return {path.name: load(path, Limits(), Metrics()) for path in forms_repository.iterdir()}


@pytest.fixture
def digits(models: dict[str, Model]) -> Model:
    return models["digits-onnx-fp32"]


def test_the_kind_of_answer_follows_the_recorded_task_and_the_shape(models: dict[str, Model]) -> None:
    assert {name: answers.kind(model) for name, model in models.items()} == {
        "digits-onnx-fp32": "classification",
        "colours": "segmentation",
        "price": "regression",
        "people": "outputs",
        "pair": "outputs",
    }


def test_the_answer_of_a_classifier_is_its_labels_with_scores_best_first(digits: Model) -> None:
    logits = np.full((2, 10), -20.0, np.float32)
    logits[0, [3, 7]] = [20.0, 19.0]
    logits[1, 9] = 5.0
    said = answers.answer(digits, {"logits": logits}, top_k=2)
    assert (said["model"], said["version"]) == ("digits-onnx-fp32", 1)
    first, second = said["predictions"]
    assert first["label"] == "3"
    assert first["score"] == first["top"][0]["score"] == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)
    assert [entry["label"] for entry in first["top"]] == ["3", "7"]
    assert second["label"] == "9"
    assert len(second["top"]) == 2


def test_more_labels_than_there_are_classes_gives_all_of_them(digits: Model) -> None:
    said = answers.answer(digits, {"logits": np.zeros((1, 10), np.float32)}, top_k=1000)
    assert [entry["label"] for entry in said["predictions"][0]["top"]] == [str(n) for n in range(10)]
    assert {entry["score"] for entry in said["predictions"][0]["top"]} == {0.1}


def test_the_answer_of_another_model_is_its_outputs(models: dict[str, Model]) -> None:
    outputs = {"total": np.array([1.5]), "wide": np.ones((1, 2, 3), np.int32)}
    assert answers.answer(models["pair"], outputs, top_k=3) == {
        "model": "pair",
        "version": 1,
        "outputs": {"total": [1.5], "wide": [[[1, 1, 1], [1, 1, 1]]]},
    }


def test_the_answer_of_a_regression_is_its_values(models: dict[str, Model]) -> None:
    said = answers.answer(models["price"], {"price": np.array([[1.5], [2.0]], np.float32)}, top_k=3)
    assert said["values"] == [1.5, 2.0]


def test_the_answer_of_a_segmentation_is_the_labels_with_their_shares_and_the_map(models: dict[str, Model]) -> None:
    classes = np.array([[[2, 2, 0, 0, 0, 0]] * 4], np.uint8)
    scores = (classes[:, None] == np.arange(3).reshape(1, 3, 1, 1)).astype(np.float32)
    (said,) = answers.answer(models["colours"], {"out": scores}, top_k=3)["predictions"]
    assert (said["width"], said["height"]) == (6, 4)
    assert said["labels"] == [
        {"label": "red", "class": 0, "share": 0.666667},
        {"label": "blue", "class": 2, "share": 0.333333},
    ]
    image = Image.open(io.BytesIO(base64.b64decode(said["map"])))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), classes[0])


ONE, TWO = np.zeros((1, 3, 4, 6), np.float32), np.zeros((2, 3, 4, 6), np.float32)


@pytest.mark.parametrize(
    ("name", "accepted", "rows", "form"),
    [
        ("colours", "", ONE, answers.JSON),
        ("colours", "image/png", ONE, answers.PNG),
        ("colours", "image/png, */*;q=0.1", TWO, answers.JSON),
        ("colours", "application/octet-stream", TWO, answers.BINARY),
        ("digits-onnx-fp32", "image/png, application/json;q=0.1", ONE, answers.JSON),
    ],
)
def test_the_form_is_the_wanted_one_of_those_that_there_are(
    models: dict[str, Model], name: str, accepted: str, rows: Any, form: str
) -> None:
    assert answers.wanted(models[name], accepted, {"image": rows}) == form


@pytest.mark.parametrize(
    ("name", "accepted", "rows", "parts"),
    [
        ("colours", "image/png", TWO, ["'image/png'", "a PNG holds one map", "2 rows", "application/json"]),
        ("digits-onnx-fp32", "image/*", ONE, ["'image/*'", "'digits-onnx-fp32' answers no maps"]),
        ("colours", "text/html", ONE, ["'text/html'", "one of application/json, application/octet-stream, image/png"]),
    ],
)
def test_a_form_that_there_is_not_is_a_406_that_says_why_and_what_there_is(
    models: dict[str, Model], name: str, accepted: str, rows: Any, parts: list[str]
) -> None:
    with pytest.raises(RequestError) as raised:
        answers.wanted(models[name], accepted, {"image": rows})
    assert raised.value.status == 406
    for part in parts:
        assert part in str(raised.value)


def test_an_answer_in_binary_is_the_protocol_s_with_every_output_behind_its_json(models: dict[str, Model]) -> None:
    outputs = {"total": np.array([1.5, np.nan]), "wide": np.arange(12, dtype=np.int32).reshape(2, 2, 3)}
    content, headers = asyncio.run(answers.encode(models["pair"], outputs, answers.BINARY, 3, Times()))
    length = int(headers["Inference-Header-Content-Length"])
    said = json.loads(content[:length])
    assert headers["Content-Type"] == "application/octet-stream"
    assert "total;dur=" in headers["Server-Timing"]
    assert [(entry["name"], entry["datatype"], entry["shape"]) for entry in said["outputs"]] == [
        ("total", "FP64", [2]),
        ("wide", "INT32", [2, 2, 3]),
    ]
    assert content[length:] == outputs["total"].astype("<f8").tobytes() + outputs["wide"].astype("<i4").tobytes()


@pytest.mark.parametrize("form", [answers.JSON, answers.PNG])
def test_nan_is_refused_where_there_is_no_way_to_say_it(models: dict[str, Model], form: str) -> None:
    with pytest.raises(RequestError, match="NaN or Inf in output 'out'") as raised:
        asyncio.run(answers.encode(models["colours"], {"out": ONE * np.nan}, form, 3, Times()))
    assert raised.value.status == 422

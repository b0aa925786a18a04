"""/predict without HTTP: images, text, rows and tensors as inputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.preprocess import BadImage
from penstock.runtimes.fake import FakeRunner
from penstock.serve import predict
from penstock.serve.errors import RequestError
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load
from penstock.serve.predict import Bounds, Picture
from penstock.signature import Dim, ServedTensor, Signature, SignatureMismatch, Tensor

BOUNDS = Bounds(max_pixels=1_000_000)


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
        inputs = predict.image_inputs(digits, [Picture(png(image))], BOUNDS)
        assert list(inputs) == ["image"]
        assert inputs["image"].dtype == np.float32
        assert np.array_equal(inputs["image"], row[None])


def test_a_larger_colour_upload_is_resized_to_the_input(digits: Model, png: Callable[[Any], bytes]) -> None:
    inputs = predict.image_inputs(digits, [Picture(png(np.full((40, 30, 3), 255)))], BOUNDS)
    assert inputs["image"].shape == (1, 1, 8, 8)
    assert np.allclose(inputs["image"], (1 - 0.3) / 0.37)


@pytest.mark.parametrize("data", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_bytes_that_are_no_image_are_refused(digits: Model, data: bytes) -> None:
    with pytest.raises(BadImage, match=r"not an image|empty|damaged"):
        predict.image_inputs(digits, [Picture(data)], BOUNDS)


def test_an_image_over_the_pixel_limit_is_refused_with_its_size(digits: Model, png: Callable[[Any], bytes]) -> None:
    with pytest.raises(BadImage, match=r"11x10 = 110 pixels; the limit is 100 pixels \(--max-pixels\)$"):
        predict.image_inputs(digits, [Picture(png(np.zeros((10, 11))))], Bounds(max_pixels=100))
    assert predict.image_inputs(digits, [Picture(png(np.zeros((10, 10))))], Bounds(max_pixels=100))


def test_an_image_for_a_model_that_takes_none_is_refused_with_an_example(pair: Model) -> None:
    with pytest.raises(RequestError, match=r"no image preprocessing.*\"ids\".*\[batch, tokens\]") as raised:
        predict.image_inputs(pair, [Picture(b"")], BOUNDS)
    assert raised.value.status == 415


def test_json_rows_of_a_model_with_one_input_need_no_name(digits: Model) -> None:
    rows = np.arange(64).reshape(1, 1, 8, 8).tolist()
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
        (b'{"top_k": 3, "texts": ["a"]}', ["'top_k' is unknown", "'texts' alone"]),
        (b'{"image": "", "inputs": [1]}', ["'image' too", "exclude each other", "'inputs' alone"]),
        (b'{"url": "http://x"}', ["JSON object with 'inputs'", "image, images, text, texts, row, rows"]),
        (b'{"images": "AAAA"}', ["'images' must be a list"]),
        (b'{"images": []}', ["'images' must be a list", "'image' holds a single one"]),
        (b'{"images": ["AAAA", 5]}', ["images[1] is '5'", "a string"]),
        (b'{"image": null}', ["image is 'None'", "a string"]),
        (b'{"texts": "a"}', ["'texts' must be a list"]),
        (b'{"text": ["a"]}', ["text is", "a string"]),
        (b'{"rows": 5}', ["'rows' must be a list"]),
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


def test_a_bare_vector_signature_is_named_in_the_example() -> None:
    signature = Signature(inputs=(Tensor(name="x", shape=(4,)),), outputs=(Tensor(name="y", shape=(4,)),))
    model = Model("flat", 1, signature, None, lambda: RunnerBatches(FakeRunner(signature)), Limits(), Metrics())
    with pytest.raises(RequestError, match=r'\{"inputs": \{"x": …\}\}, shape \[4\]'):
        predict.json_inputs(model, b"{}")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sent(model: Model, content: Any, bounds: Bounds = Bounds()) -> dict[str, Any]:  # noqa: B008
    return predict.json_inputs(model, json.dumps(content).encode(), bounds)


@pytest.mark.parametrize(
    "write",
    [
        encoded,
        lambda data: f"data:image/png;base64,{encoded(data)}",
        lambda data: f"DATA:image/png;charset=utf-8;BASE64,{encoded(data)}",
        lambda data: f"data:;base64,{encoded(data)}",
        lambda data: base64.encodebytes(data).decode(),
    ],
    ids=["bare", "data URL", "upper case", "no type", "in lines"],
)
def test_an_image_in_base64_is_what_its_bytes_are(
    digits: Model, scans: tuple[Any, Any], png: Callable[[Any], bytes], write: Callable[[bytes], str]
) -> None:
    data = png(scans[0][0])
    expected = predict.image_inputs(digits, [Picture(data)], BOUNDS)["image"]
    assert np.array_equal(sent(digits, {"image": write(data)})["image"], expected)
    assert np.array_equal(sent(digits, {"images": [write(data)] * 3})["image"], np.concatenate([expected] * 3))


@pytest.mark.parametrize("scheme", ["http", "https", "HTTPS", "ftp", "file", " http", "gopher+x"])
def test_a_url_is_refused_since_nothing_is_ever_fetched(digits: Model, scheme: str) -> None:
    with pytest.raises(
        RequestError, match=r"images\[1\] is the URL '.*://host/cat.png', and the server fetches nothing"
    ):
        sent(digits, {"images": ["", f"{scheme}://host/cat.png"]})


def test_a_data_url_without_base64_is_refused(digits: Model) -> None:
    with pytest.raises(RequestError, match="a data: URL must hold base64"):
        sent(digits, {"image": "data:image/svg+xml,%3Csvg/%3E"})


@pytest.mark.parametrize("text", ["AAA", "A-_A", "héllo", "AAAA=A", "\ud800"])
def test_what_is_no_base64_is_refused_with_its_place(digits: Model, text: str) -> None:
    with pytest.raises(RequestError, match=r"images\[0\] is .*no base64") as raised:
        predict.json_inputs(digits, json.dumps({"images": [text]}, ensure_ascii=False).encode("utf-8", "replace"))
    assert raised.value.status == 400


@given(st.text(max_size=40))
def test_any_text_as_an_image_is_refused_in_one_sentence(digits: Model, text: str) -> None:
    with pytest.raises((RequestError, BadImage), match=r"^image(: | is )|^the request is not valid JSON"):
        predict.json_inputs(digits, json.dumps({"image": text}).encode())


@given(st.binary(max_size=60))
def test_any_bytes_survive_base64(data: bytes) -> None:
    assert predict._image(encoded(data), "image") == data
    assert predict._image(f"data:application/octet-stream;base64,{encoded(data)}", "image") == data


def test_a_bad_image_among_several_is_named(digits: Model, png: Callable[[Any], bytes]) -> None:
    good = encoded(png(np.zeros((8, 8))))
    with pytest.raises(BadImage, match=r"^images\[1\]: the 5 bytes sent are not an image"):
        sent(digits, {"images": [good, encoded(b"hello"), good]})


def test_a_bad_image_alone_is_told_without_a_place(digits: Model) -> None:
    with pytest.raises(BadImage, match=r"^the 5 bytes sent are not an image"):
        predict.image_inputs(digits, [Picture(b"hello")], BOUNDS)


def test_more_images_than_the_bound_are_refused_undecoded(digits: Model) -> None:
    with pytest.raises(RequestError, match=r"'images' holds more than 2 images \(--max-images\)"):
        sent(digits, {"images": [encoded(b"no image")] * 3}, Bounds(max_images=2))


def test_text_for_a_model_of_numbers_is_a_415_that_says_what_to_send(pair: Model) -> None:
    for content in ({"text": "hello"}, {"texts": ["hello", "there"]}):
        with pytest.raises(RequestError, match=r"'pair' takes no text: it records no tokenizer; .*\"ids\"") as raised:
            sent(pair, content)
        assert raised.value.status == 415


@pytest.mark.parametrize("shape", [("batch",), ("batch", 1)])
def test_text_for_a_model_of_strings_is_given_as_it_is(shape: tuple[int | str, ...]) -> None:
    signature = Signature(
        inputs=(ServedTensor(name="said", dtype="object", shape=shape),),
        outputs=(Tensor(name="y", shape=("batch",)),),
        dims={"batch": Dim(opt=4, max=8)},
    )
    model = Model("said", 1, signature, None, lambda: RunnerBatches(FakeRunner(signature)), Limits(), Metrics())
    assert predict.takes_text(model) is not None
    inputs = sent(model, {"texts": ["hello", "größer"]})
    signature.check(inputs)
    assert len(inputs["said"]) == 2


def test_rows_for_a_model_that_takes_none_are_a_415(pair: Model, digits: Model) -> None:
    for model in (pair, digits):
        instead = "send its tensors as JSON" if model is pair else "it takes pictures: send the file of one, or JSON"
        with pytest.raises(RequestError, match=f"takes no table rows; {instead}") as raised:
            sent(model, {"row": [1]})
        assert raised.value.status == 415
        with pytest.raises(RequestError, match="takes no table rows"):
            predict.csv_inputs(model, b"1,2\n")


def test_a_model_that_decodes_pixels_itself_gets_them_resized_and_no_further(
    digits: Model, scans: tuple[Any, Any], png: Callable[[Any], bytes]
) -> None:
    assert digits.receipt is not None
    assert digits.receipt.preprocess is not None
    image = digits.receipt.preprocess.model_copy(update={"dtype": "uint8"})
    model = Model(
        "pixels",
        *(1, image.contract(digits.signature), digits.receipt.model_copy(update={"preprocess": image})),
        *(lambda: RunnerBatches(FakeRunner(digits.signature)), Limits(), Metrics()),
    )
    (pixels,) = predict.image_inputs(model, [Picture(png(one)) for one in scans[0][:3]], Bounds()).values()
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, scans[0][:3, ..., None])
    (large,) = predict.image_inputs(model, [Picture(png(np.full((40, 30, 3), 200)))], Bounds()).values()
    assert (large.shape, np.unique(large).tolist()) == ((1, 8, 8, 1), [200])

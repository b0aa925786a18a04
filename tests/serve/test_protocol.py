"""The Open Inference Protocol: what is understood, and that all else is refused in one sentence, never with a crash."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.runtimes.fake import FakeRunner
from penstock.serve import protocol, replies
from penstock.serve.errors import RequestError
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.protocol import InferRequest, Wanted
from penstock.signature import V2_DTYPES, Dim, Signature, SignatureMismatch, Tensor

# The fake runtime casts whatever sum it is given, also NaN, to its outputs' dtypes.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")

SIGNATURE = Signature(
    inputs=(
        Tensor(name="image", dtype="float32", shape=("batch", 2, 2)),
        Tensor(name="ids", dtype="int64", shape=("batch", "tokens")),
    ),
    outputs=(Tensor(name="total", shape=("batch",)), Tensor(name="wide", dtype="int32", shape=("batch", 2))),
    dims={"batch": Dim(min=1, opt=2, max=4), "tokens": Dim(min=1, opt=2, max=3)},
)


# Inputs of other dtypes, each of which is refused before the others are missed.
ODD = SIGNATURE.model_copy(
    update={
        "inputs": tuple(
            Tensor(name=name, dtype=dtype, shape=("batch",))
            for name, dtype in (("u", "uint8"), ("i", "int8"), ("b", "bool"), ("h", "float16"))
        )
    }
)


def fake_model(signature: Signature = SIGNATURE) -> Model:
    return Model(
        "fake", 1, signature, None, lambda: RunnerBatches(FakeRunner(signature)), Limits(timeout_s=10), Metrics()
    )


MODEL, ODD_MODEL = fake_model(), fake_model(ODD)


def only(dtype: str) -> Signature:
    """One input, x."""
    return Signature(
        inputs=(Tensor(name="x", dtype=dtype, shape=(1,)),), outputs=SIGNATURE.outputs, dims=SIGNATURE.dims
    )


def joined(encoded: tuple[list[Any], dict[str, str]]) -> tuple[bytes, dict[str, str]]:
    return b"".join(encoded[0]), encoded[1]


def respond(body: bytes, header_length: str | None = None, model: Model | None = None) -> tuple[bytes, dict[str, str]]:
    """All that the infer route does, without HTTP."""
    model = model or MODEL

    async def work() -> tuple[bytes, dict[str, str]]:
        request = protocol.decode(body, header_length, model.signature)
        answer = await model.infer(request.inputs, timeout_s=request.timeout_s, priority=request.priority)
        return joined(replies.encode(model.name, model.version, request, answer))

    return asyncio.run(work())


def valid() -> dict[str, Any]:
    """A request of two rows."""
    return {
        "id": "seven",
        "inputs": [
            {"name": "image", "datatype": "FP32", "shape": [2, 2, 2], "data": [1, 2, 3, 4, 10, 20, 30, 40.5]},
            {"name": "ids", "datatype": "INT64", "shape": [2, 1], "data": [[100], [200]]},
        ],
    }


def refusal(content: Any, header_length: str | None = None) -> str:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    odd = any(f'"name": "{tensor.name}"'.encode() in body for tensor in ODD.inputs)
    with pytest.raises((RequestError, SignatureMismatch)) as raised:
        respond(body, header_length, ODD_MODEL if odd else None)
    if isinstance(raised.value, RequestError):
        assert raised.value.status == 400
    return str(raised.value)


# --- What is understood ------------------------------------------------------------------------------------------


def test_json_in_and_json_out() -> None:
    body, headers = respond(json.dumps(valid()).encode())
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body) == {
        "model_name": "fake",
        "model_version": "1",
        "id": "seven",
        "outputs": [
            {"name": "total", "datatype": "FP32", "shape": [2], "data": [110.0, 300.5]},
            {"name": "wide", "datatype": "INT32", "shape": [2, 2], "data": [111, 111, 301, 301]},
        ],
    }


def test_nested_data_means_the_same_as_flat_data() -> None:
    nested = valid()
    nested["inputs"][0]["data"] = [[[1, 2], [3, 4]], [[10, 20], [30, 40.5]]]
    assert respond(json.dumps(nested).encode()) == respond(json.dumps(valid()).encode())


def binary_request(content: dict[str, Any], tail: bytes) -> tuple[bytes, str]:
    text = json.dumps(content).encode()
    return text + tail, str(len(text))


def in_binary() -> tuple[dict[str, Any], bytes]:
    image = np.array([1, 2, 3, 4, 10, 20, 30, 40.5], "<f4").tobytes()
    ids = np.array([100, 200], "<i8").tobytes()
    content = valid()
    for entry, part in zip(content["inputs"], (image, ids), strict=True):
        del entry["data"]
        entry["parameters"] = {"binary_data_size": len(part)}
    return content, image + ids


def test_binary_in_and_binary_out() -> None:
    content, tail = in_binary()
    content["parameters"] = {"binary_data_output": True}
    body, headers = respond(*binary_request(content, tail))
    length = int(headers[protocol.HEADER_LENGTH])
    assert headers["Content-Type"] == "application/octet-stream"
    total, wide = json.loads(body[:length])["outputs"]
    assert total == {"name": "total", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    assert wide["parameters"] == {"binary_data_size": 16}
    assert np.frombuffer(body[length : length + 8], "<f4").tolist() == [110.0, 300.5]
    assert np.frombuffer(body[length + 8 :], "<i4").tolist() == [111, 111, 301, 301]


def test_one_input_and_one_output_in_binary_and_the_others_in_json() -> None:
    content, tail = in_binary()
    content["inputs"][1] = valid()["inputs"][1]
    content["outputs"] = [{"name": "wide", "parameters": {"binary_data": True}}, {"name": "total"}]
    body, headers = respond(*binary_request(content, tail[:32]))
    length = int(headers[protocol.HEADER_LENGTH])
    wide, total = json.loads(body[:length])["outputs"]
    assert (wide["name"], total["data"]) == ("wide", [110.0, 300.5])
    assert np.frombuffer(body[length:], "<i4").tolist() == [111, 111, 301, 301]


def test_only_the_outputs_asked_for_are_sent_in_the_order_asked() -> None:
    content = {**valid(), "outputs": [{"name": "wide"}]}
    body, _ = respond(json.dumps(content).encode())
    assert [output["name"] for output in json.loads(body)["outputs"]] == ["wide"]


def test_an_output_asked_for_in_json_overrides_the_binary_default() -> None:
    content = {
        **valid(),
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "total", "parameters": {"binary_data": False}}],
    }
    body, headers = respond(json.dumps(content).encode())
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body)["outputs"][0]["data"] == [110.0, 300.5]


def test_an_empty_list_of_outputs_means_all_of_them() -> None:
    request = protocol.decode(json.dumps({**valid(), "outputs": []}).encode(), None, SIGNATURE)
    assert request.outputs == {"total": Wanted(), "wide": Wanted()}


def test_an_answer_carries_an_id_only_if_the_request_did() -> None:
    content = valid()
    del content["id"]
    assert "id" not in json.loads(respond(json.dumps(content).encode())[0])


def test_timeout_is_in_microseconds_and_0_means_none_of_its_own() -> None:
    def timeout(value: int) -> float | None:
        content = {**valid(), "parameters": {"timeout": value}}
        return protocol.decode(json.dumps(content).encode(), None, SIGNATURE).timeout_s

    assert (timeout(1_500_000), timeout(0)) == (1.5, None)


def test_the_model_s_name_may_stand_in_the_request_as_in_the_binary_extension_s_example() -> None:
    assert respond(json.dumps({"model_name": "fake", **valid()}).encode()) == respond(json.dumps(valid()).encode())


def test_no_priority_is_the_highest_one_which_is_1() -> None:
    def read(**parameters: int) -> int:
        return protocol.decode(json.dumps({**valid(), "parameters": parameters}).encode(), None, SIGNATURE).priority

    assert [read(), read(priority=0), read(priority=1), read(priority=2)] == [0, 0, 0, 1]


def test_metadata_gives_minus_one_for_dynamic_sizes() -> None:
    assert replies.metadata("m", [3], SIGNATURE, "onnxruntime_onnx") == {
        "name": "m",
        "versions": ["3"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "image", "datatype": "FP32", "shape": [-1, 2, 2]},
            {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        ],
        "outputs": [
            {"name": "total", "datatype": "FP32", "shape": [-1]},
            {"name": "wide", "datatype": "INT32", "shape": [-1, 2]},
        ],
    }


# --- Every dtype, there and back ---------------------------------------------------------------------------------


def arrays(dtype: str, finite: bool) -> st.SearchStrategy[Any]:
    elements = {"allow_nan": not finite, "allow_infinity": not finite} if np.dtype(dtype).kind == "f" else None
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), elements=elements)


def encoded(array: Any, binary: bool) -> tuple[bytes, str | None]:
    """The array as the one input of a request."""
    entry = {"name": "x", "datatype": V2_DTYPES[array.dtype.name], "shape": list(array.shape)}
    if binary:
        content = {"inputs": [{**entry, "parameters": {"binary_data_size": array.nbytes}}]}
        return binary_request(content, array.tobytes())
    return json.dumps({"inputs": [{**entry, "data": array.reshape(-1).tolist()}]}).encode(), None


@pytest.mark.parametrize(
    ("dtype", "binary"),
    [(dtype, binary) for dtype in V2_DTYPES for binary in (True, False) if binary or dtype != "float16"],
)
def test_every_value_of_every_dtype_is_read_as_it_was_sent(dtype: str, binary: bool) -> None:
    @settings(max_examples=60, deadline=None)
    @given(arrays(dtype, finite=not binary))
    def check(array: Any) -> None:
        got = protocol.decode(*encoded(array, binary), only(dtype)).inputs["x"]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == array.tobytes() if binary else np.array_equal(got, array)

    check()


@pytest.mark.parametrize("dtype", V2_DTYPES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_value_of_every_dtype_is_sent_as_it_was_answered(dtype: str, binary: bool) -> None:
    if dtype == "float16" and not binary:
        request = InferRequest({}, {"y": Wanted()}, None, None, 0)
        with pytest.raises(RequestError, match="output 'y' is FP16"):
            replies.encode("m", 1, request, {"y": np.zeros(1, np.float16)})
        return

    @settings(max_examples=60, deadline=None)
    @given(arrays(dtype, finite=not binary))
    def check(array: Any) -> None:
        request = InferRequest({}, {"y": Wanted(binary)}, None, None, 0)
        body, headers = joined(replies.encode("m", 1, request, {"y": array}))
        length = int(headers.get(protocol.HEADER_LENGTH, len(body)))
        output = json.loads(body[:length])["outputs"][0]
        assert output["datatype"] == V2_DTYPES[dtype]
        assert output["shape"] == list(array.shape)
        if binary:
            assert output["parameters"] == {"binary_data_size": array.nbytes}
            assert body[length:] == array.tobytes()
        else:
            assert np.array_equal(np.array(output["data"], dtype).reshape(array.shape), array)

    check()


def test_an_output_that_is_not_contiguous_is_sent_in_row_major_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    body, headers = joined(
        replies.encode("m", 1, InferRequest({}, {"y": Wanted(binary=True)}, None, None, 0), {"y": array})
    )
    assert body[int(headers[protocol.HEADER_LENGTH]) :] == np.ascontiguousarray(array).tobytes()


def test_uint64_takes_small_and_largest_numbers_in_one_json_list() -> None:
    array = np.array([1, 2**64 - 1], np.uint64)
    got = protocol.decode(*encoded(array, binary=False), only("uint64")).inputs["x"]
    assert got.tolist() == [1, 2**64 - 1]


# --- What is refused, and how it is said -------------------------------------------------------------------------


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    content = valid()
    at = content
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return content


IMAGE, IDS = ["inputs", 0], ["inputs", 1]
REFUSED: dict[str, tuple[Any, list[str]]] = {
    # what is wrong: the request, and what the message must say: the field, the value and the rule
    "unknown input": (changed([*IMAGE, "name"], "picture"), ["input 'picture'", "image, ids"]),
    "missing input": ({"inputs": valid()["inputs"][:1]}, ["input 'ids' is missing", "image, ids"]),
    "input twice": ({"inputs": valid()["inputs"] + valid()["inputs"][:1]}, ["input 'image' is given twice"]),
    "name missing": ({"inputs": [{"datatype": "FP32"}]}, ["inputs[0].name", "missing", "string"]),
    "name a number": (changed([*IMAGE, "name"], 7), ["inputs[0].name", "number", "string"]),
    "unknown datatype": (changed([*IMAGE, "datatype"], "FP33"), ["datatype of input 'image'", "FP33", "FP32"]),
    "datatype BYTES": (changed([*IMAGE, "datatype"], "BYTES"), ["input 'image'", "object", "float32"]),
    "datatype a list": (changed([*IMAGE, "datatype"], []), ["datatype of input 'image'", "[]", "FP32"]),
    "another datatype": (changed([*IDS, "datatype"], "INT32"), ["input 'ids'", "int32", "must be int64"]),
    "rank": (changed([*IMAGE, "shape"], [2, 4]), ["input 'image'", "[2, 4]", "[batch, 2, 2]"]),
    "fixed size": (changed([*IMAGE, "shape"], [1, 2, 4]), ["input 'image'", "[1, 2, 4]", "[batch, 2, 2]"]),
    "no rows": (
        {
            "inputs": [
                {"name": "image", "datatype": "FP32", "shape": [0, 2, 2], "data": []},
                {"name": "ids", "datatype": "INT64", "shape": [0, 1], "data": []},
            ]
        },
        ["input 'image'", "[0, 2, 2]", "from 1 on"],
    ),
    "dynamic size over its range": (
        {"inputs": [valid()["inputs"][0], {"name": "ids", "datatype": "INT64", "shape": [2, 4], "data": [1] * 8}]},
        ["input 'ids'", "[2, 4]", "'tokens' from 1 to 3"],
    ),
    "rows differ": (
        {"inputs": [valid()["inputs"][0], {"name": "ids", "datatype": "INT64", "shape": [3, 1], "data": [1] * 3}]},
        ["input 'ids'", "[3, 1]", "'batch'", "2"],
    ),
    "shape missing": ({"inputs": [{"name": "image", "datatype": "FP32", "data": [1]}]}, ["shape of input 'image'"]),
    "shape a number": (changed([*IMAGE, "shape"], 8), ["shape of input 'image'", "8", "list"]),
    "shape of 33 sizes": (changed([*IMAGE, "shape"], [1] * 33), ["shape of input 'image'", "32"]),
    "negative size": (changed([*IMAGE, "shape"], [-1, 2, 2]), ["shape of input 'image'", "-1", "from 0"]),
    "fractional size": (changed([*IMAGE, "shape"], [2.0, 2, 2]), ["shape of input 'image'", "2.0", "whole"]),
    "size true": (changed([*IMAGE, "shape"], [True, 2, 2]), ["shape of input 'image'", "True", "whole"]),
    "size over 2**40": (changed([*IMAGE, "shape"], [2**50]), ["shape of input 'image'", str(2**50), str(2**40)]),
    "product of sizes overflows": (changed([*IMAGE, "shape"], [2**40] * 3), ["data of input 'image'", str(2**40)]),
    "product of sizes wraps round to 8": (
        changed([*IMAGE, "shape"], [2**32, 2**32, 8]),
        ["data of input 'image'", str(2**32)],
    ),
    "no rows of huge size": (
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [0, 2**40, 2**40], "data": []}]},
        ["image", str(2**40)],
    ),
    "data too short": (changed([*IMAGE, "data"], [1, 2, 3]), ["data of input 'image'", "[3]", "[2, 2, 2]"]),
    "data too long": (changed([*IMAGE, "data"], [0] * 9), ["data of input 'image'", "[9]", "[2, 2, 2]"]),
    "data nested otherwise": (
        changed([*IMAGE, "data"], [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ["data of input 'image'", "[2, 4]", "[2, 2, 2]"],
    ),
    "data missing": (
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1]}]},
        ["input 'image'", "neither data nor parameters.binary_data_size"],
    ),
    "ragged data": (changed([*IMAGE, "data"], [[1, 2], [3]]), ["data of input 'image'", "ragged"]),
    "data nested too deep": (
        changed([*IMAGE, "data"], json.loads("[" * 200 + "1" + "]" * 200)),
        ["data of input 'image'", "deep"],
    ),
    "a string": (changed([*IMAGE, "data"], ["1"] * 8), ["data of input 'image'", "numbers", "FP32"]),
    "one string": (changed([*IMAGE, "data"], [1, "2", *[0] * 6]), ["data of input 'image'", "numbers", "FP32"]),
    "a null": (changed([*IMAGE, "data"], [None, *[0] * 7]), ["data of input 'image'", "numbers", "FP32"]),
    "an object": (changed([*IMAGE, "data"], {}), ["data of input 'image'", "numbers", "FP32"]),
    "objects": (changed([*IMAGE, "data"], [{}] * 8), ["data of input 'image'", "numbers", "FP32"]),
    "data null": (changed([*IMAGE, "data"], None), ["data of input 'image'", "numbers", "FP32"]),
    "truth values for FP32": (changed([*IMAGE, "data"], [True] * 8), ["data of input 'image'", "numbers", "FP32"]),
    "one truth value for FP32": (
        changed([*IMAGE, "data"], [True, *[0.5] * 7]),
        ["data of input 'image'", "numbers", "FP32"],
    ),
    "one truth value for INT64": (
        changed([*IDS, "data"], [True, 2]),
        ["data of input 'ids'", "whole numbers", "INT64"],
    ),
    "a fraction for INT64": (changed([*IDS, "data"], [1, 2.5]), ["data of input 'ids'", "whole numbers", "INT64"]),
    "over the range of INT64": (changed([*IDS, "data"], [1, 2**63]), ["data of input 'ids'", "INT64"]),
    "over the range of UINT8": (
        {"inputs": [{"name": "u", "datatype": "UINT8", "shape": [2], "data": [0, 256]}]},
        ["data of input 'u'", "UINT8", "0 to 255"],
    ),
    "under the range of INT8": (
        {"inputs": [{"name": "i", "datatype": "INT8", "shape": [2], "data": [0, -129]}]},
        ["data of input 'i'", "INT8", "-128 to 127"],
    ),
    "a number for BOOL": (
        {"inputs": [{"name": "b", "datatype": "BOOL", "shape": [2], "data": [True, 1]}]},
        ["data of input 'b'", "true or false", "BOOL"],
    ),
    "1e300 for FP32": (changed([*IMAGE, "data"], [1e300, *[0] * 7]), ["data of input 'image'", "range", "FP32"]),
    "FP16 in JSON": (
        {"inputs": [{"name": "h", "datatype": "FP16", "shape": [1], "data": [1]}]},
        ["input 'h'", "FP16", "binary_data_size"],
    ),
    "inputs missing": ({}, ["'inputs'", "missing", "list"]),
    "inputs null": ({"inputs": None}, ["'inputs'", "null", "list"]),
    "inputs a string": ({"inputs": "image"}, ["'inputs'", "a string", "list"]),
    "inputs an object": ({"inputs": {"image": [1]}}, ["'inputs'", "an object", "list"]),
    "inputs empty": ({"inputs": []}, ["'inputs'", "list of at least one"]),
    "an input a number": ({"inputs": [7]}, ["inputs[0]", "a number", "object"]),
    "parameters of an input": (
        changed([*IMAGE, "parameters"], [1]),
        ["parameters of input 'image'", "a list", "object"],
    ),
    "outputs an object": ({**valid(), "outputs": {}}, ["'outputs'", "an object", "list"]),
    "an output a string": ({**valid(), "outputs": ["total"]}, ["outputs[0]", "a string", "object"]),
    "unknown output": ({**valid(), "outputs": [{"name": "sum"}]}, ["outputs[0].name", "'sum'", "total, wide"]),
    "output without a name": ({**valid(), "outputs": [{}]}, ["outputs[0].name", "total, wide"]),
    "output twice": ({**valid(), "outputs": [{"name": "wide"}] * 2}, ["output 'wide' is asked for twice"]),
    "classification of nothing": (
        {**valid(), "outputs": [{"name": "wide", "parameters": {"classification": 0}}]},
        ["classification of output 'wide'", "0", "from 1"],
    ),
    "an unknown field": ({**valid(), "input": []}, ["'input'", "id, parameters, inputs, outputs"]),
    "a sequence": ({**valid(), "parameters": {"sequence_id": 3}}, ["parameters.sequence_id", "stateful"]),
    "binary_data a number": (
        {**valid(), "outputs": [{"name": "wide", "parameters": {"binary_data": 1}}]},
        ["binary_data of output 'wide'", "1", "true or false"],
    ),
    "binary_data_output a string": (
        {**valid(), "parameters": {"binary_data_output": "yes"}},
        ["parameters.binary_data_output", "'yes'", "true or false"],
    ),
    "parameters a list": ({**valid(), "parameters": []}, ["parameters is a list", "object"]),
    "timeout a string": (
        {**valid(), "parameters": {"timeout": "1s"}},
        ["parameters.timeout", "'1s'", "whole number of microseconds"],
    ),
    "timeout a fraction": ({**valid(), "parameters": {"timeout": 0.5}}, ["parameters.timeout", "0.5", "whole number"]),
    "timeout negative": ({**valid(), "parameters": {"timeout": -1}}, ["parameters.timeout", "-1", "from 0"]),
    "timeout a number as text": (
        {**valid(), "parameters": {"timeout": "5"}},
        ["parameters.timeout is '5'; it must be a whole number of microseconds from 0 to 3600000000"],
    ),
    "timeout over an hour": ({**valid(), "parameters": {"timeout": 2**40}}, ["parameters.timeout", str(2**40)]),
    "priority negative": ({**valid(), "parameters": {"priority": -1}}, ["parameters.priority", "-1", "from 0"]),
    "id a number": ({**valid(), "id": 7}, ["'id'", "a number", "string"]),
    "a list": ([valid()], ["a list", "object with 'inputs'"]),
    "a number": (3, ["a number", "object with 'inputs'"]),
    "null": (None, ["null", "object with 'inputs'"]),
    "no JSON": (b"{'inputs': 1}", ["not valid JSON"]),
    "nothing": (b"", ["not valid JSON"]),
    "gzip": (gzip.compress(b"{}"), ["the body is gzip; send it with Content-Encoding: gzip"]),
    "not UTF-8": (b'{"inputs": "\xff"}', ["not valid JSON"]),
    "NaN for whole numbers": (
        b'{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [NaN]}]}',
        ["data of input 'ids'", "whole numbers"],
    ),
    "NaN beside a number that is too large": (
        b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1], "data": [NaN, 1e999]}]}',
        ["not valid JSON"],
    ),
    "10**5 brackets": (b"[" * 10**5, ["not valid JSON"]),
    "10**5 closed brackets": (b'{"inputs":' + b"[" * 10**5 + b"]" * 10**5 + b"}", ["not valid JSON"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_request_is_refused_with_its_field_value_and_rule(what: str) -> None:
    content, parts = REFUSED[what]
    message = refusal(content)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    "length",
    [
        "-1",
        "1.5",
        "ten",
        "",
        " 5",
        "+5",
        "٣",
        "0x10",
        "1e2",
        "99999999",
        "9" * 30,
        "0" * 19 + "99",
        "0" * 5000,
        "9" * 5000,
    ],
)
def test_a_header_length_that_is_no_number_within_the_body_is_refused(length: str) -> None:
    message = refusal(valid(), length)
    assert protocol.HEADER_LENGTH in message


def test_a_header_length_of_0_is_refused_as_a_raw_request() -> None:
    message = refusal(valid(), "0")
    assert protocol.HEADER_LENGTH in message
    assert "raw" in message


def test_a_header_length_that_cuts_the_json_short_is_refused() -> None:
    assert "not valid JSON" in refusal(valid(), "10")


@pytest.mark.parametrize("size", [0, 31, 33, 40])
def test_a_binary_data_size_that_is_not_what_the_shape_takes_is_refused(size: int) -> None:
    content, tail = in_binary()
    content["inputs"][0]["parameters"]["binary_data_size"] = size
    message = refusal(*binary_request(content, tail))
    assert f"binary_data_size of input 'image' is {size}" in message
    assert "32" in message


@pytest.mark.parametrize("size", [-1, 49, 2**63, "32", 32.0, True, [32]])
def test_a_binary_data_size_that_is_no_number_within_the_body_is_refused(size: Any) -> None:
    content, tail = in_binary()
    content["inputs"][0]["parameters"]["binary_data_size"] = size
    message = refusal(*binary_request(content, tail))
    assert "binary_data_size of input 'image'" in message
    assert "from 0 to 48" in message


def test_bytes_that_no_input_claims_are_refused() -> None:
    content, tail = in_binary()
    message = refusal(*binary_request(content, tail + b"!"))
    assert "49 bytes follow the JSON" in message
    assert "48" in message


def test_bytes_behind_a_json_only_request_are_refused() -> None:
    body, length = binary_request(valid(), b"more")
    assert "4 bytes follow the JSON" in refusal(body, length)


def test_binary_data_without_the_header_is_refused() -> None:
    content, _ = in_binary()
    assert "binary_data_size of input 'image' is 32" in refusal(content)


def test_bool_bytes_over_1_are_refused() -> None:
    entry = {"name": "b", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}
    message = refusal(*binary_request({"inputs": [entry]}, b"\x01\x02"))
    assert "'b'" in message
    assert "BOOL is 0 or 1" in message


@pytest.mark.parametrize(
    "content",
    [changed([*IMAGE, "name"], "x" * 100_000), changed([*IMAGE, "datatype"], "x" * 100_000)],
    ids=["name", "datatype"],
)
def test_a_message_does_not_repeat_a_huge_value(content: Any) -> None:
    assert len(refusal(content)) < 1000


# --- Fuzzing: nothing but a refusal ------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
words = st.sampled_from(
    ["inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "binary_data_size", "timeout", "id"]
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
odd_values = (
    json_values
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 1e300, [], {}, "", "FP32", "INT64", "BOOL", [2, 2], [[1], [2, 3]]])
    | st.lists(st.integers(0, 2**40), max_size=4)
)


def survives(body: bytes, header_length: str | None) -> None:
    """Answered, or refused as a request; anything else that is raised fails the test."""
    try:
        content, headers = respond(body, header_length)
    except (RequestError, SignatureMismatch):
        return
    assert json.loads(content[: int(headers.get(protocol.HEADER_LENGTH, len(content)))])["model_name"] == "fake"


def dumped(content: Any) -> bytes:
    return json.dumps(content).encode()


lengths = (
    st.none() | st.integers(-5, 400).map(str) | st.text(max_size=6) | st.from_regex(r"[0-9]{1,30}", fullmatch=True)
)


@settings(max_examples=250, deadline=None)
@given(json_values | st.fixed_dictionaries({"inputs": json_values}), lengths)
def test_arbitrary_json_is_answered_or_refused(content: Any, header_length: str | None) -> None:
    survives(dumped(content), header_length)


@settings(max_examples=250, deadline=None)
@given(st.binary(max_size=300), lengths)
def test_arbitrary_bytes_are_answered_or_refused(body: bytes, header_length: str | None) -> None:
    survives(body, header_length)


def paths(content: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    steps: Any = (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    )
    return [here, *[path for step, inner in steps for path in paths(inner, (*here, step))]]


FULL = {
    **valid(),
    "parameters": {"timeout": 10_000_000, "priority": 1, "binary_data_output": False},
    "outputs": [{"name": "total", "parameters": {"binary_data": True}}, {"name": "wide"}],
}


def replaced(content: Any, path: tuple[Any, ...], value: Any, delete: bool) -> Any:
    if not path:
        return value
    content = copy.deepcopy(content)
    at = content
    for step in path[:-1]:
        at = at[step]
    if delete:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return content


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(paths(FULL)), odd_values, st.booleans())
def test_a_valid_request_with_one_place_changed_is_answered_or_refused(
    path: tuple[Any, ...], value: Any, delete: bool
) -> None:
    survives(dumped(replaced(FULL, path, value, delete)), None)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_valid_binary_request_with_one_place_changed_is_answered_or_refused(data: st.DataObject) -> None:
    content, tail = in_binary()
    content = replaced(
        content, data.draw(st.sampled_from(paths(content))), data.draw(odd_values), data.draw(st.booleans())
    )
    tail = data.draw(st.sampled_from([tail, tail[:-1], tail + b"x", b""]))
    body, length = binary_request(content, tail)
    survives(body, data.draw(st.just(length) | lengths))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_valid_request_with_its_bytes_changed_is_answered_or_refused(data: st.DataObject) -> None:
    body, length = binary_request(*in_binary())
    changed_body = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed_body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(changed_body[: data.draw(st.just(len(body)) | st.integers(0, len(body)))]), length)


def test_an_input_with_both_data_and_binary_data_is_refused() -> None:
    content = valid()
    content["inputs"][0]["parameters"] = {"binary_data_size": 0}
    assert "'image' has more than one of data, binary_data_size" in refusal(content)


def test_numbers_that_are_none_are_sent_as_the_clients_read_them() -> None:
    request = InferRequest({}, {"total": Wanted()}, None, None, 0)
    (body,), _ = replies.encode("m", 1, request, {"total": np.array([np.nan, np.inf, -np.inf, 1.5], np.float32)})
    assert b'"data":[NaN,Infinity,-Infinity,1.5]' in body
    assert json.loads(body)["outputs"][0]["data"][1:] == [np.inf, -np.inf, 1.5]


@pytest.mark.parametrize("parameters", [5, True, 1.5, [], "x"])
def test_parameters_that_are_no_object_are_refused_beside_data_too(parameters: Any) -> None:
    content = valid()
    content["inputs"][0]["parameters"] = parameters
    assert "parameters of input 'image'" in refusal(content)


def test_a_list_of_strings_is_refused_before_it_costs_memory() -> None:
    content = valid()
    # numpy would make room for the longest of them in every place: 200 GB.
    content["inputs"][0]["data"] = ["a" * 1_000_000, *[""] * 50_000]
    assert "must hold numbers only" in refusal(content)


VALID = '{"name":"image","shape":[1,2,2],"datatype":"FP32","data":[1,2,3,4]}'


@pytest.mark.parametrize(
    "text",
    [
        '{"id":"\\ud800 NaN","inputs":[%s]}',
        '{"parameters":{"sequence_\\ud800":NaN},"inputs":[%s]}',
        '{"parameters":{"x":NaN},"inputs":[%s],"\\udfff":1}',
    ],
)
def test_half_a_surrogate_pair_is_no_text_beside_constants_either(text: str) -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        protocol.decode((text % VALID).encode(), None, SIGNATURE)


def test_bytes_that_are_no_utf_8_are_refused_beside_constants_too() -> None:
    with pytest.raises(RequestError, match="not valid JSON"):
        protocol.decode(b'{"id":"\xed\xa0\x80 NaN","inputs":[%b]}' % VALID.encode(), None, SIGNATURE)


def test_a_number_of_many_digits_is_a_number_out_of_range() -> None:
    text = VALID.replace("[1,2,3,4]", f"[NaN,1,2,1{'0' * 400}]")
    with pytest.raises(RequestError):
        protocol.decode(f'{{"inputs":[{text}]}}'.encode(), None, SIGNATURE)


def test_another_datatype_is_refused_before_its_bytes_are_read() -> None:
    entry = {"name": "image", "shape": [1048576], "datatype": "BYTES", "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(SignatureMismatch, match="input 'image' has dtype object; it must be float32"):
        protocol.decode(text + bytes(4), str(len(text)), SIGNATURE)


def test_an_input_that_there_is_not_is_refused_before_its_bytes_are_read() -> None:
    entry = {"name": "none", "shape": [1048576], "datatype": "BYTES", "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(SignatureMismatch, match="input 'none' is unknown; the model's inputs are image, ids"):
        protocol.decode(text + bytes(4), str(len(text)), SIGNATURE)

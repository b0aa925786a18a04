"""Answers held to the ones that are due."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock import messages
from penstock.bench.answers import NUMPY, Checker, Expected, Output, Unreadable, decode, difference
from penstock.bench.httpanswers import Answer, Head
from penstock.bench.payloads import GRPC, answer_of
from penstock.errors import PenstockError
from penstock.signature import V2_DTYPES

FLOATS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e3, 1e3, width=32))


FLOAT = {"datatype": "FP32", "shape": [1], "data": [1.0]}


def outputs(*listed: dict[str, Any]) -> bytes:
    """An answer in JSON."""
    return json.dumps({"outputs": listed}).encode()


def tensor(datatype: str, data: Any, shape: list[int] | None = None) -> bytes:
    """An answer of one tensor, in JSON; in binary behind it where the data are bytes."""
    entry: dict[str, Any] = {"name": "y", "datatype": datatype}
    if not isinstance(data, bytes):
        return outputs({**entry, "shape": shape or [len(data)], "data": data})
    size = np.dtype(NUMPY.get(datatype, np.uint8)).itemsize
    entry |= {"shape": shape or [len(data) // size], "parameters": {"binary_data_size": len(data)}}
    return outputs(entry) + data


def length(body: bytes) -> int | None:
    """How much of it is JSON, where bytes stand behind that."""
    end = body.rindex(b"}") + 1
    return end if b"binary_data_size" in body else None


def output(array: np.ndarray) -> Output:
    return Output(V2_DTYPES[array.dtype.name], array.shape, array)


def answer(expected: Expected) -> Answer:
    told = {} if expected.json_length is None else {b"inference-header-content-length": b"%d" % expected.json_length}
    return Answer(Head(200, len(expected.body), chunked=False, closes=False, fields=told), expected.body)


@given(FLOATS, st.sampled_from(["v2-binary", GRPC]))
def test_outputs_come_back_as_they_were(array: np.ndarray, form: str) -> None:
    ids = np.arange(3)
    due = answer_of({"y": array, "ids": ids}, form)
    found = decode(due.body, due.json_length, grpc=due.grpc)
    np.testing.assert_array_equal(found["y"].values, array)
    np.testing.assert_array_equal(found["ids"].values, ids)


@given(FLOATS, st.floats(1e-6, 0.5))
def test_floats_may_be_as_far_off_as_the_tolerance_and_no_further(array: np.ndarray, tolerance: float) -> None:
    wide = array.astype(np.float64)
    off = np.ones_like(wide) / np.sqrt(wide.size) * np.linalg.norm(wide) * tolerance
    assert difference({"y": output(wide)}, {"y": output(wide + 0.99 * off)}, tolerance) is None
    if np.linalg.norm(wide) > 1e-3:
        told = difference({"y": output(wide)}, {"y": output(wide + 1.01 * off)}, tolerance)
        assert told is not None
        assert told.startswith("y: relative L2 error")


@pytest.mark.parametrize(
    ("due", "got", "part"),
    [
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 entries differ"),
        (np.array([1.0]), np.array([np.nan]), "relative L2 error"),
        (np.array([0.0]), np.array([1e-9]), "relative L2 error"),
        (np.array([1.0]), np.array([[1.0]]), "FP64[1, 1], not FP64[1]"),
        (np.array([1.0]), np.array([1.0], np.float32), "FP32[1], not FP64[1]"),
    ],
)
def test_a_wrong_output_says_how_it_differs(due: np.ndarray, got: np.ndarray, part: str) -> None:
    assert part in str(difference({"y": output(due)}, {"y": output(got)}, 0.01))


TEXTS = b"\x01\0\0\0a\x02\0\0\0bc"


@pytest.mark.parametrize(
    ("due", "got", "part"),
    [
        (tensor("INT64", [1]), tensor("INT64", [1.9]), "1.9 is no INT64"),
        (tensor("INT64", [1]), tensor("INT64", ["1"]), "'1' is no INT64"),
        (tensor("INT64", [1]), tensor("INT64", [True]), "True is no INT64"),
        (tensor("BOOL", [True]), tensor("BOOL", ["false"]), "'false' is no BOOL"),
        (tensor("FP32", [1.0]), tensor("FP32", [True]), "True is no FP32"),
        (tensor("FP32", [1.0]), tensor("FP64", [1.0]), "FP64[1], not FP32[1]"),
        (tensor("FP32", [1.0]), tensor("BF16", [1.0]), "BF16[1], not FP32[1]"),
        (tensor("BYTES", ["a", "bc"]), tensor("BYTES", ["a", "bd"]), "1 of 2 entries differ"),
        (tensor("BYTES", ["a", "bc"]), tensor("BYTES", ["a", "bc"], [2, 1]), "BYTES[2, 1], not BYTES[2]"),
        (tensor("BYTES", ["a", "bc"]), tensor("BYTES", ["a", 3]), "3 is no BYTES"),
        (tensor("BYTES", ["a", "bc"]), tensor("BITS", TEXTS, [2]), "datatype 'BITS'"),
        (tensor("BYTES", ["a", "bc"]), tensor("BYTES", TEXTS[:-1], [2]), "a text that is longer"),
        (tensor("BYTES", ["a"]), tensor("BYTES", TEXTS, [1]), "cannot reshape"),
        (tensor("FP32", b"\0\0\x80?"), tensor("BF16", b"\x80?", [1]), "BF16[1], not FP32[1]"),
        (tensor("FP32", [1.0]), tensor("FP32", [1.0]) + b"\0", "Extra data"),
        (tensor("FP32", b"\0\0\x80?"), tensor("FP32", b"\0\0\x80?") + b"\0", "1 bytes behind the tensors"),
        (tensor("FP32", [1.0]), outputs(*[{"name": "y", **FLOAT}] * 2), "output 'y' twice"),
        (tensor("FP32", [1.0]), tensor("FP32", [1.0], [-1]), "shape [-1]"),
    ],
)
def test_an_answer_that_numpy_would_take_for_another_is_wrong(due: bytes, got: bytes, part: str) -> None:
    checker = Checker([Expected(due, length(due))], 0.01)
    assert not checker.right(0, answer(Expected(got, length(got))))
    assert part in checker.example


@pytest.mark.parametrize(
    ("due", "got"),
    [
        (tensor("BYTES", ["a", "bc"]), tensor("BYTES", TEXTS, [2])),
        (tensor("FP32", [1, None]), tensor("FP32", [1.0, "NaN"])),
        (tensor("FP32", [1.0]), tensor("FP32", b"\0\0\x80?")),
        (tensor("BF16", [1.0]), tensor("BF16", b"\x80?", [1])),
        (tensor("BOOL", [True, False]), tensor("BOOL", b"\1\0")),
    ],
)
def test_an_answer_may_be_written_in_another_way(due: bytes, got: bytes) -> None:
    checker = Checker([Expected(due, length(due))], 0.01)
    assert checker.right(0, answer(Expected(got, length(got)))), checker.example


@pytest.mark.parametrize("got", [tensor("INT64", [2]), tensor("FP32", [0.5, 0.5]), tensor("FP32", [7.0])])
def test_answers_that_are_not_compared_need_only_be_readable(got: bytes) -> None:
    checker = Checker([Expected(tensor("FP32", [0.0]), None)], math.inf)
    assert checker.right(0, answer(Expected(got, None)))
    assert not checker.right(0, answer(Expected(got[:-3], None)))


def test_a_message_with_an_output_twice_or_a_tensor_too_many_is_wrong() -> None:
    for names, raw in (("aa", 2), ("a", 2)):
        message = messages.message("ModelInferResponse")(raw_output_contents=[b"\0" * 4] * raw)
        for name in names:
            message.outputs.add(name=name, datatype="FP32", shape=[1])
        with pytest.raises(Unreadable):
            decode(message.SerializeToString(), None, grpc=True)


def test_json_of_no_protocol_is_compared_by_what_it_says_of_the_model() -> None:
    due = {"predictions": [{"label": "7", "score": 0.94}], "timing": {"total_ms": 1.0}}
    assert difference(due, {**due, "timing": {"total_ms": 3.0}}, 0.01) is None
    assert difference(due, {"predictions": [{"label": "7", "score": 0.9401}], "timing": {}}, 0.01) is None
    assert difference(due, {"predictions": [{"label": "1", "score": 0.94}], "timing": {}}, 0.01) is not None
    assert difference(due, {"predictions": [], "timing": {}}, 0.01) == "predictions: 0 entries, not 1"
    assert difference(due, {"error": "x"}, 0.01) == "it holds error, not predictions"


def test_a_checker_decodes_only_what_it_does_not_know() -> None:
    array = np.ones(4, np.float32)
    due, near, far = (answer_of({"y": array * factor}, "v2-binary") for factor in (1.0, 1.0001, 1.5))
    checker = Checker([due], 0.01)
    assert checker.right(0, answer(due))
    assert checker.compared == 0
    assert checker.right(0, answer(near))
    assert checker.right(0, answer(near))
    assert checker.compared == 1
    assert not checker.right(0, answer(far))
    assert "relative L2 error 0.5 is over 0.01" in checker.example


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        outputs({"name": "y"}),
        b'{"outputs": [1]}',
        b"[" * 100_000 + b"]" * 100_000,
        outputs({"name": "y", "datatype": "INT64", "shape": [1], "data": [2**70]}),
        outputs({"name": "y", "datatype": "UINT8", "shape": [1], "data": [257]}),
        outputs({"name": "y", "datatype": "FP32", "shape": [2**70], "data": [1.0]}),
    ],
)
def test_what_is_no_answer_is_wrong(body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(body, None)
    due = Expected(json.dumps({"outputs": []}).encode(), None)
    assert not Checker([due], 1.0).right(0, answer(Expected(body, None)))
    with pytest.raises(PenstockError, match="a request alone has an answer that is not the protocol's"):
        Expected.of(answer(Expected(body, None)))


@pytest.mark.parametrize("count", [0, 2])
def test_a_message_that_is_none_or_lacks_tensors_is_wrong(count: int) -> None:
    message = messages.message("ModelInferResponse")(raw_output_contents=[b"\0" * 4] * (count - 1))
    for name in "ab"[:count]:
        message.outputs.add(name=name, datatype="FP32", shape=[1])
    body = message.SerializeToString() if count else b"\xff\xff\xff\xff garbage"
    with pytest.raises(Unreadable):
        decode(body, None, grpc=True)


def test_a_length_of_thousands_of_digits_is_none() -> None:
    body = outputs({"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]})
    fields = {b"inference-header-content-length": b"9" * 5000}
    got = Answer(Head(200, len(body), chunked=False, closes=False, fields=fields), body)
    assert Checker([Expected(body + b" ", None)], 0.0).right(0, got)

"""Requests whose like was seen before are read as if it had not been."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import protocol
from penstock.serve.errors import RequestError
from penstock.serve.layouts import Layouts
from penstock.serve.protocol import InferRequest
from penstock.serve.sharedmemory import NO_REGIONS
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="a", shape=("batch", 2)), Tensor(name="b", dtype="int8", shape=("batch",))),
    outputs=(Tensor(name="y", shape=("batch", 2)), Tensor(name="z", shape=("batch",))),
    dims={"batch": Dim(min=1, opt=4, max=8)},
)
Body = tuple[bytes, str]


def body(rows: int, seed: int = 0, data: bool = False, **said: Any) -> Body:
    rng = np.random.default_rng(seed)
    arrays = {"a": rng.random((rows, 2), np.float32), "b": rng.integers(-9, 9, rows).astype(np.int8)}
    entries: list[dict[str, Any]] = []
    for (name, array), kind in zip(arrays.items(), ("FP32", "INT8"), strict=True):
        listed = data and name == "b"
        held = {"data": array.tolist()} if listed else {"parameters": {"binary_data_size": array.nbytes}}
        entries.append({"name": name, "shape": list(array.shape), "datatype": kind, **held})
    text = json.dumps({"inputs": entries, **said}).encode()
    return text + arrays["a"].tobytes() + (b"" if data else arrays["b"].tobytes()), str(len(text))


def plainly(content: bytes, length: str | None) -> InferRequest:
    return protocol.decode(content, length, SIGNATURE, NO_REGIONS)


def assert_same(found: InferRequest, expected: InferRequest) -> None:
    assert list(found.inputs) == list(expected.inputs)
    for name, array in expected.inputs.items():
        assert found.inputs[name].dtype == array.dtype
        assert np.array_equal(found.inputs[name], array)
    rest = ("outputs", "id", "timeout_s", "priority")
    assert [getattr(found, name) for name in rest] == [getattr(expected, name) for name in rest]


said = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["", "x", "y"]),
        "outputs": st.sampled_from([[{"name": "z"}], [{"name": "y", "parameters": {"binary_data": True}}]]),
        "parameters": st.sampled_from([{"timeout": 9}, {"priority": 3}, {"binary_data_output": True}]),
    },
)
requests = st.builds(
    lambda rows, seed, data, said: body(rows, seed, data, **said),
    st.integers(0, 3),
    st.integers(0, 5),
    st.booleans(),
    said,
)


@given(st.lists(requests, min_size=1, max_size=30))
def test_any_requests_in_any_order_are_read_as_each_alone_would_be(asked: list[Body]) -> None:
    layouts = Layouts()
    for content, length in asked:
        assert_same(layouts.decode(content, length, SIGNATURE, NO_REGIONS), plainly(content, length))


def test_a_request_seen_before_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = Layouts()
    layouts.decode(*body(2), SIGNATURE, NO_REGIONS)
    expected = plainly(*body(2, seed=7))
    monkeypatch.setattr(protocol, "decode", None)
    assert_same(layouts.decode(*body(2, seed=7), SIGNATURE, NO_REGIONS), expected)


@pytest.mark.parametrize("cut", [-1, 1])
def test_a_body_of_another_length_than_the_last_is_refused_as_at_first(cut: int) -> None:
    layouts = Layouts()
    content, length = body(2)
    layouts.decode(content, length, SIGNATURE, NO_REGIONS)
    wrong = content[:cut] if cut < 0 else content + b"\0" * cut
    with pytest.raises(RequestError) as first:
        plainly(wrong, length)
    with pytest.raises(RequestError) as again:
        layouts.decode(wrong, length, SIGNATURE, NO_REGIONS)
    assert str(first.value) == str(again.value)


@pytest.mark.parametrize("length", [None, "0", "-1", "x", "²", "99999", "4000", "007"])
def test_any_header_length_is_judged_as_at_first(length: str | None) -> None:
    layouts, content = Layouts(), body(2)[0]
    for _ in range(2):
        with pytest.raises(RequestError) as found:
            layouts.decode(content, length, SIGNATURE, NO_REGIONS)
        with pytest.raises(RequestError) as expected:
            plainly(content, length)
        assert str(found.value) == str(expected.value)


def test_constants_that_only_python_s_json_has_are_taken_twice_too() -> None:
    text = json.dumps({"inputs": [], "parameters": {"x": float("nan")}})
    text = text.replace("[]", json.dumps(json.loads(body(1)[0][: int(body(1)[1])])["inputs"]))
    content = text.encode() + body(1)[0][int(body(1)[1]) :]
    layouts = Layouts()
    for _ in range(2):
        assert_same(layouts.decode(content, str(len(text)), SIGNATURE, NO_REGIONS), plainly(content, str(len(text))))


def test_what_is_remembered_is_bounded() -> None:
    layouts = Layouts()
    for number in range(3000):
        layouts.decode(*body(1, id=str(number)), SIGNATURE, NO_REGIONS)
    layouts.decode(*body(1, id="x" * 5000), SIGNATURE, NO_REGIONS)
    assert 0 < len(layouts._held) <= 256
    assert max(map(len, layouts._held)) < 2048

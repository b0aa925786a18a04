"""Answers as JSON: the same however many numbers are written at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import replies
from penstock.serve.protocol import InferRequest, Wanted


@given(
    count=st.integers(1, 40), at_once=st.integers(1, 12), dtype=st.sampled_from(["float32", "int64", "bool", "uint8"])
)
def test_many_numbers_written_some_at_a_time_are_the_same_text(count: int, at_once: int, dtype: str) -> None:
    array = np.random.default_rng(count).normal(0, 3, (count, 2)).astype(dtype)
    asked = InferRequest({}, {"y": Wanted(binary=False)}, "id", None, 0)
    whole, _ = replies.encode("m", 1, asked, {"y": array})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replies, "_SLICE", at_once)
        sliced, _ = replies.encode("m", 1, asked, {"y": array})
    assert b"".join(sliced) == b"".join(whole)
    assert np.array_equal(np.array(json.loads(b"".join(sliced))["outputs"][0]["data"], dtype), array.reshape(-1))


def test_nan_among_many_numbers_is_still_written_as_clients_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "_SLICE", 2)
    asked = InferRequest({}, {"y": Wanted(binary=False)}, None, None, 0)
    text, _ = replies.encode("m", 1, asked, {"y": np.array([1, 2, np.nan, np.inf], np.float32)})
    assert b"[1.0,2.0,NaN,Infinity]" in b"".join(text)

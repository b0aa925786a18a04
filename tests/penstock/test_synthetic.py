"""Synthetic inputs: of a signature's dtypes, sizes and ranges, and the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import synthetic
from penstock.errors import PenstockError
from penstock.signature import V2_DTYPES, Dim, Range, Signature, Tensor

DTYPES = st.sampled_from(sorted(V2_DTYPES))
INTEGERS = [name for name in V2_DTYPES if "int" in name]


def signature(text: str, ranges: dict[str, Range] | None = None) -> Signature:
    tensors = tuple(Tensor.parse(part) for part in text.split())
    dims = {size: Dim(opt=4, max=64) for tensor in tensors for size in tensor.shape if isinstance(size, str)}
    return Signature(inputs=tensors, outputs=(), dims=dims, ranges=ranges or {})


def drawn(text: str, low: Any = None, high: Any = None, seed: int = 0, **sizes: int) -> Any:
    """The values of the one input that `text` declares."""
    ranges = {} if low is None else {text.partition(":")[0]: Range(low=low, high=high)}
    (values,) = synthetic.synthesize(signature(text, ranges), sizes, seed).inputs.values()
    return values


@given(dtype=DTYPES, batch=st.integers(1, 6), inner=st.integers(1, 6), seed=st.integers(0, 1000))
def test_inputs_fit_their_signature_and_depend_on_the_seed_alone(dtype: str, batch: int, inner: int, seed: int) -> None:
    declared = signature(f"x:{dtype}[batch,{inner}] y:{dtype}[batch] z:{dtype}[]")
    rows = synthetic.synthesize(declared, {"batch": batch}, seed)
    declared.check(rows.inputs)
    assert rows.labels is None
    again = synthetic.synthesize(declared, {"batch": batch}, seed)
    assert all(array.tobytes() == again.inputs[name].tobytes() for name, array in rows.inputs.items())


@pytest.mark.parametrize("dtype", V2_DTYPES)
def test_another_seed_gives_other_values(dtype: str) -> None:
    first, second = (drawn(f"x:{dtype}[50,9]", seed=seed) for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_normal(dtype: str) -> None:
    values = drawn(f"x:{dtype}[100,100]").astype(np.float64)
    assert abs(values.mean()) < 0.1
    assert 0.9 < values.std() < 1.1


def test_bytes_take_all_their_values() -> None:
    assert set(np.unique(drawn("image:uint8[64,64,3]"))) == set(range(256))


@given(dtype=st.sampled_from([name for name in INTEGERS if name != "uint8"]), length=st.integers(1, 12))
def test_integers_are_ones_and_then_zeros_as_the_mask_of_a_text_is(dtype: str, length: int) -> None:
    values = drawn(f"mask:{dtype}[20,2,{length}]")
    assert set(np.unique(values)) <= {0, 1}
    assert (np.diff(values.astype(np.int64), axis=-1) <= 0).all()
    assert (values[..., 0] == 1).all()


def test_the_texts_of_a_mask_are_of_many_lengths() -> None:
    assert set(drawn("mask:int64[200,6]").sum(-1)) == set(range(1, 7))


@pytest.mark.parametrize("declared", ["x:int64[200]", "x:bool[200]", "x:bool[20,10]"])
def test_flags_are_both_and_in_no_order(declared: str) -> None:
    values = drawn(declared).ravel().astype(np.int64)
    assert set(values) == {0, 1}
    assert {-1, 1} <= set(np.diff(values))


@given(dtype=DTYPES, low=st.integers(-100, 120), width=st.integers(0, 6))
def test_values_are_within_their_range_and_both_ends_are_met(dtype: str, low: int, width: int) -> None:
    if dtype == "bool" or (low < 0 and dtype.startswith("uint")):
        return
    values = drawn(f"x:{dtype}[300]", low, low + width)
    assert low <= values.min() <= values.max() <= low + width
    if "int" in dtype:
        assert set(values.tolist()) == set(range(low, low + width + 1))


def test_a_range_of_floats_is_uniform() -> None:
    values = drawn("x:float32[10000]", -2.0, 6.0)
    assert abs(values.mean() - 2) < 0.2
    assert values.min() < -1.9
    assert values.max() > 5.9


@given(length=st.integers(1, 40))
def test_a_bound_that_names_a_dimension_is_its_size(length: int) -> None:
    ranges = {"lengths": Range(low=1, high="seq")}
    declared = signature("ids:int64[batch,seq] lengths:int64[batch]", ranges)
    lengths = synthetic.synthesize(declared, {"batch": 2000, "seq": length}).inputs["lengths"]
    assert (lengths.min(), lengths.max()) == (1, length)


@pytest.mark.parametrize(
    ("declared", "low", "high", "said"),
    [
        ("x:int64[seq]", 8, "seq", "--range x=8.0,seq: there is no int64 from 8 to 4 (at seq=4)"),
        ("x:float32[seq]", "seq", 2, "--range x=seq,2.0: there is no float32 from 4 to 2 (at seq=4)"),
        ("x:uint8[3]", -1, 5, "--range x=-1.0,5.0: there is no uint8 from -1 to 5"),
        ("x:int8[3]", 0, 128, "there is no int8 from 0 to 128"),
        ("x:int64[3]", 0, 2.0**64, "there is no int64 from 0 to 1.84467e+19"),
    ],
)
def test_a_range_without_a_value_is_refused_with_its_bounds(declared: str, low: Any, high: Any, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        drawn(declared, low, high, seq=4)
    assert said in str(caught.value)


def test_ranges_as_wide_as_their_dtypes_are_drawn_from() -> None:
    floats = drawn("x:float64[2000]", -1e308, 1e308, seq=4)
    assert floats.min() < -9e307
    assert floats.max() > 9e307
    assert drawn("x:int64[2000]", -(2.0**63), 2.0**63, seq=4).max() > 2**62
    assert drawn("x:uint64[2000]", 0, 2.0**64, seq=4).max() > 2**63

"""Signatures: reading and writing them, and holding arrays to them."""

from __future__ import annotations

import keyword
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.signature import V2_DTYPES, Dim, Range, Signature, SignatureMismatch, Tensor, first_message

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-/:]{0,12}", fullmatch=True)
DIMS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TENSORS = st.builds(
    Tensor,
    name=NAMES,
    dtype=st.sampled_from(sorted(V2_DTYPES)),
    shape=st.lists(st.integers(1, 10**6) | DIMS, max_size=5).map(tuple),
)
IMAGES = Signature(
    inputs=(Tensor(name="image", shape=("batch", 1, 8, 8)),),
    outputs=(Tensor(name="logits", shape=("batch", 10)),),
    dims={"batch": Dim(min=2, opt=4, max=8)},
)
PAIR = Signature(
    inputs=(
        Tensor(name="ids", dtype="int64", shape=("batch", "length")),
        Tensor(name="mask", dtype="int64", shape=("batch", "length")),
    ),
    outputs=(Tensor(name="vector", shape=("batch", 16)),),
    dims={"batch": Dim(opt=4, max=8), "length": Dim(min=2, opt=8, max=32)},
)


@given(TENSORS)
def test_a_tensor_reads_back_from_its_own_text(tensor: Tensor) -> None:
    assert Tensor.parse(str(tensor)) == tensor


@given(TENSORS)
def test_a_tensor_reads_back_from_json_as_it_was(tensor: Tensor) -> None:
    assert Tensor.model_validate_json(tensor.model_dump_json()) == tensor


def test_spaces_around_sizes_are_forgiven() -> None:
    expected = Tensor(name="image", shape=("batch", 3, 224, 224))
    assert Tensor.parse(" image:float32[ batch, 3,224 , 224 ]\n") == expected


def test_the_dtype_is_float32_unless_given() -> None:
    assert Tensor.parse("image[batch,3]") == Tensor(name="image", dtype="float32", shape=("batch", 3))


def test_a_scalar_has_an_empty_shape() -> None:
    assert Tensor.parse("threshold:float64[]").shape == ()


def test_a_name_with_a_colon_and_number_is_not_taken_for_a_dtype() -> None:
    parsed = Tensor.parse("serving_default:0:int32[batch]")
    assert (parsed.name, parsed.dtype) == ("serving_default:0", "int32")


@pytest.mark.parametrize("text", ["", "image", "image:float32", "image:float32[1", "[1]", "image[1]]", "a[1][2]"])
def test_text_of_another_form_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(PenstockError) as caught:
        Tensor.parse(text)
    assert repr(text) in str(caught.value)
    assert "NAME:DTYPE[SIZE,…]" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field", "value", "rule"),
    [
        ("image:float33[1]", "dtype", "'float33'", "must be one of bool, uint8"),
        ("image[0]", "size", "0", "must be at least 1"),
        ("image[-1,3]", "size", "-1", "must be at least 1"),
        ("image[batch,,3]", "dimension name", "''", "letters, digits and _"),
        ("image[3x]", "dimension name", "'3x'", "letters, digits and _"),
        (".x[3]", "tensor name", "'.x'", "start with none of .-/:"),
        ("über[3]", "tensor name", "'über'", "must hold letters, digits and _.-/:"),
        ('a"b[3]', "tensor name", "'a\"b'", "must hold letters, digits and _.-/:"),
    ],
)
def test_a_bad_part_is_named_with_its_value_and_rule(text: str, field: str, value: str, rule: str) -> None:
    with pytest.raises(PenstockError) as caught:
        Tensor.parse(text)
    message = str(caught.value)
    for part in (repr(text), field, value, rule):
        assert part in message


@given(st.text(max_size=40))
def test_any_text_gives_a_tensor_or_a_penstock_error(text: str) -> None:
    try:
        tensor = Tensor.parse(text)
    except PenstockError:
        return
    assert Tensor.parse(str(tensor)) == tensor


@pytest.mark.parametrize("figures", [(0, 1, 2), (2, 1, 3), (1, 4, 3), (-1, 1, 1)])
def test_a_range_out_of_order_is_refused(figures: tuple[int, int, int]) -> None:
    least, usual, most = figures
    with pytest.raises(ValidationError, match=f"1 <= min <= opt <= max, not {least},{usual},{most}"):
        Dim(min=least, opt=usual, max=most)


def test_two_inputs_of_one_name_are_refused() -> None:
    twice = (Tensor(name="x", shape=(1,)), Tensor(name="x", shape=(2,)))
    with pytest.raises(ValidationError, match="tensor names must differ, not x, x"):
        Signature(inputs=twice, outputs=())


def test_an_input_dimension_without_a_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="dimension 'batch' of input 'x' has no range"):
        Signature(inputs=(Tensor(name="x", shape=("batch",)),), outputs=())


def test_a_dimension_of_an_output_alone_needs_no_range() -> None:
    signature = Signature(inputs=(Tensor(name="x", shape=(3,)),), outputs=(Tensor(name="found", shape=("n", 4)),))
    assert signature.batch is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch"),
    [
        (("batch", 3), ("batch", 10), "batch"),
        (("batch", 3), ("batch",), "batch"),
        ((1, 3), (1, 10), None),
        (("batch", 3), (10,), None),
        (("batch", 3), ("length", 10), None),
        (("batch", 3), (), None),
    ],
)
def test_the_batch_is_the_first_dimension_that_all_tensors_share(
    inputs: tuple[int | str, ...], outputs: tuple[int | str, ...], batch: str | None
) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", shape=inputs),),
        outputs=(Tensor(name="y", shape=outputs),),
        dims={"batch": Dim(opt=2, max=5), "length": Dim(opt=2, max=7)},
    )
    assert signature.batch == batch
    assert signature.max_batch == (5 if batch else 1)


def test_another_batch_range_changes_nothing_else() -> None:
    wider = PAIR.with_batch(Dim(opt=16, max=128))
    assert wider.max_batch == 128
    assert (wider.inputs, wider.outputs) == (PAIR.inputs, PAIR.outputs)
    assert wider.dims["length"] == PAIR.dims["length"]
    assert PAIR.max_batch == 8


def test_a_batch_range_for_a_model_that_cannot_batch_is_refused() -> None:
    fixed = Signature(inputs=(Tensor(name="x", shape=(1, 3)),), outputs=(Tensor(name="y", shape=(1, 3)),))
    with pytest.raises(PenstockError, match="share a dynamic first dimension"):
        fixed.with_batch(Dim(opt=1, max=2))


@given(batch=st.integers(0, 20), length=st.integers(0, 50), other=st.integers(0, 50))
def test_arrays_pass_exactly_when_every_size_is_in_its_range(batch: int, length: int, other: int) -> None:
    arrays = {"ids": np.zeros((batch, length), np.int64), "mask": np.zeros((batch, other), np.int64)}
    fits = 1 <= batch <= 8 and 2 <= length <= 32 and length == other
    if fits:
        PAIR.check(arrays)
    else:
        with pytest.raises(SignatureMismatch):
            PAIR.check(arrays)


def test_the_order_of_the_arrays_does_not_matter() -> None:
    PAIR.check({"mask": np.zeros((1, 2), np.int64), "ids": np.zeros((1, 2), np.int64)})


def image(*shape: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"image": np.zeros(shape, dtype)}


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({}, ["'image'", "missing"]),
        ({**image(2, 1, 8, 8), "extra": np.zeros(1)}, ["'extra'", "unknown", "are image"]),
        (image(2, 1, 8, 8, dtype="float64"), ["'image'", "dtype float64", "must be float32"]),
        (image(2, 8, 8), ["'image'", "[2, 8, 8]", "must be [batch, 1, 8, 8]"]),
        (image(2, 3, 8, 8), ["'image'", "[2, 3, 8, 8]", "must be [batch, 1, 8, 8]"]),
        (image(1, 1, 8, 8), ["'image'", "[1, 1, 8, 8]", "'batch' from 2 to 8"]),
        (image(9, 1, 8, 8), ["'image'", "[9, 1, 8, 8]", "'batch' from 2 to 8"]),
    ],
)
def test_a_mismatch_names_the_input_the_value_and_the_rule(arrays: dict[str, np.ndarray], parts: list[str]) -> None:
    with pytest.raises(SignatureMismatch) as caught:
        IMAGES.check(arrays)
    for part in parts:
        assert part in str(caught.value)


def test_two_sizes_under_one_dimension_are_refused_with_both() -> None:
    with pytest.raises(SignatureMismatch) as caught:
        PAIR.check({"ids": np.zeros((2, 4), np.int64), "mask": np.zeros((2, 5), np.int64)})
    for part in ("'mask'", "[2, 5]", "'length'", ": 4"):
        assert part in str(caught.value)


def test_without_the_batch_limit_only_the_largest_batch_is_lifted() -> None:
    IMAGES.check(image(1000, 1, 8, 8), limit_batch=False)
    with pytest.raises(SignatureMismatch, match="'batch' from 2 on"):
        IMAGES.check(image(1, 1, 8, 8), limit_batch=False)
    long = {name: np.zeros((99, 33), np.int64) for name in ("ids", "mask")}
    with pytest.raises(SignatureMismatch, match="'length' from 2 to 32"):
        PAIR.check(long, limit_batch=False)


def test_an_unknown_field_of_a_stored_signature_is_refused() -> None:
    content = IMAGES.model_dump(mode="json") | {"outputz": []}
    with pytest.raises(ValidationError, match="outputz"):
        Signature.model_validate(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"opt": "many", "max": 4}, "opt: 'many': Input should be a valid integer"),
        ({"opt": 2, "max": 4, "least": 1}, "least: 1: Extra inputs are not permitted"),
        ({"opt": 2}, "max: Field required"),
        ({"opt": 5, "max": 4}, "a range must have 1 <= min <= opt <= max, not 1,5,4"),
    ],
)
def test_a_complaint_names_the_field_and_the_value_once(content: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Dim.model_validate(content)
    message = first_message(caught.value)
    assert message.startswith(said)
    assert "\n" not in message


def test_a_complaint_of_a_long_value_shows_its_beginning() -> None:
    with pytest.raises(ValidationError) as caught:
        Dim.model_validate({"opt": "x" * 10_000, "max": 4})
    assert first_message(caught.value).startswith("opt: 'xxxx")
    assert len(first_message(caught.value)) < 200


def test_python_keywords_are_fine_as_names() -> None:
    assert all(Tensor.parse(f"{word}[{word}]").shape == (word,) for word in keyword.kwlist)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_range_of_values_is_in_order(low: float, high: float) -> None:
    if low <= high:
        assert Range(low=low, high=high).at({}) == (low, high)
    else:
        with pytest.raises(ValidationError, match="a range of values must have low <= high"):
            Range(low=low, high=high)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None, [1]])
def test_a_bound_is_a_finite_number_or_a_name(value: Any) -> None:
    for ends in ({"low": value, "high": 1}, {"low": 1, "high": value}):
        with pytest.raises(ValidationError):
            Range.model_validate(ends)


def test_a_bound_that_names_a_dimension_is_its_size() -> None:
    assert Range(low=1, high="length").at({"length": 7, "batch": 3}) == (1, 7)
    assert Range(low="batch", high="length").at({"length": 7, "batch": 3}) == (3, 7)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"words": Range(low=0, high=1)}, "the range of 'words' is of no input; those are ids, mask"),
        ({"vector": Range(low=0, high=1)}, "the range of 'vector' is of no input"),
        ({"ids": Range(low=0, high="depth")}, "the range of 'ids' names 'depth', which is no dynamic dimension"),
        ({"ids": Range(low="depth", high=9)}, "the range of 'ids' names 'depth'"),
    ],
)
def test_a_range_is_of_an_input_and_names_dimensions_that_there_are(ranges: dict[str, Range], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Signature(**{**PAIR.__dict__, "ranges": ranges})


def test_ranges_read_back_from_json_and_may_be_missing() -> None:
    ranged = PAIR.model_copy(update={"ranges": {"ids": Range(low=0, high=9), "mask": Range(low=0, high="length")}})
    assert Signature.model_validate_json(ranged.model_dump_json()) == ranged
    old = {name: value for name, value in PAIR.model_dump(mode="json").items() if name != "ranges"}
    assert Signature.model_validate(old) == PAIR

"""Options: texts of the command line, understood or refused with the option, the value and the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import options
from penstock.errors import PenstockError
from penstock.signature import Dim

sizes = st.integers(1, 999_999)


@given(st.lists(st.sampled_from(["onnx", "trt", "torchscript"]), min_size=1), st.sampled_from([",", ", ", " ,", ",,"]))
def test_a_list_is_its_parts_in_order_each_once(parts: list[str], comma: str) -> None:
    assert options.commas(comma.join(parts), "--format") == tuple(dict.fromkeys(parts))


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_an_empty_list_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"--format '.*': must name at least one"):
        options.commas(text, "--format")


@given(st.tuples(sizes, sizes, sizes).map(sorted))
def test_three_sizes_in_order_are_a_range(found: list[int]) -> None:
    low, usual, high = found
    assert options.size_range(f"{low},{usual},{high}", "--batch") == Dim(min=low, opt=usual, max=high)


@given(sizes)
def test_one_size_is_the_largest_of_a_range_from_1(size: int) -> None:
    assert options.size_range(str(size), "--batch") == Dim(min=1, opt=min(8, size), max=size)


@given(st.text())
def test_any_text_is_a_range_or_refused_in_one_sentence(text: str) -> None:
    try:
        found = options.size_range(text, "--batch")
    except PenstockError:
        return
    assert 1 <= found.min <= found.opt <= found.max


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "eight", "1000000", "٣", "", "9" * 5000])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"--batch .*: must be a whole number from 1 to 999999"):
        options.positive(text, "--batch")


def test_precisions_come_from_the_long_form_or_one_short_one() -> None:
    assert options.precisions(None, False, False) == ("fp32",)
    assert options.precisions("fp32,int8", False, False) == ("fp32", "int8")
    assert options.precisions(None, True, False) == ("fp16",)
    assert options.precisions(None, False, True) == ("int8",)
    for given_twice in (("fp16", True, False), (None, True, True)):
        with pytest.raises(PenstockError, match="--fp16"):
            options.precisions(*given_twice)

"""Parity: distances against straightforward numpy, and what no limit lets through."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from pydantic import ValidationError

from penstock.parity import Distance, Limits, compare, distance, small_columns, worst

FLOATS = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)
LOOSE = Limits(max_error=1e300, min_agreement=0.0)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    arrays = hnp.arrays(np.float32, shape, elements=FLOATS)
    return draw(arrays), draw(arrays)


@given(pairs())
def test_the_figures_are_those_of_plain_arithmetic(
    pair: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    a, b = ([float(x) for x in array.ravel()] for array in pair)
    norm = math.sqrt(math.fsum(x * x for x in a))
    error = math.sqrt(math.fsum((y - x) ** 2 for x, y in zip(a, b, strict=True)))
    found = distance("y", *pair)
    assert found.output == "y"
    assert found.max_abs == max(abs(y - x) for x, y in zip(a, b, strict=True))
    assert math.isclose(found.rel_l2, error / norm if norm else error, rel_tol=1e-12)


@given(pairs())
def test_the_cosine_is_that_of_plain_arithmetic(
    pair: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    a, b = ([float(x) for x in array.ravel()] for array in pair)
    norms = math.hypot(*a) * math.hypot(*b)
    assume(norms > 0)
    # Rounding of the products is relative to the norms, not to the sum, which may cancel.
    expected = math.fsum(x * y for x, y in zip(a, b, strict=True)) / norms
    assert math.isclose(distance("y", *pair).cosine, expected, rel_tol=0, abs_tol=1e-12)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(2, 5)), elements=st.integers(-3, 3)).flatmap(
        lambda a: st.tuples(st.just(a), hnp.arrays(np.float64, a.shape, elements=st.integers(-3, 3)))
    )
)
def test_agreement_is_the_share_of_rows_with_the_same_first_largest(
    pair: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    rows = [(list(a).index(max(a)), list(b).index(max(b))) for a, b in zip(*pair, strict=True)]
    assert distance("y", *pair).agreement == pytest.approx(sum(i == j for i, j in rows) / len(rows), abs=1e-15)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 3, 4), ()])
def test_agreement_is_asked_only_of_rows_of_classes(shape: tuple[int, ...]) -> None:
    assert distance("y", np.ones(shape), np.ones(shape)).agreement is None


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=FLOATS))
def test_an_array_is_at_no_distance_from_itself(array: NDArray[np.float32]) -> None:
    found = distance("y", array, array.copy())
    assert (found.max_abs, found.rel_l2) == (0.0, 0.0)
    assert found.cosine == pytest.approx(1.0, abs=1e-12)
    assert found.failure(Limits(max_error=0.0, min_agreement=1.0)) is None


@given(
    array=hnp.arrays(np.float32, (3, 4), elements=FLOATS),
    row=st.integers(0, 2),
    column=st.integers(0, 3),
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    both=st.booleans(),
)
def test_nan_and_inf_are_never_within_any_limits(
    array: NDArray[np.float32], row: int, column: int, bad: float, both: bool
) -> None:
    damaged = array.copy()
    damaged[row, column] = bad
    for found in (
        distance("y", damaged if both else array, damaged),
        distance("y", damaged, array),
    ):
        assert found.failure(LOOSE) is not None
        assert found.failure(Limits(max_error=sys.float_info.max, min_agreement=0.01)) is not None


def test_a_distance_that_is_not_a_number_is_never_within_limits() -> None:
    lost = Distance(output="y", max_abs=math.nan, rel_l2=math.nan, cosine=math.nan, agreement=None)
    assert "nan" in str(lost.failure(Limits(max_error=sys.float_info.max, min_agreement=0.0)))
    doubtful = lost.model_copy(update={"rel_l2": 0.0, "agreement": math.nan})
    assert "top-1 agreement" in str(doubtful.failure(LOOSE))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_error", value) for value in (math.nan, math.inf, -math.inf, -1e-9)],
        *[("min_agreement", value) for value in (math.nan, math.inf, -0.01, 1.01)],
    ],
)
def test_a_limit_that_would_let_anything_or_nothing_through_is_none(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        Limits.model_validate({"max_error": 0.1, "min_agreement": 0.5, field: value})
    with pytest.raises(ValidationError, match=field):
        Limits.model_validate_json(json.dumps({"max_error": 0.1, "min_agreement": 0.5, field: value}))


def test_a_limit_itself_is_within_the_limit() -> None:
    item = Distance(output="y", max_abs=1.0, rel_l2=0.25, cosine=1.0, agreement=0.5)
    assert item.failure(Limits(max_error=0.25, min_agreement=0.5)) is None


def test_a_failure_names_the_figure_and_the_limit() -> None:
    item = Distance(output="y", max_abs=1.0, rel_l2=0.25, cosine=1.0, agreement=0.5)
    error = item.failure(Limits(max_error=0.125, min_agreement=0.0))
    assert error == "relative L2 error 0.25 is over the limit of 0.125"
    flips = item.failure(Limits(max_error=1.0, min_agreement=0.75))
    assert flips == "top-1 agreement 50.00% is under the limit of 75.00%"


def test_a_reference_of_zeros_is_judged_by_the_absolute_error() -> None:
    found = distance("y", np.zeros(4), np.full(4, 0.5))
    assert found.rel_l2 == 1.0
    assert found.cosine == 0.0


def test_half_precision_is_compared_without_losing_figures() -> None:
    reference = np.full(2048, 1.0, np.float32)
    found = distance("y", reference, (reference + np.float32(1e-3)).astype(np.float16))
    assert found.rel_l2 == pytest.approx(2.0**-10, rel=1e-12)  # float16's neighbour of 1


def test_integer_differences_do_not_wrap_around() -> None:
    found = distance("y", np.array([0, 255], np.uint8), np.array([255, 0], np.uint8))
    assert found.max_abs == 255.0


def test_outputs_in_another_order_are_refused() -> None:
    a, b = np.zeros(2), np.zeros(2)
    with pytest.raises(ValueError, match="outputs are b, a; they must be a, b, in that order"):
        compare({"a": a, "b": b}, {"b": b, "a": a})


@pytest.mark.parametrize("names", [("a",), ("a", "c"), ("a", "b", "c")])
def test_missing_and_extra_outputs_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="they must be a, b"):
        compare({"a": np.zeros(2), "b": np.zeros(2)}, {name: np.zeros(2) for name in names})


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"output 'a' has shape \[1, 3\]; it must be \[4, 3\]"):
        compare({"a": np.zeros((4, 3))}, {"a": np.zeros((1, 3))})


def test_each_output_is_compared_with_its_own() -> None:
    found = compare({"a": np.ones(3), "b": np.ones(3)}, {"a": np.ones(3), "b": np.full(3, 2.0)})
    assert [(item.output, item.rel_l2) for item in found] == [("a", 0.0), ("b", 1.0)]


def test_the_worst_of_every_figure_is_kept_for_each_output() -> None:
    items = [
        Distance(output="a", max_abs=1.0, rel_l2=0.1, cosine=0.9, agreement=None),
        Distance(output="b", max_abs=9.0, rel_l2=0.9, cosine=0.1, agreement=None),
        Distance(output="a", max_abs=0.5, rel_l2=0.3, cosine=0.8, agreement=0.75),
        Distance(output="a", max_abs=0.2, rel_l2=0.2, cosine=0.95, agreement=1.0),
    ]
    assert worst(items) == [
        Distance(output="a", max_abs=1.0, rel_l2=0.3, cosine=0.8, agreement=0.75),
        Distance(output="b", max_abs=9.0, rel_l2=0.9, cosine=0.1, agreement=None),
    ]


@pytest.mark.parametrize("lost_first", [True, False])
def test_the_worst_figure_of_all_is_one_that_is_no_number(lost_first: bool) -> None:
    good = Distance(output="a", max_abs=0.0, rel_l2=0.0, cosine=1.0)
    lost = Distance(output="a", max_abs=math.nan, rel_l2=math.nan, cosine=math.nan)
    (kept,) = worst([lost, good] if lost_first else [good, lost])
    assert kept.failure(LOOSE) is not None


def test_outputs_of_another_dtype_are_no_answer() -> None:
    with pytest.raises(ValueError, match=r"output 'y' has dtype int8; it must be float32"):
        compare({"y": np.ones(3, np.float32)}, {"y": np.ones(3, np.int8)})


@pytest.mark.parametrize(("flips", "fails"), [(0, False), (3, False), (40, True)])
def test_whole_numbers_are_right_or_wrong_however_near_they_are(flips: int, fails: bool) -> None:
    expected = np.arange(1000) + 100_000
    got = expected.copy()
    got[:flips] += 1
    found = distance("y", expected, got)
    assert (found.entries, found.rel_l2, found.agreement) == (1000, flips / 1000, None)
    assert bool(found.failure(Limits(max_error=1.0, min_agreement=0.97))) == fails


def test_one_whole_number_of_few_says_nothing() -> None:
    limits = Limits(max_error=0, min_agreement=0.995)
    assert distance("y", np.array([1]), np.array([2])).failure(limits) is None
    assert (
        distance("y", np.array([1, 2, 3, 4]), np.array([2, 2, 1, 4])).failure(limits)
        == "50.00% of its whole numbers differ"
    )


def test_columns_that_a_norm_hides_are_found_by_their_size_along_both_axes() -> None:
    like = np.ones((2, 6, 5))
    like[:, 4] = 1e-4
    like[:, 5] = 1e-8
    like[..., 3] *= 1e-5
    like[..., 2] = 0
    found = [(group.axis, group.places) for group in small_columns("y", like)]
    assert found == [(1, (4,)), (1, (5,)), (2, (3,))]


def test_columns_of_like_size_are_hidden_by_nothing() -> None:
    like = np.geomspace(1, 2e-3, 24).reshape(2, 12)
    assert small_columns("y", like) == []
    assert small_columns("y", np.zeros((3, 4))) == []
    assert small_columns("y", np.geomspace(1, 1e-30, 8)) == []
    assert small_columns("y", np.array([[1, 1_000_000]])) == []


def test_columns_are_judged_by_their_own_norm() -> None:
    (group,) = small_columns("y", np.array([[1e9, 3.0, 4.0], [1e9, 0, 0]]))
    assert group.error(np.array([[1e9, 3.0, 4.0]]), np.array([[2e9, 3.0, 4.5]])) == pytest.approx(0.1)
    assert group.error(np.array([[1e9, 0, 0]]), np.array([[1e9, 1, 1]])) is None
    assert str(group) == "output 'y', columns 1, 2 of axis 1"


def uneven(rows: int, large: int = 8, width: int = 1) -> NDArray[np.float64]:
    """Rows of which all but some large ones are 1000 times smaller."""
    sizes = np.where(np.arange(rows) < large, 1.0, 1e-3)
    return np.random.default_rng(0).uniform(1, 2, (rows, width)) * sizes[:, None]


@pytest.mark.parametrize("width", [1, 5])
def test_rows_that_are_lost_beside_larger_ones_fail_though_the_error_over_all_is_small(width: int) -> None:
    expected = uneven(64, width=width)
    got = expected.copy()
    got[8:] = 0
    found = distance("y", expected, got)
    assert found.rel_l2 < 5e-3
    assert found.typical == 1.0
    failure = found.failure(Limits(max_error=0.15, min_agreement=0.0))
    assert failure is not None
    assert failure.startswith(
        "half of the rows are off by 100% of their own size or more, though the error over all is "
    )
    assert found.failure(Limits(max_error=1.0, min_agreement=0.0)) is None


def test_a_row_s_size_is_that_of_all_its_numbers() -> None:
    expected = np.tile(np.array([[3.0, 0.0], [0.0, 4.0]]), (16, 1, 1))
    got = expected.copy()
    got[:9, 0, 1] = 2
    assert distance("y", expected, got).typical == pytest.approx(0.4)
    got[8] = expected[8]
    assert distance("y", expected, got).typical == pytest.approx(0.2)  # of an even number the mean of the middle two
    got[7] = expected[7]
    assert distance("y", expected, got).typical == 0


@pytest.mark.parametrize(("off", "limit", "fails"), [(0.49, 0.1, False), (0.51, 0.1, True), (0.6, 0.7, False)])
def test_half_of_the_rows_may_be_off_by_half_of_their_size_or_by_what_the_user_accepts(
    off: float, limit: float, fails: bool
) -> None:
    expected = uneven(64)
    got = expected.copy()
    got[8:] *= 1 - off
    found = distance("y", expected, got)
    assert found.typical == pytest.approx(off)
    assert (found.failure(Limits(max_error=limit, min_agreement=0.0)) is not None) == fails


@pytest.mark.parametrize(("rows", "empty", "says"), [(15, 0, False), (16, 0, True), (40, 24, True), (40, 25, False)])
def test_of_fewer_than_sixteen_rows_that_hold_anything_there_is_no_typical_one(
    rows: int, empty: int, says: bool
) -> None:
    expected = uneven(rows, large=1)
    expected[rows - empty :] = 0
    got = expected.copy()
    got[1:] = 0
    found = distance("y", expected, got)
    assert found.typical == (1.0 if says else None)
    assert (found.failure(Limits(max_error=0.5, min_agreement=0.0)) is None) == (not says)
    assert distance("y", np.float64(3), np.float64(3)).typical is None


def test_without_agreement_there_is_no_typical_row_either() -> None:
    found = distance("y", uneven(64, width=5), np.zeros((64, 5)))
    assert (found.agreement, found.typical) != (None, None)
    bare = found.without_agreement()
    assert (bare.agreement, bare.typical, bare.rel_l2) == (None, None, found.rel_l2)


@pytest.mark.parametrize(("values", "kept"), [((0.25, None, 0.75), 0.75), ((None, 0.5), 0.5), ((None, None), None)])
def test_the_largest_typical_error_is_the_worst(values: tuple[float | None, ...], kept: float | None) -> None:
    items = [Distance(output="a", max_abs=0, rel_l2=0, cosine=1, typical=value) for value in values]
    assert [item.typical for item in worst(items)] == [kept]
    assert [item.typical for item in worst(items[::-1])] == [kept]

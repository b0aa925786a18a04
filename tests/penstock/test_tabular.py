"""Table rows as tensors: standardised numbers, one-hot categories, one meaning for CSV and JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock import tabular
from penstock.errors import PenstockError
from penstock.tabular import BadRow, Column, TablePreprocess

RECORDS = [
    {"age": "30", "city": "Rome", "rooms": 2},
    {"age": 50, "city": "Oslo", "rooms": 3},
    {"age": "", "city": None, "rooms": "2"},
    {"age": math.nan, "city": "Rome", "rooms": 2.0},
]
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32) | st.integers(-(10**6), 10**6)


@pytest.fixture
def flats() -> TablePreprocess:
    return tabular.fit(RECORDS, ("age", "city", "rooms"), categories=("rooms",))


def test_columns_are_what_their_values_are(flats: TablePreprocess) -> None:
    assert flats.columns == (
        Column(name="age", kind="number", mean=40, std=10),
        Column(name="city", kind="category", categories=("Oslo", "Rome")),
        Column(name="rooms", kind="category", categories=("2", "3")),
    )
    assert (flats.features, flats.names) == (5, ("age", "city", "rooms"))


def test_rows_are_standardised_and_one_hot_and_a_missing_value_is_the_mean(flats: TablePreprocess) -> None:
    rows = flats.rows(RECORDS)["row"]
    assert rows.dtype == np.float32
    assert rows.tolist() == [[-1, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 1, 1, 0]]


def test_an_unknown_category_is_none_of_them(flats: TablePreprocess) -> None:
    assert flats.rows([{"age": 40, "city": "Bonn", "rooms": 7}])["row"].tolist() == [[0, 0, 0, 0, 0]]


def test_columns_that_are_not_the_model_s_are_passed_over(flats: TablePreprocess) -> None:
    more = [{**record, "price": "high"} for record in RECORDS]
    assert np.array_equal(flats.rows(more)["row"], flats.rows(RECORDS)["row"])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((3, 3.0, "3", "3.0", " 3 ", np.int64(3), np.float32(3)), "3"),
        ((True, "True", "true", "TRUE", np.bool_(True)), "true"),
        ((2.5, "2.5"), "2.5"),
        ((-0.0, 0, "0", "-0", "-0.0", "0.00"), "0"),
        ((None, "", "  ", math.nan, "NaN", "nan"), ""),
        (("01234",), "01234"),
        (("3.10",), "3.10"),
        ((1e17, "1e+17"), "1e+17"),
        ((9.2e15, "9200000000000000.0", "9200000000000000"), "9200000000000000"),
    ],
)
def test_a_category_is_one_whatever_it_came_from(values: tuple[Any, ...], text: str) -> None:
    assert [tabular.category(value) for value in values] == [text] * len(values)


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**63), 2**64 - 1) | st.booleans())
def test_a_value_and_its_text_are_the_same_category(value: Any) -> None:
    assert tabular.category(value) == tabular.category(str(value))


@given(st.lists(NUMBERS | st.none(), min_size=1, max_size=20).filter(lambda held: any(v is not None for v in held)))
def test_numbers_are_standardised_alike_from_json_and_from_csv(values: list[float | None]) -> None:
    from_json = [{"x": value} for value in values]
    from_csv = [{"x": "" if value is None else repr(value)} for value in values]
    held = tabular.fit(from_json, ["x"])
    assert held == tabular.fit(from_csv, ["x"])
    rows = held.rows(from_json)["row"]
    assert rows.tobytes() == held.rows(from_csv)["row"].tobytes()
    known = np.array([value for value in values if value is not None], np.float64)
    expected = (known - known.mean()) / (known.std() if held.columns[0].std != 1 else 1)
    assert np.allclose([row for row, value in zip(rows[:, 0], values, strict=True) if value is not None], expected)
    assert all(row == 0 for row, value in zip(rows[:, 0], values, strict=True) if value is None)


@given(st.lists(st.sampled_from(["b", "a", "c", "", None, 3, "3"]), min_size=1, max_size=12), st.randoms())
def test_categories_are_sorted_whatever_the_order_of_the_records(values: list[Any], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    if all(value in ("", None) for value in values):
        with pytest.raises(PenstockError, match="holds no value"):
            tabular.fit([{"x": value} for value in values], ["x"], categories=["x"])
        return
    held = tabular.fit([{"x": value} for value in values], ["x"], categories=["x"])
    assert held == tabular.fit([{"x": value} for value in shuffled], ["x"], categories=["x"])
    assert list(held.columns[0].categories) == sorted({str(value) for value in values if value not in ("", None)})
    rows = held.rows([{"x": value} for value in values])["row"]
    assert rows.sum(1).tolist() == [float(value not in ("", None)) for value in values]


def test_rows_do_not_depend_on_one_another(flats: TablePreprocess) -> None:
    alone = np.concatenate([flats.rows([record])["row"] for record in RECORDS])
    assert alone.tobytes() == flats.rows(RECORDS)["row"].tobytes()


def test_what_is_recorded_makes_the_same_rows(flats: TablePreprocess) -> None:
    read_back = TablePreprocess.model_validate_json(flats.model_dump_json())
    assert read_back == flats
    assert read_back.rows(RECORDS)["row"].tobytes() == flats.rows(RECORDS)["row"].tobytes()


@pytest.mark.parametrize("value", [0.1, 1e300, -7])
def test_a_column_of_one_value_is_zeros(value: float) -> None:
    held = tabular.fit([{"x": value}] * 3, ["x"])
    assert held.rows([{"x": value}])["row"].tolist() == [[0.0]]
    assert held.columns[0].std == 1


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("abc", "column 'age' is 'abc'; it must be a number"),
        ("1_000", "is '1_000'; it must be a number"),
        ("inf", "is 'inf'; it must be a number"),
        (True, "is True, a bool; it must be a number"),
        ([1], r"is \[1\], a list; it must be a number"),
        (math.inf, "is infinite"),
        (10**400, "is infinite"),
        ("1e300", "is 1e[+]300; that is too large beside the mean 40 and std 10"),
    ],
)
def test_a_value_that_is_no_number_is_refused_with_its_row_and_column(
    flats: TablePreprocess, value: Any, rule: str
) -> None:
    with pytest.raises(BadRow, match=rule) as caught:
        flats.rows([RECORDS[0], {**RECORDS[0], "age": value}])
    assert (caught.value.index, caught.value.column) == (1, "age")


def test_a_category_must_be_one_value(flats: TablePreprocess) -> None:
    with pytest.raises(BadRow, match=r"column 'city' is \{\}, a dict; it must be text or a number"):
        flats.rows([{**RECORDS[0], "city": {}}])


def test_a_record_without_a_column_is_refused(flats: TablePreprocess) -> None:
    with pytest.raises(BadRow, match="row 0, column 'city' is not there"):
        flats.rows([{"age": 1, "rooms": 2}])
    with pytest.raises(BadRow, match="row 1, column 'x' is not there"):
        tabular.fit([{"x": 1}, {}], ["x"])


@pytest.mark.parametrize("slip", ["n/a", "abc", "inf", "-inf", "1,5", math.inf, True])
def test_a_few_cells_that_are_no_numbers_make_no_categories_of_a_column_of_numbers(slip: Any) -> None:
    records = [{"x": str(number), "y": number} for number in range(18)]
    records[11:11] = [{"x": slip, "y": 0}, {"x": "", "y": 0}, {"x": "nan", "y": 0}]
    told = rf"^row 11, column 'x' is '{slip}', no number, where 18 others are numbers; correct the cell, leave it empty"
    with pytest.raises(PenstockError, match=told) as caught:
        tabular.fit(records, ["x", "y"], categories=["y"])
    assert str(caught.value).endswith("""--set 'preprocess.categories=["y", "x"]'""")
    held = tabular.fit(records, ["x", "y"], categories=["x", "y"])
    assert held.columns[0].width == 19


def test_the_first_of_several_slips_is_told_as_they_stand_in_the_file() -> None:
    records = [{"x": "b"}, *({"x": number} for number in range(18)), {"x": "a"}]
    with pytest.raises(
        PenstockError, match=r"^t[.]csv line 2, column 'x' is 'a', the first of 2 cells that are no num"
    ):
        tabular.fit(records, ["x"], place=lambda row: f"t.csv line {21 - row}")


def test_columns_with_fewer_numbers_than_nine_of_ten_are_categories() -> None:
    held = tabular.fit([*({"x": str(number)} for number in range(8)), {"x": "8 or more"}], ["x"])
    assert held.columns[0].categories == (*"01234567", "8 or more")


def test_what_columns_became_is_told(flats: TablePreprocess) -> None:
    assert flats.told == "numbers: age; categories: city (2), rooms (2)"
    assert TablePreprocess(columns=(Column(name="x", kind="number"),)).told == "numbers: x"


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(PenstockError, match="column 'x' holds no value"):
        tabular.fit([{"x": ""}, {"x": None}], ["x"])
    with pytest.raises(PenstockError, match="column 'x' holds no value"):
        tabular.fit([{"x": ""}], ["x"], categories=["x"])
    with pytest.raises(PenstockError, match="categories: 'y' is no column; those are x"):
        tabular.fit([{"x": 1}], ["x"], categories=["y"])
    words = [{"x": f"word {number}"} for number in range(11)]
    with pytest.raises(PenstockError, match=r"'x' holds 11 categories \(a value is 'word 0'; .*most_categories is 10"):
        tabular.fit(words, ["x"], most_categories=10)
    with pytest.raises(PenstockError, match="too large to standardise"):
        tabular.fit([{"x": 1e308}, {"x": -1e308}, {"x": 1.7e308}], ["x"])


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ({"kind": "number", "categories": ["a"]}, "it has no categories"),
        ({"kind": "category"}, "at least one in categories"),
        ({"kind": "category", "categories": ["a", "a"]}, "has a category twice"),
        ({"kind": "number", "std": 0}, "greater than 0"),
        ({"kind": "number", "mean": math.nan}, "finite"),
    ],
)
def test_columns_that_make_no_sense_are_refused(told: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        Column.model_validate({"name": "x", **told})


def test_columns_must_have_different_names_and_be_there() -> None:
    column = Column(name="x", kind="number")
    with pytest.raises(ValidationError, match="different names"):
        TablePreprocess(columns=(column, column))
    with pytest.raises(ValidationError, match="at least one"):
        TablePreprocess(columns=())

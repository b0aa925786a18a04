"""Table rows: which models take them, and each value where it belongs or refused by its place."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.serve import rows
from penstock.serve.errors import RequestError
from penstock.serve.rows import Columns
from penstock.signature import Dim, Signature, Tensor


def signature(*inputs: str) -> Signature:
    tensors = tuple(Tensor.parse(text) for text in inputs)
    names = {size for tensor in tensors for size in tensor.shape if isinstance(size, str)}
    output = Tensor(name="y", shape=("batch",))
    return Signature(inputs=tensors, outputs=(output,), dims={name: Dim(opt=4, max=8) for name in {*names, "batch"}})


def columns(*inputs: str) -> Columns:
    found = rows.columns(signature(*inputs))
    assert found is not None
    return found


PEOPLE = columns("age:float32[batch]", "children:int8[batch,1]", "member:bool[batch]")
NUMBERS = columns("row:float32[batch,3]")


def test_inputs_of_one_value_a_row_are_columns_by_their_names() -> None:
    assert (PEOPLE.names, PEOPLE.count) == (("age", "children", "member"), 3)
    assert columns("x:float32[batch,1]").names == ("x",)


def test_one_input_of_many_values_a_row_has_columns_without_names() -> None:
    assert (NUMBERS.names, NUMBERS.count) == (None, 3)


@pytest.mark.parametrize(
    "inputs",
    [
        ["image:float32[batch,1,8,8]"],
        ["ids:int64[batch,tokens]"],
        ["ids:int64[batch,4]", "mask:int64[batch,4]"],
        ["x:float32[]"],
    ],
)
def test_other_models_take_no_rows(inputs: list[str]) -> None:
    assert rows.columns(signature(*inputs)) is None


def test_rows_as_objects_or_lists_become_an_array_for_each_column_of_its_own_dtype_and_shape() -> None:
    found = rows.from_rows(PEOPLE, [{"member": True, "age": 3, "children": -1}, [2.5, 7, False]], 8)
    assert {name: (array.dtype.name, array.shape) for name, array in found.items()} == {
        "age": ("float32", (2,)),
        "children": ("int8", (2, 1)),
        "member": ("bool", (2,)),
    }
    assert [array.ravel().tolist() for array in found.values()] == [[3, 2.5], [-1, 7], [True, False]]


def test_rows_without_names_become_one_array() -> None:
    found = rows.from_rows(NUMBERS, [[1, 2, 3], [4, 5, 6.5]], 8)
    assert found["row"].dtype == np.float32
    assert found["row"].tolist() == [[1, 2, 3], [4, 5, 6.5]]


@pytest.mark.parametrize(
    ("held", "listed", "parts"),
    [
        (PEOPLE, [[1, 2, True], {"age": 1, "children": 2}], ["rows[1]", "no column 'member'", "age, children, member"]),
        (PEOPLE, [{"age": 1, "children": 2, "member": True, "x": 1}], ["rows[0]", "'x', which is unknown"]),
        (PEOPLE, [[1, 2]], ["rows[0] has 2 values", "age, children, member"]),
        (PEOPLE, ["abc"], ["rows[0] is neither a list nor an object"]),
        (PEOPLE, [[1, 2, True], [1, 300, True]], ["rows[1].children", "INT8", "-128 to 127"]),
        (PEOPLE, [[1, 2.5, True]], ["rows[0].children", "whole numbers"]),
        (PEOPLE, [["1", 2, True]], ["rows[0].age", "numbers"]),
        (PEOPLE, [[None, 2, True]], ["rows[0].age", "numbers"]),
        (PEOPLE, [[1, 2, 1]], ["rows[0].member", "true or false"]),
        (PEOPLE, [[[1], 2, True]], ["rows[0].age is a list", "one value"]),
        (PEOPLE, [[{}, 2, True]], ["rows[0].age", "numbers"]),
        (NUMBERS, [[1, 2, 3], [1, [2], 3]], ["rows[1][1] is a list"]),
        (NUMBERS, [[1, 2, 3], [1, 2, "3"]], ["rows[1][2]", "numbers"]),
        (NUMBERS, [[1, 2, 1e39]], ["rows[0][2]", "range"]),
        (NUMBERS, [{"a": 1, "b": 2, "c": 3}], ["rows[0] is an object", "no columns' names", "a list of 3 values"]),
        (NUMBERS, [[1, 2, 3, 4]], ["rows[0] has 4 values", "a list of 3 values"]),
        (NUMBERS, [[1, 2, 3]] * 9, ["more than 8 rows"]),
    ],
)
def test_a_wrong_row_is_refused_by_its_place_and_rule(held: Columns, listed: list[Any], parts: list[str]) -> None:
    with pytest.raises(RequestError) as raised:
        rows.from_rows(held, listed, 8)
    for part in parts:
        assert part in str(raised.value)
    assert raised.value.status == 400


def test_a_table_s_header_names_its_columns_in_any_order() -> None:
    found = rows.from_csv(PEOPLE, b"member,age,children\nTrue,1.5,2\nfalse, -1e2 ,-3\n", 8)
    assert [array.ravel().tolist() for array in found.values()] == [[1.5, -100], [2, -3], [True, False]]
    assert list(found) == ["age", "children", "member"]


@pytest.mark.parametrize("header", [b"", b"a,b,c\n", b"\xef\xbb\xbfa,b,3\n"])
def test_a_table_without_names_may_have_a_header(header: bytes) -> None:
    assert rows.from_csv(NUMBERS, header + b"1,2,3\n4,5,6\n", 8)["row"].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("held", "table", "parts"),
    [
        (PEOPLE, b"", ["no row"]),
        (PEOPLE, b"age,children,member\n", ["no row below its header"]),
        (PEOPLE, b"1,2,true\n", ["header has '1', which is unknown", "age, children, member"]),
        (PEOPLE, b"age,children\n1,2\n", ["header lacks 'member'"]),
        (PEOPLE, b"age,age,children,member\n", ["'age' twice"]),
        (PEOPLE, b"age,children,member\n1,2\n", ["line 2", "2 values"]),
        (PEOPLE, b"age,children,member\n1,2,true\n\nx,2,true\n", ["line 4, column age is 'x'", "a number"]),
        (PEOPLE, b"age,children,member\n1,2.0,true\n", ["line 2, column children is '2.0'", "whole number"]),
        (PEOPLE, b"age,children,member\n1,200,true\n", ["line 2, column children", "INT8", "-128 to 127"]),
        (PEOPLE, b"age,children,member\n1,2,yes\n", ["line 2, column member is 'yes'", "true or false"]),
        (PEOPLE, b"age,children,member\n,2,true\n", ["line 2, column age is ''", "a number"]),
        (NUMBERS, b"1,2\n", ["line 1", "2 values", "a list of 3 values"]),
        (NUMBERS, b"a,b\n1,2\n", ["line 1", "2 values", "a list of 3 values"]),
        (NUMBERS, b"1,2,3\n1,nan,3\n", ["line 2, column 2 is 'nan'", "a number"]),
        (NUMBERS, b"1,2,3\n1,1e999,3\n", ["line 2, column 2 is '1e999'", "a number"]),
        (NUMBERS, b"1,2,3\n1,1e39,3\n", ["line 2, column 2", "range"]),
        (NUMBERS, b"1,2,3\n" * 9, ["more than 8 rows"]),
        (NUMBERS, b"\xff", ["UTF-8"]),
        (NUMBERS, b'1,2,"3\n', ["line 1"]),
        (NUMBERS, b"9" * 5000 + b",2,3\n1,2,3\n1," + b"9" * 5000 + b",3", ["line 3, column 2", "a number"]),
    ],
)
def test_a_wrong_table_is_refused_by_its_line_and_column(held: Columns, table: bytes, parts: list[str]) -> None:
    with pytest.raises(PenstockError) as raised:
        rows.from_csv(held, table, 8)
    for part in parts:
        assert part in str(raised.value)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(floats, st.integers(-128, 127), st.booleans()), min_size=1, max_size=8))
def test_csv_and_json_of_the_same_rows_give_the_same_inputs(listed: list[tuple[float, int, bool]]) -> None:
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("age", "children", "member"), *listed])
    by_csv = rows.from_csv(PEOPLE, out.getvalue().encode(), 8)
    by_json = rows.from_rows(PEOPLE, json.loads(json.dumps(listed)), 8)
    for name, array in by_json.items():
        assert by_csv[name].dtype == array.dtype
        assert np.array_equal(by_csv[name], array)


@given(st.binary(max_size=80) | st.text('age,chilrnmbtuf1-.\n" ', max_size=80).map(str.encode))
def test_any_bytes_are_rows_or_refused(data: bytes) -> None:
    for held in (PEOPLE, NUMBERS):
        with suppress(PenstockError):
            found = rows.from_csv(held, data, 8)
            assert {len(array) for array in found.values()} <= set(range(1, 9))

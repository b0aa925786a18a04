"""CSV: records with their lines, and which first record is a header."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import tables
from penstock.tables import BadTable


def test_records_come_with_the_line_they_end_on_and_empty_lines_are_passed_over() -> None:
    data = b'\xef\xbb\xbfa, b\r\n\r\n1,"two\nlines"\n3,4'
    assert list(tables.records(data)) == [(1, ["a", "b"]), (4, ["1", "two\nlines"]), (5, ["3", "4"])]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a\n\xff", "not UTF-8: byte 0xff at position 2"),
        (b'a\n"open', "line 2"),
        (b'a\n"x"y,1\n', "line 2"),
        (b"a\n" + b"x" * 200_000, "line 2"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(data: bytes, words: str) -> None:
    with pytest.raises(BadTable, match=words):
        list(tables.records(data))


@pytest.mark.parametrize("text", ["1", "-1", "+0.5", ".5", "5.", "1e5", "1E-5", "007"])
def test_decimal_numbers_are_numbers(text: str) -> None:
    assert tables.is_number(text)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1_000", "0x1", "1,5", "1 2", "٣", "e5", "--1", ".", "9" * 401])
def test_nothing_else_is(text: str) -> None:
    assert not tables.is_number(text)


def test_a_record_of_numbers_is_no_header() -> None:
    assert tables.names_columns(["age", "1"])
    assert not tables.names_columns(["2.5", "1"])


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8).map(str.strip)


@given(st.lists(st.lists(cells, min_size=1, max_size=4), max_size=5))
def test_what_python_writes_is_read_back(rows: list[list[str]]) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    assert [record for _, record in tables.records(out.getvalue().encode())] == rows


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_a_bad_table(data: bytes) -> None:
    try:
        found = list(tables.records(data))
    except BadTable:
        return
    assert all(record and line >= 1 for line, record in found)


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "==", "-x.png"])
def test_what_a_spreadsheet_takes_for_a_formula_is_text(text: str) -> None:
    assert tables.inert(text) == f"'{text}"


@pytest.mark.parametrize("value", ["net-fp32", "-1.5e-3", "+2", "", "-", "a=b", "'=1", -1.5, None, True])
def test_other_cells_stay_as_they_are(value: Any) -> None:
    assert tables.inert(value) is value


def test_a_file_is_read_as_it_is_asked_for_with_the_line_each_record_begins_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa, b\r\n\r\n1,"two\nlines"\n3,4\n5,"6" 7\n')
    records = tables.stream(tmp_path / "a.csv")
    assert [next(records) for _ in range(3)] == [(1, ["a", "b"]), (3, ["1", "two\nlines"]), (5, ["3", "4"])]
    with pytest.raises(BadTable, match="line 6 of the table is no CSV"):
        next(records)


@given(
    st.binary(max_size=60) | st.text('a,"\r\n\udc80é', max_size=20).map(lambda t: t.encode("utf-8", "surrogateescape"))
)
def test_a_file_holds_the_records_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(data)
    try:
        whole = [record for _, record in tables.records(data)]
    except BadTable:
        with pytest.raises(BadTable):
            list(tables.stream(file))
    else:
        assert [record for _, record in tables.stream(file)] == whole

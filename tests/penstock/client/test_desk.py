"""The desk: where rows go, and what is said of those that have no answer."""

from __future__ import annotations

from pathlib import Path, PurePath

from penstock.client.desk import Desk, Wishes
from penstock.client.parcels import Piece, Source
from penstock.client.results import Row


def row(file: str, number: int | None, error: str) -> Row:
    piece = Piece(Source(file, None, PurePath(file)), number, b"")
    return Row(piece, number, None if error else {"label": "a", "score": 1.0}, error)


def test_the_same_reason_is_said_once_for_the_rows_of_a_file_that_follow_each_other(tmp_path: Path) -> None:
    said: list[str] = []
    desk = Desk(Wishes(csv=tmp_path / "out.csv"), said.append)
    told = [
        ("a.csv", 1, "no column x"),
        ("a.csv", 2, "no column x"),
        ("a.csv", 3, "no column x"),
        ("a.csv", 4, ""),
        ("a.csv", 5, "no column x"),
        ("b.csv", 1, "no column x"),
        ("b.csv", 2, "bad"),
        ("b.csv", 3, "bad"),
        ("1.png", None, "no picture"),
        ("2.png", None, "no picture"),
    ]
    for each in told:
        desk.take(row(*each))
    desk.clear()
    assert said == [
        "a.csv:1: no column x",
        "a.csv: the same for 2 more of its rows",
        "a.csv:5: no column x",
        "b.csv:1: no column x",
        "b.csv:2: bad",
        "b.csv: the same for 1 more of its rows",
        "1.png: no picture",
        "2.png: no picture",
    ]
    assert (desk.answered, desk.failed) == (1, 9)
    assert (tmp_path / "out.csv").read_text().count("no column x") == 5  # the table has every row's


def test_a_row_of_a_table_that_has_no_answer_is_told_by_its_line(tmp_path: Path) -> None:
    said: list[str] = []
    piece = Piece(Source("a.csv", None, PurePath("a.csv")), 6, b"", 7)
    Desk(Wishes(csv=tmp_path / "out.csv"), said.append).take(Row(piece, 6, error="no number"))
    assert said == ["a.csv, line 7: no number"]

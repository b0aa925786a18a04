"""Answers as rows, and rows as lines, JSON, CSV and pictures."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path, PurePath
from typing import Any

import pytest

from penstock.client import results
from penstock.client.parcels import Parcel, Piece, Source
from penstock.client.results import Maps, Row
from penstock.errors import PenstockError


def piece(name: str = "a.png", row: int | None = None) -> Piece:
    return Piece(Source(name, Path(name), PurePath(name)), row, None)


def parcel(*pieces: Piece) -> Parcel:
    return Parcel("image", pieces)


def labelled(label: str, score: float, *more: tuple[str, float]) -> dict[str, Any]:
    top = [{"label": name, "score": share} for name, share in ((label, score), *more)]
    return {"label": label, "score": score, "top": top}


CAT, DOG = labelled("cat", 0.75, ("dog", 0.25)), labelled("dog", 0.5, ("cat", 0.5))
SEEN = {
    "width": 2,
    "height": 1,
    "labels": [{"label": "road", "class": 1, "share": 0.75}, {"label": "sky", "class": 0, "share": 0.25}],
    "map": base64.b64encode(b"a png").decode(),
}


def test_each_piece_gets_its_own_prediction_in_order() -> None:
    found = results.rows(parcel(piece("a"), piece("b", 2)), {"predictions": [CAT, DOG]})
    assert [(row.name, row.prediction) for row in found] == [("a", CAT), ("b:2", DOG)]


def test_a_whole_file_gets_as_many_rows_as_are_answered() -> None:
    assert [row.name for row in results.rows(parcel(piece("a")), {"predictions": [CAT, DOG]})] == ["a:1", "a:2"]
    assert [row.name for row in results.rows(parcel(piece("a")), {"values": [1.5]})] == ["a"]


def test_another_number_of_answers_than_pieces_is_told() -> None:
    with pytest.raises(PenstockError, match="answers 1 rows to 2"):
        results.rows(parcel(piece("a"), piece("b")), {"predictions": [CAT]})


def test_outputs_are_taken_by_the_row_where_they_have_rows() -> None:
    two = results.rows(parcel(piece("a", 1), piece("a", 2)), {"outputs": {"x": [1, 2], "y": [[3], [4]]}})
    assert [row.prediction for row in two] == [{"x": 1, "y": [3]}, {"x": 2, "y": [4]}]
    (one,) = results.rows(parcel(piece("a")), {"outputs": {"x": [1, 2], "y": [3]}})
    assert one.prediction == {"x": [1, 2], "y": [3]}


@pytest.mark.parametrize(
    ("prediction", "line"),
    [
        (CAT, "a.png:3  cat 0.7500  dog 0.2500"),
        (SEEN, "a.png:3  road 0.7500  sky 0.2500"),
        ({"value": 1.5}, "a.png:3  1.5"),
        ({"value": [1, 2]}, "a.png:3  [1, 2]"),
        ({"x": 1, "y": [2.5]}, "a.png:3  x=1  y=[2.5]"),
    ],
)
def test_a_line_is_the_file_and_what_is_in_it(prediction: dict[str, Any], line: str) -> None:
    assert results.as_line(Row(piece(row=3), 3, prediction), 2) == line


def test_what_a_server_answers_steers_no_terminal() -> None:
    assert results.as_line(Row(piece(), None, labelled("a\x1b[2J", 1.0)), 1) == r"a.png  a\x1b[2J 1.0000"
    assert results.as_line(Row(piece(), None, {"\x9b2J": "\x1b"}), 1) == r'a.png  \x9b2J="\u001b"'


def test_json_is_a_line_of_the_file_the_row_and_the_prediction_as_it_came() -> None:
    assert json.loads(results.as_json(Row(piece(), None, CAT))) == {"file": "a.png", **CAT}
    assert json.loads(results.as_json(Row(piece(), 2, {"value": 1}))) == {"file": "a.png", "row": 2, "value": 1}
    assert json.loads(results.as_json(Row(piece(), None, error="no"))) == {"file": "a.png", "error": "no"}
    assert json.loads(results.as_json(Row(piece(), None, SEEN, map=Path("m/a.png"))))["map"] == "m/a.png"
    assert "\n" not in results.as_json(Row(piece("a\nb"), None, CAT))


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_a_table_has_labels_and_scores_and_an_error_where_there_is_one() -> None:
    found = [Row(piece("a,b.png"), None, CAT), Row(piece("c.png"), None, error="bad")]
    assert results.as_csv(found, 2).decode().splitlines()[0] == "file,label,score,label_2,score_2,error"
    assert read(results.as_csv(found, 2)) == [
        {"file": "a,b.png", "label": "cat", "score": "0.75", "label_2": "dog", "score_2": "0.25", "error": ""},
        {"file": "c.png", "label": "", "score": "", "label_2": "", "score_2": "", "error": "bad"},
    ]
    assert results.as_csv(found[:1], 1) == b'file,label,score\n"a,b.png",cat,0.75\n'


def test_a_table_of_rows_values_outputs_and_maps() -> None:
    assert results.as_csv([Row(piece(), 1, {"value": 2.5})], 1) == b"file,row,value\na.png,1,2.5\n"
    assert read(results.as_csv([Row(piece(), None, {"x": [1, 2]})], 1)) == [{"file": "a.png", "x": "[1, 2]"}]
    seen = Row(piece(), None, SEEN, map=Path("m/a.png"))
    assert results.as_csv([seen], 1) == b"file,label,score,map\na.png,road,0.75,m/a.png\n"
    assert results.as_csv([Row(piece(), None, error="bad")], 1) == b"file,error\na.png,bad\n"


def test_what_a_server_answers_is_no_formula_in_a_table() -> None:
    found = [Row(piece(), None, {"=1": [1]}), Row(piece(), None, error="=cmd|' /C calc'!A0")]
    assert results.as_csv(found, 1) == b"file,'=1,error\na.png,[1],\na.png,,'=cmd|' /C calc'!A0\n"
    assert results.as_csv([Row(piece("-"), None, labelled("@x", 1.0))], 1) == b"file,label,score\n-,'@x,1.0\n"


def test_maps_are_written_under_the_pictures_names_and_none_over_another(tmp_path: Path) -> None:
    maps = Maps(tmp_path / "new" / "maps")
    written = [maps.write(Row(piece(name, row), row, SEEN)) for name, row in MAPPED]
    assert [str(path.relative_to(tmp_path / "new" / "maps")) for path in written] == [
        "a.png",
        "a-2.png",
        "a-3.png",
        "in/a.png",
        "x-7.png",
    ]
    assert all(path.read_bytes() == b"a png" for path in written)


MAPPED = [("a.jpg", None), ("a.png", None), ("a.gif", None), ("in/a.jpg", None), ("x.npz", 7)]


def test_maps_of_a_model_that_answers_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="answers no class maps"):
        Maps(tmp_path).write(Row(piece(), None, CAT))


def test_maps_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match=r"--output .*file/a.png: cannot be written"):
        Maps(tmp_path / "file").write(Row(piece(), None, SEEN))

"""Files as requests: which files, of which kind, cut into which pieces, in what body."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartParser

from penstock.client import parcels as parcels_module
from penstock.client.parcels import Parcel, parcels, sources
from penstock.errors import PenstockError

ROWS = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
TWO = [*ROWS, {"name": "y", "datatype": "INT64", "shape": [-1]}]
FIXED = [{"name": "x", "datatype": "FP32", "shape": [4, 2]}]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pictures, some in a folder of their own, and other files; it is the working folder."""
    for name in ("b.png", "a.JPG", "deep/c.webp", "deep/er/d.gif", "notes.txt", "model.bin", "deep/rows.csv"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(words: list[str]) -> list[str]:
    return [source.name for source in sources(words)]


def test_a_folder_is_its_pictures_and_those_below_it_in_order(files: Path) -> None:
    assert names(["data"]) == ["data/a.JPG", "data/b.png", "data/deep/c.webp", "data/deep/er/d.gif"]
    assert [str(source.within) for source in sources(["data"])] == ["a.JPG", "b.png", "deep/c.webp", "deep/er/d.gif"]


def test_files_folders_and_patterns_keep_the_order_they_are_named_in(files: Path) -> None:
    assert names(["data/notes.txt", "data/*.png", "-", "data/deep/er"]) == [
        "data/notes.txt",
        "data/b.png",
        "-",
        "data/deep/er/d.gif",
    ]


def test_patterns_may_go_deep_and_may_be_absolute(files: Path) -> None:
    assert names(["data/**/*.[cw]*"]) == ["data/deep/c.webp", "data/deep/rows.csv"]
    assert names([f"{files}/data/?.png"]) == [f"{files}/data/b.png"]
    assert names(["data/d*"]) == ["data/deep/c.webp", "data/deep/er/d.gif"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(files: Path) -> None:
    Path("a[1].png").write_bytes(b"")
    assert names(["a[1].png"]) == ["a[1].png"]


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("nobody.png", "there is no such file"),
        ("data/*.tiff", "no file fits this pattern"),
        ("empty", "holds no picture"),
        ("emp*", "only folders without pictures"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_sent(files: Path, word: str, rule: str) -> None:
    with pytest.raises(PenstockError, match=rule):
        sources([word])


def packed(words: list[str], most: int = 8, inputs: list[dict[str, Any]] = ROWS) -> list[Parcel]:
    return list(parcels(sources(words), most, inputs))


def test_pictures_go_several_to_a_parcel_and_are_read_when_they_go(files: Path) -> None:
    found = packed(["data", "data/b.png"], most=2)
    assert [[piece.source.name for piece in parcel.pieces] for parcel in found] == [
        ["data/a.JPG", "data/b.png"],
        ["data/deep/c.webp", "data/deep/er/d.gif"],
        ["data/b.png"],
    ]
    assert [parcel.ends for parcel in found] == [2, 2, 1]
    Path("data/b.png").unlink()
    with pytest.raises(FileNotFoundError):
        found[0].packed()


async def parsed(body: bytes, headers: dict[str, str]) -> list[tuple[str, str, bytes]]:
    async def stream() -> Any:
        yield body

    form = await MultiPartParser(Headers(headers), stream()).parse()
    return [(name, file.filename, await file.read()) for name, file in form.multi_items()]  # type: ignore[union-attr]


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12), st.binary()
)
def test_a_form_is_read_as_the_files_that_it_was_made_of(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("form") / "x"
    path.write_bytes(data)
    named = SimpleNamespace(read_bytes=path.read_bytes, name=name)
    found = asyncio.run(parsed(*parcels_module._form([named, b"bytes"])))
    assert [(field, content) for field, _, content in found] == [("file", data), ("file", b"bytes")]
    assert found[1][1] == "stdin"


def test_a_file_between_pictures_parts_them(files: Path) -> None:
    found = packed(["data/b.png", "data/notes.txt", "data/a.JPG"])
    assert [(parcel.kind, len(parcel.pieces)) for parcel in found] == [("image", 1), ("text", 1), ("image", 1)]


def test_arrays_are_cut_by_the_row_and_go_as_binary_tensors(tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    y = np.arange(5, dtype=">i8")
    np.savez(tmp_path / "a.npz", x=x, y=y, labels=np.zeros(5))
    first, second, third = packed([str(tmp_path / "a.npz")], most=2, inputs=TWO)
    assert [[piece.row for piece in parcel.pieces] for parcel in (first, second, third)] == [[1, 2], [3, 4], [5]]
    assert [parcel.ends for parcel in (first, second, third)] == [0, 0, 1]
    body, headers = second.packed()
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
        {"name": "y", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}},
    ]
    assert body[length:] == x[2:4].tobytes() + y[2:4].astype("<i8").tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_sent_as_wide_as_the_model_takes_them(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([[0.5, 2.25]], dtype), y=np.array([7]))
    (parcel,) = packed([str(tmp_path / "a.npz")], inputs=TWO)
    (piece,) = parcel.pieces
    assert (piece.content["x"].dtype, piece.content["x"].tolist()) == (np.float32, [[0.5, 2.25]])
    np.savez(tmp_path / "a.npz", x=np.array([[1, 2]]), y=np.array([7.0]))
    (parcel,) = packed([str(tmp_path / "a.npz")], inputs=TWO)
    # A kind is never made another: whoever takes them says what is wrong with them.
    assert [parcel.pieces[0].content[name].dtype for name in "xy"] == [np.int64, np.float64]


def test_a_lone_array_is_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    (parcel,) = packed([str(tmp_path / "a.npy")])
    assert [set(piece.content) for piece in parcel.pieces] == [{"x"}] * 3


def test_arrays_for_a_model_of_one_size_go_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 2), np.float32))
    (parcel,) = packed([str(tmp_path / "a.npy")], inputs=FIXED)
    assert [piece.row for piece in parcel.pieces] == [None]


def test_a_table_s_rows_each_go_with_its_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,2\n3,"x, y"\n5,6\n')
    first, second = packed([str(tmp_path / "a.csv")], most=2)
    assert [(piece.row, piece.line) for piece in first.pieces] == [(1, 2), (2, 3)]
    assert first.packed() == (b'a,b\r\n1,2\r\n3,"x, y"\r\n', {"Content-Type": "text/csv"})
    assert second.packed()[0] == b"a,b\r\n5,6\r\n"
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    (bare,) = packed([str(tmp_path / "b.csv")])
    assert (bare.packed()[0], [piece.row for piece in bare.pieces]) == (b"1,2\r\n3,4\r\n", [1, 2])


def test_text_goes_by_the_line_without_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\nthree ü\n")
    (parcel,) = packed([str(tmp_path / "a.txt")])
    assert [piece.row for piece in parcel.pieces] == [1, 3]
    assert json.loads(parcel.packed()[0]) == {"texts": ["one", "three ü"]}


def test_json_goes_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"inputs": [[1, 2]]}')
    (parcel,) = packed([str(tmp_path / "a.json")])
    assert parcel.packed() == (b'{"inputs": [[1, 2]]}', {"Content-Type": "application/json"})


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"", "image"),
        (b'  {"inputs": []}', "json"),
        (b"some text\n", "text"),
        (npy(np.zeros((2, 2), np.float32)), "tensors"),
    ],
)
def test_standard_input_is_what_it_begins_with(monkeypatch: pytest.MonkeyPatch, data: bytes, kind: str) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    (parcel,) = packed(["-"])
    assert parcel.kind == kind
    assert parcel.packed()[0]


@pytest.mark.parametrize(
    ("name", "data", "inputs", "rule"),
    [
        ("a.npy", b"no array", ROWS, "pickle"),
        ("a.npy", npy(np.zeros(2, "U3")), ROWS, "must be one of BOOL|must be one of bool"),
        ("a.npy", npy(np.zeros(2)), TWO, "inputs x, y; send an .npz file"),
        ("a.npz", b"PK\x03\x04 cut short", ROWS, "zip"),
        ("a.csv", b"a,b\n", ROWS, "no row below its header"),
        ("a.csv", b"\xff", ROWS, "not UTF-8"),
        ("a.txt", b"\n \n", ROWS, "no line of text"),
        ("a.txt", b"\xff", ROWS, "utf-8"),
    ],
)
def test_a_file_that_cannot_be_read_fails_alone(
    tmp_path: Path, name: str, data: bytes, inputs: list[dict[str, Any]], rule: str
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "z.json").write_text("{}")
    failed, good = packed([str(tmp_path / name), str(tmp_path / "z.json")], inputs=inputs)
    assert (failed.kind, failed.ends, good.kind) == ("failed", 1, "json")
    assert re.search(rule, failed.pieces[0].content), failed.pieces[0].content


def test_halves_hold_all_pieces_in_order(files: Path) -> None:
    (parcel,) = packed(["data", "data/b.png"])
    first, second = parcel.halves()
    assert first.pieces + second.pieces == parcel.pieces
    assert (len(first.pieces), len(second.pieces)) == (2, 3)


def test_rows_of_a_parquet_file_are_those_of_its_csv_twin(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"age": [1, None], "size": ["small", "large"], "price": [0.1, 2.0], "old": [True, False]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("age,size,price,old\n1,small,0.1,true\n,large,2,false\n")
    found, wanted = (list(parcels(sources([str(tmp_path / name)]), 8, [])) for name in ("a.parquet", "a.csv"))
    assert [parcel.kind for parcel in found] == ["table"]
    assert [[piece.content for piece in parcel.pieces] for parcel in found] == [
        [piece.content for piece in parcel.pieces] for parcel in wanted
    ]

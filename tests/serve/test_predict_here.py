"""`penstock predict` with a model that is run here: what a server answers to the same files, cell by cell."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import artifact
from penstock.client import here, run
from penstock.client.desk import Wishes
from penstock.errors import PenstockError
from tests.serve.test_recorded import folder, recorded  # noqa: F401  # fixtures

if TYPE_CHECKING:
    from tests.serve.conftest import Server

TEXT = "The pump runs; all is well.\n\nthe valve LEAKS!\nnaïve Ærø pump\n"
FLATS = 'id,age,city,rooms,lift\n7,30,Rome,2,true\n8,,"Oslo, N",3,false\n9,many,Bonn,3,true\n'


def here_and_there(
    server: Server, models: Path, name: str, files: list[Path], csv_path: Path, **told: Any
) -> list[Any]:
    """Of a model here and of one behind a server: how many had no answer, and the rows of the table that it leaves."""
    found = []
    wishes = {"batch": 4, "top_k": 2, **told}
    for where in ("here", "there"):
        path = csv_path.with_name(f"{where}.csv")
        if where == "here":
            held = artifact.read(models / name)
            with held.load() as runner:
                model = here.Model(runner, held.receipt)
                failed = here.predict(model, list(map(str, files)), Wishes(csv=path, **wishes), lambda line: None)
        else:
            url = f"{server.url}/predict/{name}"
            failed = run.predict(url, list(map(str, files)), Wishes(csv=path, **wishes), lambda line: None)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        found.append((failed, [{key: value for key, value in row.items() if key != "error"} for row in rows]))
    return found


def test_pictures_are_answered_as_by_a_server_and_a_bad_one_fails_alone(
    forms: Server, forms_repository: Path, scans: Any, png: Callable[[Any], bytes], tmp_path: Path
) -> None:
    (tmp_path / "scans").mkdir()
    for number in range(9):
        (tmp_path / "scans" / f"{number}.png").write_bytes(png(scans[0][number]))
    (tmp_path / "scans" / "4.png").write_bytes(b"hello")
    mine, theirs = here_and_there(forms, forms_repository, "digits-onnx-fp32", [tmp_path / "scans"], tmp_path / "x")
    assert mine[0] == theirs[0] == 1
    assert [row["label"] for row in mine[1]] == [row["label"] for row in theirs[1]]
    assert [row["label_2"] for row in mine[1]] == [row["label_2"] for row in theirs[1]]
    for one, other in zip(mine[1], theirs[1], strict=True):
        assert one["score"] == other["score"] or float(one["score"]) == pytest.approx(float(other["score"]), abs=2e-6)


def test_class_maps_are_those_of_a_server(
    forms: Server, forms_repository: Path, png: Callable[[Any], bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(png(np.random.default_rng(0).integers(0, 255, (4, 6, 3), np.uint8)))
    maps = []
    for where in ("here", "there"):
        wishes = Wishes(output=tmp_path / where, csv=tmp_path / f"{where}.csv")
        if where == "here":
            held = artifact.read(forms_repository / "colours")
            with held.load() as runner:
                here.predict(here.Model(runner, held.receipt), [str(tmp_path / "a.png")], wishes, lambda line: None)
        else:
            run.predict(f"{forms.url}/predict/colours", [str(tmp_path / "a.png")], wishes, lambda line: None)
        maps.append((tmp_path / where / "a.png").read_bytes())
    assert maps[0] == maps[1]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("price", "1,2,3\n4,5,6.5\n"),
        ("price", "a,b,c\n1,2,3\n4,5,x\n"),
        ("people", "member,age,children\ntrue,30,2\nFALSE,1.5,0\n"),
        ("people", "member,age,children\ntrue,30,2\ntrue,1,2.5\nyes,1,2\n"),
    ],
)
def test_rows_of_numbers_are_answered_as_by_a_server(
    forms: Server, forms_repository: Path, name: str, table: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(table)
    mine, theirs = here_and_there(forms, forms_repository, name, [tmp_path / "rows.csv"], tmp_path / "x")
    assert mine == theirs


def test_arrays_are_answered_as_by_a_server(forms: Server, forms_repository: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", row=np.arange(33, dtype=np.float64).reshape(11, 3), labels=np.zeros(11))
    mine, theirs = here_and_there(forms, forms_repository, "price", [tmp_path / "rows.npz"], tmp_path / "x")
    assert mine == theirs
    assert [row["row"] for row in mine[1]] == [str(number) for number in range(1, 12)]


@pytest.mark.parametrize("name", ["mood", "tags"])
def test_texts_are_answered_as_by_a_server(
    recorded: Server,  # noqa: F811
    folder: Path,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "said.txt").write_text(TEXT)
    (tmp_path / "said.csv").write_text("label,text\ngood,all is well\nbad,it LEAKS\n")
    files = [tmp_path / "said.txt", tmp_path / "said.csv"]
    mine, theirs = here_and_there(recorded, folder, name, files, tmp_path / "x")
    assert mine == theirs
    assert [row["label"] for row in mine[1]] == ["good", "bad", mine[1][2]["label"], "good", "bad"]


def test_table_rows_are_answered_as_by_a_server_and_other_columns_are_left(
    recorded: Server,  # noqa: F811
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "flats.csv").write_text(FLATS)
    mine, theirs = here_and_there(recorded, folder, "price", [tmp_path / "flats.csv"], tmp_path / "x")
    assert mine == theirs
    assert mine[0] == 1


def refusal(folder: Path, name: str, file: Path) -> str:  # noqa: F811
    """Why a file has no answer."""
    told: list[str] = []
    held = artifact.read(folder / name)
    with held.load() as runner:
        here.predict(here.Model(runner, held.receipt), [str(file)], Wishes(), told.append)
    return told[0]


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("mood", "a.png", b"hello", "the model takes no pictures; it takes texts"),
        (
            "price",
            "a.txt",
            b"hello",
            "the model takes no text; it takes table rows: a .csv or .parquet file with",
        ),
        ("price", "a.csv", b"age,city\n1,Rome\n", "the table lacks the column 'rooms'; it has age, city"),
        ("price", "a.csv", b"age,city,rooms,lift\nmany,Rome,2,true\n", "column 'age' is 'many'; it must be a number"),
        ("price", "a.csv", b"1,2\n", "the row has 2 values; the model takes 4: age, city, rooms, lift"),
        ("mood", "a.csv", b"a,b\nx,y\n", "the table lacks the column 'text'; it has a, b"),
        ("mood", "a.json", b'{"text": "x"}', "a .json file is a request to a server"),
    ],
)
def test_what_a_model_does_not_take_is_said_with_what_it_takes(
    folder: Path,  # noqa: F811
    name: str,
    file: str,
    content: bytes,
    said: str,
    tmp_path: Path,
) -> None:
    (tmp_path / file).write_bytes(content)
    assert said in refusal(folder, name, tmp_path / file)


def test_rows_whose_answers_are_no_numbers_fail_alone(forms_repository: Path, tmp_path: Path, capsys: Any) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows[2] = np.nan
    np.savez(tmp_path / "rows.npz", row=rows)
    held = artifact.read(forms_repository / "price")
    told: list[str] = []
    with held.load() as runner:
        model = here.Model(runner, held.receipt)
        assert here.predict(model, [str(tmp_path / "rows.npz")], Wishes(json=True), told.append) == 1
    assert told[0].endswith("rows.npz:3: the model answers NaN or Inf in output 'price' for these inputs")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("value" in line, "error" in line) for line in lines] == [(True, False)] * 2 + [
        (False, True),
        (True, False),
    ]


def test_files_that_are_not_there_are_refused_before_anything_is_run(forms_repository: Path) -> None:
    held = artifact.read(forms_repository / "price")
    with held.load() as runner, pytest.raises(PenstockError, match=r"gone\.npz: there is no such file"):
        here.predict(here.Model(runner, held.receipt), ["gone.npz"], Wishes(), lambda line: None)

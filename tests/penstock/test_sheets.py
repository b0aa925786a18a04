"""CSV files behind --data, and samples of every kind, as the rows that a model takes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import datasets, evaluation, tabular, textual
from penstock.data.samples import Samples
from penstock.data.specs import Arrays, CsvTable, CsvText
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess

pytest.importorskip("tokenizers")
TEXTS = textual.fit(["the pump runs", "the valve leaks"], size=10, least=1, length=4)
RECORDS: list[dict[str, Any]] = [{"age": 1, "city": "Rome"}, {"age": 3, "city": "Oslo"}]
TABLE = tabular.fit(RECORDS, ["age", "city"])
PICTURES = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))


def sheet(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text, "utf-8")
    return path


def test_texts_are_read_with_the_names_of_their_classes(tmp_path: Path) -> None:
    path = sheet(tmp_path, 'label,text,id\ngood,"The pump, runs",7\n1,the valve,8\n')
    rows = datasets.read(path, TEXTS, ("good", "bad"), task="classification")
    assert np.array_equal(rows.inputs["ids"], TEXTS.rows(["The pump, runs", "the valve"])["ids"])
    assert rows.labels is not None
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [0, 1]


def test_columns_have_the_names_that_the_data_set_gives_them(tmp_path: Path) -> None:
    spec = CsvText(train="train.csv", text="review", label="stars")
    rows = datasets.read(sheet(tmp_path, "stars,review\n2,the pump\n"), TEXTS, None, dataset=spec)
    assert np.array_equal(rows.inputs["ids"], TEXTS.rows(["the pump"])["ids"])
    assert rows.labels is not None
    assert rows.labels.tolist() == [2]


def test_table_rows_are_those_of_training(tmp_path: Path) -> None:
    spec = CsvTable(train="train.csv", target="price", kind="numbers")
    path = sheet(tmp_path, "city,price,age\nRome,10.5,1\nOslo,-2,3.0\n")
    rows = datasets.read(path, TABLE, None, task="regression", dataset=spec)
    assert rows.inputs["row"].tobytes() == TABLE.rows(RECORDS)["row"].tobytes()
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == [10.5, -2]


def test_a_parquet_file_is_the_sheet_that_its_csv_twin_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "city": ["Rome", None, " Oslo"],
        "price": [10.5, -2.0, 0.1],
        "age": [1, None, 3],
        "odd": pyarrow.array([[1], [2], []]),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "sheet.parquet")
    spec = CsvTable(train="train.csv", target="price", kind="numbers")
    twin = sheet(tmp_path, "city,price,age\nRome,10.5,1\n,-2,\n Oslo,0.1,3\n")
    found, wanted = (
        datasets.read(path, TABLE, None, task="regression", dataset=spec) for path in (tmp_path / "sheet.parquet", twin)
    )
    assert found.inputs["row"].tobytes() == wanted.inputs["row"].tobytes()
    assert found.labels is not None
    assert wanted.labels is not None
    assert found.labels.tolist() == wanted.labels.tolist()
    parquet.write_table(pyarrow.table({"city": ["Rome"], "age": [1], "price": ["dear"]}), tmp_path / "sheet.pq")
    with pytest.raises(PenstockError, match=r"sheet.pq, row 1, column 'price' is 'dear'; it must be a number"):
        datasets.read(tmp_path / "sheet.pq", TABLE, None, task="regression", dataset=spec)


def test_a_sheet_without_answers_has_none(tmp_path: Path) -> None:
    assert datasets.read(sheet(tmp_path, "text\nthe pump\n"), TEXTS, None).labels is None
    assert datasets.read(sheet(tmp_path, "text,label\na,b\n"), TEXTS, None, task="multilabel").labels is None


@pytest.mark.parametrize(
    ("held", "text", "rule"),
    [
        (TEXTS, "", "holds no row below a header"),
        (TEXTS, "text\n", "holds no row below a header"),
        (TEXTS, "review\nx\n", "its header has no column 'text'; it has review"),
        (TEXTS, "text,text\nx,y\n", "its header has 'text' twice"),
        (TEXTS, "text,label\nx\n", "line 2: has 1 values; the header has 2"),
        (TEXTS, 'text,label\n"x\n\ny",dull\n', "line 4, column 'label' is 'dull'; it must be one of good, bad"),
        (TEXTS, "text,label\nx,2\n", "line 2, column 'label' is '2'"),
        (TEXTS, "text,label\nx,\n", "line 2, column 'label' is ''"),
        (TEXTS, 'text\n"x', "is no CSV"),
        (TABLE, "age\n1\n", "its header has no column 'city'; the model's are age, city"),
        (TABLE, "age,city\n1,Rome\nold,Rome\n", "line 3, column 'age' is 'old'; it must be a number"),
        (None, "text\nx\n", "is not recorded; give those, an .npz file"),
        (PICTURES, "text\nx\n", "is a table; the model takes pictures"),
    ],
)
def test_a_sheet_s_faults_are_named(tmp_path: Path, held: Any, text: str, rule: str) -> None:
    with pytest.raises(PenstockError) as caught:
        datasets.read(sheet(tmp_path, text), held, ("good", "bad"))
    assert str(caught.value).startswith(f"--data {tmp_path / 'data.csv'}")
    assert rule in str(caught.value)


def test_a_number_is_a_class_s_own_where_no_class_is_named_by_a_number(tmp_path: Path) -> None:
    rows = datasets.read(sheet(tmp_path, "age,city,label\n1,Rome,1\n2,Rome,good\n"), TABLE, ("good", "bad"))
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0]
    path = sheet(tmp_path, "age,city,label\n1,Rome,10\n2,Rome,0\n")
    with pytest.raises(PenstockError, match=r"line 3, column 'label' is '0'; it must be one of 1, 2, 10$"):
        datasets.read(path, TABLE, ("1", "2", "10"))


@pytest.mark.parametrize("label", ["x", "nan", "inf", "1e39"])
def test_a_regression_s_answers_are_numbers(tmp_path: Path, label: str) -> None:
    path = sheet(tmp_path, f"age,city,label\n1,Rome,2\n1,Rome,{label}\n")
    with pytest.raises(PenstockError, match=f"line 3, column 'label' is '{label}'; it must be a number"):
        datasets.read(path, TABLE, None, task="regression")


@pytest.mark.parametrize(
    ("held", "rule"),
    [
        (TEXTS, "texts: give a CSV or Parquet file with a column 'text'"),
        (TABLE, "table rows: give a CSV or Parquet file with the columns age, city"),
    ],
)
def test_pictures_for_a_model_of_texts_or_rows_are_refused(tmp_path: Path, held: Any, rule: str) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(PenstockError, match=f"holds pictures; the model takes {rule}"):
        datasets.read(tmp_path, held, None)


@pytest.mark.parametrize(
    ("task", "labels"), [("regression", [0.5, 2]), ("regression", [[1, 2], [3, 4.5]]), ("multilabel", [[0, 1], [1, 1]])]
)
def test_arrays_of_numbers_are_the_labels_of_their_tasks(tmp_path: Path, task: str, labels: Any) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), np.float32), labels=np.array(labels))
    rows = datasets.read(tmp_path / "a.npz", None, None, task=task)
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == labels
    with pytest.raises(PenstockError, match="accuracy needs class numbers"):
        evaluation.score(np.ones((2, 3), np.float32), rows)


@pytest.mark.parametrize(
    ("task", "labels", "rule"),
    [("multilabel", [0, 1], "one for each label of each row"), ("regression", [0.5, np.nan], "NaN or infinity")],
)
def test_labels_of_another_task_are_refused(tmp_path: Path, task: str, labels: Any, rule: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), np.float32), labels=np.array(labels))
    with pytest.raises(PenstockError, match=rule):
        datasets.read(tmp_path / "a.npz", None, None, task=task)


def test_samples_of_texts_and_rows_are_what_their_preprocessing_makes() -> None:
    texts, labels = ["the pump", "leaks"], np.array([0, 1])
    rows = datasets.rows(Samples(texts, labels, kind="text"), TEXTS)
    assert np.array_equal(rows.inputs["ids"], TEXTS.rows(texts)["ids"])
    assert rows.labels is labels
    rows = datasets.rows(Samples(RECORDS, labels, kind="row"), TABLE)
    assert rows.inputs["row"].tobytes() == TABLE.rows(RECORDS)["row"].tobytes()


def test_samples_of_encoded_pictures_are_read_as_a_server_reads_them() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 8), np.uint8)
    encoded = []
    for picture in pictures:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    labels = np.array([0, 1])
    rows = datasets.rows(Samples(encoded, labels), PICTURES)
    assert rows.inputs["image"].tobytes() == PICTURES.normalize(pictures).tobytes()
    with pytest.raises(PenstockError, match=r"b\.png: the 3 bytes sent are not an image"):
        datasets.rows(Samples([encoded[0], b"no!"], labels, places=["a.png", "b.png"]), PICTURES)


def test_samples_of_arrays_are_stacked() -> None:
    items = [{"x": np.full(2, number), "y": np.int64(number)} for number in range(3)]
    rows = datasets.rows(Samples(items, np.arange(3), kind="arrays"), None)
    assert rows.inputs["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert rows.inputs["y"].tolist() == [0, 1, 2]


def test_samples_of_another_kind_than_the_model_takes_are_refused() -> None:
    samples = Samples(["a"], np.array([0]), kind="text")
    with pytest.raises(PenstockError, match="the data set holds texts; the model's preprocessing takes table rows"):
        datasets.rows(samples, TABLE)
    with pytest.raises(PenstockError, match="holds texts; the model's preprocessing takes the arrays"):
        datasets.rows(samples, None)
    with pytest.raises(PenstockError, match="holds arrays; the model's preprocessing takes pictures"):
        datasets.rows(Samples([{}], np.array([0]), kind="arrays"), PICTURES)


def test_a_sample_that_cannot_be_read_is_named_by_its_place() -> None:
    bad = Samples([{"age": "old", "city": "Rome"}], np.array([0]), kind="row", places=["train.csv line 2"])
    with pytest.raises(PenstockError, match=r"train\.csv line 2, column 'age' is 'old'; it must be a number"):
        datasets.rows(bad, TABLE)
    with pytest.raises(PenstockError, match="item 0 holds half of a surrogate pair"):
        datasets.rows(Samples(["\ud800"], np.array([0]), kind="text"), TEXTS)


def test_arrays_need_no_preprocessing_to_be_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples([{"x": np.ones(2)}], np.array([0]), kind="arrays")
    monkeypatch.setattr(evaluation.data, "load", lambda spec, task: {"test": samples})
    assert evaluation.held_out(Arrays(path="a.npz"), None).inputs["x"].tolist() == [[1, 1]]

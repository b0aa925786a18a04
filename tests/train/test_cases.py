"""Cases: which samples are shown, in which order, and what is said of each."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.data import Samples
from penstock.train import cases

LOGITS = np.log(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55], [np.nan, 1]]))


def texts(labels: Any, count: int = 5) -> Samples:
    return Samples(
        [f"text {n}" for n in range(count)], np.array(labels), "text", places=[f"a.csv line {n}" for n in range(count)]
    )


def test_wrong_cases_are_the_surest_first_and_right_ones_the_least_sure() -> None:
    found = cases.choose(texts([1, 0, 1, 0, 0]), LOGITS, "classification", ("no", "yes"))
    assert (found.wrongs, found.rights) == (3, 2)
    assert [(case.text, case.wanted, case.answer) for case in found.wrong] == [
        ("text 4", "no", "no answer"),
        ("text 0", "yes", "no"),
        ("text 3", "no", "yes"),
    ]
    assert found.wrong[0].score is None
    assert found.wrong[1].score == pytest.approx(0.9)
    assert [case.text for case in found.right] == ["text 1", "text 2"]
    assert found.right[0].place == "a.csv line 1"


def test_no_more_are_shown_than_wanted_and_all_are_counted() -> None:
    found = cases.choose(texts([1, 0, 1, 0, 0]), LOGITS, None, None, most=1)
    assert (len(found.wrong), len(found.right), found.wrongs, found.rights) == (1, 1, 3, 2)
    assert found.right[0].wanted == "0"


def test_of_several_labels_the_most_surely_wrong_comes_first() -> None:
    logits = np.array([[3.0, -3.0], [0.5, 2.0], [4.0, -0.1]])
    found = cases.choose(texts([[1, 0], [0, 1], [0, 0]], 3), logits, "multilabel", ("sun", "rain"))
    assert [(case.wanted, case.answer) for case in found.wrong] == [("none", "sun"), ("rain", "sun, rain")]
    assert [(case.wanted, case.answer) for case in found.right] == [("sun", "sun")]


def test_of_numbers_the_furthest_off_and_the_nearest_are_shown() -> None:
    samples = Samples(
        [{"area": float(n), "town": "Ulm"} for n in range(4)], np.array([1.0, 2, 3, 4], np.float32), "row"
    )
    found = cases.choose(samples, np.array([[1.1], [9.0], [3.0], [np.nan]]), "regression", None)
    assert [(case.wanted, case.answer) for case in found.wrong] == [("4", "no answer"), ("2", "9")]
    assert [case.wanted for case in found.right] == ["3", "1"]
    assert found.right[0].text == "area: 2, town: Ulm"
    assert found.right[0].score is None


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA", "I;16"])
def test_pictures_are_shown_from_pixels_and_from_files(mode: str) -> None:
    image = Image.new(mode, (300, 200), 77 if mode != "RGB" else (7, 8, 9))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    found = cases.choose(Samples([buffer.getvalue()], np.array([0])), np.array([[1.0, 0]]), None, None)
    (case,) = found.right
    assert case.picture is not None
    assert case.picture.dtype == np.uint8
    assert case.picture.shape[:2] == (85, 128)
    assert case.place == "item 0"


def test_a_picture_of_pixels_stays_as_it_is(scans: Any) -> None:
    images, digits = scans
    found = cases.choose(Samples(images[:3], digits[:3]), np.eye(10)[digits[:3]], None, None)
    assert sorted(case.picture.tobytes() for case in found.right if case.picture is not None) == sorted(
        image.tobytes() for image in images[:3]
    )


def test_long_texts_and_arrays_are_cut() -> None:
    samples = Samples(["x" * 5000], np.array([0]), "text")
    (case,) = cases.choose(samples, np.array([[1.0]]), None, None).right
    assert case.text == "x" * 400 + "…"
    samples = Samples([{"a": np.arange(20.0), "b": np.ones((1, 2))}], np.array([0]), "arrays")
    (case,) = cases.choose(samples, np.array([[1.0]]), None, None).right
    assert case.text == "a: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, …], b: [1.0, 1.0]"

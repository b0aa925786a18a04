"""The report of a run: PNG files that are pictures, and one page that is whole, well-formed and asks for nothing."""

from __future__ import annotations

import io
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import checkpoint, data, evaluation, scores
from penstock.card import Card
from penstock.data import Samples
from penstock.errors import PenstockError
from penstock.figures import Figures
from penstock.runtimes.torch import TorchRunner
from penstock.train import cases, history, plots, report
from penstock.train.cases import Cases

NASTY = "<script>alert(1)</script>$x_{$"
VOID = {"meta", "img", "br", "link", "input", "hr"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Read(HTMLParser):
    """The page's tags with their attributes, its ids, and what does not close as it opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title", "desc"):
            self.said.append(data)


class Run:
    """What a report is made of."""

    def __init__(self, epochs: Any, figures: Figures, held: Cases, card: Card) -> None:
        self.epochs, self.figures, self.cases, self.card = epochs, figures, held, card

    @property
    def text(self) -> str:
        return report.text(self.epochs, self.figures, self.cases, self.card, {"seconds": "3.1"})


@pytest.fixture(scope="module")
def digits(trained: Path) -> Run:
    """The report of a real run of the digits recipe."""
    loaded = checkpoint.load(trained)
    card = loaded.card
    rows = evaluation.held_out(card.dataset, card.preprocess)
    assert card.dataset is not None
    samples = data.load(card.dataset)["test"]
    first = evaluation.first_output(TorchRunner(loaded.module, card.signature), rows, card.signature)
    held = cases.choose(samples, first, card.task, card.labels)
    (file,) = (trained.parent / "logs").rglob("metrics.csv")
    return Run(history.read(file), evaluation.figures(first, rows, card.task), held, card)


def many(digits: Run, classes: int, name: str = "class ") -> Run:
    """Answers among many classes, three in four of them right."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, 40 * classes)
    answers = np.where(generator.random(len(labels)) < 0.75, labels, generator.integers(0, classes, len(labels)))
    logits = generator.standard_normal((len(labels), classes)) * 0.5
    logits[np.arange(len(labels)), answers] += generator.uniform(2, 7, len(labels))
    names = tuple(f"{name}{number}" for number in range(classes))
    held = cases.choose(Samples([f"text {n}" for n in range(len(labels))], labels, "text"), logits, None, names)
    card = digits.card.model_copy(update={"labels": names, "name": "many"})
    return Run(digits.epochs, scores.classification(logits, labels), held, card)


@pytest.fixture(scope="module")
def numbers(digits: Run) -> Run:
    generator = np.random.default_rng(0)
    wanted = generator.uniform(0, 300, 500).astype(np.float32)
    first = wanted[:, None] + generator.standard_normal((500, 1)) * 20
    items = [{"age": float(n), "town": NASTY} for n in range(500)]
    held = cases.choose(Samples(items, wanted, "row"), first, "regression", None)
    epochs = [{"epoch": n, "train_loss": 3000 / n**2, "val_mae": 50 / n, "lr": 10.0**-n} for n in range(1, 6)]
    card = digits.card.model_copy(update={"labels": None, "task": "regression"})
    return Run(epochs, scores.regression(first, wanted), held, card)


@pytest.fixture(scope="module")
def runs(digits: Run, numbers: Run) -> dict[str, Run]:
    logits = np.array([[1.0, -1], [2, 2], [-1, np.nan]])
    labels = scores.multilabel(logits, np.array([[1, 0], [0, 1], [1, 1]]))
    lost = scores.regression(np.full(3, np.nan), np.arange(3.0))
    bare = digits.card.model_copy(
        update={"dataset": None, "versions": {}, "task": "multilabel", "labels": (NASTY, "b")}
    )
    return {
        "digits": digits,
        "hundred": many(digits, 100),
        "nasty": many(digits, 3, NASTY),
        "numbers": numbers,
        "bare": Run([], labels, Cases(), bare),
        "lost": Run([{"train_loss": math.nan}], lost, Cases(), bare.model_copy(update={"labels": None})),
        "one": Run([{"val_loss": 0.0}], scores.classification(np.ones((3, 1)), np.zeros(3, int)), Cases(), bare),
    }


NAMES = ("digits", "hundred", "nasty", "numbers", "bare", "lost", "one")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_well_formed_and_asks_for_nothing(runs: dict[str, Run], name: str) -> None:
    text = runs[name].text
    read = Read(text)
    assert (read.faults, read.open) == ([], [])
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in read.tags:
        assert tag not in ("script", "link", "iframe", "object", "form")
        assert not any(key.startswith("on") or key == "style" for key in attributes), (tag, attributes)
        assert (attributes.get("src") or "data:image/png").startswith("data:image/png")
        assert (attributes.get("href") or "#").startswith("#")
        for key in ("aria-labelledby", "href"):
            for word in (attributes.get(key) or "").split():
                assert word.lstrip("#") in ids
        if tag == "img":
            assert attributes["alt"]
    assert "http-equiv" in text
    assert (
        "nan"
        not in re.sub(r"data:[^\"]*|<style>.*?</style>", "", text.lower(), flags=re.S).replace("are nan or", "").split()
    )


def test_the_page_tells_the_figures_that_eval_tells(digits: Run) -> None:
    said = " ".join(Read(digits.text).said)
    assert f"{digits.figures.accuracy:.2%} correct" in said
    for word in ("Loss", "Accuracy", "Confusion matrix", "Reliability diagram", "Wrong, the surest first", "macro F1"):
        assert word in said
    images = [attributes for tag, attributes in Read(digits.text).tags if tag == "img"]
    assert len(images) == len(digits.cases.wrong) + len(digits.cases.right)
    assert len(digits.cases.right) == cases.MOST


def test_a_hundred_classes_have_a_matrix_that_scrolls_and_no_numbers_in_its_cells(digits: Run) -> None:
    read = Read(many(digits, 100).text)
    (matrix,) = [attributes for tag, attributes in read.tags if tag == "svg" and attributes.get("class") == "wide"]
    assert matrix["aria-labelledby"] == "confusion-t confusion-d"
    assert "What is most often confused" in read.said


def test_rows_without_an_answer_are_warned_of(runs: dict[str, Run]) -> None:
    assert "1 of 3 samples have no answer" in " ".join(Read(runs["bare"].text).said)


def test_names_are_shown_and_never_markup(runs: dict[str, Run]) -> None:
    for name in ("nasty", "numbers"):
        text = runs[name].text
        assert "<script" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("digits", {"curves", "confusion", "reliability", "wrong", "right"}),
        ("hundred", {"curves", "confusion", "reliability"}),
        ("nasty", {"curves", "confusion", "reliability"}),
        ("numbers", {"curves", "predictions"}),
        ("bare", set()),
        ("lost", {"predictions"}),
        ("one", {"curves", "confusion", "reliability"}),
    ],
)
def test_a_report_is_a_page_and_pictures_beside_it(
    runs: dict[str, Run], name: str, files: set[str], tmp_path: Path
) -> None:
    run = runs[name]
    page = report.write(tmp_path / "new" / "run", run.epochs, run.figures, run.cases, run.card)
    assert page.read_text() == report.text(run.epochs, run.figures, run.cases, run.card, {})
    assert {path.name for path in page.parent.iterdir()} == {"report.html", *(f"{file}.png" for file in files)}
    for file in files:
        with Image.open(page.parent / f"{file}.png") as image:
            assert image.format == "PNG"
            shades = np.asarray(image.convert("L"))
        assert min(shades.shape) > 150
        assert np.ptp(shades) > 150  # something is drawn


def test_two_figures_of_the_same_are_the_same_bytes(digits: Run) -> None:
    first, second = (plots.png(plots.reliability(digits.figures.calibration)) for _ in range(2))  # type: ignore[union-attr]
    assert first == second


def test_a_folder_that_is_a_file_is_refused_in_one_sentence(digits: Run, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(PenstockError, match=r"--output .* cannot be written"):
        report.write(tmp_path / "run", digits.epochs, digits.figures, digits.cases, digits.card)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("name", ["digits", "hundred", "numbers"])
def test_a_browser_draws_the_page_without_a_complaint(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(runs[name].text)
    assert CHROMIUM is not None
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}/user",
    ]
    shot = tmp_path / "shot.png"
    command = [CHROMIUM, *options, "--window-size=390,3000", f"--screenshot={shot}", page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "CONSOLE" not in ran.stderr  # a refused style, picture or request would be told there
    pixels = np.asarray(Image.open(io.BytesIO(shot.read_bytes())).convert("RGB"))
    assert pixels.shape == (3000, 390, 3)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20

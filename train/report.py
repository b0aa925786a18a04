"""The report of a run: one page that holds everything, and the same as PNG files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from penstock import summaries
from penstock.card import Card
from penstock.figures import Classification, Figures, Regression
from penstock.files import write_whole, writing
from penstock.pages import matrix, parts
from penstock.pages.document import document
from penstock.pages.markup import element
from penstock.pages.parts import Section, Table
from penstock.train import gallery, plots, report_charts
from penstock.train.cases import Cases
from penstock.train.history import Epoch

PAGE = "report.html"
_MOST_EPOCHS = 1000


def write(
    folder: Path,
    history: Sequence[Epoch],
    figures: Figures,
    cases: Cases,
    card: Card,
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Write report.html into a folder, and curves.png, confusion.png and others beside it.

    Args:
        folder: made if it is missing.
        history: what was measured in each epoch, `history.read` of a metrics.csv or the loop's own.
        figures: of the best checkpoint on the test part.
        cases: right and wrong ones of it, `cases.choose`.
        card: of that checkpoint.
        facts: more to be told of the run, by names that people read.

    Returns:
        The page.

    Raises:
        PenstockError: the folder cannot be written to.
    """
    path = folder / PAGE
    with writing("--output", path, "the report is not written"):
        folder.mkdir(parents=True, exist_ok=True)
        plots.write(folder, plots.plots(history, figures, cases, card.labels))
        write_whole(path, text(history, figures, cases, card, facts or {}).encode("utf-8", "replace"))
    return path


def text(history: Sequence[Epoch], figures: Figures, cases: Cases, card: Card, facts: Mapping[str, str]) -> str:
    """The page, as HTML."""
    sections = [
        *_curves(history),
        Section("results", "Results on the test part", _results(figures, card.labels)),
        *_cases(cases, isinstance(figures, Regression)),
        *_epochs(history),
        Section("run", "The run", [parts.listed({**_facts(card), **facts})]),
    ]
    version = card.versions.get("penstock", "")
    footer = f"Made by penstock train{f' {version}' * bool(version)}."
    title = f"Training: {card.name}"
    return document(title, _lead(figures, card), sections, footer, skip="Skip to the curves", pictures=True)


def _lead(figures: Figures, card: Card) -> list[Element]:
    said = summaries.headline(figures)
    told = [f"{figures.samples:,} samples of the test part", *([card.dataset.name] if card.dataset else [])]
    found = [
        element("p", " · ".join(told), class_="soft"),
        element("p", f"{said[0].upper()}{said[1:]}.", class_="verdict"),
    ]
    lost = summaries.overall(figures)["unanswered"]
    if lost:
        warned = f"{lost} of {figures.samples} samples have no answer: the outputs are NaN or infinite."
        found.append(element("p", element("strong", "Warning: "), warned, class_="warning"))
    return found


def _curves(history: Sequence[Epoch]) -> list[Section]:
    made = report_charts.curves(history)
    return [Section("curves", "Curves", [parts.beside(made)])] if made else []


def _results(figures: Figures, labels: Sequence[str] | None) -> list[Element]:
    content = [parts.listed(report_charts.told(figures))]
    if isinstance(figures, Classification):
        charts = [report_charts.confusion(figures, labels), report_charts.reliability(figures.calibration)]
        many = len(figures.confusion) > matrix.FEW
        content += [charts[0], parts.beside(charts[1:])] if many else [parts.beside(charts)]
    elif isinstance(figures, Regression):
        content.append(parts.beside(report_charts.predictions(figures, labels)))
    records = summaries.per_class(figures, labels)
    if len(records) > 1:
        columns = list(records[0])
        rows = [[summaries.cell(name, value) for name, value in record.items()] for record in records]
        content.append(parts.table("classes", Table(f"Figures of each {columns[0]}", columns, rows)))
    return content


def _cases(cases: Cases, numbers: bool) -> list[Section]:
    wrong, right = (
        ("Furthest off", "Nearest") if numbers else ("Wrong, the surest first", "Right, the least sure first")
    )
    told = ((wrong, "wrong", cases.wrong, cases.wrongs), (right, "right", cases.right, cases.rights))
    content = [one for title, key, held, total in told if held for one in gallery.shown(title, key, held, total)]
    return [Section("cases", "Cases", content)] if content else []


def _epochs(history: Sequence[Epoch]) -> list[Section]:
    if not history:
        return []
    names = [name for name in dict.fromkeys(name for epoch in history for name in epoch) if name != "epoch"]
    rows = [
        [f"{epoch.get('epoch', number):.0f}", *(summaries.shown(epoch.get(name)) for name in names)]
        for number, epoch in enumerate(history, 1)
    ]
    of_all = f" (the last {_MOST_EPOCHS})" if len(rows) > _MOST_EPOCHS else ""
    table = parts.told(Table(f"Every figure of every epoch{of_all}", ["epoch", *names], rows[-_MOST_EPOCHS:]))
    return [Section("epochs", "Epochs", [parts.table("all", table)])]


def _facts(card: Card) -> dict[str, str]:
    """What the checkpoint says of itself."""
    found = {"task": card.task or "", "network": card.architecture.target}
    found |= {name: str(value) for name, value in card.architecture.kwargs.items()}
    if card.dataset is not None:
        spec = card.dataset.model_dump(exclude_none=True)
        found["data set"] = str(spec.pop("name"))
        found |= {f"data set, {name}": str(value) for name, value in spec.items()}
    found |= {
        f"best checkpoint, {name.replace('_', ' ')}": summaries.shown(value) for name, value in card.metrics.items()
    }
    return {name: value for name, value in {**found, **card.versions}.items() if value}

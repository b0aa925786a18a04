"""Charts of a run's page: curves, the confusion matrix, the reliability diagram, answers over what is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from penstock import summaries
from penstock.figures import Calibration, Classification, Figures, Regression
from penstock.pages import charts, matrix, parts, scales
from penstock.pages.charts import Point, Series
from penstock.pages.markup import element
from penstock.pages.parts import Table, figure
from penstock.pages.scales import Scale
from penstock.summaries import label, shown
from penstock.train import history
from penstock.train.history import Curve, Curves, Epoch

# With more points than that a line goes without marks, and a cloud is thinned out.
_MARKED, _MOST_POINTS, _MOST_CONFUSED, _MOST_OUTPUTS = 40, 1500, 50, 4
_FEW_ROWS = 10


def told(figures: Figures) -> dict[str, str]:
    """The figures of all classes together, as people read them."""
    found = summaries.overall(figures)
    return {
        summaries.title(name): f"{value:,}" if isinstance(value, int) else shown(value)
        for name, value in found.items()
        if value is not None
    }


def curves(epochs: Sequence[Epoch]) -> list[Element]:
    """A chart for each kind of figure over the epochs."""
    return [_curves(f"curve-{number}", kind) for number, kind in enumerate(history.charts(epochs))]


def _curves(key: str, kind: Curves) -> Element:
    made = [_series(one) for one in kind.curves]
    values = [point.y for one in made for point in one.points]
    x = _epochs([point.x for one in made for point in one.points])
    y = scales.logarithmic(kind.title, values) if kind.log else scales.linear(kind.title, values, zero=False)
    chart = charts.plot(key, kind.title, parts.joined(made), made, x, y)
    rows = [[f"{epoch:.0f}", *cells] for epoch, cells in _by_epoch(kind.curves)]
    behind = Table(f"The {kind.title} of each epoch", ["epoch", *(one.name for one in kind.curves)], rows)
    says = " ".join(filter(None, (_ends(one) for one in kind.curves)))
    return figure(key, kind.title[0].upper() + kind.title[1:], chart, says, behind, made)


def _epochs(values: Sequence[float]) -> Scale:
    """An axis of epochs, with ticks at whole ones."""
    low, high = min(values), max(values)
    if high - low < 5:
        ticks = [float(epoch) for epoch in range(math.floor(low), math.ceil(high) + 1)]
        low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
        return Scale("epoch", low, high, False, tuple((tick, scales.number(tick)) for tick in ticks))
    wide = scales.linear("epoch", values, zero=False)
    return Scale("epoch", low, high, False, tuple(tick for tick in wide.ticks if low <= tick[0] <= high))


def _series(one: Curve) -> Series:
    marked = len(one.points) <= _MARKED
    points = tuple(Point(x, y, f"epoch {x:.0f}: {shown(y)}", marked=marked) for x, y in one.points)
    return Series(one.name, one.style, points)


def _by_epoch(curves: Sequence[Curve]) -> list[tuple[float, list[str]]]:
    held = [dict(one.points) for one in curves]
    epochs = sorted({epoch for one in held for epoch in one})
    return [(epoch, [shown(one.get(epoch)) for one in held]) for epoch in epochs]


def _ends(one: Curve) -> str:
    """Where a curve begins and ends."""
    (_, first), (last_epoch, last) = one.points[0], one.points[-1]
    name = one.name[0].upper() + one.name[1:]
    return f"{name}: {shown(first)} at first, {shown(last)} after epoch {last_epoch:.0f}."


def confusion(figures: Classification, labels: Sequence[str] | None) -> Element:
    """The confusion matrix, with the whole of it behind or, of many classes, what is most often confused."""
    names = [label(labels, number) for number in range(len(figures.confusion))]
    pairs = summaries.confused(figures, labels, _MOST_CONFUSED)
    wrong = ", ".join(f"{one} as {other} ({times})" for one, other, times in pairs[:3])
    says = f"Each row is a class, each column an answer. Most often wrong: {wrong}." if pairs else "No answer is wrong."
    chart = matrix.matrix("confusion", "Confusion matrix", says, figures.confusion, names)
    if len(names) > matrix.FEW:
        chart = element("div", chart, class_="scroll", tabindex="0", role="region", aria_label="Confusion matrix")
        behind = Table(
            "What is most often confused", ("class", "answer", "times"), [[a, b, str(n)] for a, b, n in pairs]
        )
    else:
        rows = [[name, *map(str, row)] for name, row in zip(names, figures.confusion.tolist(), strict=True)]
        behind = Table("Answers by class", ["class", *names], rows)
    return figure("confusion", "Confusion matrix", chart, says, behind)


def reliability(calibration: Calibration) -> Element:
    """How often answers of each confidence are right."""
    records = [record for record in summaries.bins(calibration) if record["rows"]]
    points = tuple(
        Point(
            r["confidence"],
            r["accuracy"],
            f"{r['rows']:,} rows, {r['confidence']:.3f} sure, {r['accuracy']:.3f} right",
            hollow=r["rows"] < _FEW_ROWS,
        )
        for r in records
    )
    ideal = Series("as sure as right", 7, (Point(0, 0, marked=False), Point(1, 1, marked=False)))
    made = [ideal, Series("the answers", 0, points)]
    x, y = (scales.linear(name, (0.0, 1.0)) for name in ("confidence", "share that is right"))
    says = (
        f"Answers by how sure they are, in {len(calibration.counts)} bins; hollow ones hold under {_FEW_ROWS} rows. "
        "Under the diagonal they are surer than they are right. "
        f"The expected calibration error is {shown(calibration.error)}."
    )
    chart = charts.plot("reliability", "Reliability", says, made, x, y)
    rows = [
        [f"{r['from']:.3f} to {r['to']:.3f}", f"{r['rows']:,}", shown(r["confidence"]), shown(r["accuracy"])]
        for r in records
    ]
    behind = Table("Rows by confidence", ("confidence", "rows", "mean confidence", "right"), rows)
    return figure("reliability", "Reliability diagram", chart, says, behind, made)


def predictions(figures: Regression, labels: Sequence[str] | None) -> list[Element]:
    """The answers of each output over what is right."""
    return [_cloud(figures, place, labels) for place in range(min(figures.wanted.shape[1], _MOST_OUTPUTS))]


def _cloud(figures: Regression, place: int, labels: Sequence[str] | None) -> Element:
    wanted, predicted = (values[figures.answered][:, place] for values in (figures.wanted, figures.predicted))
    step = max(1, math.ceil(len(wanted) / _MOST_POINTS))
    pairs = [(float(a), float(b)) for a, b in zip(wanted[::step], predicted[::step], strict=True)]
    ends = [value for pair in pairs for value in pair]
    x, y = (scales.linear(name, ends, zero=False) for name in ("right", "answer"))
    diagonal = Series("equal", 7, (Point(x.low, x.low, marked=False), Point(x.high, x.high, marked=False)))
    cloud = Series("samples", 0, tuple(Point(a, b, f"is {shown(a)}, said {shown(b)}") for a, b in pairs), line=False)
    name = f" of {label(labels, place)}" if labels or figures.wanted.shape[1] > 1 else ""
    says = f"Each point is a sample; on the diagonal the answer is right. R² is {shown(float(figures.r2s[place]))}."
    chart = charts.plot(f"cloud-{place}", f"Answers{name} over what is right", says, [diagonal, cloud], x, y)
    worst = [row for row in figures.worst() if figures.answered[row]]
    rows = [[str(r), *(shown(float(v[r, place])) for v in (figures.wanted, figures.predicted))] for r in worst]
    behind = Table("The rows that are furthest off", ("row", "right", "answer"), rows)
    return figure(f"cloud-{place}", f"Answers{name} over what is right", chart, says, behind, [diagonal, cloud])

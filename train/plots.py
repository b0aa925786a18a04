"""Plots as matplotlib's figures: for PNG files, and for trackers that take figures. None needs a screen."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penstock.figures import Calibration, Classification, Figures, Regression
from penstock.files import write_whole, writing
from penstock.pages.matrix import shortened
from penstock.summaries import label
from penstock.train import history
from penstock.train.cases import Case, Cases
from penstock.train.history import Curves, Epoch

_DPI = 110
_FEW = 20
# Colours that differ also to those who see no red or green (Okabe and Ito, 2008); dashes tell them apart in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_DASHES = ("-", "--", ":", "-.")
_MOST_POINTS = 20_000


def plots(epochs: Sequence[Epoch], figures: Figures, cases: Cases, labels: Sequence[str] | None) -> dict[str, Figure]:
    """All plots that there is something for, by the names of their files."""
    found: dict[str, Figure | None] = {"curves": curves(epochs)}
    if isinstance(figures, Classification):
        found["confusion"] = confusion(figures, labels)
        found["reliability"] = reliability(figures.calibration)
    elif isinstance(figures, Regression):
        found["predictions"] = predictions(figures, labels)
    found["wrong"], found["right"] = (pictures(held) for held in (cases.wrong, cases.right))
    return {name: figure for name, figure in found.items() if figure is not None}


def write(folder: Path, made: dict[str, Figure]) -> list[Path]:
    """Write figures as PNG into a folder, each whole or not at all.

    Raises:
        PenstockError: the folder cannot be written to.
    """
    paths = []
    for name, figure in made.items():
        path = folder / f"{name}.png"
        with writing("--output", path, "the report is not whole"):
            write_whole(path, png(figure))
        paths.append(path)
    return paths


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def curves(epochs: Sequence[Epoch]) -> Figure | None:
    """A chart for each kind of figure over the epochs, one under another."""
    kinds = history.charts(epochs)
    if not kinds:
        return None
    columns = min(2, len(kinds))
    rows = math.ceil(len(kinds) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
    for place, kind in enumerate(kinds):
        _curves(figure.add_subplot(rows, columns, place + 1), kind)
    return figure


def _curves(axes: Any, kind: Curves) -> None:
    for one in kind.curves:
        x, y = zip(*one.points, strict=True)
        dash, colour = _DASHES[one.style % len(_DASHES)], _COLOURS[one.style % len(_COLOURS)]
        axes.plot(x, y, dash, color=colour, label=_plain(one.name), marker="o" if len(x) < 30 else None, markersize=3)
    axes.set_title(_plain(kind.title))
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if kind.log:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    if len(kind.curves) > 1:
        axes.legend()


def confusion(figures: Classification, labels: Sequence[str] | None) -> Figure:
    """The confusion matrix: shares of each class, and the counts in the cells of up to 20 classes."""
    counts = figures.confusion
    classes = len(counts)
    few = classes <= _FEW
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = max(4.5, 0.42 * classes + 1.8) if few else 9.0
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    # Shown by the root, so that a few wrong ones among many are seen.
    shown = axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.colorbar(shown, ax=axes, shrink=0.8, label="share of the class")
    bar.set_ticks(
        [math.sqrt(share) for share in (0, 0.01, 0.05, 0.2, 0.5, 1)], labels=["0", "1%", "5%", "20%", "50%", "100%"]
    )
    places = list(range(0, classes, 1 if few else math.ceil(classes / 50)))
    names = [_short(label(labels, place)) for place in places]
    axes.set_xticks(places, names, rotation=90, fontsize=9 if few else 6)
    axes.set_yticks(places, names, fontsize=9 if few else 6)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    axes.set_title(f"{figures.accuracy:.2%} of {figures.samples:,} right")
    if few:
        for row, column in np.argwhere(counts):
            dark = shares[row, column] > 0.3
            text = str(counts[row, column])
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    return figure


def reliability(calibration: Calibration) -> Figure:
    """How often answers of each confidence are right, over how many there are of them (Guo et al., 2017, figure 1)."""
    figure = Figure(figsize=(5, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    edges, width = calibration.edges, 1 / len(calibration.counts)
    held = calibration.counts > 0
    middles = (edges[:-1] + edges[1:]) / 2
    upper.bar(middles[held], calibration.accuracy[held], width * 0.94, color=_COLOURS[0], label="right")
    upper.plot([0, 1], [0, 1], "k--", linewidth=1, label="as sure as right")
    upper.plot(
        calibration.confidence[held], calibration.accuracy[held], "o", color=_COLOURS[1], label="mean confidence"
    )
    upper.set_ylabel("share that is right")
    upper.set_ylim(0, 1.02)
    upper.set_title(f"calibration error {calibration.error:.3f}")
    lower.bar(middles, calibration.counts, width * 0.94, color=_COLOURS[2])
    lower.set_ylabel("rows")
    lower.set_xlabel("confidence")
    lower.set_xlim(0, 1)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def predictions(figures: Regression, labels: Sequence[str] | None) -> Figure:
    """Each output's answers over what is right; the diagonal is where both are equal."""
    outputs = min(figures.wanted.shape[1], 4)
    figure = Figure(figsize=(5 * outputs, 4.8), layout="constrained")
    step = math.ceil(figures.samples / _MOST_POINTS)
    for place in range(outputs):
        axes = figure.add_subplot(1, outputs, place + 1)
        wanted, predicted = (
            figures.wanted[figures.answered][::step, place],
            figures.predicted[figures.answered][::step, place],
        )
        axes.plot(wanted, predicted, ".", color=_COLOURS[0], alpha=0.5 if len(wanted) < 2000 else 0.15)
        if len(wanted):
            ends = [min(wanted.min(), predicted.min()), max(wanted.max(), predicted.max())]
            axes.plot(ends, ends, "k--", linewidth=1)
        axes.set_xlabel("right")
        axes.set_ylabel("answer")
        axes.set_title(_plain(label(labels, place)) if labels or outputs > 1 else "answers over what is right")
        axes.grid(alpha=0.3)
    return figure


def pictures(cases: Sequence[Case]) -> Figure | None:
    """Pictures with what is right, what was answered and how surely; None where there are none."""
    held = [(case, case.picture) for case in cases if case.picture is not None]
    if not held:
        return None
    columns = min(6, len(held))
    rows = math.ceil(len(held) / columns)
    figure = Figure(figsize=(1.7 * columns, 2.1 * rows), layout="constrained")
    for place, (case, picture) in enumerate(held):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(picture, cmap="gray", vmin=0, vmax=255)
        score = "" if case.score is None else f" ({case.score:.2f})"
        told = f"is {case.wanted}\nsaid {case.answer}{score}"
        axes.set_title(_plain("\n".join(textwrap.shorten(line, 26) for line in told.splitlines())), fontsize=8)
        axes.set_axis_off()
    return figure


def _short(name: str) -> str:
    return _plain(shortened(name, 16))


def _plain(text: str) -> str:
    """Text that matplotlib takes for no formula, and has glyphs to warn of only where there are none."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text).replace(
        "$", r"\$"
    )

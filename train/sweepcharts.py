"""A sweep's charts, by matplotlib: how it went, learning curves, what mattered, combinations, and each field by itself.

They are our own and not Optuna's: its matplotlib half, which it calls experimental, shows no failed trials and cannot
name lists among choices, and a page of plotly's carries 4 MB of script. These need none, and are PNG and SVG.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from penstock.train import sweepscales as scales
from penstock.train.space import Parameter, Sweep
from penstock.train.sweepscales import Axis
from penstock.train.tried import Importance, Trial

_DPI = 150
_ACROSS = 3  # slices beside each other


@dataclass(frozen=True)
class Ink:
    """Colours: those of the pages that penstock writes, in the light and in the dark."""

    ground: str
    text: str
    soft: str
    grid: str
    weak: str
    strong: str
    best: str

    @property
    def scale(self) -> LinearSegmentedColormap:
        """From the worst to the best."""
        return LinearSegmentedColormap.from_list("penstock", [self.weak, self.strong])


_LIGHT = Ink("#ffffff", "#1b1f24", "#57606a", "#e3e7eb", "#b9d3ea", "#0b3d6b", "#b3470c")
_DARK = Ink("#1c2027", "#e6e9ee", "#a2acb9", "#2a3039", "#2f4b66", "#a8d4ff", "#ff9e64")


@dataclass(frozen=True)
class Chart:
    """A drawing: its file's name, what it shows, what is to be seen, `files` by kind, and its SVG for the dark."""

    name: str
    title: str
    says: str
    files: dict[str, bytes]
    dark: bytes


@dataclass(frozen=True)
class _Told:
    """What is drawn."""

    trials: Sequence[Trial]
    sweep: Sweep
    importance: Importance
    best: Trial

    def shade(self, trial: Trial) -> float:
        """The place of a trial's value between the worst, 0, and the best, 1."""
        values = [one.value for one in self.valued()]
        assert trial.value is not None
        low, high = min(v for v in values if v is not None), max(v for v in values if v is not None)
        place = (trial.value - low) / (high - low) if high > low else 1.0
        return place if self.sweep.towards == "maximize" else 1 - place

    def valued(self) -> list[Trial]:
        """Those with a value, the worst first, so that the best is drawn over them."""
        found = [one for one in self.trials if one.value is not None]
        sign = 1 if self.sweep.towards == "maximize" else -1
        return sorted(found, key=lambda one: (one.state == "finished", sign * (one.value or 0.0)))


def draw(trials: Sequence[Trial], sweep: Sweep, importance: Importance, best: Trial) -> list[Chart]:
    """All charts that there is something to draw for."""
    told = _Told(trials, sweep, importance, best)
    better = "higher" if sweep.towards == "maximize" else "lower"
    charts = [
        _chart(
            "history", "History", f"{sweep.metric} of each trial, {better} is better; the best so far.", _history, told
        )
    ]
    if any(len(one.curve) > 1 for one in trials):
        says = f"{sweep.metric} by epoch, a line a trial; those that were pruned end early, dashed."
        charts.append(_chart("curves", "Learning curves", says, _curves, told))
    if importance.shares:
        after = f" after epoch {importance.epoch}" if importance.epoch is not None else ""
        says = (
            f"The share of each field in how {sweep.metric}{after} varies over {importance.trials} trials, by fANOVA."
        )
        charts.append(_chart("importance", "Importance", says, _importance, told))
    says = f"A line a trial through its values and its {sweep.metric}; the stronger, the better; the best stands out."
    charts.append(_chart("parallel", "Combinations", says, _parallel, told))
    says = f"{sweep.metric} over each field by itself."
    charts.append(_chart("slices", "Field by field", says, _slices, told))
    return charts


def _chart(name: str, title: str, says: str, drawn: Callable[[_Told, Ink], Figure], told: _Told) -> Chart:
    with mpl.rc_context({"svg.hashsalt": name, "font.size": 10, "svg.fonttype": "path"}):
        light, dark = drawn(told, _LIGHT), drawn(told, _DARK)
        files = {"png": _saved(light, "png"), "svg": _saved(light, "svg")}
        return Chart(name, title, says, files, _saved(dark, "svg"))


def _saved(figure: Figure, kind: str) -> bytes:
    """Without the date, so that the same sweep gives the same files."""
    file = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata, facecolor=figure.get_facecolor())
    return file.getvalue()


def _figure(ink: Ink, width: float = 8.0, height: float = 4.2) -> Figure:
    return Figure(figsize=(width, height), facecolor=ink.ground, layout="constrained")


def _styled(axes: Axes, ink: Ink, x: str, y: str) -> None:
    axes.set_facecolor(ink.ground)
    axes.grid(True, color=ink.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=ink.soft, which="both", length=3)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(ink.grid)
    axes.set_xlabel(x, color=ink.text)
    axes.set_ylabel(y, color=ink.text)


def _legend(axes: Axes, ink: Ink) -> None:
    axes.legend(frameon=True, facecolor=ink.ground, edgecolor=ink.grid, labelcolor=ink.text, fontsize=9)


def _history(told: _Told, ink: Ink) -> Figure:
    figure = _figure(ink)
    axes = figure.add_subplot()
    for state, mark, face in (("finished", "o", ink.strong), ("pruned", "v", "none")):
        places = [(one.number, one.value) for one in told.trials if one.state == state and one.value is not None]
        if places:
            x, y = zip(*places, strict=True)
            axes.scatter(x, y, s=34, c=face, marker=mark, edgecolors=ink.strong, linewidths=1.2, label=state)
    failed = [one.number for one in told.trials if one.state == "failed"]
    if failed:
        low = [0.02] * len(failed)
        across = axes.get_xaxis_transform()
        axes.scatter(failed, low, s=34, c=ink.best, marker="x", transform=across, label="failed", clip_on=False)
    numbers, values = _best_so_far(told)
    axes.step(numbers, values, color=ink.best, where="post", linewidth=1.8, label="best so far", zorder=1.5)
    _styled(axes, ink, "trial", told.sweep.metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, ink)
    return figure


def _best_so_far(told: _Told) -> tuple[list[int], list[float]]:
    numbers: list[int] = []
    values: list[float] = []
    for one in told.trials:
        if one.state == "finished" and one.value is not None:
            best = one.value if not values or told.sweep.better(one.value, values[-1]) else values[-1]
            numbers.append(one.number)
            values.append(best)
    last = max(one.number for one in told.trials)
    return [*numbers, last], [*values, values[-1]]


def _curves(told: _Told, ink: Ink) -> Figure:
    figure = _figure(ink)
    axes = figure.add_subplot()
    for one in told.valued():
        colour = _colour(told, one, ink)
        epochs, values = list(one.curve), list(one.curve.values())
        mark = "v" if one.state == "pruned" else ("o" if len(epochs) == 1 else "")
        style = "--" if one.state == "pruned" else "-"
        axes.plot(epochs, values, style, color=colour, linewidth=_width(told, one), marker=mark, markevery=[-1])
    _styled(axes, ink, "epoch", told.sweep.metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _colour(told: _Told, one: Trial, ink: Ink) -> Any:
    return ink.best if one.number == told.best.number else ink.scale(told.shade(one))


def _width(told: _Told, one: Trial) -> float:
    return 2.6 if one.number == told.best.number else 1.3


def _importance(told: _Told, ink: Ink) -> Figure:
    paths = list(told.importance.shares)[::-1]
    figure = _figure(ink, height=1.2 + 0.42 * len(paths))
    axes = figure.add_subplot()
    shares = [told.importance.shares[path] for path in paths]
    bars = axes.barh(paths, shares, color=ink.strong, height=0.62)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares], padding=4, color=ink.text)
    _styled(axes, ink, "share of the variance", "")
    axes.set_xlim(0, 1.08 * max(shares))
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", colors=ink.text, length=0)
    return figure


def _parallel(told: _Told, ink: Ink) -> Figure:
    trials = told.valued()
    axes_of = [scales.of(path, parameter) for path, parameter in told.sweep.space.items()]
    metric = _metric_axis(told)
    every = [*axes_of, metric]
    figure = _figure(ink, max(8.0, 1.7 * len(every)), 4.8)
    axes = figure.add_subplot()
    for one in trials:
        heights = [axis.places(one.values[axis.name]) for axis in axes_of] + [metric.places(one.value)]
        style = "--" if one.state == "pruned" else "-"
        axes.plot(range(len(every)), heights, style, color=_colour(told, one, ink), linewidth=_width(told, one))
    for index, axis in enumerate(every):
        axes.axvline(index, color=ink.soft, linewidth=1)
        for height, text in axis.ticks:
            box = {"facecolor": ink.ground, "edgecolor": "none", "pad": 1, "alpha": 0.75}
            axes.text(index - 0.03, height, text, ha="right", va="center", fontsize=8.5, color=ink.soft, bbox=box)
    axes.set_xlim(-0.35, len(every) - 0.8)
    axes.set_ylim(-0.04, 1.04)
    axes.set_axis_off()
    for index, axis in enumerate(every):
        axes.text(index, 1.09, axis.name, ha="center", va="bottom", color=ink.text, fontsize=9.5)
    return figure


def _metric_axis(told: _Told) -> Axis:
    values = [one.value for one in told.valued() if one.value is not None]
    low, high = min(values), max(values)
    if low == high:
        return Axis(told.sweep.metric, lambda _: 0.5, [(0.5, f"{low:.3g}")])
    return scales.numbers(told.sweep.metric, low, high, False, False)


def _slices(told: _Told, ink: Ink) -> Figure:
    space = told.sweep.space
    across = min(_ACROSS, len(space))
    down = math.ceil(len(space) / across)
    figure = _figure(ink, max(5.0, 3.4 * across), 0.4 + 3.0 * down)
    for index, (path, parameter) in enumerate(space.items()):
        axes = figure.add_subplot(down, across, index + 1)
        for one in told.valued():
            assert one.value is not None
            pruned = one.state == "pruned"
            colour = _colour(told, one, ink)
            axes.scatter(
                [_place(parameter, one.values[path])],
                [one.value],
                s=60 if one.number == told.best.number else 30,
                c="none" if pruned else [colour],
                marker="v" if pruned else "o",
                edgecolors=[colour],
                linewidths=1.2,
            )
        _styled(axes, ink, path, told.sweep.metric if index % across == 0 else "")
        _scaled(axes, parameter)
    return figure


def _place(parameter: Parameter, value: Any) -> float:
    return float(parameter.choices.index(value)) if parameter.choices is not None else float(value)


def _scaled(axes: Axes, parameter: Parameter) -> None:
    if parameter.choices is not None:
        named = range(0, len(parameter.choices), math.ceil(len(parameter.choices) / scales.MOST_NAMED))
        crowded = len(named) > 4 or any(len(str(label)) > 8 for label in parameter.labels)
        labels = [scales.shortened(parameter.labels[index]) for index in named]
        axes.set_xticks(list(named), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
        axes.set_xlim(-0.5, len(parameter.choices) - 0.5)
    elif parameter.log:
        axes.set_xscale("log")
        low, high = float(parameter.low or 1), float(parameter.last or 1)
        if high / low >= 10:  # of all that might have been tried, powers of ten are enough; others would overlap
            axes.set_xlim(low / 1.3, high * 1.3)
            axes.xaxis.set_minor_formatter(NullFormatter())

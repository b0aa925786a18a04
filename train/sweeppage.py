"""A sweep's page: one HTML file that holds everything, asks nobody for anything, and needs no script to be read."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import penstock
from penstock.errors import printable
from penstock.pages import parts
from penstock.pages.document import document
from penstock.pages.markup import element
from penstock.pages.parts import Section, Table
from penstock.train.space import Sweep
from penstock.train.sweepcharts import Chart
from penstock.train.tried import Importance, Trial

# Fewer trials tell little of importance.
_FEW = 10
_NONE = "–"


def text(
    name: str,
    sweep: Sweep,
    trials: Sequence[Trial],
    best: Trial,
    charts: Sequence[Chart],
    importance: Importance,
    command: str,
) -> str:
    """The page.

    Args:
        name: the recipe's.
        sweep: what was tried.
        trials: all of them.
        best: one of them.
        charts: in the order of the page.
        importance: of each field.
        command: trains the best again.
    """
    sections = [
        *(Section(chart.name, chart.title, [_picture(chart)]) for chart in charts),
        Section("trials", "All trials", [_table(sweep, trials, best)]),
    ]
    lead = [*_lead(sweep, trials, best, command), *_doubt(importance)]
    footer = f"Made by penstock sweep {penstock.__version__}."
    return document(f"Sweep of {name}", lead, sections, footer, skip="Skip to the charts", pictures=True)


def _lead(sweep: Sweep, trials: Sequence[Trial], best: Trial, command: str) -> list[Element]:
    counts = {state: sum(one.state == state for one in trials) for state in ("finished", "pruned", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    spent = sum(one.seconds or 0.0 for one in trials)
    values = ", ".join(f"{path} = {_shown(value)}" for path, value in best.values.items())
    return [
        element(
            "p",
            f"Best: {sweep.metric} {best.value:.5g} in trial {best.number}, at epoch {best.epoch(sweep.towards)}: "
            f"{printable(values)}",
            class_="verdict",
        ),
        element(
            "p",
            f"{len(trials)} trials ({told}), {spent:.0f} s of training; sampler {sweep.sampler}, pruner "
            f"{sweep.pruner}, seed {sweep.seed}. A trial's value is that of its best epoch on the validation part; the "
            "test part had no say.",
            class_="soft",
        ),
        element("p", "Train it again:"),
        element("pre", element("code", printable(command)), tabindex="0"),
    ]


def _doubt(importance: Importance) -> list[Element]:
    if not importance.shares:
        return [
            element("p", "How much each field matters cannot be told: trials are too few, or alike.", class_="soft")
        ]
    if importance.trials < _FEW:
        told = f"Importance is of {importance.trials} trials; so few tell little."
        return [element("p", told, class_="soft")]
    return []


def _picture(chart: Chart) -> Element:
    light, dark = (_data(data) for data in (chart.files["svg"], chart.dark))
    picture = element(
        "picture",
        element("source", media="(prefers-color-scheme: dark)", srcset=dark),
        element("img", src=light, alt=chart.says, class_="wide"),
    )
    scroll = element("div", picture, class_="scroll", tabindex="0", role="group", aria_label=chart.title)
    return element("figure", scroll, element("figcaption", chart.says))


def _data(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _table(sweep: Sweep, trials: Sequence[Trial], best: Trial) -> Element:
    columns = ["trial", "state", sweep.metric, "epoch", "seconds", *sweep.space, "why it failed"]
    rows = [_row(sweep, one, one.number == best.number) for one in trials]
    texts = frozenset(("why it failed",))
    return parts.table("all", parts.told(Table("Every trial, in the order of their beginning", columns, rows, texts)))


def _row(sweep: Sweep, one: Trial, best: bool) -> list[str]:
    epoch = one.epoch(sweep.towards)
    return [
        str(one.number),
        "best" if best else one.state,
        _NONE if one.value is None else f"{one.value:.5g}",
        _NONE if epoch is None else str(epoch),
        _NONE if one.seconds is None else f"{one.seconds:.1f}",
        *(printable(_shown(one.values[path])) for path in sweep.space),
        printable(one.reason or _NONE),
    ]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

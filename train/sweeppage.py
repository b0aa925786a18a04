"""A sweep's page: one HTML file that holds everything, asks nobody for anything, and needs no script to be read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from penstock.errors import printable
from penstock.train.space import Sweep
from penstock.train.sweepcharts import Chart
from penstock.train.tried import Importance, Trial

# Fewer trials tell little of importance.
_FEW = 10


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
    title = f"Sweep of {name}"
    links = [*((chart.name, chart.title) for chart in charts), ("trials", "All trials")]
    items = "".join(f'<li><a href="#{key}">{escape(shown)}</a></li>' for key, shown in links)
    return (
        f'<!doctype html>\n<html lang="en"><head>{_head(title)}</head><body>'
        '<a class="skip" href="#main">Skip to the charts</a>'
        f"<header><h1>{escape(title)}</h1>{_lead(sweep, trials, best, command)}"
        f'<nav aria-label="Sections"><ul>{items}</ul></nav></header>'
        f'<main id="main" tabindex="-1">{"".join(_section(chart) for chart in charts)}'
        f"{_doubt(importance)}{_table(sweep, trials, best)}</main></body></html>\n"
    )


def _head(title: str) -> str:
    style = resources.files("penstock.train").joinpath("sweep.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{rules}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )


def _lead(sweep: Sweep, trials: Sequence[Trial], best: Trial, command: str) -> str:
    counts = {state: sum(one.state == state for one in trials) for state in ("finished", "pruned", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    spent = sum(one.seconds or 0.0 for one in trials)
    values = ", ".join(f"{path} = {_shown(value)}" for path, value in best.values.items())
    return (
        f'<p class="verdict">Best: {escape(sweep.metric)} {best.value:.5g} in trial {best.number}, at epoch '
        f"{best.epoch(sweep.towards)}: {_clean(values)}</p>"
        f'<p class="soft">{len(trials)} trials ({told}), {spent:.0f} s of training; sampler {sweep.sampler}, pruner '
        f"{sweep.pruner}, seed {sweep.seed}. A trial's value is that of its best epoch on the validation part; the "
        "test part had no say.</p>"
        f'<p>Train it again:</p><pre tabindex="0"><code>{_clean(command)}</code></pre>'
    )


def _section(chart: Chart) -> str:
    light, dark = (_data(data) for data in (chart.files["svg"], chart.dark))
    return (
        f'<section id="{chart.name}"><h2>{escape(chart.title)}</h2><figure>'
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(chart.title)}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}"><img src="{light}" alt="{escape(chart.says)}">'
        f"</picture></div><figcaption>{escape(chart.says)}</figcaption></figure></section>"
    )


def _data(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _doubt(importance: Importance) -> str:
    if not importance.shares:
        return '<p class="soft">How much each field matters cannot be told: trials are too few, or alike.</p>'
    if importance.trials < _FEW:
        return f'<p class="soft">Importance is of {importance.trials} trials; so few tell little.</p>'
    return ""


def _table(sweep: Sweep, trials: Sequence[Trial], best: Trial) -> str:
    names = ["trial", "state", sweep.metric, "epoch", "seconds", *sweep.space, ""]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = "".join(_row(sweep, one, one.number == best.number) for one in trials)
    return (
        '<section id="trials"><h2>All trials</h2>'
        '<div class="scroll" tabindex="0" role="region" aria-label="All trials">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(sweep: Sweep, one: Trial, best: bool) -> str:
    epoch = one.epoch(sweep.towards)
    numbers = [
        f"{one.value:.5g}" if one.value is not None else "",
        str(epoch) if epoch is not None else "",
        f"{one.seconds:.1f}" if one.seconds is not None else "",
    ]
    cells = [
        f'<th scope="row">{one.number}</th><td>{"best" if best else one.state}</td>',
        *(f'<td class="number">{number}</td>' for number in numbers),
        *(f"<td>{_clean(_shown(one.values[path]))}</td>" for path in sweep.space),
        f'<td class="reason">{_clean(one.reason or "")}</td>',
    ]
    return f"<tr{' class=best' if best else ''}>{''.join(cells)}</tr>"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _clean(content: str) -> str:
    return escape(printable(content))

"""A comparison of two results as people and programs read it: what differs around it, a table, a verdict; JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock.bench.compare import FAMILY_ERROR, Compared, Comparison
from penstock.files import write_whole, writing
from penstock.screen import Screen

# The exit code where nothing is slower for certain, and not everything could be compared.
UNTOLD = 4
_WIDE = 132
_WORDS = {"slower": "SLOWER", "worse": "MORE FAILURES", "faster": "faster", "same": "no change", "unsure": "none found"}


def show(found: Comparison) -> None:
    """Print what differs between the two, then the table, and the verdict last."""
    console = Screen(_WIDE)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    for change in found.changes:
        say(f"differs: {change}")
    for warning in found.warnings:
        say(f"warning: {warning}")
    for name, missing in (("old", found.only_old), ("new", found.only_new)):
        for what in missing:
            say(f"only in the {name} result: {what}")
    console.print(_table(found))
    for line in verdict(found):
        say(line)


def _table(found: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what")
    table.add_column("figure", no_wrap=True)
    taken = "time, new/old, clocked" if found.clocked else "time, new/old"
    for name in ("old", "new", taken):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change", no_wrap=True)
    last = ""
    for one in found.compared:
        shown = [_figure(one, value) for value in (one.old, one.new)]
        table.add_row(one.what if one.what != last else "", one.figure, *shown, _ratio(one), _said(one))
        last = one.what
    return table


def _figure(one: Compared, value: float) -> str:
    if one.figure == "failures":
        return f"{value:.2%}"
    return f"{1 / value:,.0f}/s" if one.figure == "requests/s" else f"{value * 1e3:.3f} ms"


def _ratio(one: Compared) -> str:
    if one.contrast is None:
        return "-"
    return f"{one.contrast.value:.3f} ({one.contrast.low:.3f} to {one.contrast.high:.3f})"


def _said(one: Compared) -> str:
    return "not compared" if one.unable else _WORDS[one.verdict]


def verdict(found: Comparison) -> list[str]:
    """What it comes to, in a line or two."""
    lines = []
    able = [one for one in found.compared if one.unable is None]
    wide = [one for one in able if one.verdict == "unsure" and one.contrast is not None]
    if wide:
        most = max(one.contrast.high for one in wide if one.contrast is not None)
        lines.append(
            f"in {len(wide)} of {len(able)} a slow-down of {found.threshold:.1%} or more could hide, of {most - 1:.1%} "
            "at most; a longer measurement (--seconds) on an idle machine shows smaller ones"
        )
    worse, untold = found.regressions, found.untold
    for reason in dict.fromkeys(one.unable for one in untold):
        lines.append(f"not compared: {_several([one.what for one in untold if one.unable == reason])}: {reason}")
    if not able:
        lines.append(f"too noisy to tell: none of {len(untold)} could be compared; measure again")
        return lines
    if worse:
        told = ", ".join(f"{one.what} ({_measure(one)})" for one in worse[:3])
        more = f" and {len(worse) - 3} more" if len(worse) > 3 else ""
        lines.append(f"regression: {len(worse)} of {len(able)}: {told}{more}")
    else:
        lines.append(
            f"no regression: none of {len(able)} is slower by {found.threshold:.1%} or more and beyond noise "
            f"({1 - FAMILY_ERROR:.0%} intervals of all together)"
            + (f"; of {len(untold)} more it cannot be told" if untold else "")
        )
    return lines


def _several(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _measure(one: Compared) -> str:
    if one.contrast is None:
        return f"{one.figure} {one.old:.2%} → {one.new:.2%}"
    return f"{one.figure} {one.contrast.value:.3f} times as long"


def as_dict(found: Comparison) -> dict[str, Any]:
    """The comparison for programs; seconds, and times as long."""
    return {
        "penstock_comparison": 1,
        "regressions": len(found.regressions),
        "untold": len(found.untold),
        **asdict(found),
    }


def write_json(found: Comparison, path: Path) -> None:
    """Write `as_dict` to a file, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    with writing("--json", path, "the comparison is not kept"):
        write_whole(path, json.dumps(as_dict(found), indent=1).encode())

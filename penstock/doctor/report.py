"""What the doctor found, as a table for people and as JSON for programs."""

from __future__ import annotations

import json

from rich.table import Table
from rich.text import Text

import penstock
from penstock.doctor import packages
from penstock.doctor.findings import GROUPS, Finding
from penstock.screen import Screen

_MARKS = {True: ("ok", "green"), False: ("no", "bold red"), None: ("-", "dim")}


def show(findings: list[Finding]) -> None:
    """Print each group as a table, and what puts right what does not work."""
    screen = Screen(wide=120)
    screen.print(f"penstock {penstock.__version__}")
    for group, title in GROUPS.items():
        held = [each for each in findings if each.group == group]
        if not held:
            continue
        screen.print(f"\n{title}", style="bold")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=max(len(each.name) for each in findings))
        table.add_column(overflow="fold")
        for each in held:
            mark, style = _MARKS[each.works]
            table.add_row(Text(mark, style), each.name, "; ".join(text for text in (each.found, each.why) if text))
        screen.print(table)
    _show_fixes(screen, findings)


def _show_fixes(screen: Screen, findings: list[Finding]) -> None:
    wanted = {each.fix: [] for each in findings if each.fix}  # type: dict[str, list[str]]
    for each in findings:
        if each.fix:
            wanted[each.fix].append(each.name)
    if not wanted:
        screen.print("\nnothing is missing; go on with: penstock")
        return
    screen.print("\nwhat to do for what does not work", style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    for fix, names in wanted.items():
        table.add_row(fix, f"for {', '.join(names)}")
    screen.print(table)


def as_json(findings: list[Finding]) -> str:
    """All findings, and the versions of all packages that penstock uses."""
    told = {
        "penstock": penstock.__version__,
        "versions": packages.versions([*packages.STAGES.values(), "serve-gpu", *packages.EXTRAS]),
        "findings": [each.as_dict() for each in findings],
    }
    return json.dumps(told, indent=2)

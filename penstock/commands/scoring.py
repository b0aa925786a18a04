"""What eval shows of figures of merit, and the files it writes them to."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock import summaries
from penstock.commands.reporting import keep_apart
from penstock.commands.terminal import say
from penstock.figures import Classification, Figures
from penstock.files import see_writable, write_whole, writing
from penstock.screen import Screen

_WIDE, _CONFUSED = 120, 5
_SHARES = ("accuracy", "top_5_accuracy", "exact_match", "calibration_error")


def see(json: Path | None, csv: Path | None) -> None:
    """See that the files can be written, before anything is computed.

    Raises:
        PenstockError: one cannot be, or both are one.
    """
    keep_apart({"--json": json, "--csv": csv}, [])
    for option, path in (("--json", json), ("--csv", csv)):
        if path is not None:
            see_writable(option, path)


def show(figures: Figures, labels: Sequence[str] | None, per_class: bool) -> None:
    """Print the figures of all classes together, what is most often confused and, if wanted, those of each class."""
    console = Screen(_WIDE)
    found = summaries.overall(figures)
    lost, samples = found.pop("unanswered"), found.pop("samples")
    lines = [(summaries.title(name), _shown(name, value)) for name, value in found.items() if value is not None]
    if lost:
        lines.append(("without an answer", f"{lost} of {samples}: the outputs are no numbers"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        say(f"  {name:<{width}}  {value}")
    if isinstance(figures, Classification):
        pairs = summaries.confused(figures, labels, _CONFUSED)
        if pairs:
            said = ", ".join(f"{label} for {answer} ({times})" for label, answer, times in pairs)
            say(f"  {'most often taken':<{width}}  {said}")
    if per_class:
        console.print(_table(summaries.per_class(figures, labels)))


def _shown(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _SHARES else summaries.shown(value)


def _table(records: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    first, *rest = records[0]
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(*(summaries.cell(name, value) for name, value in record.items()))
    return table


def write(figures: Figures, labels: Sequence[str] | None, json: Path | None, csv: Path | None) -> None:
    """Write the files that are wanted.

    Raises:
        PenstockError: one cannot be written.
    """
    if json is not None:
        with writing("--json", json, "the figures are not kept"):
            write_whole(json, dumps(summaries.plain(figures, labels), indent=1, allow_nan=False).encode())
        say(f"wrote {json}")
    if csv is not None:
        with writing("--csv", csv, "the table is not kept"):
            write_whole(csv, summaries.as_csv(summaries.per_class(figures, labels)))
        say(f"wrote {csv}")

"""The desk: where predictions go, whoever made them: lines or JSON on the screen, a table, class maps in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.client import results
from penstock.client.access import Access
from penstock.client.connection import Patience
from penstock.client.results import Maps, Row
from penstock.errors import PenstockError, Say
from penstock.files import write_whole, writing
from penstock.progress import bar


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for; `csv` and `output` are where to write a table, and class maps.

    `access` is what lets it in.
    """

    model: str | None = None
    top_k: int = 1
    batch: int = 8
    concurrency: int = 2
    patience: Patience = field(default_factory=Patience)
    csv: Path | None = None
    json: bool = False
    output: Path | None = None
    access: Access = field(default_factory=Access)


class Desk:
    """Where rows go: to the screen as lines or JSON, into a table, and class maps into a folder."""

    def __init__(self, wishes: Wishes, complain: Say) -> None:
        self._wishes, self._complain = wishes, complain
        self._maps = None if wishes.output is None else Maps(wishes.output)
        self._kept: list[Row] = []
        # As it is now: while a bar is shown, rich sends what is printed to the bar's own screen.
        self._screen = sys.stdout
        self.prints = wishes.json or wishes.csv is None
        self.answered = self.failed = 0
        # Why the row before had no answer, in which file; and how many after it had none for the same reason.
        self._told, self._more = ("", ""), 0
        if wishes.csv is not None and not wishes.csv.absolute().parent.is_dir():
            raise PenstockError(f"--csv {wishes.csv}: there is no folder {wishes.csv.parent}")

    def take(self, row: Row) -> None:
        if row.prediction is None:
            self.failed += 1
            self._tell(row)
        else:
            self._tell_more()
            self.answered += 1
            if self._maps is not None:
                row = replace(row, map=self._maps.write(row))
        if self._wishes.csv is not None:
            self._kept.append(row)
        if self._wishes.json:
            print(results.as_json(row), file=self._screen, flush=True)
        elif self.prints and row.prediction is not None:
            print(results.as_line(row, self._wishes.top_k), file=self._screen, flush=True)

    def _tell(self, row: Row) -> None:
        """Say why a row has no answer; of rows of one file, one after the other, the same reason is said once."""
        told = (row.piece.source.name, row.error)
        if row.row is not None and told == self._told:
            self._more += 1
            return
        self._tell_more()
        self._complain(f"{row.place}: {row.why}")
        self._told = told

    def _tell_more(self) -> None:
        if self._more:
            self._complain(f"{self._told[0]}: the same for {self._more} more of its rows")
        self._told, self._more = ("", ""), 0

    def clear(self) -> None:
        """Write the table, also of what there was until ^C."""
        self._tell_more()
        if self._wishes.csv is not None and self._kept:
            with writing("--csv", self._wishes.csv, "nothing was written there"):
                write_whole(self._wishes.csv, results.as_csv(self._kept, self._wishes.top_k))


def progress(total: int, *, printing: bool) -> AbstractContextManager[Callable[[], None]]:
    """A bar on stderr, unless rows that are printed on a screen show the progress themselves."""
    return nullcontext(lambda: None) if printing and sys.stdout.isatty() else bar("predicting", total)

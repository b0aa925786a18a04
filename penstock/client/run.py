"""`penstock predict`: files sent a few requests at a time, and answers given in the order of the files."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from penstock.client import results
from penstock.client.access import Access
from penstock.client.connection import (
    Broken,
    Patience,
    Server,
    Unanswered,
    Unreachable,
    inputs_of,
    model_of,
    place,
)
from penstock.client.parcels import Parcel, parcels, sources
from penstock.client.results import Maps, Row
from penstock.errors import PenstockError, Say, first_line
from penstock.files import write_whole, writing
from penstock.progress import bar

# What would be answered to every file alike.
_FATAL = (401, 403, 404, 405)


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


def predict(url: str, words: Sequence[str], wishes: Wishes, complain: Say) -> int:
    """Send files to a server, print or write what it answers, and return how many had no answer.

    Args:
        url: of the server, or of its /predict/MODEL.
        words: files, folders, patterns.
        wishes: the rest.
        complain: told why a file has no answer, and in the end how many had one.

    Raises:
        PenstockError: there is no such file, server or model, or what was asked for cannot be written.
    """
    files, done = sources(words), 0
    server, desk = Server(place(url), wishes.patience, wishes.access), _Desk(wishes, complain)
    try:
        model = model_of(server, wishes.model)
        sent = parcels(files, wishes.batch, inputs_of(server, model))
        path = f"/predict/{quote(model, safe='')}?top_k={wishes.top_k}"
        with _bar(len(files), printing=desk.prints) as step:
            for parcel, rows in _in_order(server, path, sent, wishes.concurrency):
                for row in rows:
                    desk.take(row)
                done += parcel.ends
                for _ in range(parcel.ends):
                    step()
    except Unreachable as error:
        if not desk.answered:
            raise
        desk.failed += len(files) - done
        complain(f"{error}; {len(files) - done} files were left")
    finally:
        server.close()
        desk.clear()
    complain(f"{desk.answered} answered, {desk.failed} failed")
    return desk.failed


class _Desk:
    """Where rows go: to the screen as lines or JSON, into a table, and class maps into a folder."""

    def __init__(self, wishes: Wishes, complain: Say) -> None:
        self._wishes, self._complain = wishes, complain
        self._maps = None if wishes.output is None else Maps(wishes.output)
        self._kept: list[Row] = []
        # As it is now: while a bar is shown, rich sends what is printed to the bar's own screen.
        self._screen = sys.stdout
        self.prints = wishes.json or wishes.csv is None
        self.answered = self.failed = 0
        if wishes.csv is not None and not wishes.csv.absolute().parent.is_dir():
            raise PenstockError(f"--csv {wishes.csv}: there is no folder {wishes.csv.parent}")

    def take(self, row: Row) -> None:
        if row.prediction is None:
            self.failed += 1
            self._complain(f"{row.name}: {row.error}")
        else:
            self.answered += 1
            if self._maps is not None:
                row = replace(row, map=self._maps.write(row))
        if self._wishes.csv is not None:
            self._kept.append(row)
        if self._wishes.json:
            print(results.as_json(row), file=self._screen, flush=True)
        elif self.prints and row.prediction is not None:
            print(results.as_line(row, self._wishes.top_k), file=self._screen, flush=True)

    def clear(self) -> None:
        """Write the table, also of what there was until ^C."""
        if self._wishes.csv is not None and self._kept:
            with writing("--csv", self._wishes.csv, "nothing was written there"):
                write_whole(self._wishes.csv, results.as_csv(self._kept, self._wishes.top_k))


def _bar(total: int, *, printing: bool) -> AbstractContextManager[Callable[[], None]]:
    """A bar on stderr, unless rows that are printed on a screen show the progress themselves."""
    return nullcontext(lambda: None) if printing and sys.stdout.isatty() else bar("predicting", total)


def _in_order(
    server: Server, path: str, sent: Iterator[Parcel], concurrency: int
) -> Iterator[tuple[Parcel, list[Row]]]:
    """Parcels with their rows, as they were sent; a few are under way or answered beyond the one that is waited for."""
    pool = ThreadPoolExecutor(concurrency)
    waiting: deque[tuple[Parcel, Future[list[Row]]]] = deque()
    try:
        while True:
            for parcel in islice(sent, 2 * concurrency - len(waiting)):
                waiting.append((parcel, pool.submit(_rows, server, path, parcel)))
            if not waiting:
                return
            parcel, future = waiting.popleft()
            yield parcel, future.result()
    finally:
        server.close()  # what is still under way ends now
        pool.shutdown(cancel_futures=True)


def _rows(server: Server, path: str, parcel: Parcel) -> list[Row]:
    """The rows of a parcel; one that is refused is sent in halves, until what is at fault stands alone.

    Raises:
        Unreachable: nobody is there. PenstockError: the server refuses whatever is sent.
    """
    if parcel.kind == "failed":
        return _failed(parcel, parcel.pieces[0].content)
    try:
        body, headers = parcel.packed()
        answer = server.ask("POST", path, body, headers)
    except Unanswered as error:
        return _again(server, path, parcel, str(error), broken=isinstance(error, Broken))
    except OSError as error:
        return _again(server, path, parcel, error.strerror or str(error), broken=True)
    if answer.status in _FATAL:
        raise PenstockError(f"{server.where}: {server.said(answer)}")
    if answer.status != 200:
        # A kind that the model does not take, 415, is none of a smaller parcel's either.
        return _again(server, path, parcel, answer.error, broken=answer.status < 500 and answer.status != 415)
    try:
        return results.rows(parcel, json.loads(answer.body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PenstockError(f"{server.where}: answers what no penstock server does: {first_line(error)}") from None


def _again(server: Server, path: str, parcel: Parcel, reason: str, *, broken: bool) -> list[Row]:
    """A parcel that failed: in halves where one piece may be `broken`, or fewer may pass."""
    if not broken or len(parcel.pieces) == 1:
        return _failed(parcel, reason)
    return [row for half in parcel.halves() for row in _rows(server, path, half)]


def _failed(parcel: Parcel, reason: str) -> list[Row]:
    return [Row(piece, piece.row, error=reason) for piece in parcel.pieces]

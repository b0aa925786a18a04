"""`penstock predict`: files sent a few requests at a time, and answers given in the order of the files."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from urllib.parse import quote

from penstock.client import results
from penstock.client.connection import (
    Broken,
    Server,
    Unanswered,
    Unreachable,
    inputs_of,
    model_of,
    place,
)
from penstock.client.desk import Desk, Wishes, progress
from penstock.client.parcels import Parcel, parcels, sources
from penstock.client.results import Row
from penstock.errors import PenstockError, Say, first_line

# What would be answered to every file alike.
_FATAL = (401, 403, 404, 405)


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
    server, desk = Server(place(url), wishes.patience, wishes.access), Desk(wishes, complain)
    try:
        model = model_of(server, wishes.model)
        sent = parcels(files, wishes.batch, inputs_of(server, model))
        path = f"/predict/{quote(model, safe='')}?top_k={wishes.top_k}"
        with progress(len(files), printing=desk.prints) as step:
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

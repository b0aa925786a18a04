"""Logs: what a server says of itself, a line each, as text for people or as JSON for what collects logs."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import orjson

from penstock.errors import PenstockError
from penstock.serve.records import moment

FORMATS = ("text", "json")
Say = Callable[[str], None]
log = logging.getLogger("penstock.serve")


def set_up(form: str) -> None:
    """Send all that is logged to stderr, by whatever library, Python's warnings too; `form` is one of `FORMATS`.

    Raises:
        PenstockError: it is none of them.
    """
    if form not in FORMATS:
        raise PenstockError(f"--log-format {form[:20]!r}: must be {' or '.join(FORMATS)}")
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Stderr)]:
        root.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(AsJson() if form == "json" else AsText("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    logging.getLogger("penstock").setLevel(logging.INFO)  # loads, unloads and what was measured are worth a line
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _died
        threading.excepthook = _thread_died


def saying(say: Say, form: str) -> Say:
    """`say` for what a server tells where it starts: an event of the log, where that is JSON."""

    def say_event(line: str) -> None:
        say(AsJson().format(logging.makeLogRecord({"name": log.name, "levelname": "INFO", "msg": line})))

    return say_event if form == "json" else say


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what stderr is when there is something to write."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        raise AttributeError("it is always stderr")


class AsText(logging.Formatter):
    """A line with its fields as name=value; a traceback's lines stand below it, set in.

    What could end a line, or move a terminal's cursor, is written as an escape: no client can write a line of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", None) or {}
        shown = [
            f"{name}={value if type(value) is not str or _plain(value) else json.dumps(value)}"
            for name, value in fields.items()
        ]
        held = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "stack_info": None})
        lines = [" ".join([super().format(held), *shown])]
        if record.exc_info:
            lines += [f"    {line}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join(escaped(line) for line in lines)


class AsJson(logging.Formatter):
    """One JSON object: time, level, logger, message, the record's `fields`, and a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": moment(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **(getattr(record, "fields", None) or {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(told, default=str).decode()
        except TypeError:  # halves of surrogate pairs, or whole numbers beyond 64 bits
            return json.dumps(told, default=str)


def escaped(line: str) -> str:
    """A line in which every character can be printed, all others as escapes."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in line
    )


def _plain(text: str) -> bool:
    return bool(text) and text.isprintable() and not any(character in text for character in ' "=')


def _died(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("the server died of an unexpected failure", exc_info=(kind, error, trace))


def _thread_died(held: threading.ExceptHookArgs) -> None:
    if held.exc_value is not None and not issubclass(held.exc_type, SystemExit):
        name = held.thread.name if held.thread else "a thread"
        log.error(
            "%s died of an unexpected failure", name, exc_info=(held.exc_type, held.exc_value, held.exc_traceback)
        )

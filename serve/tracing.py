"""Traces: of one request in so many, when it came, waited, was computed and answered, in a file of JSON.

Protocol: Triton's extension_trace.md. The file is one JSON array after every trace, as Triton writes it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.serve.errors import RequestError
from penstock.serve.times import Times

log = logging.getLogger(__name__)
DEFAULTS: dict[str, Any] = {
    **{"trace_file": "", "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"},
    "trace_mode": "triton",
}
_LEAST = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}


@dataclass
class Tracer:
    """Samples requests as its settings say, those of the model before those of all; `file` is where traces go.

    `changed` are the settings that clients have changed, by model, those of all under no name. `written` traces there
    are by now: a file that has some is gone on with.
    A client may not choose the file: it would write where it likes.
    """

    file: Path | None = None
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: int = 0
    _asked: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None and not self.written:
            try:
                self.file.write_text("[]")
            except OSError as error:
                raise PenstockError(f"--trace-file {self.file}: cannot be written: {error.strerror}") from None

    def settings(self, model: str = "") -> dict[str, Any]:
        """The settings of all models, or of one.

        Raises:
            RequestError: there is no file to trace to.
        """
        if self.file is None:
            raise RequestError("tracing is off; penstock serve --trace-file FILE turns it on")
        held = {**self.changed.get("", {}), **self.changed.get(model, {})}
        return {**DEFAULTS, "trace_file": str(self.file), **held}

    def update(self, wanted: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Change settings, and give them back; None takes one back to what holds where nothing is said.

        Raises:
            RequestError: one is unknown, cannot be changed, or has a value that it cannot have. None is changed then.
        """
        self.settings(model)
        checked = {name: _checked(name, value, self.file) for name, value in wanted.items()}
        held = {**self.changed.get(model, {}), **checked}
        # What is said of a model holds on when that of all is changed.
        held = {name: value for name, value in held.items() if value is not None}
        self.changed[model] = held if wanted else {}
        if "trace_rate" in wanted:
            self._asked.clear()
        return self.settings(model)

    def answered(self, model: str, version: int, request: str | None, times: Times) -> None:
        """Told of each answered request; one in `trace_rate` is written down."""
        if self.on:
            self.traced(model, version, request, times.stamps())

    @property
    def on(self) -> bool:
        """Whether any request may be written down."""
        return self.file is not None and any(
            held.get("trace_level", ["OFF"]) != ["OFF"] for held in self.changed.values()
        )

    def traced(self, model: str, version: int, request: str | None, stamps: list[dict[str, Any]]) -> None:
        """Told of each such request with the moments of its stages; one in `trace_rate` is written down."""
        if self.file is None or not self._sampled(model):
            return
        number = self.written + 1
        head = {"id": number, "model_name": model, "model_version": version}
        if request:
            head["request_id"] = request
        try:
            self._write([head, {"id": number, "timestamps": stamps}], model)
        except OSError as error:  # a full disk is no reason to fail a request
            log.warning("--trace-file %s: %s; tracing is off", self.file, error.strerror)
            self.changed = {}

    def _sampled(self, model: str) -> bool:
        held = self.settings(model)
        if held["trace_level"] == ["OFF"] or held["trace_count"] == "0":
            return False
        asked = self._asked[model] = self._asked.get(model, 0) + 1
        if asked % int(held["trace_rate"]):
            return False
        if held["trace_count"] != "-1":  # counted down where it was said
            where = model if "trace_count" in self.changed.get(model, {}) else ""
            self.changed[where]["trace_count"] = str(int(held["trace_count"]) - 1)
        return True

    def _write(self, entries: list[dict[str, Any]], model: str) -> None:
        assert self.file is not None
        each, path = int(self.settings(model)["log_frequency"]), self.file
        if each:
            path = self.file.with_name(f"{self.file.name}.{self.written // each}")
        self.written += 1
        text = ",".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
        if not path.exists():
            path.write_text("[]")
        with path.open("r+b") as held:
            end = held.seek(-1, 2)  # the closing bracket
            held.write(f"{',' if end > 1 else ''}{text}]".encode())


def _checked(name: str, value: Any, file: Path | None) -> Any:
    """A setting's value, as it is kept."""
    if name not in DEFAULTS:
        raise RequestError(f"trace setting {name[:40]!r} is unknown; it must be one of {', '.join(DEFAULTS)}")
    if name in ("trace_file", "trace_mode"):
        if value is not None and value not in (DEFAULTS[name], str(file or ""), [DEFAULTS[name]], [str(file or "")]):
            raise RequestError(f"{name} is set where the server is started (--trace-file), and cannot be changed")
        return None
    if value is None or value == []:
        return None
    given = value if isinstance(value, list) else [value]
    if name == "trace_level":
        if given not in (["OFF"], ["TIMESTAMPS"]):
            raise RequestError(f"trace_level is {str(value)[:60]!r}; it must be OFF or TIMESTAMPS")
        if given == ["TIMESTAMPS"] and file is None:
            raise RequestError(
                "trace_level is TIMESTAMPS, and there is no file for traces; start with --trace-file FILE"
            )
        return given
    text, least = str(given[0]), _LEAST[name]
    if len(given) != 1 or isinstance(given[0], bool) or not _whole(text) or int(text) < least:
        raise RequestError(f"{name} is {str(value)[:60]!r}; it must be a whole number from {least} on")
    return text


def _whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 18

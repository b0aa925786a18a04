"""Logs as lines of text and of JSON: what stands in them, and that nothing breaks out of its line."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.serve import logs
from penstock.serve.logs import AsJson, AsText

TEXT, JSON = AsText("%(levelname)s %(message)s"), AsJson()


def record(message: str, *arguments: Any, exc_info: Any = None, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("penstock.x", logging.ERROR, "x.py", 1, message, arguments, exc_info)
    made.fields = fields
    return made


def raised(message: str) -> Any:
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


def test_json_has_time_level_logger_message_and_fields() -> None:
    told = json.loads(JSON.format(record("%s is %d", "a", 3, model="m", total_ms=1.5)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told.pop("time"))
    assert told == {"level": "ERROR", "logger": "penstock.x", "message": "a is 3", "model": "m", "total_ms": 1.5}


def test_a_traceback_is_a_field_of_json_and_stands_set_in_below_text() -> None:
    failed = record("failed", exc_info=raised("why"))
    told = json.loads(JSON.format(failed))
    assert told["message"] == "failed"
    assert told["traceback"].startswith("Traceback (most recent call last):\n")
    assert told["traceback"].endswith("ValueError: why")
    head, *below = TEXT.format(failed).split("\n")
    assert head == "ERROR failed"
    assert below[-1] == "    ValueError: why"
    assert all(line.startswith("    ") for line in below)


def test_fields_of_text_are_names_and_values() -> None:
    made = TEXT.format(record("request", id="a-1", error='no "x" = y', empty="", rows=3))
    assert made == 'ERROR request id=a-1 error="no \\"x\\" = y" empty="" rows=3'


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=60)


@given(ANY_TEXT, ANY_TEXT)
def test_no_text_ends_its_line(message: str, field: str) -> None:
    told = json.loads(JSON.format(record("%s", message, field=field)))
    assert "\n" not in JSON.format(record("%s", message, field=field))
    assert (told["message"], told["field"]) == (message, field)
    line = TEXT.format(record("%s", message, field=field))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


@given(ANY_TEXT)
def test_no_exceptions_text_looks_like_a_line_of_the_log(message: str) -> None:
    failed = record("failed", exc_info=raised(message))
    assert "\n" not in JSON.format(failed)
    head, *below = TEXT.format(failed).splitlines()
    assert head == "ERROR failed"
    assert all(line.startswith("    ") and line.isprintable() for line in below)


@pytest.mark.parametrize("value", [2**70, float("nan"), {1, 2}, b"x", "\ud800"], ids=repr)
def test_no_field_keeps_its_line_from_being_json(value: Any) -> None:
    assert "field" in json.loads(JSON.format(record("m", field=value)))


def test_what_a_server_says_at_its_start_is_an_event_in_json_alone() -> None:
    lines: list[str] = []
    assert logs.saying(lines.append, "text") == lines.append
    logs.saying(lines.append, "json")("serving\nm")
    (line,) = lines
    told = json.loads(line)
    assert (told["level"], told["message"]) == ("INFO", "serving\nm")


def test_an_unknown_format_is_refused_by_its_options_name() -> None:
    with pytest.raises(PenstockError, match=re.escape("--log-format 'xml': must be text or json")):
        logs.set_up("xml")


def test_warnings_other_libraries_threads_and_the_last_failure_are_json_too() -> None:
    program = """
import logging, threading, warnings
from penstock.serve import logs
logs.set_up("text")
logs.set_up("json")
warnings.warn("careful")
logging.getLogger("uvicorn.error").error("of uvicorn")
thread = threading.Thread(target=lambda: 1 // 0, name="worker")
thread.start()
thread.join()
raise ValueError("the end")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    told = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["logger"] for line in told] == ["py.warnings", "uvicorn.error", "penstock.serve", "penstock.serve"]
    warned, _, threaded, ended = told
    assert "careful" in warned["message"]
    assert threaded["message"].startswith("worker died")
    assert "ZeroDivisionError" in threaded["traceback"]
    assert (ended["level"], ended["traceback"].splitlines()[-1]) == ("CRITICAL", "ValueError: the end")

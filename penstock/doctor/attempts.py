"""Attempts: trials run in processes of their own, within a time, and what became of each."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from penstock import parents
from penstock.doctor.tinymodel import WIDTH, identity
from penstock.errors import Say
from penstock.trial import python_command

LIMIT_S = 60.0
_TRIES, _SERVER = "penstock.doctor.tries", "penstock.doctor.server"
SERVING = "serving"


@dataclass(frozen=True)
class Outcome:
    """What a trial told: facts, or why it failed, and the module that it missed if that was why."""

    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    missing: str | None = None
    seconds: float = 0.0


def attempt_all(names: list[str], at_once: int, ended: Say = lambda _: None) -> dict[str, Outcome]:
    """Run trials, a few at once, in the order given.

    Args:
        names: keys of `penstock.doctor.tries.TRIES`, or `SERVING`.
        at_once: how many run at the same time.
        ended: told the name of each that has ended.
    """

    def one(name: str) -> Outcome:
        began = time.perf_counter()
        found = _serve() if name == SERVING else _attempt(name)
        ended(name)
        return Outcome(found.facts, found.error, found.missing, round(time.perf_counter() - began, 2))

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def _attempt(name: str) -> Outcome:
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and names from the table above)
            python_command(_TRIES, name),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env=parents.environment(),
        )
    except subprocess.TimeoutExpired:
        return Outcome(error=f"hangs: it was not done within {LIMIT_S:g} s")
    if done.returncode < 0:
        return Outcome(error=f"crashes ({parents.signal_name(done.returncode)})")
    # Libraries may print as they are imported, and once more as they end.
    for line in reversed(done.stdout.splitlines()):
        if (told := _told(line)) is not None:
            return told
    return Outcome(error=_last(done.stderr) or f"ends with {done.returncode} and says nothing")


def _told(line: str) -> Outcome | None:
    """What a trial tells, if this is the line where it does."""
    try:
        match json.loads(line):
            case {"facts": dict() as facts}:
                return Outcome(facts)
            case {"error": str() as error, "missing": missing}:
                return Outcome(error=error, missing=missing)
    except ValueError:
        pass
    return None


def _serve() -> Outcome:
    """A server that is really begun, asked over HTTP for an answer, and ended."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as said:
        path = Path(folder) / "identity.onnx"
        path.write_bytes(identity("fp32"))
        with subprocess.Popen(  # noqa: S603 (this Python)
            python_command(_SERVER, str(path)),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=parents.environment(),
        ) as process:
            late = threading.Timer(LIMIT_S, process.kill)
            late.start()
            try:
                answer = _asked(process.stdout)
            finally:
                process.terminate()
                process.wait()  # one that does not listen is killed when its time is over
                late.cancel()
        if answer is not None:
            return answer
        said.seek(0)
        in_time = process.returncode != -signal.SIGKILL
        why = _last(said.read()).removeprefix("error: ") if in_time else f"is not ready within {LIMIT_S:g} s"
        return Outcome(error=why or f"ends with {process.returncode} and says nothing")


def _asked(lines: IO[str] | None) -> Outcome | None:
    """The answer of a server, once it says that it is ready; None where it ends instead."""
    for line in lines or ():
        words = line.split()
        if words[:2] == ["ready", "at"]:
            return _ask(words[2])
    return None


def _ask(url: str) -> Outcome:
    row = [float(number) for number in range(WIDTH)]
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": row}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v2/models/identity/infer", json.dumps({"inputs": [tensor]}))
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Outcome(error=f"is ready and does not answer: {error}")
    finally:
        connection.close()
    if answer.status != 200 or content["outputs"][0]["data"] != row:
        return Outcome(error=f"answers {answer.status}: {str(content)[:150]}")
    return Outcome({"answered": True})


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200]

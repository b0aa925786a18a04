"""A process that is told to ends with the one that began it; another does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import parents

CHILD = "from penstock import parents; import time; parents.end_with_parent(); print(1, flush=True); time.sleep(60)"
BEGIN = (
    "import subprocess, sys; from penstock import parents;"
    "held = subprocess.Popen([sys.executable, '-c', {child!r}], env=parents.environment(), stdout=subprocess.PIPE);"
    "held.stdout.readline(); print(held.pid, flush=True); held.wait()"
)


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_process_whose_parent_is_killed_is_gone() -> None:
    command = [sys.executable, "-c", BEGIN.format(child=CHILD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as began:
        assert began.stdout is not None
        pid = int(began.stdout.readline())
        assert not gone(pid)
        began.kill()
    wait_for(lambda: gone(pid))


def test_a_process_whose_parent_is_gone_before_it_asks_ends_at_once() -> None:
    told = {**parents.environment(), "PENSTOCK_PARENT": "1" if os.getpid() != 1 else "2"}
    done = subprocess.run([sys.executable, "-c", CHILD], env=told, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_nothing_changes_where_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PARENT", raising=False)
    parents.end_with_parent()


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "ended with exit code 0"), (-9, "died of SIGKILL"), (-40, "died of signal 40")],
)
def test_how_a_process_ended_is_told_of_any_signal(code: int, told: str) -> None:
    assert parents.fate(code) == told

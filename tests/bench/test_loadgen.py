"""LoadGen as the generator: an interrupt leaves it what it runs on until it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.bench import loadgen


class Pretended:
    """LoadGen's interface: asks for a sample every few milliseconds, so often as it was told."""

    TestScenario = SimpleNamespace(SingleStream="SingleStream")
    TestMode = SimpleNamespace(PerformanceOnly="PerformanceOnly")
    TestSettings = SimpleNamespace

    def __init__(self, queries: int) -> None:
        self.queries, self.asked, self.running, self.destroyed_under_it = queries, 0, False, False

    def LogSettings(self) -> Any:
        return SimpleNamespace(log_output=SimpleNamespace())

    def QuerySampleResponse(self, *told: int) -> tuple[int, ...]:
        return told

    def QuerySamplesComplete(self, responses: Sequence[Any]) -> None:
        self.asked += len(responses)

    def ConstructSUT(self, issue: Any, flush: Any) -> Any:
        return issue

    def ConstructQSL(self, *told: Any) -> None:
        return None

    def DestroyQSL(self, qsl: Any) -> None:
        self.destroyed_under_it |= self.running

    DestroySUT = DestroyQSL

    def StartTestWithLogSettings(self, issue: Any, *rest: Any) -> None:
        self.running = True
        for number in range(self.queries):
            issue([SimpleNamespace(id=number, index=0)])
            time.sleep(0.005)
        self.running = False


class Right:
    def ask(self, indices: Sequence[int]) -> list[str | None]:
        return [None] * len(indices)


def test_an_interrupt_waits_for_its_end_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = Pretended(60)
    monkeypatch.setattr(loadgen, "require", lambda *words: pretended)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    found = loadgen.run(loadgen.Settings("singlestream", tmp_path), Right)
    assert found.interrupted
    assert (pretended.asked, pretended.destroyed_under_it) == (60, False)
    assert 0 < len(found.latencies_s) < 60
    assert found.failures == {}


def test_a_second_interrupt_ends_the_process(tmp_path: Path) -> None:
    script = (
        "import sys, threading, os, signal\n"
        "from pathlib import Path\n"
        "from penstock.bench import loadgen\n"
        "from tests.bench.test_loadgen import Pretended, Right\n"
        "loadgen.require = lambda *words: Pretended(4000)\n"
        "for after in (0.1, 0.4):\n"
        "    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "loadgen.run(loadgen.Settings('singlestream', Path(sys.argv[1])), Right)\n"
    )
    command, home = [sys.executable, "-c", script, str(tmp_path)], Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, timeout=20, check=False, cwd=home)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


class Silent:
    """Answers three times, and never again; an answer that does not come takes a while."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, indices: Sequence[int]) -> list[str | None]:
        self.asked += 1
        if self.asked <= 3:
            return [None] * len(indices)
        time.sleep(0.05)
        return ["timeout"] * len(indices)


def test_a_server_that_answers_no_more_is_lost_after_three_queries_and_the_rest_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended, subject = Pretended(60), Silent()
    monkeypatch.setattr(loadgen, "require", lambda *words: pretended)
    found = loadgen.run(loadgen.Settings("singlestream", tmp_path), lambda: subject)
    assert (found.lost, found.interrupted) == (True, False)
    assert (pretended.asked, subject.asked) == (60, 6)
    assert (len(found.latencies_s), found.failures) == (3, {"timeout": 3})

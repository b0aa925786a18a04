"""MLPerf's LoadGen as the generator: SingleStream, MultiStream, Server and Offline, with its own logs kept.

LoadGen decides when queries are issued and what its figures are; here its samples become requests to a server, or runs
of an artifact. Rules: https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
"""

from __future__ import annotations

import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.bench.httpanswers import Answer, AnswerReader
from penstock.errors import PenstockError, require

SCENARIOS = {"singlestream": "SingleStream", "multistream": "MultiStream", "server": "Server", "offline": "Offline"}
SUMMARY = "mlperf_log_summary.txt"
_FIGURE = re.compile(r"^([^:=\n]+?)\s*[:=]\s*(.+?)\s*$", re.MULTILINE)
_AT_ONCE = 65_536
# A server's answers are awaited by so many threads, an offline batch by as many.
_THREADS = 32
# To so many queries one after the other nobody has answered: the server is gone, or hangs. LoadGen would go on asking
# as many as it was told to, and wait for each.
_LOST, _QUIET = 3, {"timeout", "refused", "connection"}
# Samples in a query of scenario MultiStream; MLPerf's rules fix it.
STREAMS = 8


class Subject(Protocol):
    """What is measured: answers the samples of these indices, and says for each whether that was right."""

    def ask(self, indices: Sequence[int]) -> list[str | None]: ...


@dataclass(frozen=True)
class Settings:
    """What LoadGen is told.

    `target_qps` is what scenario Server asks at, and for the others a guess: of as many samples LoadGen makes its
    queries beforehand, and ends early where they were too few. `target_ms` is the latency that Server's p99 is to
    keep.
    """

    scenario: str
    logs: Path
    seconds: float = 10.0
    samples: int = 64
    target_qps: float = 1000.0
    target_ms: float | None = None
    least_queries: int = 100
    threads: int = _THREADS
    most_at_once: int = 1


@dataclass
class Outcome:
    """LoadGen's summary by its own words, the seconds that samples took as seen here, and failures by kind.

    `lost`: nobody answered any more, and the rest was not asked.
    """

    summary: dict[str, str]
    latencies_s: list[float]
    failures: dict[str, int]
    seconds: float
    interrupted: bool = False
    lost: bool = False


class Desk:
    """Takes LoadGen's queries, has threads ask for them, and completes them."""

    def __init__(self, loadgen: Any, make: Callable[[], Subject], settings: Settings) -> None:
        self._loadgen, self._settings = loadgen, settings
        self._alone = make() if settings.scenario == "singlestream" else None
        self._work: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self.latencies_s: list[float] = []
        self.failures: dict[str, int] = {}
        self.ended = self.lost = False
        self._unanswered = 0
        self._threads = [] if self._alone else [self._thread(make()) for _ in range(settings.threads)]

    def _thread(self, subject: Subject) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=(subject,), daemon=True)
        thread.start()
        return thread

    def issue(self, samples: list[Any]) -> None:
        """LoadGen's callback: a query, which must come back at once but for the single stream."""
        if self._alone is not None:
            self._answer(self._alone, samples, time.perf_counter())
            return
        size = self._settings.most_at_once
        for start in range(0, len(samples), size):
            self._work.put([time.perf_counter(), samples[start : start + size]])

    def flush(self) -> None:
        """LoadGen's callback: nothing is held back here."""

    def _serve(self, subject: Subject) -> None:
        while (item := self._work.get()) is not None:
            self._answer(subject, item[1], item[0])

    def _answer(self, subject: Subject, samples: list[Any], issued: float) -> None:
        if self.ended or self.lost:  # LoadGen has no way to be ended: what it still issues is answered with nothing
            failures: list[str | None] = ["interrupted"] * len(samples)
        else:
            failures = subject.ask([sample.index for sample in samples])
        taken = time.perf_counter() - issued
        response = self._loadgen.QuerySampleResponse
        self._loadgen.QuerySamplesComplete([response(sample.id, 0, 0) for sample in samples])
        self._unanswered = self._unanswered + 1 if set(failures) <= _QUIET else 0
        self.lost = self.lost or self._unanswered >= _LOST
        for failure in failures:
            if failure is None:
                self.latencies_s.append(taken)
            else:
                self.failures[failure] = self.failures.get(failure, 0) + 1

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout=5)


def guessed_rate(make: Callable[[], Subject], threads: int, rows: int = 1, seconds: float = 0.5) -> float:
    """Samples a second that so many threads have answered, tried for a moment.

    Args:
        make: a subject for one thread.
        threads: how many ask.
        rows: samples that each asks for at once.
        seconds: how long it is tried.
    """
    counts = [0] * threads

    def ask(place: int, subject: Subject) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            subject.ask([0] * rows)
            counts[place] += rows

    asking = [threading.Thread(target=ask, args=(place, make()), daemon=True) for place in range(threads)]
    began = time.perf_counter()
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return max(1.0, sum(counts) / (time.perf_counter() - began))


def run(settings: Settings, make: Callable[[], Subject]) -> Outcome:
    """A scenario from its begin to its end.

    Args:
        settings: the scenario, and where its logs go.
        make: a subject for one thread.

    Raises:
        PenstockError: LoadGen is not installed, there is no such scenario, or the folder cannot be written.
    """
    loadgen = require("mlperf_loadgen", "bench", "--loadgen")
    try:
        settings.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(f"--logs {settings.logs}: cannot be written: {error.strerror}") from None
    desk = Desk(loadgen, make, settings)
    sut = loadgen.ConstructSUT(desk.issue, desk.flush)
    qsl = loadgen.ConstructQSL(settings.samples, settings.samples, lambda indices: None, lambda indices: None)
    began = time.perf_counter()
    try:
        interrupted = _started(loadgen, sut, qsl, settings, desk)
    finally:
        desk.close()
    seconds = time.perf_counter() - began
    loadgen.DestroyQSL(qsl)
    loadgen.DestroySUT(sut)
    failures = {kind: count for kind, count in desk.failures.items() if kind != "interrupted"}
    return Outcome(read_summary(settings.logs), desk.latencies_s, failures, seconds, interrupted, desk.lost)


def _started(loadgen: Any, sut: Any, qsl: Any, settings: Settings, desk: Desk) -> bool:
    """Run it on a thread, so that ^C is heard; whether it was."""
    logs = loadgen.LogSettings()
    logs.log_output.outdir = str(settings.logs)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = False
    done = threading.Event()

    def carry_out() -> None:
        try:
            loadgen.StartTestWithLogSettings(sut, qsl, told(loadgen, settings), logs)
        finally:
            done.set()

    threading.Thread(target=carry_out).start()
    # Not by joining: until Python 3.13 a thread whose join was interrupted counts as ended, and LoadGen still runs.
    try:
        done.wait()
    except KeyboardInterrupt:
        desk.ended = True
        _wait_for_its_end(done)
        return True
    return False


def _wait_for_its_end(done: threading.Event) -> None:
    """Until LoadGen has asked all that it had planned; what it runs on must not go before. A second ^C ends it all."""
    try:
        done.wait()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # the ordinary way out takes the interpreter away from under LoadGen


def told(loadgen: Any, settings: Settings) -> Any:
    """LoadGen's own settings."""
    found = loadgen.TestSettings()
    found.scenario = getattr(loadgen.TestScenario, SCENARIOS[settings.scenario])
    found.mode = loadgen.TestMode.PerformanceOnly
    found.min_duration_ms = int(1e3 * settings.seconds)
    found.min_query_count = settings.least_queries
    rate = float(settings.target_qps)
    if settings.scenario == "server":
        found.server_target_qps = rate
        found.server_target_latency_ns = int(1e6 * (settings.target_ms or 100.0))
    elif settings.scenario == "offline":
        found.offline_expected_qps = rate
        found.min_query_count = 1
    elif settings.scenario == "multistream":
        found.multi_stream_samples_per_query = STREAMS
        found.multi_stream_expected_latency_ns = int(1e9 * STREAMS / rate)
    else:
        found.single_stream_expected_latency_ns = int(1e9 / rate)
    return found


def read_summary(folder: Path) -> dict[str, str]:
    """LoadGen's summary: what stands before each colon or equals sign, and what behind it."""
    try:
        text = (folder / SUMMARY).read_text()
    except OSError:
        return {}
    return {name.strip(): value for name, value in _FIGURE.findall(text)}


class OverHttp:
    """Requests on one blocking connection, for one thread."""

    def __init__(
        self, connect: Callable[[], socket.socket], requests: Sequence[bytes], right: Callable[[int, Answer], bool]
    ) -> None:
        self._connect, self._requests, self._right = connect, requests, right
        self._socket: socket.socket | None = None

    def ask(self, indices: Sequence[int]) -> list[str | None]:
        return [self._one(index) for index in indices]

    def _one(self, index: int) -> str | None:
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.sendall(self._requests[index])
            reader = AnswerReader()
            answer: Answer | None = None
            while answer is None:
                data = self._socket.recv(_AT_ONCE)
                answer = reader.feed(data) if data else reader.end()
                if not data and answer is None:
                    raise ConnectionResetError
        except (OSError, ValueError) as error:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            refused = isinstance(error, ConnectionRefusedError)
            return "timeout" if isinstance(error, TimeoutError) else "refused" if refused else "connection"
        if answer.head.closes:
            self._socket.close()
            self._socket = None
        if answer.head.status != 200:
            return f"status {answer.head.status}"
        return None if self._right(index, answer) else "wrong"

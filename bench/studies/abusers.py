"""Bad, slow, cancelling and pipelining clients of soak.py, in a process of their own, each at a rate of its own.

Those that should be answered are: a pipelined answer must be its own request's, a wrong request gets a 4xx, and nobody
a 5xx, but for the 503 of a queue or of connections that are full.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any, Protocol

import numpy as np

from penstock.bench.studies.traffic import Client, Tally, drawn, request, wait_until

# Attempts a second of each kind. The generator shares its machine with the server, whose CPU they must not take up.
RATES = {
    "malformed": 5.0,
    "wrong shape": 5.0,
    "oversize": 1.0,
    "100 MB JSON": 0.2,
    "large JSON": 0.1,
    "gzip bomb": 0.5,
    "drip": 1.0,
    "slow reader": 0.2,
    "cancelled body": 5.0,
    "cancelled answer": 5.0,
    "timed out": 2.0,
    "pipelined": 5.0,
}
_AHEAD = 8


class Aim(Protocol):
    """A number that processes share."""

    value: int


_DRIPPED_S = 10.0


def _post(model: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: here"]
    lines += [f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Abusers:
    """One method for each kind, which is one attempt; it gives the status that it got, and whether that was wrong."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self.rng = np.random.default_rng(17)
        zeros = gzip.compress(bytes(2**30), 1)
        self._bomb = _post("line", zeros, "Content-Encoding: gzip")
        self._long = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d, 8], "data": [' % 1_700_000
        number = b"1234567"
        # Under the limit of 64 MiB, and of rows that the queue would not hold; and 100 MB, over the limit.
        self._large = self._long + b",".join([number] * (60_000_000 // 8)) + b"]}]}"
        self._hundred = 100 * 10**6

    @property
    def port(self) -> int:
        """Of the server that they are at now."""
        return self._aim.value

    def _status(self, data: bytes, timeout_s: float = 60) -> str:
        held = Client(self.port, timeout_s)
        try:
            return str(held.ask(data).status)
        finally:
            held.close()

    def malformed(self) -> str:
        bodies = (b"{", b"[]", b'{"inputs": 5}', b"\xff\xfe", b'{"inputs": [{"name": "x"}]}', b"[" * 5000)
        return self._status(_post("line", bodies[int(self.rng.integers(len(bodies)))]))

    def wrong_shape(self) -> str:
        return self._status(request("line", np.zeros((2, 9), np.float32), binary=bool(self.rng.integers(2))))

    def oversize(self) -> str:
        return self._status(_post("line", b"", length=10**10))

    def _100_mb_json(self) -> str:
        held = Client(self.port)
        try:
            held.send(_post("line", self._long, length=self._hundred))
            try:
                for _ in range(self._hundred // len(self._large) + 1):
                    held.send(self._large)
            except OSError:
                pass  # refused before all of it is sent
            return str(held.read().status)
        finally:
            held.close()

    def large_json(self) -> str:
        return self._status(_post("line", self._large))

    def gzip_bomb(self) -> str:
        return self._status(self._bomb)

    def drip(self) -> str:
        data = request("line", drawn(self.rng), binary=False)
        held, step = Client(self.port), max(1, len(data) // 20)
        try:
            for start in range(0, len(data), step):
                held.send(data[start : start + step])
                time.sleep(_DRIPPED_S / 20)
            return str(held.read().status)
        finally:
            held.close()

    def slow_reader(self) -> str:
        x = np.zeros((256, 8), np.float32)
        held = Client(self.port)
        try:
            for _ in range(16):
                held.send(request("line", x, binary=True))
            time.sleep(5)
            found = {str(held.read().status) for _ in range(16)}
            return "+".join(sorted(found))
        finally:
            held.close()

    def cancelled_body(self) -> str:
        data = request("line", drawn(self.rng), binary=True)
        held = Client(self.port)
        held.send(data[: int(self.rng.integers(1, len(data)))])
        held.close()
        return "left"

    def cancelled_answer(self) -> str:
        held = Client(self.port)
        held.send(request("line", np.zeros((128, 8), np.float32), binary=False) * 2)
        time.sleep(float(self.rng.uniform(0, 0.01)))
        held.close()
        return "left"

    def timed_out(self) -> str:
        x = drawn(self.rng)
        entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
        return self._status(_post("line", json.dumps({"inputs": [entry], "parameters": {"timeout": 1}}).encode()))

    def pipelined(self) -> str:
        inputs = [drawn(self.rng) for _ in range(_AHEAD)]
        sent = [request("line", x, binary=n % 2 == 0, id=str(n)) for n, x in enumerate(inputs)]
        held = Client(self.port)
        try:
            held.send(b"".join(sent))
            for number, x in enumerate(inputs):
                answer = held.read()
                if answer.status != 200:
                    return str(answer.status)
                found, id = answer.tensor()
                if id != str(number) or not np.array_equal(found, 3 * x + 7):
                    return "wrong"
            return "200"
        finally:
            held.close()


def _repeat(attempt: Callable[[], str], rate: float, aim: Aim, over: Event, tally: Tally) -> None:
    """Attempts at a rate, where there is an aim; those that take longer than the time between two run side by side."""
    moment = time.perf_counter()
    running: list[threading.Thread] = []

    def once() -> None:
        try:
            tally.add(attempt())
        except OSError as error:
            if aim.value:  # those that begin while it is taken away find nobody
                tally.add("broken", note=str(error))

    while not over.is_set():
        moment += 1 / rate
        wait_until(moment)
        if not aim.value:
            continue
        running = [thread for thread in running if thread.is_alive()]
        running.append(threading.Thread(target=once))
        running[-1].start()
    for thread in running:
        thread.join()


def abuse(aim: Aim, kinds: list[str], over: Event, results: Any) -> None:
    """All of these kinds at once, at the server that `aim` names, until `over`; what each kind got goes into `results`.

    Args:
        aim: the port of a server, 0 while they are to rest.
    """
    abusers = Abusers(aim)
    tallies = {kind: Tally() for kind in kinds}
    results.put("there")  # what they send takes a while to make
    threads = []
    for kind in kinds:
        name = kind.lower().replace(" ", "_")
        attempt = getattr(abusers, f"_{name}" if name[0].isdigit() else name)
        threads.append(threading.Thread(target=_repeat, args=(attempt, RATES[kind], aim, over, tallies[kind])))
        threads[-1].start()
    for thread in threads:
        thread.join()
    results.put({kind: (dict(tally.statuses), tally.notes) for kind, tally in tallies.items()})

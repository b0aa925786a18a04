"""A process that reads what is long: a parser holds the interpreter for as long as it takes, and with it everybody.

60 MB of numbers keep every thread of the process that parses them from running for a third of a second at a time, and
for a second in all. So what is long goes to one process beside the server, a request at a time, and comes back as
arrays; it is begun with the first such request, and anew if it dies. Here it costs copies, which others can run beside.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
import threading
import time
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.serve import failures
from penstock.serve.errors import RequestError
from penstock.serve.outcomes import Expired, QueueFull
from penstock.serve.rooms import room
from penstock.serve.tensors import from_bytes
from penstock.serve.threads import CallThread
from penstock.trial import python_command

# JSON of so many bytes is read in a few milliseconds, which is what the way to another process and back takes.
LONG = 2**20
# A call that nobody waits for any more may take so long by itself.
_GRACE_S = 0.5
MOST_WAITING = 64
"""Requests that may be read or wait for it; their bodies are in memory."""
LENGTHS, LENGTH = struct.Struct("<QQ"), struct.Struct("<Q")
"""Bytes of a call's JSON and of its body; bytes of an answer's JSON."""
Found = tuple[dict[str, Any], dict[str, NDArray[np.generic]]]
"""What a call gives: facts, and arrays by name."""


class _Wish:
    """A call, and whether its caller still waits for it."""

    def __init__(self, call: bytes, body: Buffer, aligned: int) -> None:
        self.call, self.body, self.aligned = call, body, aligned
        self.gone = self.killed = False
        self.began = 0.0


class Died(Exception):
    """The process ended before it answered."""


class Reader:
    """One such process, asked from any event loop.

    Args:
        what: it reads, in the plural, as clients are told.
        instead: what they should do if it cannot be read.
        module: what it runs, as serve/reading.py is written.
    """

    def __init__(self, what: str, instead: str, module: str = "penstock.serve.reading") -> None:
        self._what, self._instead, self._module = what, instead, module
        self._thread: CallThread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._current: _Wish | None = None
        self._waiting = 0
        self._lock = threading.Lock()

    async def call(self, name: str, body: Buffer, told: dict[str, Any], *, timeout_s: float, aligned: int = 0) -> Found:
        """What the other process makes of a body, by the call of that name in its table.

        Args:
            name: the call's.
            body: what is to be read.
            told: what is to be known to do so, as JSON has it.
            timeout_s: seconds that its answer is waited for.
            aligned: where in each array what lies from there on lies as arrays should.

        Raises:
            QueueFull: too many wait already.
            Expired: it was not read within `timeout_s` seconds, what is before it included.
            RequestError: 503, the process died over it; or whatever the call raises.
        """
        if self._waiting >= MOST_WAITING:
            raise QueueFull(f"{self._waiting} {self._what} wait to be read; {self._instead}, or send it later")
        if self._thread is None:
            self._thread = CallThread("penstock-reader")
        wish = _Wish(orjson.dumps([name, told]), body, aligned)
        self._waiting += 1
        answered = self._thread.call(self._answer, wish)
        try:
            await asyncio.wait([answered], timeout=timeout_s)
            if not answered.done():
                raise Expired(f"no answer within the timeout of {timeout_s:g} s: {self._what} take long to be read")
            found: Found | Exception = answered.result()
        finally:
            self._waiting -= 1
            if not answered.done():
                answered.cancel()
                self._give_up(wish)
        if isinstance(found, Exception):
            raise found
        return found

    def _give_up(self, wish: _Wish) -> None:
        """Nobody waits for it: the next in line should not either."""
        with self._lock:
            wish.gone = True
            if self._current is not wish:
                wish.body = b""
                return
        # Most are done by then, and another process takes longer to begin than they do.
        left = wish.began + _GRACE_S - time.monotonic()
        if left > 0:
            asyncio.get_running_loop().call_later(left, self._kill, wish)
        else:
            self._kill(wish)

    def _kill(self, wish: _Wish) -> None:
        with self._lock:
            if self._current is wish and self._process is not None:
                wish.killed = True
                self._process.kill()  # `_answer` sees that it ends, and that no other is sent to it

    def _answer(self, wish: _Wish) -> Found | Exception:
        """What the call gave or raised."""
        with self._lock:
            if wish.gone:
                return {}, {}
            self._current, wish.began = wish, time.monotonic()
        whole = False
        try:
            found = _exchanged(self._begun(), wish)
            whole = True
            return found
        except (OSError, Died) as error:
            died = isinstance(error, Died | BrokenPipeError)
            what = "died over this request" if died else f"could not be asked ({error})"
            return RequestError(f"the process that reads {self._what} {what}; {self._instead}", 503)
        finally:
            with self._lock:
                self._current = None
                wish.body = b""
            if wish.killed or not whole:  # by now nobody else may kill it, and the next begins another
                self._end()

    def _begun(self) -> subprocess.Popen[bytes]:
        """The process, begun if there is none."""
        if self._process is None or self._process.poll() is not None:
            command = python_command(self._module)
            begun = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 (this Python, and words of ours)
            with self._lock:
                self._process = begun
        assert self._process is not None
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()  # or the next would find it not quite dead
            self._process = None

    @property
    def process_id(self) -> int | None:
        """The process's, once there has been one."""
        return None if self._process is None else self._process.pid


def _exchanged(process: subprocess.Popen[bytes], wish: _Wish) -> Found | Exception:
    assert process.stdin is not None
    assert process.stdout is not None
    body = memoryview(wish.body).cast("B")
    for part in (LENGTHS.pack(len(wish.call), len(body)), wish.call, body):
        write(process.stdin, part)
    (size,) = LENGTH.unpack(read(process.stdout, LENGTH.size))
    told = orjson.loads(read(process.stdout, size))
    if "error" in told:
        return failures.raised(told)
    arrays = {
        name: from_bytes(name, read(process.stdout, size, wish.aligned), dtype, tuple(shape))
        for name, dtype, shape, size in told["arrays"]
    }
    return told["said"], arrays


def write(stream: Any, data: Buffer) -> None:
    """All of it."""
    left = memoryview(data)
    while len(left):
        left = left[stream.write(left) :]


def read(stream: Any, size: int, aligned: int = 0) -> memoryview:
    """So many bytes, in memory of their own; what lies from `aligned` on lies as arrays should.

    Raises:
        Died: there are no more.
    """
    held = room(size, aligned)
    left = held
    while len(left):
        count = stream.readinto(left)
        if not count:
            raise Died
        left = left[count:]
    return held


READER = Reader("bodies of long JSON", "send its tensors in binary")

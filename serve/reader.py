"""A process that reads long JSON: a parser holds the interpreter for as long as it takes, and with it everybody else.

60 MB of numbers keep every thread of the process that parses them from running for a third of a second at a time, and
for a second in all. So what is long goes to one process beside the server, a request at a time, and comes back as
arrays; it is begun with the first such request, and anew if it dies. Here it costs copies, which others can run beside.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.outcomes import Expired, QueueFull
from penstock.serve.threads import CallThread
from penstock.trial import python_command

# JSON of so many bytes is read in a few milliseconds, which is what the way to another process and back takes.
LONG = 2**20
MOST_WAITING = 64
"""Requests that may be read or wait for it; their bodies are in memory."""
# Whoever waits for other answers goes first.
_NICE = 5
_LENGTHS = struct.Struct("<QQ")


class _Wish:
    """A call, and whether its caller still waits for it."""

    def __init__(self, call: tuple[Callable[..., Any], tuple[Any, ...]], body: Buffer) -> None:
        self.call, self.body, self.gone = call, body, False


class _Died(Exception):
    """The process ended before it answered."""


class Reader:
    """One such process, asked from any event loop."""

    def __init__(self) -> None:
        self._thread: CallThread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._current: _Wish | None = None
        self._waiting = 0
        self._lock = threading.Lock()

    async def call(self, function: Callable[..., Any], body: Buffer, *arguments: Any, timeout_s: float) -> Any:
        """`function(body, *arguments)` in the other process, which finds the function by its name.

        Raises:
            QueueFull: too many wait already.
            Expired: it was not read within `timeout_s` seconds, what is before it included.
            RequestError: 503, the process died over it; or whatever the function raises.
        """
        if self._waiting >= MOST_WAITING:
            raise QueueFull(f"{self._waiting} requests of long JSON wait to be read; send tensors in binary, or later")
        if self._thread is None:
            self._thread = CallThread("penstock-reader")
        wish = _Wish((function, arguments), body)
        self._waiting += 1
        answered = self._thread.call(self._answer, wish)
        try:
            await asyncio.wait([answered], timeout=timeout_s)
            if not answered.done():
                raise Expired(
                    f"no answer within the timeout of {timeout_s:g} s: its JSON is long, and was not read yet"
                )
            done, value = answered.result()
        finally:
            self._waiting -= 1
            if not answered.done():
                answered.cancel()
                self._give_up(wish)
        if not done:
            raise value
        return value

    def _give_up(self, wish: _Wish) -> None:
        """Nobody waits for it: the next in line should not either."""
        with self._lock:
            wish.gone = True
            if self._current is not wish:
                wish.body = b""
            elif self._process is not None:
                self._process.kill()  # `_answer` sees that it ends, and that no other is sent to it

    def _answer(self, wish: _Wish) -> tuple[bool, Any]:
        """Whether the function gave something, and what it gave or raised."""
        with self._lock:
            self._current = wish
        died = False
        try:
            process = self._begun()
            return (True, None) if wish.gone else _exchanged(process, wish)
        except (OSError, _Died) as error:
            died = True
            return False, _lost(error)
        finally:
            with self._lock:
                self._current = None
                wish.body = b""
            if died or wish.gone:  # by now nobody else may kill it, and the next begins another
                self._end()

    def _begun(self) -> subprocess.Popen[bytes]:
        """The process, begun if there is none."""
        if self._process is None or self._process.poll() is not None:
            command = python_command("penstock.serve.reader")
            begun = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
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


def _lost(error: Exception) -> RequestError:
    what = "died over this request" if isinstance(error, _Died | BrokenPipeError) else f"could not be asked ({error})"
    return RequestError(f"the process that reads long JSON {what}; send its tensors in binary", 503)


def _exchanged(process: subprocess.Popen[bytes], wish: _Wish) -> tuple[bool, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    call, body = pickle.dumps(wish.call), memoryview(wish.body).cast("B")
    for part in (_LENGTHS.pack(len(call), len(body)), call, body):
        _write(process.stdin, part)
    said, count = _LENGTHS.unpack(_read(process.stdout, _LENGTHS.size))
    sizes = struct.unpack(f"<{count}Q", _read(process.stdout, 8 * count))
    text = _read(process.stdout, said)
    found: tuple[bool, Any] = pickle.loads(text, buffers=[_read(process.stdout, size) for size in sizes])  # noqa: S301
    return found


def _write(stream: Any, data: Buffer) -> None:
    left = memoryview(data)
    while len(left):
        left = left[stream.write(left) :]


def _read(stream: Any, size: int) -> memoryview:
    """So many bytes, in memory of their own.

    Raises:
        _Died: there are no more.
    """
    held: memoryview = np.empty(size, np.uint8).data
    left = held
    while len(left):
        count = stream.readinto(left)
        if not count:
            raise _Died
        left = left[count:]
    return held


def _serve(requests: io.RawIOBase, answers: io.RawIOBase) -> None:
    """Answer one call after the other, until there are no more."""
    while True:
        said, size = _LENGTHS.unpack(_read(requests, _LENGTHS.size))
        function, arguments = pickle.loads(_read(requests, said))  # noqa: S301
        body = _read(requests, size)
        try:
            found = (True, function(body, *arguments))
        except Exception as error:
            found = (False, error)
        _answer(answers, found)
        del found, body  # not kept until the next


def _answer(answers: io.RawIOBase, found: tuple[bool, Any]) -> None:
    buffers: list[Any] = []
    text = pickle.dumps(found, protocol=5, buffer_callback=lambda held: buffers.append(held.raw()))
    sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    for part in (_LENGTHS.pack(len(text), len(buffers)), sizes, text, *buffers):
        _write(answers, part)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the server, at whose end there are no more requests
    os.nice(_NICE)
    requests, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints must not do so amid the answers
    with suppress(_Died, BrokenPipeError):
        _serve(requests, answers)


READER = Reader()

if __name__ == "__main__":
    main()

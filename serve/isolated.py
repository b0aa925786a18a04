"""A runner in a process of its own: one that crashes or hangs takes nothing along, and is missed even while idle."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock import parents
from penstock.errors import PenstockError
from penstock.laid import GIVEN, Form, Laid, Memory, all_laid
from penstock.runtimes import BaseRunner, InstanceDead, Runner, parted
from penstock.serve import failures, threads, worker
from penstock.serve.arena import Arena
from penstock.serve.opening import Opening
from penstock.serve.worker import MOST_MESSAGE
from penstock.signature import Arrays, Signature, served
from penstock.trial import python_command

log = logging.getLogger(__name__)
_OPEN_S = 600.0
# How often the process is asked whether it runs; late, it is held to be in trouble, and later still it is ended.
_ASKED_S, _LATE_S, _STALLED_S = 0.25, 1.0, 5.0
_END_S = 5.0
# How long a lane is waited for that is to know memory before its next batch, and between looks for one.
_PREPARE_S, _AGAIN_S = 30.0, 0.01
# Where more requests lie is too much for one message.
_MOST_LAID = 4096
_processes: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
threads.before_hard_end(lambda: kill_all())
# A process is ended with the thread that began it (PR_SET_PDEATHSIG, which the worker asks for): this one stays.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="penstock-spawn")


@dataclass
class _Lane:
    """One batch at a time: the socket and the memory that both processes have."""

    socket: socket.socket
    arena: Arena
    number: int = 0
    # Memory of front ends that the process has been given, by its number; of some it may not have all, as it failed.
    known: dict[int, weakref.ref[Memory]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    message: memoryview = field(default_factory=lambda: memoryview(bytearray(MOST_MESSAGE)))

    def close(self) -> None:
        self.socket.close()
        self.arena.close()


class IsolatedRunner(BaseRunner):
    """A runner whose process is another. Arrays go through shared memory; messages say where they lie.

    Args:
        opening: what is opened there.

    Raises:
        PenstockError: it cannot be opened, or its process died of it.
    """

    inside = False

    def __init__(self, opening: Opening) -> None:
        self.callers = opening.callers or 1
        self._lanes: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        self._closing = self._killed = False
        control, self._process, lanes = _started(opening, self.callers)
        self._control = control
        try:
            self.signature, self.steady, self.threads = self._opened(opening.path)
        except BaseException:
            self._end(lanes)
            raise
        super().__init__(self.signature)
        self._held = lanes
        for lane in lanes:
            self._lanes.put(lane)
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, name="penstock-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def well(self) -> bool:
        """Whether its process runs, and has said so a moment ago."""
        return self._process.returncode is None and time.monotonic() - self._heard < _LATE_S + _ASKED_S

    @property
    def gone(self) -> bool:
        """Whether its process has ended."""
        return self._process.returncode is not None

    def run(self, feeds: Arrays) -> dict[str, Any]:
        return self._asked([feeds])

    def run_together(self, items: Sequence[Arrays]) -> list[dict[str, Any]]:
        answer = self._asked(items)
        if answer is GIVEN:
            return [GIVEN] * len(items)
        return [answer] if len(items) == 1 else parted(answer, items)

    def prepare(self, memory: Memory) -> None:
        """Have the process know memory before a batch lies in it: what its runner does with it may take a while."""
        until = time.monotonic() + _PREPARE_S
        while any(memory.number not in lane.known for lane in self._held) and not self._closing:
            left = until - time.monotonic()
            if left <= 0.0:
                return  # a lane is at a long batch; the next one there brings it along
            try:
                lane = self._lanes.get(timeout=left)
            except queue.Empty:
                return
            try:
                new = memory.number not in lane.known
                if new:
                    self._exchanged(lane, {"prepare": memory.number, **_brought(lane, [memory])}, [memory.fd])
            finally:
                self._lanes.put(lane)
            if not new:
                time.sleep(_AGAIN_S)

    def kill(self) -> None:
        """End the process, whatever it does; who waits for an answer of it is told that it died."""
        self._process.kill()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._end(self._held)

    def _asked(self, items: Sequence[Arrays]) -> dict[str, Any]:
        lane = self._lanes.get()
        try:
            return self._answered(lane, items)
        finally:
            self._lanes.put(lane)

    def _answered(self, lane: _Lane, items: Sequence[Arrays]) -> dict[str, Any]:
        told = self._exchanged(lane, *self._described(lane, items))
        if told.get("given"):
            return GIVEN
        try:  # copied, as the next batch is laid in the same place
            answer = {name: array.copy() for name, array in map(lane.arena.found, told["arrays"])}
        except (OSError, MemoryError) as error:
            raise PenstockError(f"there is no memory for the answer to a batch: {error}") from None
        return {tensor.name: answer[tensor.name] for tensor in self.outputs}

    def _described(self, lane: _Lane, items: Sequence[Arrays]) -> tuple[dict[str, Any], Sequence[int]]:
        if all_laid(items) and len(items) <= _MOST_LAID:
            return _where(lane, items)
        return _copied(lane, items), ()

    def _exchanged(self, lane: _Lane, asked: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """The process's answer to a message, and to the descriptors beside it.

        Raises:
            InstanceDead: there is none, or it is to another message. Or what the process says that it failed by.
        """
        lane.number += 1
        try:
            socket.send_fds(lane.socket, [orjson.dumps({**asked, "number": lane.number})], descriptors)
            told: dict[str, Any] = orjson.loads(lane.message[: lane.socket.recv_into(lane.message)] or b"{}")
        except (OSError, orjson.JSONDecodeError):
            told = {}
        if told.get("number") != lane.number:
            self.kill()
            raise InstanceDead(self._obituary())
        if "error" in told:
            lane.unsure.update(asked.get("new", ()))
            raise failures.raised(told)
        lane.unsure.difference_update(asked.get("new", ()))
        return told

    def _opened(self, path: Path) -> tuple[Signature, bool, int | None]:
        """What the process says of an open model: its signature, whether its runner is steady, and its threads."""
        self._control.settimeout(_OPEN_S)
        try:
            told = orjson.loads(self._control.recv(MOST_MESSAGE) or b"null")
        except TimeoutError:
            raise PenstockError(f"{path}: its process does not finish loading it within {_OPEN_S:g} s") from None
        except ConnectionError:
            told = None
        if told is None:
            raise PenstockError(f"{path}: the process that loads it died: {self._obituary()}")
        if "error" in told:
            raise failures.raised(told)
        return served(told["signature"]), told["steady"], told["threads"]

    def _watch(self) -> None:
        """Ask the process again and again whether it runs; one that does not answer is ended."""
        self._control.settimeout(_ASKED_S)
        asked = False
        with contextlib.suppress(OSError):
            while not self._closing:
                if not asked:
                    self._control.send(b"?")
                    asked = True
                try:
                    if not self._control.recv(1):
                        break
                except TimeoutError:
                    if time.monotonic() - self._heard > _STALLED_S and not self._killed:
                        log.error("process %d of a runner has not answered for %g s; it is ended", self.pid, _STALLED_S)
                        self._killed = True
                        self.kill()
                    continue
                self._heard, asked = time.monotonic(), False
                time.sleep(_ASKED_S)
        self._process.wait()

    def _obituary(self) -> str:
        """What the process died of."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        if code is None:
            return f"its process {self.pid} closed its sockets"
        how = parents.signal_name(code) if code < 0 else f"exit status {code}"
        return f"its process {self.pid} ended: {how}"

    def _end(self, lanes: Sequence[_Lane]) -> None:
        """Let the process end by itself, or else end it."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        for lane in lanes:
            lane.close()


def _copied(lane: _Lane, items: Sequence[Arrays]) -> dict[str, Any]:
    """A batch copied to the memory of its lane, and said where."""
    end, places = 0, []
    for name in items[0]:
        try:
            place, end = lane.arena.lay(name, [item[name] for item in items], end)
        except (OSError, MemoryError) as error:  # this process has no memory left, and the other is none the worse
            raise PenstockError(f"there is no memory for input {name!r} of a batch: {error}") from None
        places.append(place)
    return {"arrays": places, "end": end}


def _where(lane: _Lane, items: Sequence[Laid]) -> tuple[dict[str, Any], list[int]]:
    """A batch that stays where it lies, said where: and descriptors of memory that the process does not know yet."""
    forms: dict[Form, int] = {}
    places = [(forms.setdefault(item.form, len(forms)), item.slot, item.room) for item in items]
    memories = {form.memory.number: form.memory for form in forms}
    new = [memory for number, memory in memories.items() if number not in lane.known or number in lane.unsure]
    told = {"items": places, "forms": [worker.described(form) for form in forms], **_brought(lane, new)}
    return told, [memory.fd for memory in new]


def _brought(lane: _Lane, new: Sequence[Memory]) -> dict[str, Any]:
    """What a message says of memory that comes with it, and of memory that is gone since the last."""
    gone = [number for number, memory in lane.known.items() if memory() is None]
    for number in gone:
        del lane.known[number]
        lane.unsure.discard(number)
    lane.known.update((memory.number, weakref.ref(memory)) for memory in new)
    return {"new": [memory.number for memory in new], "gone": gone}


def opened(opening: Opening) -> tuple[Runner, Signature]:
    """The same as `Opening.open`, in a process of its own."""
    runner = IsolatedRunner(opening)
    return runner, runner.signature


def _started(opening: Opening, callers: int) -> tuple[socket.socket, subprocess.Popen[bytes], list[_Lane]]:
    """A process that opens a model: the socket it is asked by, and what batches go to it and come back on."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        control, its_control = _pair()
        ours.enter_context(control)
        theirs.enter_context(its_control)
        lanes, numbers = [], []
        for _ in range(callers):
            own, its = _pair()
            theirs.enter_context(its)
            ours.enter_context(own)
            lanes.append(_Lane(own, Arena()))
            ours.callback(lanes[-1].arena.close)
            numbers.append([its.fileno(), lanes[-1].arena.fd])
        what = {
            "opening": opening.model_dump(mode="json"),
            "control": its_control.fileno(),
            "lanes": numbers,
        }
        command = python_command("penstock.serve.worker", orjson.dumps(what).decode())
        passed = [its_control.fileno(), *(number for pair in numbers for number in pair)]
        process = _spawner.submit(_begun, command, passed).result()
        _processes.add(process)
        ours.pop_all()
        return control, process, lanes


def _begun(command: list[str], passed: list[int]) -> subprocess.Popen[bytes]:
    # In a session of its own a terminal's ^C is not for it.
    return subprocess.Popen(  # noqa: S603 (this Python, and words of ours)
        command, pass_fds=passed, stdin=subprocess.DEVNULL, start_new_session=True, env=parents.environment()
    )


def kill_all() -> None:
    """End the processes of all runners that are left: of a process that ends without closing anything."""
    for process in list(_processes):
        process.kill()


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection between processes of this machine, which keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

"""The process of an isolated runner: python -m penstock.serve.worker WHAT-AS-JSON, started by `penstock serve`.

WHAT holds the opening, the number of the control socket, and of each lane the numbers of its socket and its memory. On
a lane come batches, one after the other, and go their answers; on the control socket comes what is to be answered at
once, so that the server sees whether this process runs. It ends with that socket, whatever it does then.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import Any

import orjson

from penstock.arrays import join
from penstock.laid import GIVEN, Form, Laid, Memory
from penstock.parents import end_with_parent
from penstock.runtimes import Runner
from penstock.serve import failures, frames
from penstock.serve.arena import Arena
from penstock.serve.opening import Opening

_MOST_DESCRIPTORS, _MOST_FORMS = 253, 4096  # SCM_MAX_FD
_INT = struct.Struct("i")
MOST_MESSAGE = 2**20
"""Bytes of one message: names, shapes and places of arrays."""


def main(what: str) -> None:
    """Open the runner, say what came of it, and answer until the server goes away."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the server, which ends this process when it is done
        signal.signal(number, signal.SIG_IGN)
    told = orjson.loads(what)
    end_with_parent()
    control = socket.socket(fileno=told["control"])
    living = threading.Thread(target=_live, args=(control,), daemon=True)
    living.start()  # from now on: a model may take long to open
    try:
        runner, signature = Opening.model_validate(told["opening"]).open()
        runner.settled()
    except Exception as error:
        with suppress(ConnectionError):
            control.send(_failure(error))
        return
    for number, memory in told["lanes"]:
        lane = socket.socket(fileno=number)
        threading.Thread(target=_answer_all, args=(runner, lane, Arena(memory)), daemon=True).start()
    ready = {"signature": signature.model_dump(mode="json"), "steady": runner.steady, "threads": runner.threads}
    with suppress(ConnectionError):
        control.send(orjson.dumps(ready))
    living.join()


def _live(control: socket.socket) -> None:
    """Answer whoever asks whether this process runs, and end when nobody can ask any more."""
    try:
        while asked := control.recv(1):
            control.send(asked)
    except ConnectionError:
        pass
    os._exit(0)  # in the middle of a batch too: nobody waits for it


def _answer_all(runner: Runner, lane: socket.socket, arena: Arena) -> None:
    message, held = memoryview(bytearray(MOST_MESSAGE)), _Held()
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT.size)
    try:
        while True:
            size, beside, _, _ = lane.recvmsg_into([message], room)
            if not size:
                break
            descriptors = [fd for _, _, data in beside for (fd,) in _INT.iter_unpack(data[: len(data) // 4 * 4])]
            lane.send(_answer(runner, arena, held, bytes(message[:size]), descriptors))
    except ConnectionError:
        pass


def _answer(runner: Runner, arena: Arena, held: _Held, message: bytes, descriptors: list[int]) -> bytes:
    """Run the batch that a message describes, and describe its answer, under the number of the question."""
    number = 0
    try:
        asked = orjson.loads(message)
        number = asked["number"]
        if "new" in asked:
            held.take(asked["gone"], asked["new"], descriptors)
        if "prepare" in asked:
            runner.prepare(held.memories[asked["prepare"]])
            return orjson.dumps({"number": number})
        if "items" in asked:
            found = runner.run_together(held.items(asked))
            if all(answer is GIVEN for answer in found):
                return orjson.dumps({"given": True, "number": number})
            answer, end = join(found) if len(found) > 1 else found[0], 0
        else:
            answer, end = runner.run(dict(map(arena.found, asked["arrays"]))), asked["end"]
        places = []
        for name, array in answer.items():  # behind the inputs, which may be outputs too
            place, end = arena.lay(name, [array], end)
            places.append(place)
        return orjson.dumps({"arrays": places, "number": number})
    except Exception as error:
        return _failure(error, number)


class _Held:
    """Memory of front ends that a lane was given, and forms of requests that lie in it, by the server's numbers."""

    def __init__(self) -> None:
        self.memories, self._forms = dict[int, Memory](), dict[int, Form]()

    def take(self, gone: list[int], new: list[int], descriptors: list[int]) -> None:
        """Let go of memory, and take what is new; what is known by now, and was told again, is kept as it is.

        Raises:
            RuntimeError: some did not come. OSError, ValueError: it cannot be mapped.
        """
        for number in gone:
            lost = self.memories.pop(number, None)
            self._forms = {key: form for key, form in self._forms.items() if form.memory is not lost}
        left = dict(zip(new, descriptors, strict=False))
        spare = descriptors[len(left) :]
        try:
            for number in list(left):
                if number not in self.memories:
                    self.memories[number] = Memory(left.pop(number))
        finally:
            for descriptor in (*left.values(), *spare):
                os.close(descriptor)
        if len(descriptors) < len(new):
            raise RuntimeError("this process cannot take more descriptors")

    def items(self, asked: dict[str, Any]) -> list[Laid]:
        """The requests that a message says of where they lie."""
        forms = [self._forms.get(told["number"]) or self._form(told) for told in asked["forms"]]
        return [Laid(forms[form], slot, room) for form, slot, room in asked["items"]]

    def _form(self, told: dict[str, Any]) -> Form:
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        memory, (inputs, outputs) = self.memories[told["memory"]], map(frames.read, told["places"])
        form = self._forms[told["number"]] = Form(memory, inputs, outputs)
        return form


def described(form: Form) -> dict[str, Any]:
    """A form as it is told to the process."""
    if form.told is None:
        places = [frames.written(tuple(held.values())) for held in (form.inputs, form.outputs)]
        form.told = orjson.Fragment(
            orjson.dumps({"number": form.number, "memory": form.memory.number, "places": places})
        )
    return form.told  # type: ignore[no-any-return]


def _failure(error: Exception, number: int = 0) -> bytes:
    told = failures.described(error)
    return orjson.dumps({**told, "message": told["message"][:2000], "number": number})


if __name__ == "__main__":
    main(sys.argv[1])

"""The process of an isolated runner: python -m penstock.serve.worker WHAT-AS-JSON, started by `penstock serve`.

WHAT holds the opening, the number of the control socket, and of each lane the numbers of its socket and its memory. On
a lane come batches, one after the other, and go their answers; on the control socket comes what is to be answered at
once, so that the server sees whether this process runs. It ends with that socket, whatever it does then.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress

import orjson

from penstock.parents import end_with_parent
from penstock.runtimes import Runner
from penstock.serve import failures
from penstock.serve.arena import Arena
from penstock.serve.opening import Opening

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
    message = memoryview(bytearray(MOST_MESSAGE))
    try:
        while size := lane.recv_into(message):
            lane.send(_answer(runner, arena, bytes(message[:size])))
    except ConnectionError:
        pass


def _answer(runner: Runner, arena: Arena, message: bytes) -> bytes:
    """Run the batch that a message describes, and describe its answer, under the number of the question."""
    number = 0
    try:
        asked = orjson.loads(message)
        number = asked["number"]
        answer = runner.run(dict(map(arena.found, asked["arrays"])))
        end, laid = asked["end"], []
        for name, array in answer.items():  # behind the inputs, which may be outputs too
            place, end = arena.lay(name, [array], end)
            laid.append(place)
        return orjson.dumps({"arrays": laid, "number": number})
    except Exception as error:
        return _failure(error, number)


def _failure(error: Exception, number: int = 0) -> bytes:
    told = failures.described(error)
    return orjson.dumps({**told, "message": told["message"][:2000], "number": number})


if __name__ == "__main__":
    main(sys.argv[1])

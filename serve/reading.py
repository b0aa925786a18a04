"""What a process that reads long bodies does: `python -m penstock.serve.reading`, begun by serve/reader.py.

It makes calls out of a fixed table, of arguments in JSON and a body, and answers with JSON and the bytes of arrays.
Nothing that passes between the two processes could be run by either.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
from typing_extensions import Buffer

from penstock.serve import compression, failures
from penstock.serve.protocol import InferRequest, Wanted, decode
from penstock.serve.reader import LENGTH, LENGTHS, Died, Found, read, write
from penstock.serve.tensors import array_bytes
from penstock.signature import Signature, dtype_name, served

# Whoever waits for other answers goes first.
_NICE = 5


def to_infer(header_length: str | None, signature: Signature) -> dict[str, Any]:
    """What the call `infer` is to be told to decode a request of the Open Inference Protocol."""
    return {"header_length": header_length, "signature": signature.model_dump(mode="json")}


def inferred(found: Found) -> InferRequest:
    """The request that `infer` has found."""
    said, inputs = found
    outputs = {name: Wanted(binary, classes) for name, binary, classes in said["outputs"]}
    return InferRequest(inputs, outputs, said["id"], said["timeout_s"], said["priority"])


def _infer(body: memoryview, told: dict[str, Any]) -> Found:
    call = decode(body, told["header_length"], served(told["signature"]))
    outputs = [(name, wanted.binary, wanted.classes) for name, wanted in call.outputs.items()]
    return {"outputs": outputs, "id": call.id, "timeout_s": call.timeout_s, "priority": call.priority}, call.inputs


def _predict(body: memoryview, told: dict[str, Any]) -> Found:
    from penstock.serve import bodies  # which knows the reader

    return {}, bodies.long_inputs(body, told)


def _inflate(body: memoryview, told: dict[str, Any]) -> Found:
    found = compression.inflate(body, told["coding"], told["most"])
    return {}, {"body": np.frombuffer(found, np.uint8)}


Calls = Mapping[str, Callable[[memoryview, dict[str, Any]], Found]]
CALLS: Calls = {"infer": _infer, "predict": _predict, "inflate": _inflate}


def _serve(calls: Calls, requests: io.RawIOBase, answers: io.RawIOBase) -> None:
    """Answer one call after the other, until there are no more."""
    while True:
        told_size, size = LENGTHS.unpack(read(requests, LENGTHS.size))
        name, told = orjson.loads(read(requests, told_size))
        body = read(requests, size)
        parts: list[Buffer] = []
        try:
            said, arrays = calls[name](body, told)
            parts = [array_bytes(array) for array in arrays.values()]
            places = [
                (key, dtype_name(array.dtype), array.shape, memoryview(part).nbytes)
                for (key, array), part in zip(arrays.items(), parts, strict=True)
            ]
            text = orjson.dumps({"said": said, "arrays": places})
            del arrays, said
        except Exception as error:
            parts, text = [], orjson.dumps(failures.described(error))
        for part in (LENGTH.pack(len(text)), text, *parts):
            write(answers, part)
        del body, parts  # not kept until the next


def main(calls: Calls = CALLS) -> None:
    """Make calls until the server goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the server, at whose end there are no more requests
    os.nice(_NICE)
    requests, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints must not do so amid the answers
    with suppress(Died, BrokenPipeError):
        _serve(calls, requests, answers)


if __name__ == "__main__":
    main()

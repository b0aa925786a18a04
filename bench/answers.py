"""Whether an answer is the one that is due: by its bytes, and where those differ by its numbers.

A server that batches computes a row beside others, which changes the last bits of floats. So an answer is right if its
outputs have the names, datatypes and shapes of the expected ones and nothing stands behind them, whole numbers, texts
and truths are equal, and the relative L2 error of each output of floats, ‖answer − expected‖₂ / ‖expected‖₂, is within
a tolerance. Which model says that it answered is not looked at: a route's name is not that of its model.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.bench.httpanswers import Answer, Head
from penstock.errors import PenstockError, first_line
from penstock.signature import V2_DTYPES

NUMPY = {name: dtype for dtype, name in V2_DTYPES.items()}
HEADER_LENGTH = "inference-header-content-length"
_SIZE = struct.Struct("<I")
# What JSON's values are in Python, by numpy's kinds; objects are what they are.
_KINDS: dict[str, tuple[type, ...]] = {
    **{"b": (bool,), "i": (int,), "u": (int,), "f": (int, float, type(None)), "O": ()},
}
# Numbers that JSON has no way to write, as some write them all the same.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
# What an answer says of itself, and not of the model.
_ASIDE = ("timing", "id", "parameters", "model_version")
_MOST_DIGITS = 15
_MOST_KNOWN, _LONGEST_KNOWN = 256, 1 << 20


class Unreadable(Exception):
    """An answer that holds no outputs of the protocol's."""


class Output(NamedTuple):
    """A tensor of an answer: the datatype and shape that it says it has, and an array of that shape.

    BF16 is in float32, and BYTES are objects of bytes.
    """

    datatype: str
    shape: tuple[int, ...]
    values: Any


@dataclass(frozen=True)
class Expected:
    """The answer that is due to one payload: a body, and how much of it is JSON where tensors stand behind it."""

    body: bytes
    json_length: int | None
    grpc: bool = False

    @classmethod
    def of(cls, answer: Answer, *, grpc: bool = False) -> Expected:
        """An answer as the one that is due.

        Raises:
            PenstockError: nothing can be held to it.
        """
        found = cls(answer.body, json_length(answer.head), grpc)
        try:
            decode(found.body, found.json_length, grpc=grpc)
        except Unreadable as error:
            raise PenstockError(f"a request alone has {error}") from None
        return found

    @property
    def model(self) -> str | None:
        """The model that says that it answered; None where none does."""
        if self.grpc:
            from penstock import messages

            return messages.message("ModelInferResponse").FromString(self.body).model_name or None
        said = json.loads(self.body if self.json_length is None else self.body[: self.json_length])
        told = (said.get("model_name") or said.get("model")) if isinstance(said, dict) else None
        return None if told is None else str(told)


def json_length(head: Head) -> int | None:
    """How much of an answer's body is JSON; None is all of it, also where the header holds no sensible number."""
    told = head.fields.get(HEADER_LENGTH.encode())
    return int(told) if told is not None and told.isdigit() and len(told) <= _MOST_DIGITS else None


def decode(body: bytes, length: int | None, *, grpc: bool = False) -> Any:
    """The outputs of an answer by name; of JSON that has none of the protocol's, what it says.

    Raises:
        Unreadable: it is none.
    """
    try:
        if grpc:
            return _from_message(body)
        said = json.loads(body if length is None else body[:length])
        if isinstance(said, dict) and isinstance(said.get("outputs"), list):
            return _from_outputs(said["outputs"], memoryview(body)[len(body) if length is None else length :])
    except Exception as error:  # whatever json, numpy and protobuf raise over what a server may send
        raise Unreadable(f"an answer that is not the protocol's: {first_line(error)}") from None
    return said


def _from_outputs(outputs: Sequence[Mapping[str, Any]], tail: memoryview) -> dict[str, Output]:
    found, place = dict[str, Output](), 0
    for output in outputs:
        size, datatype, shape = (
            output.get("parameters", {}).get("binary_data_size"),
            output["datatype"],
            output["shape"],
        )
        if output["name"] in found:
            raise ValueError(f"output {output['name']!r} twice")
        if size is None:
            values = _from_json(output["data"], datatype)
        else:
            values = _from_bytes(tail[place : place + size], datatype)
            place += size
        found[output["name"]] = _output(datatype, shape, values)
    if place != len(tail):
        raise ValueError(f"{len(tail) - place} bytes behind the tensors")
    return found


def _from_message(body: bytes) -> dict[str, Output]:
    from penstock import messages

    message, found = messages.message("ModelInferResponse").FromString(body), dict[str, Output]()
    raw = list(message.raw_output_contents)
    if raw and len(raw) != len(message.outputs):
        raise ValueError(f"{len(raw)} raw contents of {len(message.outputs)} outputs")
    for place, output in enumerate(message.outputs):
        if output.name in found:
            raise ValueError(f"output {output.name!r} twice")
        if raw:
            values = _from_bytes(memoryview(raw[place]), output.datatype)
        else:
            held = [each for _, listed in output.contents.ListFields() for each in listed]
            values = np.array(held, NUMPY.get(output.datatype, object))
        found[output.name] = _output(output.datatype, output.shape, values)
    return found


def _output(datatype: str, shape: Sequence[int], values: Any) -> Output:
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {list(shape)}")
    return Output(str(datatype), tuple(shape), values.reshape(tuple(shape)))


def _from_json(data: Any, datatype: str) -> Any:
    """Values in JSON, in a row; numpy itself would take 1.9, "1" and true for the whole number 1.

    Raises:
        ValueError: they are none of that datatype.
    """
    held = np.array(data, object).reshape(-1)
    dtype = np.dtype(np.float32 if datatype == "BF16" else NUMPY.get(datatype, object))
    kinds = (str,) if datatype == "BYTES" else _KINDS[dtype.kind]
    spelt = _NOT_FINITE if dtype.kind == "f" else ()
    for each in held if kinds else ():
        if type(each) not in kinds and each not in spelt:
            raise ValueError(f"{each!r:.40} is no {datatype}")
    return _objects([each.encode() for each in held]) if datatype == "BYTES" else held.astype(dtype)


def _from_bytes(data: memoryview, datatype: str) -> Any:
    """Values as they lie in memory, in a row."""
    if datatype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if datatype == "BYTES":
        return _objects(list(_texts(bytes(data))))
    if datatype not in NUMPY:
        raise ValueError(f"datatype {str(datatype)[:40]!r}")
    return np.frombuffer(data, np.dtype(NUMPY[datatype]).newbyteorder("<"))


def _texts(data: bytes) -> Iterator[bytes]:
    """Texts, each behind its length in four bytes."""
    place = 0
    while place < len(data):
        (size,) = _SIZE.unpack_from(data, place)
        place += _SIZE.size + size
        if place > len(data):
            raise ValueError("a text that is longer than what there is")
        yield data[place - size : place]


def _objects(values: Sequence[bytes]) -> Any:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def difference(expected: Any, actual: Any, tolerance: float) -> str | None:
    """How an answer differs from the expected one beyond what is allowed; None where it does not.

    Args:
        expected, actual: as `decode` gives them.
        tolerance: the largest relative L2 error of an output of floats.
    """
    if isinstance(expected, Output) and isinstance(actual, Output):
        return _of_outputs(expected, actual, tolerance)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        names = [name for name in expected if name not in _ASIDE]
        if set(names) != {name for name in actual if name not in _ASIDE}:
            return f"it holds {', '.join(map(str, actual))}, not {', '.join(names)}"
        found = ((name, difference(expected[name], actual[name], tolerance)) for name in names)
        return next((f"{name}: {what}" for name, what in found if what is not None), None)
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return f"{len(actual)} entries, not {len(expected)}"
        parts = (difference(one, other, tolerance) for one, other in zip(expected, actual, strict=True))
        return next((what for what in parts if what is not None), None)
    if isinstance(expected, float) and isinstance(actual, float | int):
        return _of_values(np.float64(expected), np.float64(actual), tolerance)
    return None if expected == actual else f"{str(actual)[:40]!r}, not {str(expected)[:40]!r}"


def _of_outputs(expected: Output, actual: Output, tolerance: float) -> str | None:
    if expected[:2] != actual[:2]:
        return f"{actual.datatype}{list(actual.shape)}, not {expected.datatype}{list(expected.shape)}"
    return _of_values(expected.values, actual.values, tolerance)


def _of_values(expected: Any, actual: Any, tolerance: float) -> str | None:
    if expected.dtype.kind != "f":
        differ = int(np.sum(expected != actual))
        return f"{differ} of {expected.size} entries differ" if differ else None
    if np.array_equal(expected, actual, equal_nan=True):
        return None
    one, other = expected.astype(np.float64), actual.astype(np.float64)
    error, norm = float(np.linalg.norm(other - one)), float(np.linalg.norm(one))
    if error <= tolerance * norm:  # False for NaN and Inf too
        return None
    return f"relative L2 error {error / norm if norm else float('inf'):.3g} is over {tolerance:g}"


class Checker:
    """Sees whether answers are those that are due; what was found right once is known by its bytes.

    Args:
        expected: for each payload.
        tolerance: the largest relative L2 error of an output of floats; infinite where answers are not compared at
            all, as of a model whose answers differ from call to call: what can be read is right.
    """

    def __init__(self, expected: Sequence[Expected], tolerance: float) -> None:
        self.compared, self.example = 0, ""
        self._expected, self._tolerance = expected, tolerance
        self._bodies = [each.body for each in expected]
        self._known: list[set[bytes]] = [set() for _ in expected]
        self._decoded: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def right(self, index: int, answer: Answer) -> bool:
        """Whether this answers the payload of that index rightly; `example` says how the first wrong one differs."""
        body = answer.body
        if body == self._bodies[index]:
            return True
        known = self._known[index]
        if body in known:
            return True
        self.compared += 1
        what = self._difference(index, answer)
        if what is not None:
            self.example = self.example or what
            return False
        if len(known) < _MOST_KNOWN and len(body) <= _LONGEST_KNOWN:
            known.add(body)
        return True

    def _difference(self, index: int, answer: Answer) -> str | None:
        due = self._expected[index]
        if index not in self._decoded:
            self._decoded[index] = decode(due.body, due.json_length, grpc=due.grpc)
        try:
            got = decode(answer.body, json_length(answer.head), grpc=due.grpc)
        except Unreadable as error:
            return str(error)
        if math.isinf(self._tolerance):
            return None
        return difference(self._decoded[index], got, self._tolerance)

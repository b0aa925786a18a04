"""Whether an answer is the one that is due: by its bytes, and where those differ by its numbers.

A server that batches computes a row beside others, which changes the last bits of floats. So an answer is right if its
outputs have the names, datatypes and shapes of the expected ones, whole numbers, texts and truths are equal, and the
relative L2 error of each output of floats, ‖answer − expected‖₂ / ‖expected‖₂, is within a tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.bench.httpanswers import Answer, Head
from penstock.errors import PenstockError, first_line
from penstock.signature import V2_DTYPES

NUMPY = {name: dtype for dtype, name in V2_DTYPES.items()}
HEADER_LENGTH = "inference-header-content-length"
# What an answer says of itself, and not of the model.
_ASIDE = ("timing", "id", "parameters", "model_version")
_MOST_DIGITS = 15
_MOST_KNOWN, _LONGEST_KNOWN = 256, 1 << 20


class Unreadable(Exception):
    """An answer that holds no outputs of the protocol's."""


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


def json_length(head: Head) -> int | None:
    """How much of an answer's body is JSON; None is all of it, also where the header holds no sensible number."""
    told = head.fields.get(HEADER_LENGTH.encode())
    return int(told) if told is not None and told.isdigit() and len(told) <= _MOST_DIGITS else None


def decode(body: bytes, length: int | None, *, grpc: bool = False) -> Any:
    """The outputs of an answer as arrays by name; of JSON that has none of the protocol's, what it says.

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


def _from_outputs(outputs: Sequence[Mapping[str, Any]], tail: memoryview) -> dict[str, Any]:
    found, place = {}, 0
    for output in outputs:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            data: Any = np.array(output["data"], NUMPY.get(output["datatype"], object)).reshape(output["shape"])
        else:
            data = _from_bytes(tail[place : place + size], output["datatype"], output["shape"])
            place += size
        found[output["name"]] = data
    return found


def _from_message(body: bytes) -> dict[str, Any]:
    from penstock import messages

    message, found = messages.message("ModelInferResponse").FromString(body), {}
    raw = list(message.raw_output_contents)
    for place, output in enumerate(message.outputs):
        if raw:
            found[output.name] = _from_bytes(memoryview(raw[place]), output.datatype, list(output.shape))
        else:
            ((_, held),) = output.contents.ListFields()
            found[output.name] = np.array(held, NUMPY.get(output.datatype, object)).reshape(list(output.shape))
    return found


def _from_bytes(data: memoryview, datatype: str, shape: Sequence[int]) -> Any:
    if datatype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if datatype not in NUMPY:
        return bytes(data)
    return np.frombuffer(data, np.dtype(NUMPY[datatype]).newbyteorder("<")).reshape(shape)


def difference(expected: Any, actual: Any, tolerance: float) -> str | None:
    """How an answer differs from the expected one beyond what is allowed; None where it does not.

    Args:
        expected, actual: as `decode` gives them.
        tolerance: the largest relative L2 error of an output of floats.
    """
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        return _of_arrays(expected, actual, tolerance)
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
        return _of_arrays(np.float64(expected), np.float64(actual), tolerance)
    return None if expected == actual else f"{str(actual)[:40]!r}, not {str(expected)[:40]!r}"


def _of_arrays(expected: Any, actual: Any, tolerance: float) -> str | None:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return f"{actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
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
        tolerance: the largest relative L2 error of an output of floats.
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
        return difference(self._decoded[index], got, self._tolerance)

"""ONNX files looked through by their bytes before a runtime opens them: what in them a runtime must never meet.

onnxruntime up to 1.22 reads weights from wherever a file says, /etc/passwd or an address of its own memory, dies of
functions that call themselves, and asks for as much memory as is declared; later ones refuse some of it. Here it is
refused whichever is installed, and before TensorRT reads a graph too. The fields are those of onnx.proto.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock import machine
from penstock.errors import PenstockError
from penstock.protofields import fields, once, packed, parts, signed, walk

# Numbers of fields. ModelProto's, TrainingInfoProto's, FunctionProto's, GraphProto's:
_GRAPH, _TRAINING, _FUNCTIONS, _TRAINED = 7, 20, 25, (1, 2)
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN, _FUNCTION_DEFAULT = 1, 7, 10, 11
_NODE, _WEIGHT, _SPARSE_WEIGHT = 1, 5, 15
# NodeProto's, AttributeProto's, SparseTensorProto's:
_OP_TYPE, _ATTRIBUTE, _DOMAIN = 4, 5, 7
_TENSOR, _SUBGRAPH, _TENSORS, _SUBGRAPHS, _SPARSE, _SPARSES = 5, 6, 10, 11, 22, 23
_HOLDING = {_TENSOR, _SUBGRAPH, _TENSORS, _SUBGRAPHS, _SPARSE, _SPARSES}
_VALUES, _INDICES, _DENSE = 1, 2, 3
# TensorProto's; then StringStringEntryProto's.
_DIMS, _DTYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_TYPED = (4, 5, 6, 7, 10, 11)
_KEY, _VALUE = 1, 2
# Bits of a number by TensorProto's data types; a text counts as the object that it becomes.
_BITS = {
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    **{8: 256, 15: 128},
}
_TEXT, _WIDEST = 8, 128
# Numbers of four bits share a byte where they are written as numbers.
_IN_A_BYTE = 4
_MOST_DEPTH, _MOST_NODES = 32, 1_000_000
_MOST_FIELDS = 20_000_000
# Ten for each number at most.
_MOST_SIZES_BYTES = 320


@dataclass
class _Seen:
    """What was met so far: bytes of all weights, fields, and of the function at hand its nodes and whom it calls."""

    home: tuple[Path, ...]
    weights: int = 0
    fields: int = 0
    nodes: int = 0
    calls: list[tuple[bytes, bytes]] = field(default_factory=list)


def examine(path: Path) -> None:
    """Refuse an ONNX file that reaches out of its folder, asks for memory that it does not fill, or has no end.

    Args:
        path: the file; weights beside it are looked for, and not read.

    Raises:
        PenstockError: it does, or it is damaged.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise PenstockError(f"{path}: is empty, 0 bytes; copy or download it again")
            model = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise PenstockError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    seen = _Seen((path.parent.resolve(), path.resolve().parent))
    try:
        _model(model, seen)
    except ValueError as error:
        raise PenstockError(f"{path}: truncated, damaged, or not an ONNX model: {error}") from None
    except _Refused as error:
        raise PenstockError(f"{path}: {error}") from None
    if seen.weights > (most := machine.memory_bytes()):
        raise PenstockError(
            f"{path}: its weights take {seen.weights / 1e9:,.1f} GB, and this machine has {most / 1e9:,.1f} GB of "
            "memory; run it where there is more"
        )


class _Refused(Exception):
    """Why a file is not opened."""


def outside(homes: tuple[Path, ...], location: str) -> str | None:
    """Why weights may not lie where a file says: not below its folder, or not in a file there; None if they may.

    Args:
        homes: the model's folder, and that of the file which its link leads to; both resolved.
        location: what the model says, relative to the first.
    """
    # onnxruntime's mark for an address in memory, in place of a file, begins so.
    if "\0" in location or location.startswith(("/", "*/")) or ".." in Path(location).parts:
        return "leads out of the model's folder; it was not looked at"
    found = (homes[0] / location).resolve()
    if found in homes or not any(found.is_relative_to(home) for home in homes):
        return "leads out of the model's folder; it was not looked at"
    return None if found.is_file() else "is missing: it holds weights, and must lie beside the model"


def _model(model: memoryview, seen: _Seen) -> None:
    bodies: dict[tuple[bytes, bytes], tuple[int, list[tuple[bytes, bytes]]]] = {}
    for number, content in parts(model):
        if number == _FUNCTIONS:
            name, (nodes, calls) = _function(content, seen)
            # One may be there for each of several types (overload): which is called is not told apart here.
            others = bodies.get(name, (0, []))
            bodies[name] = others[0] + nodes, others[1] + calls
    graph = once(content for number, content in parts(model) if number == _GRAPH)
    seen.nodes, seen.calls = 0, []
    _graph(graph, seen, 0)
    for number, content in parts(model):
        if number == _TRAINING:
            for part, trained in parts(content):
                if part in _TRAINED:
                    _graph(trained, seen, 0)
    _see_end(bodies, seen.nodes, seen.calls)


def _function(function: memoryview, seen: _Seen) -> tuple[tuple[bytes, bytes], tuple[int, list[tuple[bytes, bytes]]]]:
    """A function's domain and name; how many nodes it has, and which operators they are."""
    held = list(parts(function))
    name, domain = (once(c for number, c in held if number == wanted) for wanted in (_FUNCTION_NAME, _FUNCTION_DOMAIN))
    seen.nodes, seen.calls = 0, []
    for number, content in held:
        if number == _FUNCTION_NODE:
            _node(content, seen, 0)
        elif number == _FUNCTION_DEFAULT:
            _attribute(content, seen, 0)
    return (bytes(domain), bytes(name)), (seen.nodes, seen.calls)


def _see_end(
    bodies: dict[tuple[bytes, bytes], tuple[int, list[tuple[bytes, bytes]]]],
    nodes: int,
    calls: list[tuple[bytes, bytes]],
) -> None:
    """See that functions, written out where they are called, come to an end, and to one that can be waited for."""
    sizes: dict[tuple[bytes, bytes], int] = {}

    def size(name: tuple[bytes, bytes], above: tuple[tuple[bytes, bytes], ...]) -> int:
        if name not in sizes:
            if name in above:
                raise _Refused(f"its function {_text(name[1])} calls itself")
            if len(above) >= _MOST_DEPTH:
                raise _Refused(f"its functions call each other more than {_MOST_DEPTH} deep")
            own, inner = bodies[name]
            sizes[name] = own + sum(size(each, (*above, name)) for each in inner if each in bodies)
        return sizes[name]

    if nodes + sum(size(each, ()) for each in calls if each in bodies) > _MOST_NODES:
        raise _Refused(f"its functions, written out where they are called, come to more than {_MOST_NODES:,} nodes")


def _graph(graph: memoryview, seen: _Seen, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise _Refused(f"its graphs are nested more than {_MOST_DEPTH} deep")
    for number, content in _counted(parts(graph), seen):
        if number == _NODE:
            _node(content, seen, depth)
        elif number == _WEIGHT:
            _tensor(content, seen)
        elif number == _SPARSE_WEIGHT:
            _sparse(content, seen)


def _counted(found: Iterator[tuple[int, memoryview]], seen: _Seen) -> Iterator[tuple[int, memoryview]]:
    for each in found:
        seen.fields += 1
        if seen.fields > _MOST_FIELDS:
            raise _Refused(f"it has more than {_MOST_FIELDS:,} parts")
        yield each


def _node(node: memoryview, seen: _Seen, depth: int) -> None:
    held = list(_counted(parts(node), seen))
    kind, domain = (once(c for number, c in held if number == wanted) for wanted in (_OP_TYPE, _DOMAIN))
    seen.nodes += 1
    seen.calls.append((bytes(domain), bytes(kind)))
    for number, content in held:
        if number == _ATTRIBUTE:
            _attribute(content, seen, depth)


def _attribute(attribute: memoryview, seen: _Seen, depth: int) -> None:
    held = [(number, content) for number, content in _counted(parts(attribute), seen) if number in _HOLDING]
    for single in (_TENSOR, _SUBGRAPH, _SPARSE):
        once(content for number, content in held if number == single)
    for number, content in held:
        if number in (_TENSOR, _TENSORS):
            _tensor(content, seen)
        elif number in (_SUBGRAPH, _SUBGRAPHS):
            _graph(content, seen, depth + 1)
        elif number in (_SPARSE, _SPARSES):
            _sparse(content, seen)


def _sparse(tensor: memoryview, seen: _Seen) -> None:
    """A sparse tensor counts as the dense one that it is made: in numbers of the widest kind."""
    held = list(fields(tensor))
    for wanted in (_VALUES, _INDICES):
        inner = once(c for number, c in held if number == wanted and not isinstance(c, int))
        if inner:
            _tensor(inner, seen)
    sizes = _sizes(held, _DENSE)
    seen.weights += max(0, math.prod(sizes)) * _WIDEST // 8


def _tensor(tensor: memoryview, seen: _Seen) -> None:
    held = [(number, content) for number, content in fields(tensor) if number not in _TYPED]
    sizes = _sizes(held, _DIMS)
    numbers = [content for number, content in held if number == _DTYPE and isinstance(content, int)]
    name = _text(b"".join(bytes(c[:80]) for number, c in held if number == _NAME and not isinstance(c, int)))
    if min(sizes, default=0) < 0:
        raise _Refused(f"its weight {name} has a size below 0")
    dtype = numbers[-1] if numbers else 0
    count, bits = math.prod(sizes), _BITS.get(dtype, _WIDEST)
    seen.weights += count * bits // 8
    entries = [content for number, content in held if number == _EXTERNAL and not isinstance(content, int)]
    places = [content & 0xFFFFFFFF for number, content in held if number == _LOCATION and isinstance(content, int)]
    if entries or any(places):
        _beside(entries, name, -(-count * bits // 8), seen)
    elif count > (most := _capacity(tensor, dtype)):
        raise _Refused(f"its weight {name} declares {count:,} numbers, and the file has {most:,} at most for it")


def _sizes(held: list[tuple[int, memoryview | int]], field: int) -> list[int]:
    """A tensor's sizes; of many the product alone would take for ever."""
    found = [content for number, content in held if number == field]
    if len(found) + sum(len(content) for content in found if not isinstance(content, int)) > _MOST_SIZES_BYTES:
        raise _Refused("a weight of it has too many dimensions")
    return [signed(size) for content in found for size in packed(content)]


def _capacity(tensor: memoryview, dtype: int) -> int:
    """How many numbers a tensor's own bytes can be."""
    raw = typed = texts = 0
    for number, _, content in walk(tensor):
        size = 1 if isinstance(content, int) else len(content)
        if number == _RAW:
            raw += size
        elif number in _TYPED:
            typed, texts = typed + size, texts + 1
    if dtype == _TEXT:
        return texts  # each is a field of its own
    return raw * 8 // _BITS.get(dtype, 2) + typed * _IN_A_BYTE


def _beside(entries: list[memoryview], name: str, wanted: int, seen: _Seen) -> None:
    """See that a weight outside the file lies beside it, and is there as a whole."""
    locations, numbers = [], {b"offset": 0, b"length": 0}
    for entry in entries:
        held = [(number, bytes(content)) for number, content in parts(entry)]
        keys = [content for number, content in held if number == _KEY]
        for value in (content for number, content in held if number == _VALUE):
            if b"location" in keys:
                locations.append(value)
            for key in numbers.keys() & set(keys):
                if not re.fullmatch(rb"[0-9]{1,19}", value):
                    raise _Refused(f"the {key.decode()} of its weight {name} is no whole number: {_text(value)}")
                numbers[key] = max(numbers[key], int(value))
    if not locations:
        raise _Refused(f"its weight {name} is said to lie in another file, which is not named")
    for location in locations:
        text = location.decode(errors="replace")
        if (why := outside(seen.home, text)) is not None:
            raise _Refused(f"its weight {name} lies in {_text(location)}, which {why}")
        size, end = (seen.home[0] / text).stat().st_size, numbers[b"offset"] + max(wanted, numbers[b"length"])
        if size < end:
            raise _Refused(f"its weight {name} lies in {_text(location)}, which has {size:,} of {end:,} bytes")


def _text(content: bytes) -> str:
    return repr(content.decode(errors="replace")[:80])

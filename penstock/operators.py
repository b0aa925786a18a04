"""The operators of an ONNX file, read off its bytes: where there is no onnx package, and without its weights.

The encoding is protocol buffers' (protobuf.dev/programming-guides/encoding), the fields are those of onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MOST_DEPTH = 32
# Numbers of fields: ModelProto's, GraphProto's, FunctionProto's, NodeProto's and AttributeProto's.
_GRAPH, _FUNCTIONS, _NODE, _FUNCTION_NODE, _OP_TYPE, _ATTRIBUTE, _SUBGRAPHS = 7, 25, 1, 7, 4, 5, (6, 11)


def operators(path: Path) -> set[str]:
    """The type of every node, of those in branches, loops and functions too.

    Raises:
        ValueError: the file is damaged, or nested beyond reason.
    """
    with path.open("rb") as file:
        # Unmapped with the last view of it: an error holds views too, which closing would stumble over.
        return set(_of_model(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))))


def _of_model(model: memoryview) -> Iterator[str]:
    for number, content in _parts(model):
        if number == _GRAPH:
            yield from _of_nodes(content, _NODE, 0)
        elif number == _FUNCTIONS:
            yield from _of_nodes(content, _FUNCTION_NODE, 0)


def _of_nodes(graph: memoryview, field: int, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        raise ValueError(f"graphs are nested more than {_MOST_DEPTH} deep")
    for number, node in _parts(graph):
        if number != field:
            continue
        for part, content in _parts(node):
            if part == _OP_TYPE:
                yield bytes(content).decode()
            elif part == _ATTRIBUTE:
                for inner, subgraph in _parts(content):
                    if inner in _SUBGRAPHS:
                        yield from _of_nodes(subgraph, _NODE, depth + 1)


def _parts(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The number and content of each field that has a length; others are passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _LEN:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field goes on beyond its end")
            yield tag >> 3, message[at : at + size]
            at += size
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_I64, _I32):
            at += 8 if kind == _I64 else 4
        else:
            raise ValueError(f"fields of kind {kind} are not ONNX's")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("a number does not end")

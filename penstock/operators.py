"""The operators of an ONNX file, read off its bytes: where there is no onnx package, and without its weights.

The fields are those of onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from penstock.protofields import parts

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
    for number, content in parts(model):
        if number == _GRAPH:
            yield from _of_nodes(content, _NODE, 0)
        elif number == _FUNCTIONS:
            yield from _of_nodes(content, _FUNCTION_NODE, 0)


def _of_nodes(graph: memoryview, field: int, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        raise ValueError(f"graphs are nested more than {_MOST_DEPTH} deep")
    for number, node in parts(graph):
        if number != field:
            continue
        for part, content in parts(node):
            if part == _OP_TYPE:
                yield bytes(content).decode()
            elif part == _ATTRIBUTE:
                for inner, subgraph in parts(content):
                    if inner in _SUBGRAPHS:
                        yield from _of_nodes(subgraph, _NODE, depth + 1)

"""Costs: the multiply-adds and weights of each node of a float32 graph."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.export.precision.calibration import floating, shapes
from penstock.signature import Arrays

_HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")
_RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True)
class Costs:
    """By node: multiply-adds for one row, and elements of its weights; `width` is that of a lowered one, in bytes.

    `shared` are weights that several nodes read: those nodes, and the elements.
    """

    operations: dict[str, int]
    weights: dict[str, int]
    width: int = 1
    shared: tuple[tuple[frozenset[str], int], ...] = ()

    def share(self, names: Collection[str]) -> float:
        """The share of all multiply-adds that these nodes do."""
        total = sum(self.operations.values())
        return sum(self.operations.get(name, 0) for name in names) / total if total else 0.0

    def saved_bytes(self, names: Collection[str]) -> int:
        """What the weights of these nodes take less than in float32, if they are lowered."""
        lowered = set(names)
        elements = sum(self.weights.get(name, 0) for name in lowered)
        for users, count in self.shared:  # in the file once, and in float32 as long as one reads it so
            elements -= count * (len(users & lowered) - (users <= lowered))
        return (4 - self.width) * elements


def costs(graph: Any, row: Arrays, least: int, work: Path) -> Costs:
    """Count each node's multiply-adds, from the shapes that one row really makes, and its weights.

    Args:
        graph: a float32 `onnx.ModelProto` whose nodes have names.
        row: the least rows that the graph takes, of each input.
        least: how many those are.
        work: a folder for the graph.
    """
    heavy = [node for node in graph.graph.node if node.op_type in _HEAVY]
    held = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    floats = set(floating(graph))
    wanted = {name for node in heavy for name in (*node.input[:3], node.output[0]) if name in floats - held.keys()}
    made = {**held, **shapes(graph, sorted(wanted), row, least, work)}
    operations = {node.name: _operations(node, made) // least for node in heavy}
    read = {node.name: [name for name in node.input[:4] if name in held] for node in heavy}
    weights = {node: sum(int(np.prod(held[name])) for name in names) for node, names in read.items()}
    users = {name: frozenset(node for node, names in read.items() if name in names) for name in held}
    shared = tuple((nodes, int(np.prod(held[name]))) for name, nodes in users.items() if len(nodes) > 1)
    return Costs(operations, weights, shared=shared)


def _operations(node: Any, made: dict[str, tuple[int, ...]]) -> int:
    first, second = (made.get(name, ()) for name in node.input[:2])
    if node.op_type == "ConvTranspose":
        return int(np.prod(first) * np.prod(second[1:]))
    if node.op_type in _RECURRENT:
        length, rows = first[:2]
        return int(length * rows * (np.prod(second) + np.prod(made[node.input[2]])))
    output = int(np.prod(made.get(node.output[0], (0,))))
    if node.op_type == "Conv":
        return output * int(np.prod(second[1:]))
    transposed = any(held.name == "transA" and held.i for held in node.attribute)
    return output * int(first[-2] if transposed else first[-1]) if first else 0

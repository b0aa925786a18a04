"""Sharing: weights of an ONNX model that are the same stored once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.export import protos


def share_weights(model: Any) -> int:
    """Store weights that are the same once, in place: as one initializer, or as the transposition of one.

    The same are those of one dtype and shape with the same bytes, in any subgraph. A matrix of floats whose bytes are
    another's transposed, as an output layer's may be an embedding's, becomes a Transpose of it; onnxruntime folds that
    when it loads, so runs are as fast. Do this last: a quantizer knows a weight by its being an initializer, and
    `slim` may fold it again.

    Returns:
        How many bytes are stored no more.
    """
    groups: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
    for graph in protos.graphs_in(model.graph):
        ends = {value.name for value in (*graph.input, *graph.output)}
        for tensor in graph.initializer:
            if protos.is_weight(tensor) and tensor.name not in ends:
                groups.setdefault(_fingerprint(tensor), []).append((graph, tensor))
    return sum(_share(model.graph, places) for places in groups.values() if len(places) > 1)


def _transposes(tensor: Any) -> bool:
    kinds = protos.onnx_package().TensorProto
    return len(tensor.dims) == 2 and tensor.data_type in (kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE)


def _bits(tensor: Any) -> Any:
    """A weight's elements as unsigned integers, in its shape; as bytes in a row where an element is not whole bytes."""
    width = protos.onnx_package().helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if width > 8 or len(tensor.raw_data) != math.prod(tensor.dims) * width:
        return np.frombuffer(tensor.raw_data, np.uint8)
    return np.frombuffer(tensor.raw_data, f"u{width}").reshape(tensor.dims)


def _fingerprint(tensor: Any) -> tuple[Any, ...]:
    """Equal for tensors that are the same, and for a matrix and its transposition; seldom for others."""
    shape = sorted(tensor.dims) if _transposes(tensor) else tensor.dims
    return tensor.data_type, *shape, int(_bits(tensor).sum(dtype=np.uint64))


def _share(root: Any, places: list[tuple[Any, Any]]) -> int:
    """Store once what is the same among initializers of one fingerprint, each given with the graph that holds it."""
    kept: list[_Kept] = []
    saved = 0
    for graph, tensor in places:
        bits, shape = _bits(tensor), list(tensor.dims)
        same = next((item for item in kept if item.shape == shape and np.array_equal(item.bits, bits)), None)
        turned = None
        if same is None and _transposes(tensor):
            turned = next((item for item in kept if np.array_equal(item.bits, bits.T)), None)
        if same is not None:
            name = same.shared(root)
        elif turned is not None:
            name = turned.flipped(root)
        else:
            kept.append(_Kept(graph, tensor.name, shape, bits))
            continue
        _rename(graph, tensor.name, name)
        _drop(graph, tensor.name)
        saved += bits.nbytes
    return saved


@dataclass
class _Kept:
    """An initializer that others are the same as, or the transposition of."""

    graph: Any
    name: str
    shape: list[int]
    bits: Any
    transposed: str | None = None

    def shared(self, root: Any) -> str:
        """Its name, after a move to where every graph sees it."""
        if self.graph is not root:
            held = next(tensor for tensor in self.graph.initializer if tensor.name == self.name)
            fresh = protos.fresh(root, self.name)
            root.initializer.append(held)
            root.initializer[-1].name = fresh
            _rename(self.graph, self.name, fresh)
            _drop(self.graph, self.name)
            self.graph, self.name = root, fresh
        return self.name

    def flipped(self, root: Any) -> str:
        """The name of its transposition, which is computed from it."""
        if self.transposed is None:
            source = self.shared(root)
            self.transposed = protos.fresh(root, f"{source}_transposed")
            make_node = protos.onnx_package().helper.make_node
            node = make_node("Transpose", [source], [self.transposed], name=self.transposed, perm=[1, 0])
            root.node.insert(0, node)
        return self.transposed


def _rename(graph: Any, old: str, new: str) -> None:
    for inner in protos.graphs_in(graph):
        for node in inner.node:
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new


def _drop(graph: Any, name: str) -> None:
    for group in (graph.initializer, graph.value_info):
        for index in reversed(range(len(group))):
            if group[index].name == name:
                del group[index]

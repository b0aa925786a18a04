"""The precision map of an ONNX model: what each of its nodes computes in."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

# ONNX's element types by number, and what arithmetic in them is called.
_NAMES = {1: "fp32", 11: "fp64", 10: "fp16", 16: "bf16", 2: "int8", 3: "int8", **dict.fromkeys(range(17, 21), "fp8")}
_BOOL, _INT64, _FLOATS = 9, 7, (1, 10, 11, 16)
# Of these the bias that comes third is no matter: it is added at full width.
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_BOOLEAN = ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor")
_PAIRS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# They compute nothing, but hand on what they are given.
_MOVERS = frozenset(
    (
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape"),
        *("Shape", "Size", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", *_PAIRS),
    )
)
_WHOLE = re.compile("Integer$|^QLinear|^DynamicQuant|^MatMulIntegerToFloat|^QGemm")


def of_graph(graph: Any) -> dict[str, str]:
    """The precision of each node that computes: `fp32`, `fp16`, `bf16`, `int8`, `fp8`; whole numbers have none.

    Args:
        graph: an `onnx.GraphProto`. A node that has no name is known by its first output; one inside another as
            `outer/inner`, and one whose name is taken as `name (2)`.
    """
    return {name: precision for name, (_, precision) in _named(graph).items()}


def _named(graph: Any) -> dict[str, tuple[str, str]]:
    """The operator and the precision of each node that computes, by a name of its own."""
    found: dict[str, tuple[str, str]] = {}
    for name, operator, precision in _walked(graph, {}, {}, ""):
        free, count = name, 1
        while free in found:
            count += 1
            free = f"{name} ({count})"
        found[free] = operator, precision
    return found


def _walked(
    graph: Any, outer: Mapping[str, int], outer_low: Mapping[str, str], where: str
) -> Iterator[tuple[str, str, str]]:
    kinds = {**outer, **{tensor.name: tensor.data_type for tensor in graph.initializer}}
    kinds.update({value.name: value.type.tensor_type.elem_type for value in graph.input})
    ends = {value.name for value in graph.output}
    takers: dict[str, set[str]] = defaultdict(set)
    for node in graph.node:
        for name in node.input:
            takers[name].add(node.op_type)
    rounded = {name for name, kinds_of in takers.items() if kinds_of == {"QuantizeLinear"} and name not in ends}
    single = {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) <= 1}
    low = dict(outer_low)
    for node in graph.node:
        kind = _kind(node, kinds)
        kinds.update(dict.fromkeys(node.output, kind))
        if node.op_type == "TopK":
            kinds.update(dict.fromkeys(node.output[1:], _INT64))
        if node.op_type == "DequantizeLinear":
            given = [kinds.get(name, 0) for name in (*node.input, "", "")[:2]]
            low.update(dict.fromkeys(node.output, _NAMES.get(given[0], "int8")))
            kinds.update(dict.fromkeys(node.output, given[1] or 1))
        inner = [held.g for held in node.attribute if held.HasField("g")]
        for part in inner:
            yield from _walked(part, kinds, low, f"{where}{name_of(node)}/")
        precision = _precision(node, low, kinds, single, rounded, kind)
        if precision is not None and not inner and node.op_type not in _MOVERS:
            yield f"{where}{name_of(node)}", node.op_type, precision


def name_of(node: Any) -> str:
    """A node's name, or that of its first output."""
    return str(node.name or next(iter(node.output), ""))


def _precision(
    node: Any,
    low: Mapping[str, str],
    kinds: Mapping[str, int],
    single: Collection[str],
    rounded: Collection[str],
    kind: int,
) -> str | None:
    """What a node computes in.

    In whole numbers where all that it computes on was quantised; without weights, only where its answer is too: then
    runtimes put the pairs and the node together.
    """
    if _WHOLE.search(node.op_type):
        return "int8"
    given = node.input[:2] if node.op_type in _WEIGHTED else node.input
    floats = [name for name in given if name and name not in single and kinds.get(name, 1) in _FLOATS]
    weighted = node.op_type in _WEIGHTED
    if floats and all(name in low for name in floats) and (weighted or set(node.output) <= set(rounded)):
        return low[floats[0]]
    return _NAMES.get(kind)


def _kind(node: Any, kinds: Mapping[str, int]) -> int:
    """The element type of a node's output: what it is cast to, or that of the first number it takes."""
    for held in node.attribute:
        if held.name in ("to", "output_dtype", "dtype") and held.i:
            return int(held.i)
        if held.HasField("t"):
            return int(held.t.data_type)
        if node.op_type == "Constant" and held.name in ("value_int", "value_ints"):
            return _INT64
    if node.op_type in _BOOLEAN:
        return _BOOL
    if node.op_type in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin"):
        return _INT64
    if node.op_type == "QuantizeLinear":
        return kinds.get(node.input[2], 2) if len(node.input) > 2 else 2
    if node.op_type == "ConstantOfShape" or _WHOLE.search(node.op_type):
        return 1
    place = {"Where": 1, "OneHot": 2}.get(node.op_type, 0)
    return kinds.get(node.input[place], 1) if len(node.input) > place else 1


def summary(graph: Any) -> str:
    """The map in words, a line for each precision: how many nodes of which operators are in it."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for operator, precision in _named(graph).values():
        counted[precision][operator] += 1
    lines = []
    for precision, kinds in sorted(counted.items(), key=lambda item: -item[1].total()):
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))
        more = len(kinds) - 8
        lines.append(f"{precision}: {listed}{f' and {more} more kinds' if more > 0 else ''}")
    return "\n".join(lines)

"""fp16 and bf16 inside, float32 at the inputs and outputs; what would leave fp16's range stays in float32."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError, first_line, require
from penstock.export import protos
from penstock.export.precision.calibration import floating, largest
from penstock.export.quiet import quiet
from penstock.signature import Signature

# IEEE 754 binary16: the largest number, the smallest with all 11 bits, and what is rounded to zero.
MOST, NORMAL, ZERO = 65504.0, 2.0**-14, 2.0**-25
# On samples a tensor may come this near to the end of the range; on inputs scaled up, up to the end itself.
_MARGIN, _SCALED = 4.0, 10.0
_ROWS, _SCALED_ROWS = 256, 32
_LARGER, _AT_ENDS = f"{_SCALED:.0f} times the samples", "at the ends of their range"
# Nodes that compute nothing: they go along with their neighbours, and no error is theirs.
MOVERS = frozenset(
    (
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Reshape"),
        *("Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    )
)


@dataclass(frozen=True)
class Headroom:
    """How large a tensor gets, on samples and where inputs are scaled up, as far as that is trouble in fp16.

    `scaled` is the largest magnitude on inputs 10 times the samples, or at the ends of their stated range, as `inputs`
    says; Inf where float32 itself overflows there.
    """

    tensor: str
    samples: float
    scaled: float
    inputs: str = _LARGER

    def __str__(self) -> str:
        if self.samples >= MOST / _MARGIN:
            near = "over" if self.samples > MOST else "near"
            return f"{self.tensor} gets {self.samples:.3g} on samples, {near} fp16's largest number, {MOST:.0f}"
        if self.scaled > MOST:
            return f"{self.tensor} gets {self.scaled:.3g} on inputs {self.inputs}, over {MOST:.0f}"
        return f"{self.tensor} gets {self.samples:.1e} at most, under fp16's smallest number of full precision, 6.1e-05"


class ForHalf:
    """Lowering to fp16 or bf16 by ModelOpt's AutoCast, as far as ranges allow.

    Args:
        graph: a float32 `onnx.ModelProto` whose nodes have names; left as it is.
        precision: `fp16` or `bf16`.
        rows: samples that show each tensor's range.
        ends: of the inputs that may be larger than in the samples: the ends of their range, None if it is open.
        least: the fewest rows that the graph takes.
        work: a folder for intermediate files.
        without: types of operators that the runtime has no kernels for in this precision.
    """

    def __init__(
        self,
        graph: Any,
        precision: str,
        rows: Rows,
        ends: Mapping[str, tuple[float, float] | None],
        least: int,
        work: Path,
        without: Collection[str] = (),
    ) -> None:
        self._precision, self._path, self._graph = precision, work / "float32.onnx", graph
        require("onnx", "export", precision).save(self._graph, str(self._path))
        self.headroom: tuple[Headroom, ...] = ()
        self.unsafe: frozenset[str] = frozenset()
        tensors = floating(graph)
        self._floats = frozenset(tensors)
        if precision == "fp16":
            self.headroom = tuple(_headroom(graph, tensors, rows, ends, least, work))
            self.unsafe = frozenset(_unsafe(graph, tensors, {item.tensor for item in self.headroom}))
        self.unsafe |= {node.name for node in graph.graph.node if node.op_type in without}
        self.nodes = [node for node in self._low(()) if node not in self.unsafe]
        self.record = None

    def graph(self, kept: Collection[str]) -> Any:
        """The graph with all of `nodes` lowered but those `kept` in float32."""
        autocast = require("modelopt.onnx.autocast", "export", self._precision)
        outside = _with_movers(self._graph, {*kept, *self.unsafe})
        with quiet(), _refusing(self._precision):
            return autocast.convert_to_mixed_precision(
                str(self._path),
                low_precision_type=self._precision,
                keep_io_types=True,
                # Its own look at ranges holds every tensor of every sample at once; ours came before.
                data_max=np.inf,
                nodes_to_exclude=[f"{re.escape(name)}$" for name in sorted(outside)],
            )

    def _low(self, kept: Collection[str]) -> list[str]:
        return [
            node.name
            for node in self._graph.graph.node
            if node.op_type not in MOVERS and node.name not in kept and self._floats & {*node.input, *node.output}
        ]


def for_half(
    graph: Any, precision: str, signature: Signature, rows: Rows, work: Path, without: Collection[str] = ()
) -> ForHalf:
    """The lowering of a model with this signature; float inputs may be larger than samples, up to their range."""
    largest_sizes = {name: dim.max for name, dim in signature.dims.items()}
    ends = {
        tensor.name: signature.ranges[tensor.name].at(largest_sizes) if tensor.name in signature.ranges else None
        for tensor in signature.inputs
        if tensor.dtype == "float32"
    }
    return ForHalf(graph, precision, rows, ends, signature.min_batch, work, without)


@contextmanager
def _refusing(precision: str) -> Iterator[None]:
    """Turn what ModelOpt fails with into one sentence; it knows no nodes inside others that read float32 outside."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:
        raise PenstockError(f"ModelOpt cannot lower the model to {precision}: {first_line(error)}") from error


def _headroom(
    graph: Any,
    tensors: Sequence[str],
    rows: Rows,
    ends: Mapping[str, tuple[float, float] | None],
    least: int,
    work: Path,
) -> Iterator[Headroom]:
    spread = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    usual = largest(graph, tensors, take(rows.inputs, spread), least, work, "ranges on samples")
    few = take(rows.inputs, spread[np.unique(np.linspace(0, len(spread) - 1, _SCALED_ROWS).astype(int))])
    few = {name: _stretched(array, ends[name]) if name in ends else array for name, array in few.items()}
    scaled = largest(graph, tensors, few, least, work, "ranges on larger inputs") if ends else usual
    told = " or ".join(dict.fromkeys(_LARGER if held is None else _AT_ENDS for held in ends.values())) or _LARGER
    for name in tensors:
        item = Headroom(name, usual[name], scaled[name], told)
        if item.samples >= MOST / _MARGIN or item.scaled > MOST or 0 < item.samples < NORMAL:
            yield item


def _stretched(array: Any, ends: tuple[float, float] | None) -> Any:
    """Samples `_SCALED` times as large, or where their range is stated, so large that they reach its farther end."""
    if ends is None:
        return (array * _SCALED).astype(array.dtype)
    most = float(np.abs(array).max(initial=0.0))
    factor = max(abs(end) for end in ends) / most if most else 0.0
    reached = np.clip(array * factor, *ends)
    # Both ends themselves, whatever the samples' sign.
    flat = reached.reshape(-1)
    flat[:1], flat[-1:] = ends[0], ends[1]
    return flat.reshape(array.shape).astype(array.dtype)


def _unsafe(graph: Any, floats: Collection[str], tensors: Collection[str]) -> Iterator[str]:
    """The names of nodes that take or give one of the tensors, or a constant that fp16 takes for 0 or for infinite.

    What a constant so small is added to may be as small, and goes on in float32 for one node more: a division by it.
    """
    to_array = protos.onnx_package().numpy_helper.to_array
    large, small = set(tensors), set[str]()
    constants = [(tensor.name, tensor) for tensor in graph.graph.initializer]
    for node in graph.graph.node:
        if node.op_type == "Constant":
            constants += [(node.output[0], held.t) for held in node.attribute if held.HasField("t")]
    for name, tensor in constants:
        if tensor.data_type == 1 and np.prod(tensor.dims):
            most = np.abs(to_array(tensor)).max()
            if most > MOST:
                large.add(name)
            elif 0 < most <= ZERO:
                small.add(name)
    for node in graph.graph.node:
        if small & set(node.input):
            large.update(set(node.output) & set(floats))
    for node in graph.graph.node:
        if (large | small) & {*node.input, *node.output}:
            yield node.name


def _with_movers(graph: Any, kept: Collection[str]) -> set[str]:
    """The nodes, and those that only move what they make: else that would be rounded on the way."""
    found = set(kept)
    made = {name for node in graph.graph.node if node.name in found for name in node.output}
    for node in graph.graph.node:
        if node.op_type in MOVERS and made & set(node.input):
            found.add(node.name)
            made.update(node.output)
    return found

"""Recurrent layers: captured whole by torch.export, and written as ONNX's own operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from penstock.errors import PenstockError, require


@contextmanager
def whole() -> Iterator[None]:
    """Have recurrent layers captured whole, by their shapes alone: taken apart, they fix the length of the example."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    with ExitStack() as stack:
        for name, kernel in _LAYERS.items():
            layer = getattr(torch.ops.aten, name).input
            # One table is asked while a module is captured, the other while its program is decomposed.
            tables: list[tuple[Any, Any]] = [(layer.py_kernels, composite), (_DECOMPOSED, layer)]
            for table, key in tables:
                stack.callback(_put, table, key, table.get(key))
                table[key] = kernel
            layer._dispatch_cache.clear()  # torch keeps the kernel that it found first
            stack.callback(layer._dispatch_cache.clear)
        yield


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _states(source: Any, state: Any, *rest: Any) -> tuple[Any, Any]:
    """What a GRU or a plain recurrent layer answers, in shapes: the upper states of all steps, and the last of each."""
    bidirectional = rest[-2]
    width = state.shape[2] * (2 if bidirectional else 1)
    return source.new_empty((*source.shape[:2], width)), state.new_empty(state.shape)


def _states_and_cells(source: Any, states: Any, *rest: Any) -> tuple[Any, Any, Any]:
    """What an LSTM answers, in shapes: those, and the last cells."""
    return (*_states(source, states[0], *rest), states[1].new_empty(states[1].shape))


_DECOMPOSED = global_decomposition_table["post_autograd"]
_LAYERS = {"lstm": _states_and_cells, "gru": _states, "rnn_tanh": _states, "rnn_relu": _states}


def check(program: Any) -> None:
    """See that a captured program's recurrent layers can be written as ONNX.

    Raises:
        PenstockError: an LSTM projects its states, which ONNX's does not.
    """
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.lstm.input:
            states, cells = (held.meta["val"].shape[2] for held in node.args[1])
            if states != cells:
                raise PenstockError(
                    f"an LSTM with proj_size={states}: ONNX's LSTM has no projection; --format pt2 and torchscript do"
                )


def translations() -> dict[Any, Any]:
    """What `torch.onnx.export` is told of layers that it has no translation for: plain recurrent ones."""
    return {
        torch.ops.aten.rnn_tanh.input: _translation("Tanh"),
        torch.ops.aten.rnn_relu.input: _translation("Relu"),
    }


def _translation(activation: str) -> Any:
    op = require("onnxscript", "export", "writing ONNX").opset18

    def layers(
        source: Any,
        state: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, Any]:
        sides, each, first = (2 if bidirectional else 1), (4 if has_biases else 2), op.Constant(value_ints=[0])
        steps, last = op.Transpose(source, perm=[1, 0, 2]) if batch_first else source, []

        def stacked(parts: list[Any]) -> Any:
            return op.Concat(*(op.Unsqueeze(part, first) for part in parts), axis=0)

        for layer in range(num_layers):
            held = [params[each * place : each * (place + 1)] for place in range(layer * sides, (layer + 1) * sides)]
            biases = stacked([op.Concat(side[2], side[3], axis=0) for side in held]) if has_biases else None
            ends = [op.Constant(value_ints=[end * sides]) for end in (layer, layer + 1)]
            answer, state_after = op.RNN(
                steps,
                stacked([side[0] for side in held]),
                stacked([side[1] for side in held]),
                biases,
                None,
                op.Slice(state, *ends, first),
                activations=[activation] * sides,
                direction="bidirectional" if bidirectional else "forward",
                hidden_size=held[0][1].shape[1],
            )
            steps = op.Reshape(op.Transpose(answer, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
            last.append(state_after)
        return op.Transpose(steps, perm=[1, 0, 2]) if batch_first else steps, op.Concat(*last, axis=0)

    return layers


def arranging(graph: Any) -> set[Any]:
    """The nodes that put the weights of recurrent layers into ONNX's order: quantizers want to find them done.

    Args:
        graph: an `onnx_ir.Graph`.
    """
    found: set[Any] = set()
    for layer in graph:
        if layer.op_type in ("LSTM", "GRU", "RNN"):
            left = [value for value in layer.inputs[1:4] if value is not None]
            while left:
                node = left.pop().producer()
                if node is not None and node not in found:
                    found.add(node)
                    left += [value for value in node.inputs if value is not None]
    return found

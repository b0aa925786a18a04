"""Operations: the multiply-adds of an ONNX model, from the shapes that its nodes have while onnxruntime runs it.

onnxruntime's own profile names every node's operator and shapes, so that neither the onnx package nor a shape inference
is needed, and sizes that hang on values are the real ones. The graph is run as it is written: optimisations are off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.errors import PenstockError, require
from penstock.signature import Arrays

Shape = Sequence[int]


def _conv(inputs: Sequence[Shape], output: Shape) -> int:
    """Each output element sums over the weight's window and the channels of its group: weight [out, in/groups, …]."""
    return math.prod(output) * math.prod(inputs[1][1:])


def _transposed_conv(inputs: Sequence[Shape], output: Shape) -> int:
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _gemm(inputs: Sequence[Shape], output: Shape) -> int:
    """`transA` or not: the first operand has output[0] rows, or columns, and all else of it is summed over."""
    return math.prod(output) * (math.prod(inputs[0]) // output[0] if output[0] else 0)


def _matmul(inputs: Sequence[Shape], output: Shape) -> int:
    return math.prod(output) * (inputs[0][-1] if inputs[0] else 1)


def _recurrent(inputs: Sequence[Shape], output: Shape) -> int:
    """Input [steps, rows, …], weights of the input and of the state, each used once a step and row."""
    steps, rows = inputs[0][:2]
    return steps * rows * (math.prod(inputs[1]) + math.prod(inputs[2]))


def _past_scales(count: Callable[[Sequence[Shape], Shape], int]) -> Callable[[Sequence[Shape], Shape], int]:
    """The weight of onnxruntime's QLinear operators stands behind the input's scale and zero point."""
    return lambda inputs, output: count([inputs[0], inputs[3]], output)


_COUNTS: Mapping[str, Callable[[Sequence[Shape], Shape], int]] = {
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger"), _conv),
    "ConvTranspose": _transposed_conv,
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    **dict.fromkeys(("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _matmul),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    "QLinearConv": _past_scales(_conv),
    "QLinearMatMul": _past_scales(_matmul),
}
# Operators that multiply in ways that are not counted here: a model that has one has no figure.
_UNCOUNTED = {
    *("Einsum", "Attention", "MultiHeadAttention", "QAttention", "GroupQueryAttention", "FusedMatMul", "QGemm"),
    *("MatMulNBits", "MatMulBnb4", "DeformConv", "DFT", "STFT", "Loop", "Scan", "If", "DynamicQuantizeGRU"),
}


def multiply_adds(path: Path, feeds: Arrays) -> int:
    """How many multiply-adds one run takes; those of convolutions, matrix products and recurrent layers alone.

    Args:
        path: an ONNX file that onnxruntime runs on the CPU.
        feeds: of each input.

    Raises:
        PenstockError: it has an operator that is not counted, or a shape is not told.
    """
    onnxruntime = require("onnxruntime", "bench", "counting a model's operations")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # packed weights have no shape in the profile
    options.enable_profiling = True
    with TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(feeds))
        return counted(json.loads(Path(session.end_profiling()).read_text()))


def counted(profile: Sequence[Mapping[str, Any]]) -> int:
    """The multiply-adds of a profile of onnxruntime's of one run.

    Raises:
        PenstockError: it has an operator that is not counted, or a shape is not told.
    """
    total = 0
    for event in profile:
        facts = event.get("args", {})
        if event.get("cat") != "Node" or not str(event.get("name", "")).endswith("_kernel_time"):
            continue
        kind = facts["op_name"]
        if kind in _UNCOUNTED:
            raise PenstockError(f"operations of {kind} are not counted")
        if kind in _COUNTS:
            inputs, outputs = (_shapes(facts[name]) for name in ("input_type_shape", "output_type_shape"))
            try:
                total += _COUNTS[kind](inputs, outputs[0])
            except (IndexError, ValueError):
                raise PenstockError(f"onnxruntime does not tell the shapes of a {kind}") from None
    return total


def _shapes(told: Sequence[Mapping[str, Shape]]) -> list[Shape]:
    return [next(iter(one.values()), ()) for one in told]

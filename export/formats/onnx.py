"""ONNX, for onnxruntime."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import require
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.formats import Built, Options, Source
from penstock.export.opsets import at_opset
from penstock.export.precision.emulation import emulated, stand_in, tells_more
from penstock.export.sharing import share_weights

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
MODEL_FILE = "model.onnx"


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.onnx, and beside it model.onnx.data where it would be over 2 GiB.

    Raises:
        PenstockError: the model cannot be captured, or the opset that was asked for cannot be had.
    """
    onnx = require("onnx", "export", "writing ONNX")
    lowered = None
    if options.precision == "fp32":
        graph = protos.copied(source.graph)  # which other variants still want as it is
    else:
        lowered = source.lowered(options, "onnxruntime", work)
        graph = lowered.graph
    graph = source.finished(graph)
    if options.opset is not None:
        graph = at_opset(graph, options.opset)
    share_weights(graph)
    needs = graphs.ir_version(graph)
    graphs.save(graph, folder, MODEL_FILE)
    half = stand_in(graph, work)  # bf16: this format knows no fp8
    rounds = half is None and lowered is not None and tells_more(graph)
    return Built(
        runtime="onnxruntime",
        model_file=MODEL_FILE,
        hardware=f"any {'NVIDIA GPU' if half else 'CPU or GPU'}, with {_runtime(needs)}",
        build={
            "tool": f"onnx {onnx.__version__}",
            "opset": graphs.opset(graph),
            "ir_version": graph.ir_version,
            **({"not_slimmed": source.graph_note} if source.graph_note else {}),
            **({"needs": "cuda"} if half else {}),
            **(lowered.notes if lowered else {}),
        },
        calibration=lowered.calibration if lowered else None,
        plan=lowered.plan if lowered else None,
        stand_in=half,
        rounding=graphs.write(emulated(graph), work, "rounding.onnx")[0] if rounds else None,
    )


def _runtime(needs: str | None) -> str:
    """The runtime, from the sentence on what an opset needs."""
    return needs.partition("needs ")[2] if needs else "onnxruntime 1.20 or later"

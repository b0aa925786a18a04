"""ONNX, for onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import require
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.formats import Built, Options, Source
from penstock.export.opsets import at_opset
from penstock.export.precision import fp16, int8
from penstock.export.sharing import share_weights
from penstock.receipt import Calibration

PRECISIONS = ("fp32", "fp16", "int8")
MODEL_FILE = "model.onnx"


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.onnx, and beside it model.onnx.data where it would be over 2 GiB.

    Raises:
        PenstockError: the model cannot be captured, or the opset that was asked for cannot be had.
    """
    onnx = require("onnx", "export", "writing ONNX")
    graph, calibration = _lowered(source, options, work)
    if options.opset is not None:
        graph = at_opset(graph, options.opset)
    share_weights(graph)
    needs = graphs.ir_version(graph)
    graphs.save(graph, folder, MODEL_FILE)
    return Built(
        runtime="onnxruntime",
        model_file=MODEL_FILE,
        hardware=f"any CPU or GPU that {needs or 'onnxruntime 1.20 or later'} runs on",
        build={
            "tool": f"onnx {onnx.__version__}",
            "opset": graphs.opset(graph),
            "ir_version": graph.ir_version,
            **({"not_slimmed": source.graph_note} if source.graph_note else {}),
        },
        calibration=calibration,
    )


def _lowered(source: Source, options: Options, work: Path) -> tuple[Any, Calibration | None]:
    if options.precision == "fp16":
        return fp16.lower(source.graph, source.calibration, work), None
    if options.precision == "int8":
        return int8.for_onnxruntime(source.graph, source.calibration, work)
    return protos.copied(source.graph), None  # which other variants still want as it is

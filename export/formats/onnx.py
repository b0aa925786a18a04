"""ONNX, for onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import require
from penstock.export.formats import Built, Options, Source
from penstock.export.precision import fp16, int8
from penstock.receipt import Calibration

PRECISIONS = ("fp32", "fp16", "int8")
MODEL_FILE = "model.onnx"


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.onnx."""
    onnx = require("onnx", "export", "writing ONNX")
    graph, calibration = _lowered(source, options, work)
    onnx.save(graph, str(folder / MODEL_FILE))
    return Built(
        runtime="onnxruntime",
        model_file=MODEL_FILE,
        hardware="any CPU or GPU that onnxruntime runs on",
        build={"tool": f"onnx {onnx.__version__}", "opset": opset(graph)},
        calibration=calibration,
    )


def opset(graph: Any) -> int:
    """The version of the default operator set that a graph asks for."""
    return int(next(item.version for item in graph.opset_import if item.domain == ""))


def _lowered(source: Source, options: Options, work: Path) -> tuple[Any, Calibration | None]:
    if options.precision == "fp16":
        return fp16.lower(source.graph, source.calibration, work), None
    if options.precision == "int8":
        return int8.for_onnxruntime(source.graph, source.calibration, work)
    return source.graph, None

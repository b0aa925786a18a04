"""float16 inside, float32 at the inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.datasets import Rows
from penstock.errors import require
from penstock.export.quiet import quiet


def lower(graph: Any, calibration: Rows | None, work: Path) -> Any:
    """Lower a float32 ONNX model with ModelOpt's AutoCast, which keeps nodes near float16's range in float32.

    Args:
        graph: `onnx.ModelProto`; left as it is.
        calibration: rows that show each tensor's range; without them ModelOpt draws random ones.
        work: a folder for intermediate files.
    """
    onnx = require("onnx", "export", "fp16")
    autocast = require("modelopt.onnx.autocast", "export", "fp16")
    path = work / "float32.onnx"
    onnx.save(graph, str(path))
    data = None
    if calibration is not None:
        data = work / "ranges.npz"
        np.savez(data, **calibration.inputs)  # type: ignore[arg-type]
    with quiet():
        return autocast.convert_to_mixed_precision(
            str(path),
            low_precision_type="fp16",
            keep_io_types=True,
            calibration_data=None if data is None else str(data),
        )

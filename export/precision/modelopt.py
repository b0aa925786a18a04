"""ModelOpt's int8 quantizer in a process of its own: `python -m … GRAPH CALIBRATION.npz OUTPUT METHOD`."""

from __future__ import annotations

import sys

import numpy as np

from penstock.errors import PenstockError, require


def quantize(graph: str, calibration: str, output: str, method: str) -> None:
    """Write the graph with Q/DQ pairs placed where TensorRT fuses.

    Args:
        graph: path of a float32 ONNX file.
        calibration: path of an .npz file with rows for each input, by name.
        output: path to write.
        method: ModelOpt's calibration method.
    """
    modelopt = require("modelopt.onnx.quantization", "export", "int8 for TensorRT")
    with np.load(calibration, allow_pickle=False) as archive:
        rows = {name: archive[name] for name in archive.files}
    modelopt.quantize(
        graph,
        quantize_mode="int8",
        calibration_data=rows,
        calibration_method=method,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=output,
    )


if __name__ == "__main__":
    try:
        quantize(*sys.argv[1:])
    except PenstockError as error:
        sys.exit(str(error))

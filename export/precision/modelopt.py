"""ModelOpt's quantizer in a process of its own: `python -m … GRAPH ROWS.npz OUTPUT PRECISION`."""

from __future__ import annotations

import sys

import numpy as np

from penstock.errors import PenstockError, require


def place(graph: str, rows: str, output: str, precision: str) -> None:
    """Write the graph with Q/DQ pairs placed where TensorRT fuses; the scales in them are of these few rows.

    Args:
        graph: path of a float32 ONNX file.
        rows: path of an .npz file with as many rows for each input, `input:NAME`, as the engine mostly gets.
        output: path to write.
        precision: `int8` or `fp8`.
    """
    modelopt = require("modelopt.onnx.quantization", "export", f"{precision} for TensorRT")
    with np.load(rows, allow_pickle=False) as archive:
        few = {name.removeprefix("input:"): archive[name] for name in archive.files}
    modelopt.quantize(
        graph,
        quantize_mode=precision,
        calibration_data=few,
        calibration_shapes=",".join(f"{name}:{'x'.join(map(str, array.shape))}" for name, array in few.items()),
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=output,
    )


if __name__ == "__main__":
    try:
        place(*sys.argv[1:])
    except PenstockError as error:
        sys.exit(str(error))

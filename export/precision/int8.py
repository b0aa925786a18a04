"""int8: Q/DQ pairs with scales measured on real data, placed for the runtime that will read them."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.datasets import Rows
from penstock.errors import PenstockError, require
from penstock.export.quiet import quiet
from penstock.receipt import Calibration
from penstock.trial import python_command

# How scales are found: the smallest and largest value seen, or the largest alone.
ONNXRUNTIME_METHOD, TENSORRT_METHOD = "minmax", "max"


def for_onnxruntime(graph: Any, calibration: Rows | None, work: Path) -> tuple[Any, Calibration]:
    """Quantise for onnxruntime's kernels: activations to uint8, weights to int8, symmetric and per channel.

    Weights get 7 of the 8 bits, so that every CPU answers alike: without VNNI, x86 adds two products of uint8 by int8
    in 16 bits (vpmaddubsw), which full weights overflow: 2 * 255 * 127 > 2**15, but 2 * 255 * 64 is not.

    Args:
        graph: a float32 `onnx.ModelProto`; left as it is.
        calibration: real rows.
        work: a folder for intermediate files.

    Raises:
        PenstockError: there are no real rows.
    """
    rows = _real(calibration)
    onnx = require("onnx", "export", "int8")
    quantization = require("onnxruntime.quantization", "export", "int8")
    prepare = require("onnxruntime.quantization.shape_inference", "export", "int8")
    paths = [work / name for name in ("float32.onnx", "shaped.onnx", "int8.onnx")]
    onnx.save(graph, str(paths[0]))
    with quiet():
        prepare.quant_pre_process(str(paths[0]), str(paths[1]), skip_optimization=True, skip_symbolic_shape=True)
        quantization.quantize_static(
            str(paths[1]),
            str(paths[2]),
            _reader(quantization.CalibrationDataReader, rows),
            quant_format=quantization.QuantFormat.QDQ,
            # uint8 activations by int8 weights is what x86's VNNI multiplies: 2.6 to 3.4 times as fast as int8 by int8
            # here, and a ReLU's outputs get all 256 steps.
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            calibrate_method=quantization.CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
        )
    return _quantised(onnx.load(str(paths[2]))), _record(rows, ONNXRUNTIME_METHOD)


def for_tensorrt(graph: Any, calibration: Rows | None, work: Path) -> tuple[Any, Calibration]:
    """Quantise where TensorRT fuses, with ModelOpt: convolutions and matrix products, residual additions whole.

    Arguments and errors are those of `for_onnxruntime`.
    """
    rows = _real(calibration)
    onnx = require("onnx", "export", "int8")
    paths = [work / name for name in ("float32.onnx", "calibration.npz", "int8.onnx")]
    onnx.save(graph, str(paths[0]))
    np.savez(paths[1], **rows.inputs)  # type: ignore[arg-type]
    # ModelOpt puts functions of its own into onnxruntime's quantizer, which this process may need as it is.
    done = subprocess.run(  # noqa: S603
        python_command("penstock.export.precision.modelopt", *map(str, paths), TENSORRT_METHOD),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        if os.strerror(errno.ENOSPC) in lines[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise PenstockError(f"ModelOpt cannot quantise the model: {lines[-1][:300]}")
    return _quantised(onnx.load(str(paths[2]))), _record(rows, TENSORRT_METHOD)


def _quantised(graph: Any) -> Any:
    if not any(node.op_type == "QuantizeLinear" for node in graph.graph.node):
        raise PenstockError("--precision int8 finds no operator here that it can lower; export it as fp16 or fp32")
    return graph


def _real(calibration: Rows | None) -> Rows:
    if calibration is None:
        raise PenstockError(
            "int8 needs real samples to measure its scales on, and the checkpoint holds none: give them with "
            "--data FILE.npz (one array for each input, by name)"
        )
    return calibration


def _record(rows: Rows, method: str) -> Calibration:
    digest = hashlib.sha256()
    for name, array in rows.inputs.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return Calibration(method=method, samples=len(rows), digest=digest.hexdigest())


def _reader(base: type, rows: Rows) -> Any:
    """onnxruntime's reader over the rows, one at a time: a largest value does not depend on how rows are grouped."""

    class Reader(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds: Iterator[dict[str, Any]] = (
                {name: array[i : i + 1] for name, array in rows.inputs.items()} for i in range(len(rows))
            )

        def get_next(self) -> dict[str, Any] | None:
            return next(self._feeds, None)

    return Reader()

"""int8 and fp8 where TensorRT fuses: Q/DQ pairs placed by ModelOpt, with scales measured on samples."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError, require
from penstock.export.precision import qdq
from penstock.export.precision.calibration import calibrate
from penstock.trial import python_command


class ForTensorrt:
    """Lowering for TensorRT: symmetric activations, weights per channel, residual additions whole, biases in float32.

    Args:
        graph: a float32 `onnx.ModelProto` whose nodes have names; left as it is.
        precision: `int8`, or `fp8` (E4M3).
        rows: the samples.
        method: the calibration method.
        least: the fewest rows that the graph takes.
        usual: the rows that it mostly gets: ModelOpt leaves out products too small to gain by them.
        work: a folder for intermediate files.

    Raises:
        PenstockError: ModelOpt fails, nothing in the graph can be lowered, or calibration fails.
    """

    def __init__(self, graph: Any, precision: str, rows: Rows, method: str, least: int, usual: int, work: Path) -> None:
        onnx = require("onnx", "export", precision)
        model, drawn, placed = (work / name for name in ("float32.onnx", "rows.npz", "placed.onnx"))
        onnx.save(graph, str(model))
        few = take(rows.inputs, np.arange(usual) % len(rows))
        np.savez(drawn, **{f"input:{name}": array for name, array in few.items()})  # an input may be named file
        _place(model, drawn, placed, precision)
        self._model = onnx.load(str(placed))
        self.nodes = qdq.lowered_nodes(self._model)
        if not self.nodes:
            raise PenstockError(
                f"{precision} finds no operator here that TensorRT would gain by; export it as fp16 or fp32"
            )
        scales = calibrate(graph, qdq.quantised(self._model), rows, method, least, work)
        qdq.rescale(self._model, scales.ranges)
        self.record = scales.record

    def graph(self, kept: Collection[str]) -> Any:
        """The graph with all of `nodes` lowered but those `kept` in float32."""
        return qdq.without(self._model, kept)


def _place(graph: Path, rows: Path, output: Path, precision: str) -> None:
    # ModelOpt puts functions of its own into onnxruntime's quantizer, which this process may need as it is.
    done = subprocess.run(  # noqa: S603 (this Python, and words of ours)
        python_command("penstock.export.precision.modelopt", str(graph), str(rows), str(output), precision),
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

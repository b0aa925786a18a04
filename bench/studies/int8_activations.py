"""Why onnxruntime's int8 takes uint8 activations: both kinds and float32, interleaved, on this machine.

    python bench/studies/int8_activations.py runs/digits/best.pth > bench/results/int8_activations.json

The ceiling is arithmetic alone: VNNI multiplies uint8 by int8, four products an instruction where float32 has one.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from penstock import checkpoint
from penstock.export import fusion
from penstock.export.formats import Source

ROUNDS, BATCHES = 300, (1, 8, 32)


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """The checkpoint's calibration rows, one at a time."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        rows = len(next(iter(inputs.values())))
        self.feeds = iter([{name: array[i : i + 1] for name, array in inputs.items()} for i in range(rows)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def main() -> None:
    """Write medians (milliseconds) and ratios to float32 as JSON."""
    loaded = checkpoint.load(Path(sys.argv[1]))
    assert loaded.calibration is not None
    inputs = loaded.calibration.inputs
    source = Source(fusion.fuse(loaded.module).module, loaded.call, loaded.card.signature)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        onnx.save(source.graph, str(work / "captured.onnx"))
        quant_pre_process(
            str(work / "captured.onnx"), str(work / "float32.onnx"), skip_optimization=True, skip_symbolic_shape=True
        )
        for kind in (quantization.QuantType.QInt8, quantization.QuantType.QUInt8):
            quantization.quantize_static(
                str(work / "float32.onnx"),
                str(work / f"{kind}.onnx"),
                Reader(inputs),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=kind,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
                extra_options={"ActivationSymmetric": kind == quantization.QuantType.QInt8, "WeightSymmetric": True},
            )
        sessions = {path.stem: onnxruntime.InferenceSession(str(path)) for path in sorted(work.glob("*.onnx"))}
    sessions.pop("captured")
    print(json.dumps({**facts(), "median_ms": measure(sessions, inputs)}, indent=1))


def measure(sessions: dict[str, Any], inputs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median milliseconds by batch and graph, every graph once in each round."""
    found = {}
    for batch in BATCHES:
        feeds = {name: np.ascontiguousarray(array[:batch]) for name, array in inputs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(ROUNDS):
            for name, session in sessions.items():
                started = time.perf_counter()
                session.run(None, feeds)
                seconds[name].append(time.perf_counter() - started)
        found[str(batch)] = {name: round(float(np.median(part)) * 1e3, 4) for name, part in seconds.items()}
    return found


def facts() -> dict[str, Any]:
    """The conditions."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "rounds": ROUNDS,
    }


if __name__ == "__main__":
    main()

"""ResNet-50 on this CPU: PyTorch eager, onnxruntime in fp32 and in int8, interleaved: `python resnet50_cpu.py OUTPUT`.

The ceiling is arithmetic alone: AVX2 adds 16 products of float32 in a cycle (two fused multiply-adds of 8), and 32 of
uint8 by int8 (vpmaddubsw, two instructions more to widen); AVX512-VNNI 32 and 128.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torchvision

from penstock import artifact, timing
from penstock.runtimes import BaseRunner
from penstock.signature import Arrays
from penstock.timing import Cell

BATCHES, SECONDS, ROUNDS = (1, 8), 12.0, 12


class Eager(BaseRunner):
    """The source as PyTorch runs it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def run(self, feeds: Arrays) -> dict[str, Any]:
        with torch.inference_mode():
            return {"output": self._module(torch.from_numpy(feeds["image"])).numpy()}


def main(output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    net = torchvision.models.resnet50().eval()
    torch.save(net.state_dict(), output / "resnet50.pth")
    words = ["--precision", "fp32,int8", "--model", "torchvision:resnet50", "--batch", "1,8,16", "--data", "random"]
    command = [sys.executable, "-m", "penstock", "export", *words, "--output", str(output / "models")]
    subprocess.run([*command, str(output / "resnet50.pth")], check=True)  # noqa: S603
    held = {p: artifact.read(output / "models" / f"resnet50-onnx-{p}") for p in ("fp32", "int8")}
    runners: dict[str, Any] = {"torch eager": Eager(net), **{p: item.load() for p, item in held.items()}}
    inputs, _ = held["fp32"].golden()
    cells = {(name, batch): Cell(batch) for name in runners for batch in BATCHES}
    work = [(runners[name], timing.feeds(inputs, batch), cell) for (name, batch), cell in cells.items()]
    timing.measure(work, SECONDS, ROUNDS)
    for (name, batch), cell in cells.items():
        median = 1e3 * (cell.median or 0)
        for against in ("torch eager", "fp32"):
            middle, low, high = cell.speedup(cells[against, batch])
            print(f"{name:12} batch {batch}: {median:8.2f} ms, {middle:.2f} ({low:.2f} to {high:.2f}) times {against}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

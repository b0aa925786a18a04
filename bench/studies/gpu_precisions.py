"""onnxruntime's CUDA provider in fp32, fp16 and int8, with and without I/O binding: `python gpu_precisions.py OUTPUT`.

Exports ResNet-50 (random weights, which cost the same) and the digits net on a GPU host, verifies each variant on the
GPU against its checkpoint, and times the sessions against each other in interleaved rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torchvision

from penstock import artifact, timing
from penstock.runtimes import BaseRunner
from penstock.signature import Arrays
from penstock.timing import Cell

PRECISIONS, BATCHES = ("fp32", "fp16", "bf16", "int8"), (1, 8, 32, 128)


class Bound(BaseRunner):
    """A runner's session with inputs and outputs bound to buffers on the GPU, which are used again."""

    def __init__(self, runner: Any) -> None:
        self._session, self._names = runner._session, [tensor.name for tensor in runner.outputs]
        self._held: dict[str, Any] = {}

    def run(self, feeds: Arrays) -> dict[str, Any]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            held = self._held.get(name)
            if held is not None and held.shape() == list(array.shape):
                held.update_inplace(array)
            else:
                self._held[name] = held = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
            binding.bind_ortvalue_input(name, held)
        for name in self._names:
            binding.bind_output(name, "cuda", 0)
        self._session.run_with_iobinding(binding)
        return dict(zip(self._names, binding.copy_outputs_to_cpu(), strict=True))


class Eager(BaseRunner):
    """The source on the GPU, as PyTorch runs it, TF32 off."""

    def __init__(self, module: Any, half: bool = False) -> None:
        self._half = half
        self._module: Any = module.cuda().half() if half else module.cuda()

    def run(self, feeds: Arrays) -> dict[str, Any]:
        (array,) = feeds.values()
        x = torch.from_numpy(array).cuda()
        with torch.inference_mode():
            return {"y": self._module(x.half() if self._half else x).float().cpu().numpy()}


def penstock(*words: str) -> str:
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    said = (done.stdout + done.stderr).strip()
    print(f"$ penstock {' '.join(words)}\n{said}", flush=True)
    return said


def main(output: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    net = torchvision.models.resnet50().eval()
    torch.save(net.state_dict(), output / "resnet50.pth")
    home = output / "models"
    for precision in PRECISIONS:
        words = ["--precision", precision, "--batch", "1,32,128", "--output", str(home), "--data", "random"]
        penstock("export", "--model", "torchvision:resnet50", *words, str(output / "resnet50.pth"))
        penstock("verify", str(home / f"resnet50-onnx-{precision}"), "--device", "cuda:0")
    work, cells, held = [], {}, []
    for precision in PRECISIONS:
        folder = home / f"resnet50-onnx-{precision}"
        if not folder.is_dir():
            continue
        runner: Any = artifact.read(folder).load(device="cuda:0")
        held += [(precision, runner), (f"{precision}, bound", Bound(runner))]
    held += [("torch eager fp32", Eager(net)), ("torch eager fp16", Eager(torchvision.models.resnet50().eval(), True))]
    for batch in BATCHES:
        image = np.random.default_rng(0).standard_normal((batch, 3, 224, 224)).astype(np.float32)
        for name, runner in held:
            cells[name, batch] = Cell(batch)
            work.append((runner, {"image": image}, cells[name, batch]))
    timing.measure(work, 1.0, 5)
    found = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "rows": [
            {"name": name, "batch": batch, "median_s": cell.median, "rounds_s": cell.rounds}
            for (name, batch), cell in cells.items()
        ],
    }
    (output / "gpu_precisions.json").write_text(json.dumps(found))
    print(", ".join(f"{key} {found[key]}" for key in ("gpu", "torch", "onnxruntime")), "ResNet-50, copies included")
    for (name, batch), cell in cells.items():
        middle, low, high = cell.speedup(cells["fp32", batch])
        median = 1e3 * (cell.median or 0)
        speed = f"{middle:5.2f} ({low:.2f} to {high:.2f})"
        print(f"{name:18} batch {batch:3} {median:9.3f} ms {cell.rows_per_second:8.0f}/s  {speed} times fp32")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

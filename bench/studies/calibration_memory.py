"""Peak memory of an int8 export by the number of samples: `python calibration_memory.py OUTPUT`.

Each export is a process of its own; its peak is what the kernel says of it (ru_maxrss). ResNet-18 at 224 pixels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torchvision

COUNTS, METHOD = (32, 128, 512), "entropy"


def peak(command: list[str]) -> float:
    """MB that a process held at most."""
    child = subprocess.Popen(command)  # noqa: S603
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"it failed: {' '.join(command)}")
    return used.ru_maxrss / 1e3


def main(output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18().state_dict(), output / "resnet18.pth")
    most = {}
    for count in COUNTS:
        data = output / f"{count}.npz"
        images = np.random.default_rng(0).standard_normal((count, 3, 224, 224), np.float32)
        np.savez(data, image=images)
        words = ["--int8", "--model", "torchvision:resnet18", "--batch", "1,8,16", "--calibration", METHOD]
        words += ["--data", str(data), "--output", str(output / f"models-{count}"), str(output / "resnet18.pth")]
        os.environ["PENSTOCK_CACHE"] = str(output / f"cache-{count}")
        most[count] = peak([sys.executable, "-m", "penstock", "export", *words])
        data.unlink()
    for count, megabytes in most.items():
        print(f"{count:4} samples: {megabytes:7.0f} MB, {megabytes / most[COUNTS[0]]:.3f} times {COUNTS[0]}'s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

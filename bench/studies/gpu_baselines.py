"""What a TensorRT engine is compared with on a GPU host: `python gpu_baselines.py OUTPUT [MODEL.onnx] [SECONDS]`.

ResNet-50 with random weights in fp16, its input on the GPU already: torch eager, torch with channels last in one CUDA
graph, and, with penstock's fp16 graph of it, onnxruntime's CUDA provider with I/O binding. Interleaved rounds; prints a
line for each, and writes JSON. `trt_runner.py` measures the engine in the same way, in a Python without torch.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

ROUNDS = 10


def eager(net: Any, image: Any) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            net(image)
        torch.cuda.synchronize()

    return run


def graphed(net: Any, image: Any) -> Callable[[], None]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side), torch.inference_mode():
        for _ in range(3):
            net(image)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.inference_mode():
        answer = net(image)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    run.held = answer  # type: ignore[attr-defined]
    return run


def bound(model: Path, image: Any) -> Callable[[], None]:
    """onnxruntime's session on tensors that stay on the GPU, convolutions chosen exhaustively and in NHWC."""
    import onnxruntime

    facts = {"cudnn_conv_algo_search": "EXHAUSTIVE", "prefer_nhwc": 1, "use_tf32": 0}
    session = onnxruntime.InferenceSession(str(model), providers=[("CUDAExecutionProvider", facts)])
    binding = session.io_binding()
    held = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(image), "cuda", 0)
    binding.bind_ortvalue_input(session.get_inputs()[0].name, held)
    binding.bind_output(session.get_outputs()[0].name, "cuda", 0)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    run.held = held  # type: ignore[attr-defined]
    return run


def main(output: Path, model: Path | None, seconds: float) -> None:
    torch.manual_seed(0)
    net = torchvision.models.resnet50().eval().cuda().half()
    last = torchvision.models.resnet50().eval().cuda().half().to(memory_format=torch.channels_last)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for batch in (1, 128):
        image = torch.randn(batch, 3, 224, 224, device="cuda").half()
        ways = {
            "torch eager fp16": eager(net, image),
            "torch eager fp16, channels last": eager(last, image.to(memory_format=torch.channels_last)),
            "torch CUDA graph fp16, channels last": graphed(last, image.to(memory_format=torch.channels_last)),
        }
        if model is not None:
            ways["onnxruntime CUDA fp16, bound"] = bound(model, image.float().cpu().numpy())
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for run in ways.values():
            for _ in range(10):
                run()
        for _ in range(ROUNDS):
            for name, run in ways.items():
                until = time.perf_counter() + seconds / ROUNDS
                while time.perf_counter() < until:
                    started = time.perf_counter()
                    run()
                    taken[name].append(time.perf_counter() - started)
        for name, samples in taken.items():
            middle = statistics.median(samples)
            print(
                f"batch {batch:4} {name:38} {1e3 * middle:8.3f} ms {batch / middle:9.0f} rows/s  n={len(samples)}",
                flush=True,
            )
        found[f"batch {batch}"] = {name: sorted(samples) for name, samples in taken.items()}
    (output / "gpu_baselines.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]) if len(sys.argv) > 2 else None,
        float(sys.argv[3]) if len(sys.argv) > 3 else 3.0,
    )

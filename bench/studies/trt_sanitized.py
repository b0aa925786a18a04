"""A short run of an engine for compute-sanitizer: `compute-sanitizer python trt_sanitized.py ARTIFACT [HOW]`, on a GPU.

HOW is `whole` (default: as it is served), `copies` (no tensor used where it lies), `graphless` (no CUDA graphs), or
`alone`: TensorRT by itself, in buffers larger than it needs, to tell its kernels' errors from the runner's.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact, cuda, lanes

ROWS, TOGETHER = (1, 7, 64, 33), (3, 16)


def by_runner(found: artifact.Artifact, how: str) -> None:
    if how == "copies":
        lanes._DIRECT_OUT = -1
    if how == "graphless":
        lanes.Lane.capture = _refused  # type: ignore[assignment, method-assign]
    inputs, _ = found.golden()
    with found.load(device="cuda:0") as runner:
        runner.settled()

        def ask(rows: int) -> None:
            answer = runner.run({name: np.resize(array, (rows, *array.shape[1:])) for name, array in inputs.items()})
            assert all(len(array) == rows and np.isfinite(array).all() for array in answer.values())

        for rows in ROWS:
            ask(rows)

        def often(rows: int) -> None:
            for _ in range(4):
                ask(rows)

        threads = [threading.Thread(target=often, args=(rows,)) for rows in TOGETHER]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _refused(*_: Any) -> None:
    raise cuda.CudaError("no graphs")


def alone(found: artifact.Artifact) -> None:
    import tensorrt as trt  # type: ignore[import-not-found]

    signature = found.receipt.signature
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(found.model_path.read_bytes())
    context, stream = engine.create_execution_context(), cuda.call("cudaStreamCreate")
    for tensor in (*signature.inputs, *signature.outputs):
        context.set_tensor_address(tensor.name, cuda.call("cudaMalloc", 1 << 26))
    for rows in ROWS:
        for tensor in signature.inputs:
            context.set_input_shape(tensor.name, (rows, *tensor.shape[1:]))
        assert context.execute_async_v3(int(stream))
        cuda.call("cudaStreamSynchronize", stream)


if __name__ == "__main__":
    held, kind = artifact.read(Path(sys.argv[1])), sys.argv[2] if len(sys.argv) > 2 else "whole"
    alone(held) if kind == "alone" else by_runner(held, kind)
    print("the short run is done")

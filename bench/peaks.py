"""Peaks: how many operations and bytes this machine does in a second at best, measured in a process of its own.

python -m penstock.bench.peaks CORES[,CORES…] DEVICE

A core's own copy of the work is all it does: matrix products large enough to be limited by arithmetic, and dot products
that are limited by how fast they read. Libraries have one thread each there, so that no waiting for one another is in
the figures; they are what a model could reach, not what one does. The result is one JSON object on stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from penstock import cache, cuda, events, parents, trial
from penstock.errors import PenstockError

TIMEOUT_S = 120
# Each figure is the best of so many tries of so long: what slows a try is not the machine's peak.
_TRIES, _TRY_S = 5, 0.02
# A working set that fits in a cache is read as fast as that cache is.
_BYTES = tuple(2**power for power in (18, 21, 24, 27))
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")


# Makes a core's own work: one piece of it, and how many operations or bytes that is.
Make = Callable[[], tuple[Callable[[], Any], float]]


@dataclass(frozen=True)
class Peaks:
    """Of one number of cores, or of a GPU.

    `operations` are multiplications and additions in a second by what they compute in, `bytes` are those read in a
    second by the size of what is read over and over; a GPU's are those of its memory, past its cache.
    """

    operations: dict[str, float] = field(default_factory=dict)
    bytes: dict[int, float] = field(default_factory=dict)

    def bytes_per_s(self, size: int) -> float | None:
        """How fast a working set of `size` bytes can be read at most, or None where it is smaller than all tried.

        As fast as the largest that was tried and is no larger; and no slower than larger ones.
        """
        within = [held for held in self.bytes if held <= size]
        return max(rate for held, rate in self.bytes.items() if held >= max(within)) if within else None


def measure(cores: list[int], device: str = "cpu") -> dict[str, Peaks]:
    """The peaks of each number of cores, and of the GPU under its name, `cuda:0`, where it is one.

    Raises:
        PenstockError: they could not be measured.
    """
    counts = ",".join(map(str, sorted(set(cores))))
    command = trial.python_command("penstock.bench.peaks", counts, device)
    environment = {**parents.environment(), **_ONE_THREAD}
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and words of ours)
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        raise PenstockError("this machine's peaks could not be measured") from None
    return {
        name: Peaks(held["operations"], {int(size): rate for size, rate in held["bytes"].items()})
        for name, held in told.items()
    }


def _of_cores(cores: int) -> Peaks:
    products = {"float32": [_products(512)]}
    for kind, sides in (("float32", (256, 384)), ("int8", (256, 512))):
        with suppress(Exception):  # without onnxruntime, or its kernel, there is no figure
            products.setdefault(kind, []).extend([runtime_products(kind, side) for side in sides])
    with ThreadPoolExecutor(cores) as threads:
        done = {kind: max(_best(threads, cores, make) for make in makes) for kind, makes in products.items()}
        read = {size: _best(threads, cores, _reads(size // cores)) for size in _BYTES}
    return Peaks(done, read)


def at_least(fewer: Peaks, more: Peaks) -> Peaks:
    """The peaks of more cores, of which no figure is under that of fewer ones: such a one was disturbed."""
    return Peaks(
        {kind: max(rate, fewer.operations.get(kind, 0.0)) for kind, rate in more.operations.items()},
        {size: max(rate, fewer.bytes.get(size, 0.0)) for size, rate in more.bytes.items()},
    )


def _best(threads: ThreadPoolExecutor, cores: int, make: Make) -> float:
    """The most that was done in a second, by all cores together."""
    made = [make() for _ in range(cores)]

    def rate(one: tuple[Callable[[], Any], float]) -> float:
        work, amount = one
        ready.wait()
        done, started = 0, time.perf_counter()
        while (passed := time.perf_counter() - started) < _TRY_S:
            work()
            done += 1
        return done * amount / passed

    ready = threading.Barrier(cores)
    for work, _ in made:
        work()
    rates = np.array([list(threads.map(rate, made)) for _ in range(_TRIES)])
    return float(rates.max(axis=0).sum())  # another process may take a core, but seldom the same one each time


def _products(side: int) -> Make:
    """A product of two square matrices by numpy's BLAS: 2 n³ operations."""

    def make() -> tuple[Callable[[], Any], float]:
        a, b = np.ones((side, side), np.float32), np.ones((side, side), np.float32)
        out = np.empty_like(a)
        return lambda: np.matmul(a, b, out=out), 2.0 * side**3

    return make


def _reads(size: int) -> Make:
    """A dot product of an array with another, half of the bytes each: as one core reads them, and writes nothing."""

    def make() -> tuple[Callable[[], Any], float]:
        a, b = np.ones(max(1, size // 8), np.float32), np.ones(max(1, size // 8), np.float32)
        return lambda: np.dot(a, b), float(a.nbytes + b.nbytes)

    return make


def runtime_products(kind: str, side: int, threads: int = 1) -> Make:
    """The same by onnxruntime, whose kernels may be the faster ones, or uint8 times int8; the right one is a weight."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(_graph(kind, side), options, providers=["CPUExecutionProvider"])
    fed = {"a": np.ones((side, side), np.float32 if kind == "float32" else np.uint8)}
    return lambda: (lambda: session.run(None, fed), 2.0 * side**3)


def _graph(kind: str, side: int) -> bytes:
    """An ONNX file of one product, in protocol buffers' encoding: a tag, and a number or a length and bytes."""
    # Left, right and product as TensorProto.DataType numbers them: uint8, int8, int32, or float32 all.
    left, right, out = (1, 1, 1) if kind == "float32" else (2, 3, 6)
    ones = np.ones(side * side, np.float32 if kind == "float32" else np.int8).tobytes()

    def number(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)

    def part(tag: int, content: bytes | str | int) -> bytes:
        if isinstance(content, int):
            return number(tag << 3) + number(content)
        held = content.encode() if isinstance(content, str) else content
        return number(tag << 3 | 2) + number(len(held)) + held

    def value(name: str, kind: int) -> bytes:
        shape = part(1, part(1, side)) * 2  # TensorShapeProto.dim.dim_value
        return part(1, name) + part(2, part(1, part(1, kind) + part(2, shape)))

    node = part(1, "a") + part(1, "b") + part(2, "c") + part(4, "MatMul" if kind == "float32" else "MatMulInteger")
    weight = part(1, side) + part(1, side) + part(2, right) + part(8, "b") + part(9, ones)
    values = part(5, weight) + part(11, value("a", left)) + part(12, value("c", out))
    graph = part(1, node) + part(2, "peak") + values
    return part(1, 8) + part(7, graph) + part(8, part(2, 13))  # IR version 8, operators of opset 13


def _of_gpu(device: str) -> Peaks:
    """A GPU's matrix products by torch, and its memory by copies of CUDA's own.

    Products are kept for a Python that has no torch, as one for engines may be.
    """
    products = dict(_gpu_products(device))
    facts = cuda.facts(cuda.number(device)) or {}
    name = cache.key("peaks", str(facts.get("gpu")), str(facts.get("driver")))
    if products:
        cache.write("peaks", name, json.dumps(products).encode())
    elif kept := cache.read("peaks", name):
        products = json.loads(kept)
    return Peaks(products, dict(_gpu_copies(device)))


def _gpu_products(device: str) -> Iterator[tuple[str, float]]:
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    place, side = torch.device("cuda", cuda.number(device)), 4096
    for name, dtype in (("float32", "float32"), ("tf32", "float32"), ("float16", "float16"), ("int8", "int8")):
        with suppress(Exception):  # a GPU that is too old for a kind has no figure of it
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            a, b = (torch.ones((side, side), dtype=getattr(torch, dtype), device=place) for _ in range(2))
            work = partial(torch._int_mm if dtype == "int8" else torch.matmul, a, b.t())
            yield name, 2.0 * side**3 / min(events.seconds(work) for _ in range(_TRIES))


def _gpu_copies(device: str) -> Iterator[tuple[int, float]]:
    with suppress(cuda.CudaError, PenstockError):
        cuda.call("cudaSetDevice", cuda.number(device))
        size, cache = 2**29, int(cuda.call("cudaGetDeviceProperties", cuda.number(device)).l2CacheSize)
        there, back = cuda.call("cudaMalloc", size), cuda.call("cudaMalloc", size)
        way = cuda.runtime().cudaMemcpyKind.cudaMemcpyDeviceToDevice
        copy = partial(cuda.call, "cudaMemcpyAsync", back, there, size, way, 0)
        seconds = min(events.seconds(copy) for _ in range(_TRIES))
        yield 2 * cache, 2.0 * size / seconds  # read, and written; what is twice its cache does not stay in that
        for held in (there, back):
            cuda.call("cudaFree", held)


def _main(counts: str, device: str) -> None:
    most = len(os.sched_getaffinity(0))
    found: dict[str, Peaks] = {}
    fewer = Peaks()
    for cores in sorted({min(int(part), most) for part in counts.split(",")}):
        found[str(cores)] = fewer = at_least(fewer, _of_cores(cores))
    if device.startswith("cuda"):
        found[f"cuda:{cuda.number(device)}"] = _of_gpu(device)
    print(json.dumps({name: asdict(peaks) for name, peaks in found.items()}))


if __name__ == "__main__":
    parents.end_with_parent()
    _main(*sys.argv[1:])

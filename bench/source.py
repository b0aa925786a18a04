"""The source itself as rows: what exports are faster than.

PyTorch runs it eagerly; on a GPU in tf32, which convolutions are by default, in fp16, and in fp16 captured.

A row has the contract and the stored samples of an artifact that was made of the source, and no folder of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from penstock import decoding, origin, weights
from penstock.artifact import Artifact
from penstock.errors import PenstockError, Say
from penstock.files import sha256
from penstock.receipt import FileDigest
from penstock.runtimes.torch import TorchRunner, allow_tf32, forbid_tf32

# How the source is run, and in what precision, on a device of each kind.
WAYS = {"cpu": (("eager", "fp32"),), "cuda": (("eager", "tf32"), ("eager", "fp16"), ("graph", "fp16"))}
_WARM_UPS = 3
Function = Callable[..., Any]


@dataclass(frozen=True)
class SourceRow(Artifact):
    """One way of running a source, in the place of an artifact."""

    module: torch.nn.Module = field(kw_only=True)
    captured: bool = field(default=False, kw_only=True)

    def check_digests(self) -> None:
        """Nothing of it lies in a file that could change."""

    def unavailable(self, device: str = "cpu") -> str | None:
        """None: PyTorch has loaded it."""
        return None

    def load(self, *, device: str = "cpu", threads: int | None = None, callers: int | None = None) -> TorchRunner:
        """A runner over a module of its own."""
        if device != "cpu":
            forbid_tf32()
        module = copy.deepcopy(self.module).eval().to(device)
        narrowed: dict[str, Callable[[torch.nn.Module], Function]] = {"fp16": _Half, "tf32": _Tf32}
        narrow = narrowed.get(self.receipt.precision)
        function: Function = module if narrow is None else narrow(module)
        return TorchRunner(_Graphs(function) if self.captured else function, self.receipt.signature, device, threads)


def rows(donors: list[Artifact], path: Path, device: str, say: Say, **told: Any) -> list[SourceRow]:
    """A row for each way of running a source on a device.

    Args:
        donors: artifacts; the first that was made of the source lends its contract and its samples.
        path: the checkpoint.
        device: `cpu` or `cuda:N`.
        say: told what is found in it.
        told: `model` and `allow_pickle`, as `origin.opened` takes them.

    Raises:
        PenstockError: it does not load, none of the artifacts is of it, or there is no such device.
    """
    if device != "cpu" and not torch.cuda.is_available():
        raise PenstockError(f"--device {device}: PyTorch {torch.__version__} finds no CUDA device here")
    digest = sha256(weights.locate(path))
    kin = [one for one in donors if one.receipt.source.sha256 == digest]
    if not kin:
        made = ", ".join(sorted({one.receipt.source.checkpoint for one in donors}))
        raise PenstockError(f"--source {path}: none of the artifacts was made of this file; they are of {made}")
    donor = next((one for one in kin if one.receipt.precision == "fp32"), kin[0])
    held = origin.opened(donor, path, say, option="--source", **told)
    module = decoding.before(held.adapted(), held.card.signature, donor.receipt.preprocess)
    return [_row(donor, path, module, way, precision) for way, precision in WAYS[device.partition(":")[0]]]


def _row(donor: Artifact, path: Path, module: torch.nn.Module, way: str, precision: str) -> SourceRow:
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    told = {
        "name": f"torch-{way}-{precision}",
        "version": 1,
        "format": "torch",
        "precision": precision,
        "runtime": "torch",
        "model_file": path.name,
        "files": {path.name: FileDigest(sha256=donor.receipt.source.sha256, bytes=size)},
        "verification": donor.receipt.verification.model_copy(update={"distances": ()}),
        "build": {},
    }
    return SourceRow(donor.folder, donor.receipt.model_copy(update=told), module=module, captured=way == "graph")


class _Tf32:
    """A module whose float32 is TF32 on a GPU, while it runs and no longer."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __call__(self, *inputs: torch.Tensor) -> Any:
        allow_tf32()
        try:
            return self._module(*inputs)
        finally:
            forbid_tf32()


class _Half:
    """A module in float16, channels last, between float32 tensors."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module.half().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        answer = self._module(*map(_narrowed, inputs))
        return tuple(map(_widened, answer)) if isinstance(answer, tuple | list) else _widened(answer)


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    images = tensor.ndim == 4
    return tensor.to(torch.float16, memory_format=torch.channels_last if images else torch.contiguous_format)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor


class _Graphs:
    """A function on a GPU, captured once for each set of shapes, and replayed (PyTorch's manual, CUDA Graphs)."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._held: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...], Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        form = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if form not in self._held:
            self._held[form] = self._captured(inputs)
        graph, places, answer = self._held[form]
        for place, tensor in zip(places, inputs, strict=True):
            place.copy_(tensor)
        graph.replay()
        return answer

    def _captured(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...], Any]:
        places = tuple(tensor.clone() for tensor in inputs)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._function(*places)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = self._function(*places)
        return graph, places, answer

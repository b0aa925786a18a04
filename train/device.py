"""The device: checked before training begins, switched as a recipe asks, and fed ahead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.train.recipe import Machine

# What cuBLAS needs to add up in the same order each time; read when CUDA is first used.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
# What torchrun, a cluster's scheduler or a user's own script tell the processes of several nodes.
_STARTED = ("WORLD_SIZE", "SLURM_NTASKS", "MASTER_ADDR")
# What torchrun alone tells the processes that it has started.
_ELASTIC = "TORCHELASTIC_RUN_ID"


def resolve(machine: Machine) -> str:
    """`cuda` or `cpu`: what training runs on.

    Raises:
        PenstockError: a GPU, more GPUs, cores or nodes than there are, or a precision or a BatchNorm that the device
            has not, was asked for; or torchrun has started other processes than those.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    _see_processes(machine, count)
    if machine.device == "cuda" and not count:
        raise PenstockError(
            "machine.device is cuda; torch finds no GPU here: set machine.device to auto or cpu, or look at nvidia-smi "
            "and at torch.version.cuda"
        )
    device = "cpu" if machine.device == "cpu" or not count else "cuda"
    if device == "cuda" and machine.devices != "auto" and machine.devices > count:
        raise PenstockError(
            f"machine.devices is {machine.devices}; this machine has {count}: set it to {count} or auto"
        )
    cores = os.cpu_count() or 1
    if device == "cpu" and machine.devices != "auto" and machine.devices > cores and _ELASTIC not in os.environ:
        raise PenstockError(
            f"machine.devices is {machine.devices}, which are processes on the CPU; this machine has {cores} cores: "
            f"set it to {cores} at most, or auto, which is one"
        )
    if machine.nodes > 1 and not any(name in os.environ for name in _STARTED):
        raise PenstockError(
            f"machine.nodes is {machine.nodes}, and nothing has started this process as one of theirs; on each of "
            f"them: torchrun --nnodes={machine.nodes} --nproc-per-node=… --node-rank=… --master-addr=… -m penstock …"
        )
    if device == "cpu" and machine.precision == "fp16":
        raise PenstockError("machine.precision is fp16, which needs a GPU; on the CPU take bf16 or fp32")
    if device == "cpu" and machine.sync_batchnorm:
        raise PenstockError(
            "machine.sync_batchnorm is true, which needs GPUs; on the CPU leave it out, or set it to false"
        )
    if device == "cuda" and machine.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise PenstockError(f"machine.precision is bf16; {torch.cuda.get_device_name()} has no bf16: take fp16 or fp32")
    return device


def _see_processes(machine: Machine, gpus: int) -> None:
    """See that torchrun's processes are those of the recipe: else each trains the whole by itself, over the others."""
    if _ELASTIC not in os.environ:
        return
    local, nodes = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    found = 1 if machine.device == "cpu" or not gpus else gpus
    devices = found if machine.devices == "auto" else machine.devices
    if (devices, machine.nodes) != (local, nodes):
        raise PenstockError(
            f"torchrun has started {local} processes on each of {nodes} nodes; machine.devices is {devices} and "
            f"machine.nodes {machine.nodes}: --set machine.devices={local} --set machine.nodes={nodes}"
        )


@contextmanager
def prepared(machine: Machine) -> Iterator[None]:
    """Torch's switches as a recipe asks, put back at the end: TF32, determinism, and cuDNN's search for fast kernels.

    TF32 is off unless asked for, in convolutions too, where torch has it on. Determinism makes an operation that has no
    repeatable form raise an error; without it, cuDNN times its kernels for each shape and keeps the fastest. To be
    entered before CUDA is first used, since cuBLAS reads its part from the environment then.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(_CUBLAS)
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = machine.tf32
        cudnn.deterministic, cudnn.benchmark = machine.deterministic, not machine.deterministic
        torch.use_deterministic_algorithms(machine.deterministic)
        if machine.deterministic and workspace is None:
            os.environ[_CUBLAS] = ":4096:8"
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
        torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        if workspace is None:
            os.environ.pop(_CUBLAS, None)


def laid_out(net: nn.Module, machine: Machine) -> nn.Module:
    """The network with its convolutions' weights channels last, if so asked; images are laid out by who makes them."""
    if machine.channels_last:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


class Ahead:
    """Batches of a loader on the device, of which the next is copied while the one before is computed with.

    On CUDA copies go over a stream of their own; they overlap where the loader's batches are page-locked. On the CPU
    batches are passed on as they come. Batches are tensors, in tuples, lists and dicts; other things in them are left
    alone. The loader's own attributes (`dataset`, `sampler`, `batch_sampler`) are found here too.

    Args:
        loader: a DataLoader, or any iterable of batches.
        device: where to.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str) -> None:
        self.loader = loader
        self.device = torch.device(device)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not yet there, as while it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self.device.type == "cuda":
            return self._ahead(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        return (self._moved(batch) for batch in self.loader)

    def _ahead(self, stream: torch.cuda.Stream) -> Iterator[Any]:
        batches = iter(self.loader)
        coming = self._copied(batches, stream)
        while coming is not None:
            (batch,) = coming
            # What computes with it waits for the copy, and its memory for what computes with it.
            now = torch.cuda.current_stream(self.device)
            now.wait_stream(stream)
            for tensor in _tensors(batch):
                tensor.record_stream(now)
            coming = self._copied(batches, stream)
            yield batch

    def _copied(self, batches: Iterator[Any], stream: torch.cuda.Stream) -> tuple[Any] | None:
        """The next batch, on its way; None after the last."""
        for batch in batches:
            with torch.cuda.stream(stream):
                return (self._moved(batch),)
        return None

    def _moved(self, batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(self.device, non_blocking=True)
        if isinstance(batch, dict):
            return {name: self._moved(part) for name, part in batch.items()}
        if isinstance(batch, tuple | list):
            parts = [self._moved(part) for part in batch]
            return parts if isinstance(batch, list) else tuple(parts)
        return batch


class Later:
    """A number that a device is computing, read when it is there without a wait for what comes after it."""

    def __init__(self, number: Tensor) -> None:
        self._number = number.to("cpu", non_blocking=True)  # into page-locked memory
        self._there = torch.cuda.Event() if number.is_cuda else None  # type: ignore[no-untyped-call]
        if self._there is not None:
            self._there.record(torch.cuda.current_stream(number.device))

    def read(self) -> float:
        """The number."""
        if self._there is not None:
            self._there.synchronize()
        return float(self._number)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | tuple | list):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(part)

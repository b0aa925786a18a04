"""A served model: an artifact or a bare ONNX file, its runners, and the scheduler in front of them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import shlex
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact, preprocessing, trial
from penstock.arrays import take
from penstock.artifact import MODEL_NAME
from penstock.errors import PenstockError
from penstock.receipt import Receipt
from penstock.runtimes import Runner
from penstock.serve.batches import LAST, Item, Reply
from penstock.serve.contract import Contract
from penstock.serve.instances import RunnerBatches, Shared, Spread
from penstock.serve.layouts import Layouts
from penstock.serve.metrics import Metrics
from penstock.serve.opening import Opening
from penstock.serve.quick import Company
from penstock.serve.scheduler import Scheduler
from penstock.serve.splits import Split
from penstock.serve.statistics import Statistics, Told
from penstock.serve.times import Times
from penstock.signature import Arrays, Signature

_ids = itertools.count(1)
_COMPANY = Company()  # all models of a process have one event loop
_CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tar", ".bin", ".safetensors", ".pt2")

Terms = tuple[int, Hashable]
"""Rows, and their kind."""


@dataclass(frozen=True)
class Limits:
    """How a model is run: rows that may wait, instances, threads of each, devices, seconds for an answer and a batch.

    `instances` are of each device; None is one, and two of an engine of TensorRT: while one computes, the other copies.
    `isolate`: each runner in a process of its own. `busy_poll_us`: microseconds for which event loops stay awake over a
    request that comes alone; None is none, and of front ends before a GPU as much as suits the machine.
    """

    max_queue_rows: int = 1024
    max_delay_ms: float = 0.0
    instances: int | None = None
    threads: int | None = None
    devices: tuple[str, ...] = ("cpu",)
    timeout_s: float = 30.0
    run_limit_s: float = 120.0
    isolate: bool = False
    busy_poll_us: int | None = None

    @property
    def most_threads(self) -> int:
        """Intra-op threads of one instance, so that all together fill the cores and no more."""
        return max(1, len(os.sched_getaffinity(0)) // (self.instances or 1))


class Model:
    """One model, ready to answer when constructed."""

    def __init__(
        self,
        name: str,
        version: int,
        signature: Signature,
        receipt: Receipt | None,
        make: Any,
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self.id = next(_ids)
        self.name = name
        self.version = version
        self.signature = signature
        self.receipt = receipt
        self.limits = limits
        self.file_bytes = 0
        self.statistics = Statistics()
        self.layouts = Layouts()
        self.reads_text = any(tensor.dtype == "object" for tensor in signature.inputs)
        self.forget = functools.partial(metrics.forget, name, version)
        self._contract = Contract(signature)
        self._batched, self._least = signature.batch is not None, signature.min_batch
        # Rows of dynamic int8 share the scales of their batch: another client's would move the answer.
        self._alone = receipt is not None and bool(receipt.build.get("rows_share_scales"))
        self.scheduler = Scheduler(
            make,
            max_batch=signature.max_batch,
            max_queue_rows=limits.max_queue_rows,
            max_delay_ms=limits.max_delay_ms,
            instances=(limits.instances or 1) * len(limits.devices),
            run_limit_s=limits.run_limit_s,
            stall_s=limits.timeout_s,  # nobody who came when its batch began is still waiting
            observer=Told(metrics.observer(name, version), self.statistics),
            name=name,
            busy_poll_s=(limits.busy_poll_us or 0) / 1e6,
            company=_COMPANY,
        )

    async def infer(
        self, inputs: Arrays, *, timeout_s: float | None = None, priority: int = 0, times: Times | None = None
    ) -> dict[str, Any]:
        """The outputs for a request's inputs; one of more rows than a batch holds is split and joined again.

        Args:
            inputs: every input of the signature, rows first.
            timeout_s: seconds the caller will wait; the server's own limit holds beside it.
            priority: lower goes first.
            times: told of its stages; of a request that is split, the longest wait and the longest batch.

        Raises:
            SignatureMismatch: the inputs are not the signature's.
            QueueFull, Expired, Closed: from the scheduler.
        """
        started, answered, times = time.perf_counter(), False, times or Times()
        try:
            found = await self._infer(inputs, timeout_s, priority, times)
            answered = True
            return found
        finally:
            self.statistics.request(time.perf_counter() - started, times, answered=answered)

    async def infer_last(self, inputs: Arrays, timeout_s: float) -> dict[str, Any]:
        """The outputs for what is no client's request, behind all that is: in batches of its own, which give way.

        Raises:
            As `infer`.
        """
        return await self._infer(inputs, timeout_s, LAST, None)

    async def _infer(
        self, inputs: Arrays, timeout_s: float | None, priority: int, times: Times | None
    ) -> dict[str, Any]:
        about = self._about(inputs, timeout_s, priority, times)
        if about["rows"] <= self.scheduler.max_batch:
            return dict(await self.scheduler.submit(inputs, **about))
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        split = self._split(inputs, future, about)
        try:
            return await future
        finally:
            split.give_up()
            del future, split  # what failed holds this frame: see `Scheduler.submit`

    def _split(self, inputs: Arrays, reply: Reply, about: dict[str, Any]) -> Split:
        rows = about["rows"]
        parts = [take(inputs, part) for part in _parts(rows, self.scheduler.max_batch, self._least)]
        return Split(self.scheduler, parts, rows, reply, about)

    def terms(self, inputs: Arrays, times: Times | None = None) -> Terms:
        """What the scheduler is told of all requests whose inputs are of the same names, dtypes and shapes.

        Raises:
            SignatureMismatch: the inputs are not the signature's. RequestError: they have more rows than the queue.
        """
        rows = self._contract.rows(inputs, self.scheduler.max_queue_rows, times)
        shapes = (inputs[tensor.name].shape for tensor in self.signature.inputs)  # in whatever order a client has them
        return rows, tuple(shape[1:] if self._batched else shape for shape in shapes)

    def begin(
        self, inputs: Arrays, terms: Terms, reply: Reply, *, timeout_s: float, priority: int, times: Times
    ) -> Item | Split:
        """As `infer`, whose end `reply` is told; what is in the queue.

        Args:
            inputs: as there.
            terms: of them.
            reply: see `Scheduler.enter`.

        Raises:
            As `infer`, but for what is met later.
        """
        rows, kind = terms
        if rows > self.scheduler.max_batch:
            return self._split(inputs, reply, self._told(terms, timeout_s, priority, times))
        # As `_told` has it, which would make a mapping for each of ten thousand requests a second.
        return self.scheduler.enter(
            inputs,
            reply,
            rows=rows,
            key=self._key(kind),
            timeout_s=min(timeout_s, self.limits.timeout_s),
            priority=priority,
            times=times,
            kind=kind,
        )

    def _about(self, inputs: Arrays, timeout_s: float | None, priority: int, times: Times | None) -> dict[str, Any]:
        """What the scheduler is told of a request."""
        return self._told(self.terms(inputs, times), timeout_s, priority, times)

    def _told(self, terms: Terms, timeout_s: float | None, priority: int, times: Times | None) -> dict[str, Any]:
        rows, kind = terms
        return {
            "rows": rows,
            "key": self._key(kind),
            "timeout_s": self.limits.timeout_s if timeout_s is None else min(timeout_s, self.limits.timeout_s),
            "priority": priority,
            "times": times,
            "kind": kind,
        }

    def _key(self, kind: Hashable) -> Hashable:
        return object() if self._alone or not self._batched else kind

    @property
    def threads(self) -> int | None:
        """Threads of each runner, where it was given a number."""
        return self.scheduler.threads

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of its classes, where its receipt has them."""
        return self.receipt.labels if self.receipt else None

    @property
    def ready(self) -> bool:
        return self.scheduler.healthy


def _parts(rows: int, most: int, least: int) -> list[Any]:
    """The rows of each batch that a request takes; the last has its last row over again where it would be too few."""
    found: list[Any] = [slice(start, min(start + most, rows)) for start in range(0, rows, most)] or [slice(0)]
    if len(found) > 1 and 0 < (last := rows - found[-1].start) < least:
        found[-1] = np.minimum(np.arange(found[-1].start, rows - last + least), rows - 1)
    return found


def load(path: Path, limits: Limits, metrics: Metrics) -> Model:
    """Load the model in a folder, or a bare .onnx file.

    Raises:
        PenstockError: it is damaged, cannot run here, or does not give the answers that its receipt vouches for.
    """
    if path.is_file():
        return _load_onnx(path, limits, metrics)
    found = artifact.read(path)
    receipt = found.receipt
    if found.folder.name.isdigit() and found.folder.name != str(receipt.version):
        raise PenstockError(
            f"{found.folder}: its receipt says version {receipt.version} of {receipt.name}, so it must lie in "
            f"{receipt.name}/{receipt.version}; to go back to an older version, take out those above it"
        )
    if receipt.preprocess is not None:
        preprocessing.warm(receipt.preprocess)

    engine = receipt.runtime == "tensorrt"
    if limits.instances is None:
        limits = replace(limits, instances=2 if engine else 1)

    def maker(device: str) -> Callable[[], RunnerBatches]:
        opening = Opening(
            path=found.folder,
            device=device,
            threads=limits.threads,
            most_threads=limits.most_threads,
            callers=limits.instances if engine else None,
        )

        def opened() -> Runner:
            return _opened(opening, limits)[0]

        return Shared(opened).make if engine else lambda: RunnerBatches(opened())

    make = Spread([maker(device) for device in limits.devices]).make
    model = Model(receipt.name, receipt.version, receipt.signature, receipt, make, limits, metrics)
    model.file_bytes = sum(file.bytes for name, file in receipt.files.items() if name != artifact.GOLDEN)
    return model


def _opened(opening: Opening, limits: Limits) -> tuple[Runner, Signature]:
    if not limits.isolate:
        return opening.open()
    from penstock.serve import isolated

    return isolated.opened(opening)


def _seems_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint by its name or its first bytes, which are a zip file's or a pickle's."""
    if path.suffix.lower() in _CHECKPOINTS:
        return True
    with suppress(OSError), path.open("rb") as file:
        start = file.read(4)
        return start[:1] == b"\x80" or (start == b"PK\x03\x04" and path.suffix not in (".npz", ".zip"))
    return False


def _load_onnx(path: Path, limits: Limits, metrics: Metrics) -> Model:
    if path.suffix != ".onnx":
        way = "penstock export makes them of checkpoints"
        if _seems_checkpoint(path):
            way = f"a checkpoint is exported first: penstock export {shlex.quote(str(path))}"
        raise PenstockError(f"{path}: a file to serve must be an .onnx file, or else an artifact's folder; {way}")
    if not MODEL_NAME.fullmatch(path.stem):
        raise PenstockError(f"{path}: served under its file's name, which must be letters, digits, _, - and .")
    # Nobody vouches for a bare file, and a crash would take the other models along.
    careful = trial.needs_care("onnxruntime", path)
    opening = Opening(
        path=path,
        device=limits.devices[0],
        threads=limits.threads,
        most_threads=limits.most_threads,
        careful=careful,
    )
    first, signature = _opened(opening, limits)
    ready = [first]

    def maker(device: str) -> Callable[[], RunnerBatches]:
        known = opening.model_copy(update={"signature": signature, "device": device})
        return lambda: RunnerBatches(ready.pop() if ready and device == opening.device else _opened(known, limits)[0])

    make = Spread([maker(device) for device in limits.devices]).make
    model = Model(path.stem, 1, signature, None, make, limits, metrics)
    model.file_bytes = path.stat().st_size
    return model

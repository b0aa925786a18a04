"""Leases: lanes handed out, one to a caller, and taken back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock import cuda, interpreter
from penstock.laid import Laid
from penstock.lanes import Lane
from penstock.launches import Parts, Prepared, Shapes
from penstock.runtimes import InstanceDead

CLOSED = "the runner is closed"


class Free:
    """The lanes that nobody has; the one used last goes first, since its buffers are the nearest to the GPU's cores."""

    def __init__(self) -> None:
        # The queue holds as many tokens as the stack holds lanes: it is what a caller waits for.
        self.stack: list[Lane] = []
        self.tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wanted: Lane | None = None
        self._handed: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def take(self, timeout_s: float | None = None) -> Lane:
        """A lane, as soon as there is one.

        Raises:
            queue.Empty: there was none for so long.
            RuntimeError: there will be none any more.
        """
        self.tokens.get(timeout=timeout_s)
        try:
            return self.stack.pop()
        except IndexError:
            self.tokens.put(None)  # for the next who waits
            raise RuntimeError(CLOSED) from None

    def take_this(self, lane: Lane, timeout_s: float) -> bool:
        """Take a certain lane before all others who wait; False if it is not free for so long. For one caller alone."""
        self._wanted = lane
        with suppress(queue.Empty):  # where there is no token, all on the stack is as good as taken
            self.tokens.get_nowait()
            try:
                self.stack.remove(lane)
            except ValueError:
                self.tokens.put(None)
            else:
                self._wanted = None
                return True
        with suppress(queue.Empty):
            if self._handed.get(timeout=timeout_s) is lane:
                return True
        with self._lock:  # nobody hands it over behind our back
            self._wanted = None
            found = False
            while not self._handed.empty():
                found |= self._handed.get() is lane
            return found

    def give(self, lane: Lane) -> None:
        if lane is self._wanted:
            with self._lock:
                if lane is self._wanted:
                    self._wanted = None
                    self._handed.put(lane)
                    return
        self.stack.append(lane)
        self.tokens.put(None)

    def hurry(self) -> None:
        """Have `take_this` wait no longer."""
        self._handed.put(None)

    def close(self) -> None:
        """Tell all who wait that there will be none."""
        self.stack.clear()
        self.tokens.put(None)


class Lease:
    """A lane in the caller's hands: write `inputs`, then `run`; its arrays are the lane's and end with the lease.

    After a run of requests that lie in memory, `given` says whether their answers lie there too; the outputs are here
    only if they do not.

    Args:
        free: where the lane comes from.
        shapes: of each input, in the signature's order.
        batched: whether the first dimension is of rows, so that a larger batch may stand in.
    """

    __slots__ = ("_batch", "_batched", "_free", "_lane", "_shapes", "given")
    _batch: Prepared

    def __init__(self, free: Free, shapes: Shapes, *, batched: bool) -> None:
        self._free, self._shapes, self._batched = free, shapes, batched
        self.given = False

    def __enter__(self) -> Lease:
        lane = self._free.take()
        try:
            self._lane = lane
            cuda.queue("cuCtxSetCurrent", lane.context)  # each time: others in the thread may have set another
            self._batch = lane.ready.get(self._shapes) or lane.prepared(self._shapes, batched=self._batched)
        except BaseException as error:
            self._free.give(lane)
            if isinstance(error, cuda.CudaError):
                raise InstanceDead(f"CUDA: {error}") from None
            raise
        return self

    @property
    def inputs(self) -> dict[str, Any]:
        """Where each input's rows are to be written."""
        return self._batch.inputs

    @property
    def fetches(self) -> bool:
        """Whether the GPU may fetch the rows from where they lie: small batches have the copies in their graph."""
        return self._batched and self._lane.heavy(self._batch.shapes)

    def run(self, items: Sequence[Laid] = ()) -> tuple[Any, ...]:
        """The outputs, as views of the lane's memory, in the signature's order; without meaning if `given`.

        Args:
            items: in page-locked memory, where `inputs` were not written: see `fetches`.
        """
        if items:
            self.given = self._lane.run_from(self._batch, items)
        else:
            self._lane.run(self._batch)
        return self._batch.outputs

    def parts(self) -> Parts:
        """What the batch takes on the GPU; it is run some more times for that."""
        return self._lane.parts(self._batch)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        interpreter.share()
        self._free.give(self._lane)
        if kind is not None and isinstance(error, cuda.CudaError):
            raise InstanceDead(f"CUDA: {error}") from None

"""What a lane launches: a batch of certain shapes, what it reads and writes, and when its kernels may run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

Shapes = tuple[tuple[int, ...], ...]


class Launch:
    """A context with its input shapes set, and once it is captured, the CUDA graph of a whole batch.

    Of a `heavy` one the graph holds the kernels alone, which take turns. The tensors in `direct` are not copied: the
    kernels read and write the host's page-locked memory.
    """

    def __init__(
        self, context: Any, shapes: Shapes, outputs: Shapes, profile: int, direct: frozenset[str] = frozenset()
    ) -> None:
        self.context, self.shapes, self.outputs, self.profile = context, shapes, outputs, profile
        self.direct = direct
        self.graph: Any = None
        self.heavy = False
        self.plain_s = self.captured_s = float("inf")


class Turns:
    """Whose kernels come next, on an engine's lanes.

    Copies of large batches take long enough that two lanes which begin together would copy together and then compute
    together, each at half speed. One computes after the other, and copies while the other computes.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last: Any = None


@dataclass(frozen=True)
class Prepared:
    """A batch's views of a lane's page-locked memory, and the shapes that it is run in: its own or larger ones.

    `launch` is their capture, if there is one. `filler` are views of the rows that such a batch lacks, each with a view
    of the last row that it has.
    """

    shapes: Shapes
    launch: Launch | None
    inputs: dict[str, Any]
    outputs: tuple[Any, ...]
    filler: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Parts:
    """Seconds on a GPU, by its events: copying a batch's inputs in, all of its launch, and copying its outputs out.

    `whole` holds both copies, and the kernels. What a caller waits for is longer, by what the processor does.
    """

    copy_in: float
    whole: float
    copy_out: float

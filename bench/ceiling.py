"""Ceilings: the least time that a batch can take here, by the model's operations and bytes and this machine's peaks.

The roofline model (Williams, Waterman and Patterson 2009): arithmetic at its peak, or reading at its peak, whichever
takes longer. Only what cannot be left out is counted: the multiply-adds, the weights once, the inputs and the outputs;
no activations, which may stay in a cache. So it is a bound, not a forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.peaks import Peaks

# What a precision computes in, on a CPU and on a GPU: no CPU kernels take fp16 or bf16, which are cast to float32.
_ON_CPU = {"int8": "int8", "int8-fp16": "int8", "fp8": "float32"}
_ON_GPU = {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "float16"}
_EIGHT_BITS = "int8"


@dataclass(frozen=True)
class Demand:
    """What a batch asks of a machine: multiply-adds, if they are known, and bytes that are read or written."""

    multiply_adds: float | None
    bytes: int
    precision: str


@dataclass(frozen=True)
class Ceiling:
    """The least seconds of a batch, and whether arithmetic or memory says so."""

    seconds: float
    limit: str


def ceiling(demand: Demand, peaks: Peaks, device: str) -> Ceiling | None:
    """The least time of a batch; None where its operations or the peak that they would run at are not known."""
    per_s = peaks.operations.get(computes_in(demand.precision, device))
    if demand.multiply_adds is None or per_s is None:
        return None
    arithmetic = 2 * demand.multiply_adds / per_s  # a multiplication and an addition each
    rate = peaks.bytes_per_s(demand.bytes)
    memory = demand.bytes / rate if rate else 0.0
    return Ceiling(max(arithmetic, memory), "arithmetic" if arithmetic >= memory else "memory")


def computes_in(precision: str, device: str) -> str:
    """The kind of operations that a precision is held to; of a mixed one the faster kind, since this is a bound."""
    if device == "cpu":
        return _ON_CPU.get(precision, "float32")
    return _ON_GPU.get(precision, _EIGHT_BITS)


def cores(threads: int | None, streams: int, most: int) -> int:
    """How many of the machine's cores a setting keeps busy; without a number of threads, a runtime takes all."""
    return min(most, (threads or most) * streams)

"""Speed: a lowered graph timed against the float32 one when it is exported: a slower one is not taken unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import artifact, timing
from penstock.errors import PenstockError
from penstock.runtimes import Runner
from penstock.signature import Signature
from penstock.timing import Cell

_SECONDS, _ROUNDS = 0.5, 5
# What is nearer to 1 is as fast, as far as so short a measurement can tell.
_AS_FAST = 0.97


def against_float32(
    low: Runner, full: Runner, signature: Signature, inputs: dict[str, Any]
) -> tuple[float, float, float]:
    """How many times as fast as float32 a lowered model runs here: the median of rounds, and their quartiles.

    Args:
        low: the lowered model.
        full: the float32 one.
        signature: of both.
        inputs: a few rows of each input.
    """
    batch = signature.dims[str(signature.batch)].opt
    fed, cells = timing.feeds(inputs, batch), (Cell(batch), Cell(batch))
    timing.measure([(low, fed, cells[0]), (full, fed, cells[1])], _SECONDS, _ROUNDS)
    return cells[0].speedup(cells[1])


def note(precision: str, ratio: float, half: float | None, device: str) -> str | None:
    """What there is to say of a lowered model's speed, or None where it is the faster one.

    Args:
        precision: the model's.
        ratio: how many times as fast as float32 it is.
        half: how many times as fast as float32 fp16 is here, if that is known.
        device: where it was measured.
    """
    place = "on this GPU" if device.startswith("cuda") else "on this CPU"
    if ratio < _AS_FAST:
        why = {"fp16": " (few CPU kernels take it)", "bf16": ""}.get(precision, "")
        slow = f"note: {precision} is slower than fp32 {place}, {ratio:.2f} times as fast"
        return f"{slow}{why if place.endswith('CPU') else ''}; --format auto picks the fastest"
    if precision in ("int8", "fp8") and half is not None and half * _AS_FAST > ratio:
        return f"note: {precision} is slower than fp16 {place}: {ratio:.2f} times as fast as fp32, and fp16 {half:.2f}"
    return None


def of_sibling(folder: Path) -> float | None:
    """How many times as fast as float32 another variant was when it was exported, where its receipt says so."""
    try:
        held = artifact.read(folder).receipt.build.get("speed_vs_fp32")
    except PenstockError:
        return None
    return float(held[0]) if isinstance(held, list | tuple) and held else None

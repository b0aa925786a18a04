"""Speed: a lowered model timed against the one it is to be faster than: a slower one is not taken unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import artifact, runtimes, timing
from penstock.errors import PenstockError
from penstock.runtimes import InstanceDead, Runner
from penstock.signature import Signature
from penstock.timing import Cell

_SECONDS, _ROUNDS = 0.5, 5
# What is nearer to 1 is as fast, as far as so short a measurement can tell.
_AS_FAST = 0.97


def against(low: Runner, full: Runner, signature: Signature, inputs: dict[str, Any]) -> tuple[float, float, float]:
    """How many times as fast as another a lowered model runs here: the median of rounds, and their quartiles.

    Args:
        low: the lowered model.
        full: the float32 one, or another that it is compared with.
        signature: of both.
        inputs: a few rows of each input.
    """
    batch = signature.dims[str(signature.batch)].opt
    fed, cells = timing.feeds(inputs, batch), (Cell(batch), Cell(batch))
    timing.measure([(low, fed, cells[0]), (full, fed, cells[1])], _SECONDS, _ROUNDS)
    return cells[0].speedup(cells[1])


def of_engine(
    path: Path, signature: Signature, precision: str, half: Path, inputs: dict[str, Any], device: str = "cpu"
) -> tuple[dict[str, tuple[float, ...]], str | None]:
    """How many times as fast as fp16's an int8 or fp8 engine runs here, for a receipt, and what there is to say of it.

    Args:
        path: the engine.
        signature: its own.
        precision: its own; nothing is measured of others.
        half: where fp16's artifact may lie.
        inputs: a few rows of each input.
        device: the GPU.
    """
    if not precision.startswith(("int8", "fp8")):
        return {}, None
    try:
        held = artifact.read(half)
        if held.receipt.signature != signature:
            raise PenstockError(f"{half} is of another signature")
        with held.load(device=device) as full, runtimes.load("tensorrt", path, signature, device=device) as low:
            found = against(low, full, signature, inputs)
    except (PenstockError, InstanceDead) as error:
        return {}, f"note: its speed was not compared with fp16's: {error}"
    slow = f"note: {precision} is slower than fp16 on this GPU: {found[0]:.2f} times as fast"
    return {"speed_vs_fp16": tuple(round(value, 3) for value in found)}, slow if found[0] < _AS_FAST else None


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

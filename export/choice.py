"""Choice: of candidates that are all right, the fastest on this machine; of those that tie, the most precise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from penstock import options, runtimes, timing
from penstock.artifact import Artifact
from penstock.errors import PenstockError, require
from penstock.export import formats
from penstock.receipt import Candidate, Choice
from penstock.timing import Cell

# From the most precise to the least.
ORDER = options.EVERY_PRECISION
FORMATS = ("onnx", "torchscript", "trt")
_ROUNDS, _RESAMPLES, _CONFIDENCE = 20, 2000, 0.95


def device() -> str:
    """Where candidates are measured: on the first GPU where onnxruntime has its CUDA provider, else on the CPU."""
    onnxruntime = require("onnxruntime", "export", "--format auto")
    return "cuda:0" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


def candidates(precisions: Sequence[str], place: str) -> tuple[list[tuple[str, str]], list[Candidate]]:
    """The formats and precisions that can be fast on this machine, and those that cannot, with the reason.

    Args:
        precisions: those that are wanted.
        place: `cpu` or `cuda:0`.
    """
    engines = runtimes.unavailable("tensorrt", {})
    able, refused = [], []
    for format in FORMATS:
        for precision in precisions:
            why = _why_not(format, precision, place, engines)
            if why is None:
                able.append((format, precision))
            elif why:
                refused.append(Candidate(format=format, precision=precision, refused=why))
    return able, refused


def _why_not(format: str, precision: str, place: str, engines: str | None) -> str | None:
    """Why a format and precision is no candidate; "" where there is no such thing."""
    if precision not in formats.precisions(format):
        return ""
    if format == "trt":
        return engines
    if precision in ("fp16", "bf16") and place == "cpu":
        return f"no CPU kernels for {precision}: it would be computed in fp32, with casts"
    return None


def refuse_none(found: Sequence[Any], refused: Sequence[Candidate]) -> None:
    """See that there is a candidate.

    Raises:
        PenstockError: there is none; it says why each fell out.
    """
    if not found:
        reasons = "; ".join(f"{item.format} {item.precision}: {item.refused}" for item in refused)
        raise PenstockError(f"--format auto: no candidate is left: {reasons or 'no format here holds the precisions'}")


def measure(found: Sequence[Artifact], batch: int, seconds: float, place: str) -> dict[str, Cell]:
    """Time artifacts against each other on their own stored inputs, in interleaved rounds; by name."""
    cells = {item.receipt.name: Cell(batch) for item in found}
    inputs, _ = found[0].golden()
    fed = timing.feeds(inputs, batch)
    with ExitStack() as stack:
        work = [(stack.enter_context(item.load(device=place)), fed, cells[item.receipt.name]) for item in found]
        timing.measure(work, seconds, _ROUNDS)
    return cells


def choose(found: Sequence[Artifact], cells: Mapping[str, Cell], refused: Sequence[Candidate]) -> Choice:
    """Pick the fastest; a more precise one that is not slower for certain is taken instead.

    Slower for certain: in 95 % of bootstrap resamples of the rounds the median ratio of their times is over 1 (Efron
    and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13).

    Args:
        found: the candidates that passed the gate.
        cells: their times, by name.
        refused: the candidates that did not get so far.

    Raises:
        PenstockError: there are no times.
    """
    if not found or any(not cells[item.receipt.name].rounds for item in found):
        raise PenstockError("--format auto: there is no candidate whose time could be taken")
    order = sorted(found, key=lambda item: (ORDER.index(item.receipt.precision), _median(cells[item.receipt.name])))
    fastest = min(order, key=lambda item: _median(cells[item.receipt.name]))
    spans = {item.receipt.name: _span(cells[fastest.receipt.name], cells[item.receipt.name]) for item in order}
    rank = ORDER.index(fastest.receipt.precision)
    ties = [item for item in order if ORDER.index(item.receipt.precision) < rank and spans[item.receipt.name][0] <= 1]
    chosen = next(iter(ties), fastest)
    mine = cells[chosen.receipt.name]
    listed = [_candidate(item, cells[item.receipt.name], mine) for item in order]
    return Choice(
        batch=mine.batch,
        rounds=len(mine.rounds),
        chosen=chosen.receipt.name,
        reason=_reason(chosen, fastest, spans[chosen.receipt.name]),
        candidates=(*listed, *refused),
    )


def _median(cell: Cell) -> float:
    return float(np.median([np.median(part) for part in cell.rounds]))


def _span(fast: Cell, slow: Cell) -> tuple[float, float, float]:
    """How many times as fast the one is: the bounds of 95 % of resamples, and the share of them where it is faster."""
    ratios = np.array(fast.ratios(slow))
    drawn = np.random.default_rng(0).integers(0, len(ratios), (_RESAMPLES, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high), float(np.mean(medians > 1))


def _candidate(item: Artifact, cell: Cell, chosen: Cell) -> Candidate:
    receipt = item.receipt
    low, high, sure = _span(chosen, cell)
    return Candidate(
        name=receipt.name,
        format=receipt.format,
        precision=receipt.precision,
        median_s=_median(cell),
        times_as_slow=(low, high),
        confidence=sure,
        error=max(held.rel_l2 for held in receipt.verification.distances),
    )


def _reason(chosen: Artifact, fastest: Artifact, span: tuple[float, float, float]) -> str:
    if chosen is fastest:
        return "the fastest of those within the budget"
    low, high, _ = span
    return (
        f"as fast as {fastest.receipt.name} as far as can be told ({low:.2f} to {high:.2f} times its time, 95 %), and "
        "more precise"
    )


def table(choice: Choice) -> list[str]:
    """The choice in lines: each candidate with its time, or with why it is none."""
    lines, reasons = [], defaultdict[str, list[str]](list)
    for item in choice.candidates:
        if item.median_s is None:
            reasons[str(item.refused)].append(f"{item.format} {item.precision}")
            continue
        low, high = item.times_as_slow or (1.0, 1.0)
        against = "chosen" if item.name == choice.chosen else f"{low:.2f} to {high:.2f} times the chosen one's (95 %)"
        lines.append(f"  {item.name}: {1e3 * item.median_s:.3f} ms at batch {choice.batch}, {against}")
    lines += [f"  {', '.join(names)}: {why}" for why, names in reasons.items()]
    return [*lines, f"{choice.chosen}: {choice.reason}"]


def reason_of(error: Any) -> str:
    """Why a candidate fell out, in a few words."""
    return str(error).partition(": ")[2][:300] or str(error)[:300]

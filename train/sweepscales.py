"""Where the values of a field are on an axis of a chart, and what the axis says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.train.space import Parameter

MOST_NAMED = 12  # choices that an axis names
_LONGEST = 22  # letters of a choice


@dataclass(frozen=True)
class Axis:
    """Where values are on an axis from 0 to 1, and the ticks of it."""

    name: str
    places: Callable[[Any], float]
    ticks: Sequence[tuple[float, str]]


def of(path: str, parameter: Parameter) -> Axis:
    """The axis of a field."""
    choices = parameter.choices
    if choices is not None:
        labels = parameter.labels
        last = max(1, len(labels) - 1)
        shown = range(0, len(labels), math.ceil(len(labels) / MOST_NAMED))
        ticks = [(index / last, shortened(labels[index])) for index in shown]
        return Axis(path, lambda value: choices.index(value) / last, ticks)
    assert parameter.low is not None
    return numbers(path, parameter.low, parameter.last, parameter.log, parameter.whole)


def numbers(name: str, low: float, high: float, log: bool, whole: bool) -> Axis:
    """An axis from one number to a higher one."""
    turned: Callable[[float], float] = math.log if log else float
    back: Callable[[float], float] = math.exp if log else float
    start, length = turned(low), turned(high) - turned(low)
    ends = [back(start + length * part / 4) for part in range(5)]
    if whole:
        ends = sorted({float(round(end)) for end in ends})
    ticks = [((turned(end) - start) / length, f"{end:.3g}" if not whole else f"{end:.0f}") for end in ends]
    return Axis(name, lambda value: (turned(value) - start) / length, ticks)


def shortened(label: Any) -> str:
    """A choice's label, as far as there is room for it."""
    text = str(label)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

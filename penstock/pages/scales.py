"""Scales of charts: values to places, and the ticks between them; numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

# As many digits as a reader uses.
_DIGITS = 3


@dataclass(frozen=True)
class Scale:
    """An axis: its name with the unit, its ends, whether it is logarithmic, and its ticks with their labels."""

    name: str
    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """From 0 at the low end to 1 at the high one; what lies outside is at an end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


def logarithmic(name: str, values: Sequence[float], most: int = 6) -> Scale:
    """An axis by powers around positive values; ticks at 1, 2 and 5 times powers of ten, or at fewer of them."""
    held = [value for value in values if value > 0] or [1.0]
    low, high = min(held) / 1.12, max(held) * 1.12
    if high / low < 1.5:
        low, high = low / 1.2, high * 1.2
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    if len(ticks) > most:
        ticks = ticks[:: math.ceil(len(ticks) / most)]
    return Scale(name, low, high, True, tuple((tick, number(tick)) for tick in ticks))


def linear(name: str, values: Sequence[float], most: int = 6, zero: bool = True) -> Scale:
    """An axis by equal steps, from 0 unless `zero` is False; ticks at 1, 2, 2.5 or 5 times a power of ten."""
    held = list(values) or [1.0]
    if zero:
        held.append(0.0)
    low, high = min(held), max(held)
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # between such ends floats have no room for ticks
        low, high = low - abs(low) * 0.01 - 1e-9, high + abs(high) * 0.01 + 1e-9
    step = _step((high - low) / (most - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [index * step for index in range(first, last + 1)]
    return Scale(name, ticks[0], max(ticks[-1], ticks[0] + step), False, tuple((tick, number(tick)) for tick in ticks))


def at(name: str, values: Sequence[float], least: float = 0.09) -> Scale:
    """A logarithmic axis with ticks at the values themselves, as for batch sizes; those too near another go without."""
    held = sorted(set(values)) or [1.0]
    wide = logarithmic(name, held)
    ticks: list[tuple[float, str]] = []
    for value in held:
        if not ticks or wide.place(value) - wide.place(ticks[-1][0]) >= least:
            ticks.append((value, number(value)))
    return replace(wide, ticks=tuple(ticks))


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def number(value: float) -> str:
    """A number for a tick: 0.05, 12.5, 800, 20k, 3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


def figure(value: float | None, unit: str = "") -> str:
    """A number for a table: three digits that count, thousands apart; a dash where there is none."""
    if value is None:
        return "–"
    if value != 0:
        decimals = max(0, _DIGITS - 1 - math.floor(math.log10(abs(value))))
        shown = f"{value:,.{min(decimals, 9)}f}"
    else:
        shown = "0"
    return f"{shown} {unit}" if unit else shown


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds, for a table."""
    return figure(None if seconds is None else seconds * 1e3)

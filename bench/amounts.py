"""Amounts: what the figures of a result can be. What cannot be is refused where it is read, so nothing behind fails."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

# No figure is beyond these, and what is made of figures within them (quotients, logarithms, ticks) is a number too.
_LEAST, _MOST = 1e-15, 1e15
# What is told of a machine may be larger: operations a second.
_FACT, _DEEPEST = 1e24, 16


def _not_tiny(value: float) -> float:
    if 0 < value < _LEAST:
        raise ValueError(f"{value!r}: must be 0, or at least {_LEAST:g}")
    return value


def in_order(ends: tuple[float, float]) -> tuple[float, float]:
    """The ends of an interval, the low one first."""
    if ends[0] > ends[1]:
        raise ValueError(f"{list(ends)}: the low end is above the high one")
    return ends


def _possible(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts without numbers that cannot be."""
    left: list[tuple[Any, str, int]] = [(facts, "", 0)]
    while left:
        value, name, depth = left.pop()
        if isinstance(value, dict | list):
            if depth == _DEEPEST:
                raise ValueError(f"{name:.60}: is nested more than {_DEEPEST} deep")
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            left += [(each, f"{name}.{key}" if name else str(key), depth + 1) for key, each in inner]
        elif isinstance(value, int | float) and not abs(value) <= _FACT:
            raise ValueError(f"{name:.60}: {value!r:.40}: must be a number from {-_FACT:g} to {_FACT:g}")
    return facts


Number = Annotated[float, Field(ge=-_MOST, le=_MOST)]
Amount = Annotated[float, Field(ge=0, le=_MOST)]
Seconds = Annotated[Amount, AfterValidator(_not_tiny)]
Positive = Annotated[float, Field(ge=_LEAST, le=_MOST)]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(_not_tiny)]
Count = Annotated[int, Field(ge=0, le=int(_MOST))]
Some = Annotated[int, Field(ge=1, le=int(_MOST))]
Facts = Annotated[dict[str, Any], AfterValidator(_possible)]

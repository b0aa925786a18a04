"""Environments of results: flattened to facts, and what is not the same in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What no two measurements have in common, and what speed they left is in the clock.
_PASSING = (
    "started",
    "ended",
    "load",
    "mhz",
    "temperature",
    "celsius",
    "free",
    "available",
    "busy",
    "others",
    "pid",
    "power",
)
# What makes it another machine.
_MACHINE = ("cpu", "cores", "gpu", "host", "memory", "machine", "driver", "governor", "device")


@dataclass(frozen=True)
class Change:
    """One fact that differs; None where the result does not tell."""

    fact: str
    old: str | None
    new: str | None
    of_machine: bool

    def __str__(self) -> str:
        return f"{self.fact}: {self.old or 'not told'} → {self.new or 'not told'}"


def of(environment: dict[str, Any]) -> dict[str, str]:
    """Facts by their dotted names: `gpu.driver`; what is not known is left out."""
    return dict(_flat(environment, ""))


def rates(ceiling: dict[str, Any], figure: str) -> Iterator[tuple[str, str, float]]:
    """Where, of what, and how many a second, of a result's peaks; what is not such a figure is passed over.

    Args:
        ceiling: as it stands in the result's file.
        figure: `operations_per_s` or `bytes_per_s`.
    """
    held = ceiling.get("peaks")
    for where, peaks in held.items() if isinstance(held, dict) else ():
        told = peaks.get(figure) if isinstance(peaks, dict) else None
        for of_what, rate in told.items() if isinstance(told, dict) else ():
            if isinstance(rate, int | float) and rate > 0:
                yield str(where), str(of_what), float(rate)


def label(name: str) -> str:
    """A fact's name as people read it: `memory bytes`, `numpy` of `versions.numpy`, `GPU driver` of `gpu.driver`."""
    first, _, rest = name.partition(".")
    if rest and first in ("versions", "thread_variables"):
        return rest
    if first == "gpu":
        return "GPU" if rest in ("", "gpu") else f"GPU {label(rest)}"
    return name.replace("_", " ").replace(".", ", ")


def labelled(found: Mapping[str, str]) -> dict[str, str]:
    """Facts under the names that people read."""
    return {label(name): value for name, value in found.items()}


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        if value:
            yield name, ", ".join("not set" if inner is None else str(inner) for inner in value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    elif value is not None and value != "":
        yield name, str(value)


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """What differs and may explain a difference of speed, the machine's facts first."""
    before, after = of(old), of(new)
    found = [
        Change(name, before.get(name), after.get(name), _has(name, _MACHINE))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name) and not _has(name, _PASSING)
    ]
    return sorted(found, key=lambda change: not change.of_machine)


def _has(name: str, words: tuple[str, ...]) -> bool:
    """Whether one of the words begins a part of the name: `load` is in `load_1min`, not in `payload`."""
    parts = name.lower().replace(".", "_").split("_")
    return any(part.startswith(word) for part in parts for word in words)

"""Packages: what penstock's own metadata asks for, by extra, and what is installed; none is imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

from penstock.errors import listed

# The extra of each stage; `serve-gpu` takes the place of `serve` where onnxruntime-gpu is installed.
STAGES = {"train": "train", "export": "export", "serve": "serve", "bench": "bench"}
# What the others are for.
EXTRAS = {
    "parquet": "tables in Parquet files",
    "models": "architectures of torchvision, timm and transformers",
    "text": "models of text",
    "trt-rtx": "engines of TensorRT for RTX, which builds without a GPU",
    "otel": "spans to OpenTelemetry",
    "track": "training shown in Weights & Biases and MLflow",
}
# Both bring the module onnxruntime: the one that was installed last hides the other, and either's removal breaks both.
_RIVALS = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class Needed:
    """What an extra asks for and does not find: packages that are missing, and those that are too old."""

    missing: tuple[str, ...] = ()
    old: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.old)

    def __str__(self) -> str:
        parts = [f"{listed(self.missing)} not installed"] if self.missing else []
        return "; ".join([*parts, *self.old])


def version(name: str) -> str | None:
    """The version of a package that is installed, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[Requirement] | None:
    """All that penstock asks for, extras included; None where it runs without having been installed."""
    try:
        return [Requirement(text) for text in metadata.requires("penstock") or ()]
    except metadata.PackageNotFoundError:
        return None


def of_extra(extra: str) -> list[Requirement]:
    """What an extra asks for on this Python; the extra "" is what penstock itself does."""
    return [each for each in requirements() or () if _wanted(each, extra)]


def needed(extra: str) -> Needed:
    """What an extra asks for and does not find here."""
    missing, old = [], []
    for requirement in of_extra(extra):
        found = version(requirement.name)
        if found is None and not _stood_in_for(requirement.name):
            missing.append(requirement.name)
        elif found is not None and not requirement.specifier.contains(found, prereleases=True):
            old.append(f"{requirement.name} {found} is here, and {requirement.specifier} is needed")
    return Needed(tuple(missing), tuple(old))


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install -U 'penstock[{extra}]'" if needed(extra).old else f"pip install 'penstock[{extra}]'"


def rivals() -> tuple[str, ...]:
    """The packages that hide each other, if more than one of them is installed."""
    found = tuple(f"{name} {held}" for name in _RIVALS if (held := version(name)) is not None)
    return found if len(found) > 1 else ()


def versions(extras: Iterable[str]) -> dict[str, str]:
    """The versions of all packages that these extras ask for and that are installed, by name."""
    names = {requirement.name for extra in ("", *extras) for requirement in of_extra(extra)}
    return {name: held for name in sorted(names, key=str.lower) if (held := version(name)) is not None}


def _wanted(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    if extra and marker is not None and marker.evaluate({"extra": ""}):
        return False  # everybody's, with a condition on Python
    return not extra if marker is None else marker.evaluate({"extra": extra})


def _stood_in_for(name: str) -> bool:
    return name in _RIVALS and any(version(other) is not None for other in _RIVALS)

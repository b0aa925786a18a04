"""Formats: how a model is written. One module each, found by file name and imported on use.

A format is a module of this folder with

- `PRECISIONS`: the precisions it can write;
- `export(source, options, folder, work) -> Built`: write the model into `folder`; `work` is for files in between.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.receipt import Calibration
from penstock.signature import Signature

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Options:
    """What one variant is to be: its precision, and whether TorchScript is traced or scripted."""

    precision: str
    script: bool = False


@dataclass(frozen=True)
class Source:
    """The module to export (in eval mode, float32, on the CPU), its contract, and data to calibrate on."""

    module: nn.Module
    signature: Signature
    calibration: Rows | None

    @cached_property
    def graph(self) -> Any:
        """The module as a float32 ONNX model, captured once for all the formats that want it."""
        from penstock.export import capture

        return capture.onnx_graph(self.module, self.signature)


@dataclass(frozen=True)
class Built:
    """What a format wrote: the file and its runtime, and if that cannot run here, what stands in for it at the gate."""

    runtime: str
    model_file: str
    hardware: str
    build: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    stand_in: tuple[str, str] | None = None


def names() -> list[str]:
    """The formats there are, by file name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def check(name: str, precision: str) -> None:
    """See that there is such a format, and that it can hold the precision; before any work is done.

    Raises:
        PenstockError: with the choices there are.
    """
    module = _module(name)
    if precision not in module.PRECISIONS:
        raise PenstockError(f"--precision {precision!r}: format {name} holds {', '.join(module.PRECISIONS)}")


def export(name: str, source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write `source` as format `name` into `folder`, with `work` for files in between."""
    built: Built = _module(name).export(source, options, folder, work)
    return built


def _module(name: str) -> Any:
    if name not in names():
        raise PenstockError(f"--format {name!r}: must be one or more of {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")

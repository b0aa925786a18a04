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
from typing import TYPE_CHECKING, Any, Literal

from penstock.datasets import Rows
from penstock.errors import PenstockError, nearest
from penstock.export.engine.recipe import Wishes
from penstock.export.lowering import Lowered, Target, Wish, lower
from penstock.preprocess import ImagePreprocess
from penstock.receipt import Calibration, Plan
from penstock.signature import Dim, Signature

if TYPE_CHECKING:
    from torch import nn

    from penstock.adapter import Call


Road = Literal["auto", "trace", "script"]
_ANY = Wishes()


@dataclass(frozen=True)
class Options:
    """What one variant is to be: its precision, how TorchScript is made, the ONNX opset, and how it is lowered.

    `engine` is what a TensorRT builder is asked for, `narrower` the ranges of its profiles beside the whole one;
    `defer` leaves building the engine to another machine.
    """

    precision: str
    road: Road = "auto"
    opset: int | None = None
    wish: Wish | None = None
    engine: Wishes = _ANY
    narrower: tuple[dict[str, Dim], ...] = ()
    defer: bool = False


@dataclass(frozen=True)
class Source:
    """What is exported: a module in eval mode, float32, on the CPU, how it is called, and samples.

    `calibration` are those that scales may be measured on, `samples` what answers are compared on. `kind` is that of
    its file: a `torchscript` program cannot be captured by torch.export. `image`: how files make of uint8 pictures,
    which they take in their place, the numbers that the module takes.
    """

    inner: nn.Module
    call: Call
    signature: Signature
    calibration: Rows | None = None
    samples: Rows | None = None
    kind: str = "weights"
    image: ImagePreprocess | None = None

    @property
    def contract(self) -> Signature:
        """What the files take and give: the signature, or the same with pictures as uint8."""
        return self.signature if self.image is None else self.image.contract(self.signature)

    def finished(self, graph: Any) -> Any:
        """An ONNX model, in any precision, as it is to be written: behind the decoding of its pictures, if any."""
        from penstock.export import pictures

        return graph if self.image is None else pictures.decoded(graph, self.contract, self.image)

    @cached_property
    def module(self) -> nn.Module:
        """The module as the signature calls it: tensors by position in, a tensor or a tuple of them out."""
        return self.call.on(self.inner)

    @property
    def program(self) -> Any:
        """The module as a program of torch.export's, captured once for all the formats that want it.

        Raises:
            PenstockError: it cannot be captured.
        """
        if isinstance(self._captured, PenstockError):
            raise self._captured
        return self._captured

    @cached_property
    def _captured(self) -> Any:
        from penstock.export import capture

        if self.kind == "torchscript":
            return PenstockError(
                "torch.export does not take TorchScript programs; --format torchscript and onnx do, and a checkpoint "
                "with its --model goes everywhere"
            )
        try:
            return capture.program(self.module, self.signature)
        except PenstockError as error:
            return error

    @property
    def graph(self) -> Any:
        """The module as a float32 ONNX model, captured once for all the formats that want it."""
        return self._written[0]

    def lowered(self, options: Options, target: Target, work: Path) -> Lowered:
        """That model in a lower precision, for a runtime.

        Raises:
            PenstockError: it cannot be lowered within its budget.
        """
        if options.wish is None or self.samples is None:
            raise ValueError("a lower precision needs samples, and a wish that says who judges it")
        return lower(self.graph, self.signature, self.samples, self.calibration, options.wish, target, work)

    @property
    def graph_note(self) -> str | None:
        """Why that model was not slimmed, if so."""
        return self._written[1]

    @cached_property
    def _written(self) -> tuple[Any, str | None]:
        from penstock.export import capture

        if self.kind == "torchscript":
            return capture.onnx_of_script(self.module, self.signature)
        return capture.onnx_graph(self.program, self.module, self.signature)


@dataclass(frozen=True)
class Built:
    """What a format wrote: the file and its runtime, and if that cannot run here, what stands in for it at the gate.

    A stand-in is a runtime and a path, in the artifact or in the work folder; `rounding` a float32 graph that rounds as
    the file does on a machine that has its kernels.
    """

    runtime: str
    model_file: str
    hardware: str
    build: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    plan: Plan | None = None
    stand_in: tuple[str, Path] | None = None
    rounding: Path | None = None


def names() -> list[str]:
    """The formats there are, by file name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def precisions(name: str) -> tuple[str, ...]:
    """The precisions that a format can hold.

    Raises:
        PenstockError: there is no such format.
    """
    held: tuple[str, ...] = _module(name).PRECISIONS
    return held


def check(name: str, precision: str) -> None:
    """See that there is such a format, and that it can hold the precision; before any work is done.

    Raises:
        PenstockError: with the choices there are.
    """
    held = precisions(name)
    if precision not in held:
        others = [other for other in names() if precision in precisions(other)]
        hint = f"; --format {others[0]} holds {precision}" if others else ""
        raise PenstockError(f"--precision {precision!r}: format {name} holds {', '.join(held)}{hint}")


def export(name: str, source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write `source` as format `name` into `folder`, with `work` for files in between."""
    built: Built = _module(name).export(source, options, folder, work)
    return built


def _module(name: str) -> Any:
    if name not in names():
        raise PenstockError(f"--format {name!r}: must be one or more of {', '.join(names())}{nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")

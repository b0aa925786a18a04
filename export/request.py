"""Requests: what the user asked to have exported, and the words that ask for it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.artifact import MODEL_NAME
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export.engine.recipe import Wishes
from penstock.export.formats import Road
from penstock.options import UINT8
from penstock.signature import Dim


@dataclass(frozen=True)
class Request:
    """What the user asked for; one variant is made for each format and precision.

    `random_data`: scales are to be measured on random numbers, which `--data random` asks for. `pixels`: artifacts are
    to take uint8 pictures, and decode them in their graphs. `labels`: the names of classes, or a file of them.
    """

    checkpoint: Path
    formats: tuple[str, ...] = ("onnx",)
    precisions: tuple[str, ...] = ("fp32",)
    output: Path = Path("models")
    name: str | None = None
    override: Override = field(default_factory=Override)
    fuse: bool = True
    pixels: bool = False
    road: Road = "auto"
    opset: int | None = None
    data: Path | None = None
    random_data: bool = False
    labels: str | None = None
    max_error: float | None = None
    min_agreement: float | None = None
    accuracy_drop: float | None = None
    calibration: str = "auto"
    engine: Wishes = field(default_factory=Wishes)
    narrower: tuple[dict[str, Dim], ...] = ()
    defer: bool = False

    @property
    def variants(self) -> list[tuple[str, str]]:
        """Every format with every precision."""
        return [(name, precision) for name in self.formats for precision in self.precisions]

    def variant_name(self, base: str, format: str, precision: str) -> str:
        """The name of a variant: `digits-onnx-fp16`.

        Raises:
            PenstockError: it could not be a folder of a model repository.
        """
        name = f"{self.name or base}-{format}-{precision}"
        if not MODEL_NAME.fullmatch(name):
            raise PenstockError(
                f"--name {self.name or base!r}: the variant {name!r} must be letters, digits, _, - and ., start with a "
                "letter or digit, and have 128 of them at most"
            )
        return name

    def words(self, format: str) -> tuple[str, ...]:
        """The words of the command line that made this request, without format, precision and output."""
        given, choice = self.override, self.override.choice
        pairs: list[tuple[str, Any]] = [
            ("--name", self.name),
            ("--model", given.model),
            *(("--model-args", f"{name}={value!r}") for name, value in given.model_args.items()),
            *(("--input", text) for text in given.inputs),
            ("--input", UINT8 if self.pixels else None),
            *(("--dim", f"{name}={dim.min},{dim.opt},{dim.max}") for name, dim in given.dims.items()),
            *(("--range", f"{name}={_number(held.low)},{_number(held.high)}") for name, held in given.ranges.items()),
            *(("--keep", name) for name in given.keep),
            ("--batch", given.batch and f"{given.batch.min},{given.batch.opt},{given.batch.max}"),
            ("--key", choice.key),
            ("--prefix", choice.prefix),
            *(("--allow-partial", pattern) for pattern in choice.partial),
            ("--data", "random" if self.random_data else _spelt(self.data)),
            ("--labels", self.labels),
            ("--max-error", self.max_error),
            ("--min-agreement", self.min_agreement),
            ("--accuracy-drop", self.accuracy_drop),
            ("--calibration", None if self.calibration == "auto" else self.calibration),
            ("--opset", self.opset if format in ("onnx", "trt") else None),
        ]
        pairs += self._of_engine() if format == "trt" else []
        words = [word for option, value in pairs if value is not None for word in (option, str(value))]
        flags = {
            "--no-fuse": not self.fuse,
            f"--script={self.road}": self.road != "auto" and format == "torchscript",
            "--ema": choice.ema is True,
            "--no-ema": choice.ema is False,
            "--allow-pickle": given.allow_pickle,
            "--defer": self.defer and format == "trt",
        }
        return (*words, *(flag for flag, wanted in flags.items() if wanted))

    def engine_options(self) -> list[tuple[str, bool]]:
        """The options that only an engine takes, and whether each was given."""
        return [*((option, value is not None) for option, value in self._of_engine()), ("--defer", self.defer)]

    def _of_engine(self) -> list[tuple[str, Any]]:
        wishes = self.engine
        default = Wishes()
        return [
            *(
                ("--profile", ";".join(f"{n}={d.min},{d.opt},{d.max}" for n, d in held.items()))
                for held in self.narrower
            ),
            ("--trt-flavor", wishes.flavor and wishes.flavor.replace("_", "-")),
            ("--workspace", wishes.workspace_mb),
            ("--builder-level", wishes.level),
            ("--hardware-compat", None if wishes.hardware_compat == "none" else wishes.hardware_compat),
            ("--build-limit", None if wishes.limit_s == default.limit_s else f"{wishes.limit_s:g}"),
        ]


def _spelt(data: Path | None) -> str | None:
    """A path as --data takes it: a folder of the name `random` is none of random numbers."""
    return f"./{data}" if data == Path("random") else None if data is None else str(data)


def _number(end: float | str) -> str:
    if isinstance(end, str):
        return end
    return f"{end:.0f}" if end.is_integer() and abs(end) < 1e16 else repr(end)

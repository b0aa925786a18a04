"""Checkpoints: the options that say what a file leaves open, and what they say together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import options
from penstock.commands import completion
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import Say

ModelOption = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.architectures,
        help="Architecture: torchvision:resnet18, timm:NAME, transformers:FOLDER, pkg.nets:Net or ./net.py:Net.",
    ),
]
ModelArgsOption = Annotated[list[str] | None, typer.Option(help="Its arguments, num_classes=5; may be repeated.")]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An input, image:float32[batch,3,224,224], where the file or library names none; may be repeated."
    ),
]
EmaOption = Annotated[
    bool | None,
    typer.Option("--ema/--no-ema", help="Averaged or plain weights; default: averaged where there are any."),
]
KeyOption = Annotated[
    str | None, typer.Option(help="Where in the file the weights are: generator, or checkpoint.model.")
]
PrefixOption = Annotated[
    str | None, typer.Option(help="Take only the tensors whose names begin so, and strip it: 'model.', with its dot.")
]
PartialOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Tensors (a name, or a pattern as head.*) that may stay at their initial value; may be repeated."
    ),
]
PickleOption = Annotated[
    bool, typer.Option("--allow-pickle", help="Run the code that the file holds, after listing what it imports.")
]


def override(
    model: str | None,
    model_args: list[str] | None,
    inputs: list[str] | None,
    dims: list[str] | None = None,
    batch: str | None = None,
    *,
    ranges: list[str] | None = None,
    keep: list[str] | None = None,
    choice: Any,
    allow_pickle: bool,
) -> Any:
    """What the options say of a checkpoint that does not say it itself."""
    arguments = import_stage("penstock.architecture", "export").parse_arguments(model_args or [])
    return import_stage("penstock.checkpoint", "export").Override(
        model=model,
        model_args=arguments,
        inputs=tuple(inputs or []),
        dims=options.size_ranges(dims or []),
        batch=None if batch is None else options.size_range(batch, "--batch"),
        ranges=options.value_ranges(ranges or []),
        keep=tuple(keep or []),
        choice=choice,
        allow_pickle=allow_pickle,
    )


def choice(ema: bool | None, key: str | None, prefix: str | None, partial: list[str] | None) -> Any:
    """Which of a file's tensors are wanted."""
    return import_stage("penstock.state", "export").Choice(
        ema=ema, key=key, prefix=prefix, partial=tuple(partial or [])
    )


def is_artifact(path: Path) -> bool:
    """Whether it is an artifact's folder, or a model's; a checkpoint's folder, of transformers, has a config.json."""
    return path.is_dir() and not (path / "config.json").is_file()


def opened(path: Path, overridden: Any = None, tell: Say = say) -> tuple[Any, Any]:
    """A checkpoint or an artifact: what it says of itself, a card or a receipt, and a runner of it.

    Args:
        path: a checkpoint, or an artifact's folder.
        overridden: what is said in place of a checkpoint, by `override`; nothing by default.
        tell: told the names that unpickling a checkpoint will import, before it does.

    Raises:
        PenstockError: it cannot be loaded.
    """
    if is_artifact(path):
        from penstock import artifact

        found = artifact.read(path)
        return found.receipt, found.load()
    checkpoint = import_stage("penstock.checkpoint", "train")
    loaded = checkpoint.load(path, overridden, tell)
    runner = import_stage("penstock.runtimes.torch", "train").TorchRunner(loaded.adapted(), loaded.card.signature)
    return loaded.card, runner

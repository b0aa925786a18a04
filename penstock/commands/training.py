"""Training: train, eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.commands import checkpoints
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (digits), or a .toml file.")],
    output: Annotated[Path, typer.Option(help="Folder for runs; checkpoints go to OUTPUT/NAME.")] = Path("runs"),
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Train a recipe and leave best.pth and last.pth.

    Example: `penstock train digits --epochs 10`
    """
    recipes = import_stage("penstock.train.recipe", "train")
    job = recipes.load(recipe, epochs=epochs, seed=seed)
    loop = import_stage("penstock.train.loop", "train")
    trained = loop.train(job, output / job.name, progress=progress and sys.stderr.isatty())
    say(
        f"trained {job.name} for {job.epochs} epochs in {trained.seconds:.1f} s: "
        f"{_percent(trained.score)} on the held-out test part"
    )
    say(f"best {trained.best}   last {trained.last}   logs {trained.logs}")


def evaluate(
    path: Annotated[Path, typer.Argument(help="A checkpoint file, or an artifact's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled data: .npz with each input by name and class numbers as `labels`, a folder of pictures "
            "for each class, or a .csv of texts or table rows with a column `label`."
        ),
    ] = None,
    model: checkpoints.ModelOption = None,
    model_args: checkpoints.ModelArgsOption = None,
    input: checkpoints.InputOption = None,
    ema: checkpoints.EmaOption = None,
    key: checkpoints.KeyOption = None,
    prefix: checkpoints.PrefixOption = None,
    allow_pickle: checkpoints.PickleOption = False,
) -> None:
    """Score a checkpoint or an artifact on its held-out split, or on data of yours.

    Example: `penstock eval models/digits-onnx-int8`
    """
    from penstock import artifact, datasets, evaluation

    if path.is_dir() and not (path / "config.json").is_file():
        found = artifact.read(path)
        about: Any = found.receipt
        runner: Any = found.load()
    else:
        checkpoint = import_stage("penstock.checkpoint", "train")
        choice = checkpoints.choice(ema, key, prefix, None)
        override = checkpoints.override(model, model_args, input, choice=choice, allow_pickle=allow_pickle)
        loaded = checkpoint.load(path, override, say)
        about = loaded.card
        runner = import_stage("penstock.runtimes.torch", "train").TorchRunner(loaded.adapted(), about.signature)
    given = None
    if data is not None:
        given = datasets.read(data, about.preprocess, about.labels, task=about.task, dataset=about.dataset)
    rows = given or evaluation.held_out(about.dataset, about.preprocess)
    about.signature.check(rows.inputs, limit_batch=False)
    with runner:
        score = evaluation.evaluate(runner, rows, about.signature)
    say(f"{path}: {_percent(score)}")


def _percent(score: Any) -> str:
    return f"{score.accuracy:.2%} correct ({score.correct} of {score.samples})"

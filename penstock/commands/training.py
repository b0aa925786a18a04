"""Training: train, eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.commands import checkpoints, scoring
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
    per_class: Annotated[bool, typer.Option("--per-class", help="Show the figures of each class, too.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all figures, the confusion matrix among them, as JSON.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures of each class to this table.")
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

    Accuracy, F1 and calibration error of a classifier; mean errors and R² of a regression.

    Examples: `penstock eval models/digits-onnx-int8` ·
    `penstock eval runs/digits/best.pth --per-class --json figures.json` · `penstock eval best.pth --data photos/`
    """
    from penstock import datasets, evaluation, summaries

    scoring.see(json, csv)
    overridden = None
    if not checkpoints.is_artifact(path):
        choice = checkpoints.choice(ema, key, prefix, None)
        overridden = checkpoints.override(model, model_args, input, choice=choice, allow_pickle=allow_pickle)
    about, runner = checkpoints.opened(path, overridden)
    given = None
    if data is not None:
        given = datasets.read(data, about.preprocess, about.labels, task=about.task, dataset=about.dataset)
    rows = given or evaluation.held_out(about.dataset, about.preprocess)
    about.signature.check(rows.inputs, limit_batch=False)
    with runner:
        first = evaluation.first_output(runner, rows, about.signature)
    figures = evaluation.figures(first, rows, about.task)
    say(f"{path}: {summaries.headline(figures)}")
    scoring.show(figures, about.labels, per_class)
    scoring.write(figures, about.labels, json, csv)


def _percent(score: Any) -> str:
    return f"{score.accuracy:.2%} correct ({score.correct} of {score.samples})"

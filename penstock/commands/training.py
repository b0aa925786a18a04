"""Training: train, eval."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.commands import checkpoints, completion, scoring
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import PenstockError, printable

RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        autocompletion=completion.recipes,
        help="A shipped recipe (see --list), or a file: .toml, .json, .yaml, .ini, .py.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A field of the recipe, optim.lr=3e-4; may be repeated."),
]


def train(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    repeat: Annotated[
        Path | None, typer.Option("--from", metavar="CKPT", help="Repeat the run that left this checkpoint.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N|random", help="Instead of the recipe's; `random` draws and records one.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the model and its run, instead of the recipe's.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for runs; checkpoints go to OUTPUT/NAME.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in OUTPUT/NAME after its last whole epoch.")
    ] = False,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    list_: Annotated[bool, typer.Option("--list", help="Name the shipped recipes, and end.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the whole recipe as TOML, with all defaults and changes, and end.")
    ] = False,
) -> None:
    """Train a recipe and leave best.pth and last.pth.

    Examples:

    `penstock train digits --epochs 10`

    `penstock train image-folder --set dataset.path=photos/ --set optim.lr=3e-3 --name cats`

    `penstock train csv-table --set dataset.train=table.csv --set dataset.target=kind --show > mine.toml`

    `penstock train --from runs/digits/best.pth --seed random`
    """
    if list_:
        _list_recipes()
        return
    drawn, fields = _fields(epochs, seed, name)
    job, earlier = _job(recipe, repeat, set_ or [], fields)
    if show:
        print(import_stage("penstock.train.toml", "train").dumps(job.model_dump(mode="json")), end="")
        return
    facts = import_stage("penstock.train.facts", "train")
    folder = output / job.name
    if repeat is not None:
        folder = import_stage("penstock.train.repeating", "train").free_folder(folder, repeat)
    found = facts.find(job, folder.name, seed_drawn=drawn)
    if facts.first_process():
        for difference in facts.differences(earlier, found):
            print(printable(f"warning: {difference}"), file=sys.stderr)
        if drawn:
            say(f"seed {job.seed}")
    loop = import_stage("penstock.train.loop", "train")
    shown = progress and sys.stderr.isatty()
    trained = loop.train(job, folder, progress=shown, resume=resume, facts=found, say=say)
    if trained.figures is None:
        return  # the first rank tells it
    from penstock import summaries

    say(
        f"trained {job.name} for {len(trained.history)} epochs in {trained.seconds:.1f} s: "
        f"{summaries.headline(trained.figures)} on the held-out test part"
    )
    say(f"best {trained.best}   last {trained.last}   report {trained.report}   logs {trained.logs}")


def _list_recipes() -> None:
    shipped = import_stage("penstock.train.recipefiles", "train").shipped()
    width = max(map(len, shipped))
    for name, line in shipped.items():
        say(f"{name:<{width}}  {line}")


def _fields(epochs: int | None, seed: str | None, name: str | None) -> tuple[bool, dict[str, Any]]:
    """Whether a seed was drawn, and the recipe's fields that have options of their own."""
    drawn = seed == "random"
    if drawn:
        seed = str(import_stage("penstock.train.facts", "train").drawn_seed())
    if seed is not None and not re.fullmatch(r"[0-9]{1,10}", seed):
        raise PenstockError(f"--seed {seed!r:.40}: must be a whole number from 0 to 4294967295, or random")
    return drawn, {"epochs": epochs, "seed": None if seed is None else int(seed), "name": name}


def _job(
    recipe: str | None, repeat: Path | None, overrides: list[str], fields: dict[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """The recipe that is asked for, and the facts of the run that is to be repeated, if one is."""
    if recipe is not None and repeat is not None:
        raise PenstockError(f"{recipe} and --from {repeat}: give the one or the other; --set changes fields of both")
    if repeat is not None:
        found = import_stage("penstock.train.repeating", "train").earlier(repeat, overrides, **fields)
        return found.recipe, found.facts
    if recipe is None:
        shipped = ", ".join(import_stage("penstock.train.recipefiles", "train").shipped())
        raise PenstockError(
            f"give a recipe ({shipped}, or a file), or --from a checkpoint, as in penstock train digits"
        )
    return import_stage("penstock.train.recipe", "train").load(recipe, overrides, **fields), {}


def evaluate(
    path: Annotated[Path, typer.Argument(help="A checkpoint file, or an artifact's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled data: .npz with each input by name and class numbers as `labels`, a folder of pictures "
            "for each class, or a .csv or .parquet of texts or table rows with a column `label`."
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
    datasets.see_there(data)
    overridden = None
    if not checkpoints.is_artifact(path):
        choice = checkpoints.choice(ema, key, prefix, None)
        overridden = checkpoints.override(model, model_args, input, choice=choice, allow_pickle=allow_pickle)
    about, runner = checkpoints.opened(path, overridden)
    given = None
    if data is not None:
        given = datasets.read(data, about.preprocess, about.labels, task=about.task, dataset=about.dataset)
    rows = given or evaluation.held_out(about.dataset, about.preprocess, task=about.task)
    about.signature.check(rows.inputs, limit_batch=False)
    with runner:
        first = evaluation.first_output(runner, rows, about.signature)
    figures = evaluation.figures(first, rows, about.task)
    say(f"{path}: {summaries.headline(figures)}")
    scoring.show(figures, about.labels, per_class)
    scoring.write(figures, about.labels, json, csv)

"""Sweeps: sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.commands import completion, terminal
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.commands.training import SetOption
from penstock.options import MOST_AT_ONCE


def sweep(
    recipe: Annotated[str, typer.Argument(autocompletion=completion.recipes, help="A recipe with a section [sweep].")],
    trials: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's; earlier ones count.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=MOST_AT_ONCE, help="Trials that train at the same time; they share the cores.")
    ] = 1,
    output: Annotated[Path, typer.Option(help="Folder for runs; the sweep goes to OUTPUT/NAME-sweep.")] = Path("runs"),
    set_: SetOption = None,
) -> None:
    """Train a recipe with many values of some fields, and find the best. The same command goes on where it was stopped.

    Examples: `penstock sweep mine.toml --workers 4` ·
    `penstock sweep digits --trials 8 --set 'sweep.space={"optim.lr"={choices=[0.01,0.1]}}'`
    """
    sweeps = import_stage("penstock.train.sweep", "train")
    with terminal.one_interrupt():
        try:
            outcome = sweeps.run(sweeps.request(recipe, set_ or [], trials, workers, output), say)
        except KeyboardInterrupt:
            say("finished trials are kept; the same command goes on")
            raise
    say("")
    for line in outcome.table:
        say(line)
    say("")
    say(f"train the best again: {outcome.command}")
    say(f"page {outcome.page}   recipe {outcome.recipe}   checkpoint {outcome.page.with_name('best.pth')}")

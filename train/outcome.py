"""What a sweep found: a line a trial, a table of the best, how to train the best again, and files that say so."""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.files import write_whole
from penstock.tables import inert
from penstock.train import overrides, sweepcharts, sweeppage, toml
from penstock.train.recipe import Recipe
from penstock.train.space import Sweep, put
from penstock.train.study import Study
from penstock.train.tried import Trial

_SHOWN = 10


@dataclass(frozen=True)
class Outcome:
    """The best trial, the lines that tell of it, and where the files are."""

    best: Trial
    table: list[str]
    command: str
    recipe: Path
    page: Path


def best(trials: Sequence[Trial], sweep: Sweep) -> Trial | None:
    """The finished trial with the best value, the earliest of several."""
    found: Trial | None = None
    for one in trials:
        if one.state != "finished" or one.value is None:
            continue
        if found is None or found.value is None or sweep.better(one.value, found.value):
            found = one
    return found


def line(trial: Trial, best: Trial | None, sweep: Sweep) -> str:
    """A trial in a line, with the best so far."""
    seconds = f" in {trial.seconds:.1f} s" if trial.seconds is not None else ""
    parts = [f"trial {trial.number}: {_result(trial, sweep)}{seconds}", _settings(trial.values)]
    if best is not None and best.value is not None:
        parts.append(f"best {best.value:.5g} (trial {best.number})")
    return "   ".join(parts)


def _result(trial: Trial, sweep: Sweep) -> str:
    if trial.state == "failed":
        return f"failed: {trial.reason}"
    value = f"{sweep.metric} {trial.value:.5g}" if trial.value is not None else ""
    if trial.state == "pruned":
        return f"{value}, pruned after epoch {len(trial.curve)}"
    return f"{value} at epoch {trial.epoch(sweep.towards)}"


def write(folder: Path, recipe: Recipe, content: dict[str, Any], words: Sequence[str], study: Study) -> Outcome:
    """Write all that is left of a sweep, each file whole.

    Args:
        folder: where.
        recipe: with the sweep.
        content: the recipe of a trial, but for its values.
        words: of the command that trains the recipe as it stands.
        study: its trials.

    Raises:
        PenstockError: no trial came to its end.
    """
    sweep, trials = recipe.sweep, study.trials()
    assert sweep is not None
    found = best(trials, sweep)
    if found is None:
        raise PenstockError(_none_finished(trials, folder))
    _copy_best(folder, found)
    again = _command(words, found.values)
    kept, page = folder / "best.toml", folder / "sweep.html"
    write_whole(kept, toml.dumps(put(content, found.values)).encode())
    write_whole(folder / "trials.csv", _csv(trials, sweep).encode())
    importance = study.importance()
    charts = sweepcharts.draw(trials, sweep, importance, found)
    for chart in charts:
        for kind, data in chart.files.items():
            write_whole(folder / f"{chart.name}.{kind}", data)
    write_whole(page, sweeppage.text(recipe.name, sweep, trials, found, charts, importance, again).encode())
    return Outcome(found, _table(trials, sweep), again, kept, page)


def _none_finished(trials: Sequence[Trial], folder: Path) -> str:
    failed = [one for one in trials if one.state == "failed"]
    if not failed:
        return f"none of the sweep's {len(trials)} trials came to its end: all were pruned; try another pruner"
    return (
        f"none of the sweep's {len(trials)} trials came to its end; trial {failed[0].number}: {failed[0].reason}; put "
        f"it right, delete {folder}, and begin again"
    )


def _copy_best(folder: Path, found: Trial) -> None:
    source, place = folder / "trials" / f"{found.number:04d}" / "best.pth", folder / "best.pth"
    if source.is_file():
        half = place.with_suffix(".part")
        try:
            shutil.copyfile(source, half)
            half.replace(place)
        finally:
            half.unlink(missing_ok=True)


def _command(words: Sequence[str], values: dict[str, Any]) -> str:
    settings = [word for path, value in values.items() for word in ("--set", f"{path}={setting(value)}")]
    return shlex.join(["penstock", "train", *words, *settings])


def setting(value: Any) -> str:
    """A value as `--set` takes it: text without quotes where it cannot be taken for anything else."""
    if isinstance(value, str) and overrides.value(value) == value:
        return value
    # In a list, since a table by itself would become a section.
    return toml.dumps({"of": [value]}).strip().removeprefix("of = [").removesuffix("]")


def _settings(values: dict[str, Any]) -> str:
    return "  ".join(f"{path}={_short(value)}" for path, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else setting(value)


def _table(trials: Sequence[Trial], sweep: Sweep) -> list[str]:
    """The best trials, one under another."""
    sign = -1 if sweep.towards == "maximize" else 1
    ranked = sorted(
        (one for one in trials if one.state == "finished" and one.value is not None),
        key=lambda one: (sign * (one.value or 0.0), one.number),
    )
    head = ["", "trial", sweep.metric, "epoch", "seconds", *sweep.space]
    rows = [
        [
            str(place),
            str(one.number),
            f"{one.value:.5g}",
            str(one.epoch(sweep.towards)),
            f"{one.seconds or 0:.1f}",
            *(_short(one.values[path]) for path in sweep.space),
        ]
        for place, one in enumerate(ranked[:_SHOWN], 1)
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]


def _csv(trials: Sequence[Trial], sweep: Sweep) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["trial", "state", sweep.metric, "epoch", "seconds", *sweep.space, "reason"])
    for one in trials:
        values = [setting(one.values[path]) if path in one.values else "" for path in sweep.space]
        cells = [one.number, one.state, one.value, one.epoch(sweep.towards), one.seconds, *values, one.reason]
        writer.writerow([inert(cell) for cell in cells])
    return file.getvalue()

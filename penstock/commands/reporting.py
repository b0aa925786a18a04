"""What bench does with results that are there: reports from a file, and comparing two."""

from __future__ import annotations

import json as json_of
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import PenstockError

THRESHOLD = 0.05


def only(context: typer.Context, option: str, *others: str) -> None:
    """Refuse every option that means nothing beside `option`, whatever options there are."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in others:
            name = parameter.opts[0] if parameter.param_type_name == "option" else "an artifact or a server"
            raise PenstockError(f"{option} measures nothing: it cannot be given together with {name}")


@dataclass(frozen=True)
class Files:
    """Where what was measured is written, in each form that is wanted."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None

    @property
    def others(self) -> bool:
        """Whether any is wanted that is made of the JSON."""
        return self.csv is not None or self.html is not None


def write(content: dict[str, Any], files: Files) -> None:
    """The reports of a measurement that was just made, given as its JSON."""
    _write(import_stage("penstock.bench.recorded", "bench").parse(content), files.csv, files.html)


def again(source: Path, csv: Path | None, html: Path | None) -> None:
    """The reports of a measurement from its file; without any, the tables of artifacts."""
    recorded = import_stage("penstock.bench.recorded", "bench")
    found = recorded.read(source, "--from")
    _write(found, csv, html)
    if csv is None and html is None:
        if found.kind != "engines":
            raise PenstockError(
                f"--from {source}: say what to make of it: --html report.html, --csv table.csv, or both"
            )
        report = import_stage("penstock.bench.report", "bench")
        try:
            report.show_figures(json_of.loads(source.read_bytes()))
        except (KeyError, TypeError) as error:  # of another version
            raise PenstockError(f"--from {source}: has no {error} for the tables; give --html or --csv") from None


def _write(result: Any, csv: Path | None, html: Path | None) -> None:
    if csv is not None:
        import_stage("penstock.bench.table", "bench").write(result, csv)
        say(f"wrote {csv}")
    if html is not None:
        import_stage("penstock.bench.page", "bench").write(result, html)
        say(f"wrote {html}")


def compare(files: tuple[Path, Path], threshold: float | None, json: Path | None) -> None:
    """Compare two files, print what there is to say; exit with 1 if the new one is slower, 4 if that cannot be told."""
    recorded = import_stage("penstock.bench.recorded", "bench")
    comparison = import_stage("penstock.bench.comparison", "bench")
    old, new = (recorded.read(path, "--compare") for path in files)
    wanted = THRESHOLD if threshold is None else threshold
    found = import_stage("penstock.bench.compare", "bench").compare(old, new, wanted)
    if json is not None:
        comparison.write_json(found, json)
    comparison.show(found)
    if found.regressions or found.untold:
        raise typer.Exit(1 if found.regressions else comparison.UNTOLD)

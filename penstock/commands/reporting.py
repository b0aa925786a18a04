"""What bench does with results that are there: reports from a file, and comparing two."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
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


def keep_apart(written: dict[str, Path | None], read: Sequence[tuple[str, Path | None]]) -> None:
    """See that no file is to be written that is read, or written for another option too.

    Args:
        written: paths by option.
        read: options with their paths.

    Raises:
        PenstockError: one is; a device, as /dev/null, may be.
    """
    held = {os.path.realpath(path): option for option, path in read if path is not None}
    for option, path in written.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        other = held.setdefault(os.path.realpath(path), option)
        if other != option:
            raise PenstockError(f"{option} {path}: is the file of {other} too, and would replace it; name another")


@dataclass(frozen=True)
class Files:
    """Where what was measured is written, in each form that is wanted."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None


def deliver(report: Any, result: Any, content: Callable[[], dict[str, Any]], files: Files) -> None:
    """Show what was measured, and then write it: neither is lost where the other fails, nor one file by another.

    Args:
        report: the module that shows such a result, and writes it as JSON.
        result: what was measured.
        content: gives the JSON that the other files are made of.
        files: where they go.

    Raises:
        PenstockError: a file could not be written.
    """
    try:
        report.show(result)
    finally:
        steps: list[Callable[[], None]] = []
        if files.json is not None:
            steps.append(functools.partial(report.write_json, result, files.json))
        if files.csv is not None or files.html is not None:
            steps.append(lambda: _write(_parsed(content()), files.csv, files.html))
        _all(steps)


def _parsed(content: dict[str, Any]) -> Any:
    return import_stage("penstock.bench.recorded", "bench").parse(content)


def _all(steps: list[Callable[[], None]]) -> None:
    """Take every step, whichever of them fails.

    Raises:
        PenstockError: what was said of those that failed.
    """
    said = list[str]()
    for step in steps:
        try:
            step()
        except PenstockError as error:
            said.append(str(error))
    if said:
        raise PenstockError("; ".join(said))


def again(source: Path, csv: Path | None, html: Path | None) -> None:
    """The reports of a measurement from its file."""
    if csv is None and html is None:
        raise PenstockError(f"--from {source}: say what to make of it: --html report.html, --csv table.csv, or both")
    recorded = import_stage("penstock.bench.recorded", "bench")
    _write(recorded.read(source, "--from"), csv, html)


def _write(result: Any, csv: Path | None, html: Path | None) -> None:
    wanted = ((csv, "penstock.bench.table"), (html, "penstock.bench.page"))
    _all([functools.partial(_write_one, result, module, path) for path, module in wanted if path is not None])


def _write_one(result: Any, module: str, path: Path) -> None:
    import_stage(module, "bench").write(result, path)
    say(f"wrote {path}")


def compare(files: tuple[Path, Path], threshold: float | None, json: Path | None) -> None:
    """Compare two files, print what there is to say, and exit with 1 if the new one is slower."""
    recorded = import_stage("penstock.bench.recorded", "bench")
    comparison = import_stage("penstock.bench.comparison", "bench")
    old, new = (recorded.read(path, "--compare") for path in files)
    wanted = THRESHOLD if threshold is None else threshold
    found = import_stage("penstock.bench.compare", "bench").compare(old, new, wanted)
    deliver(comparison, found, dict, Files(json))
    if found.regressions:
        raise typer.Exit(1)

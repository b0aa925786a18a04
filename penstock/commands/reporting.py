"""Where bench writes what it measures, and what it does with results that are there: reports, comparing two."""

from __future__ import annotations

import functools
import json as json_of
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

import typer

from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import PenstockError
from penstock.files import see_folder, see_writable, write_whole, writing

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
    """Where what was measured is written, in each form that is wanted; and the folder of LoadGen's logs."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    logs: Path | None = None

    def see(self) -> None:
        """See that each can be written, before anything is measured.

        Raises:
            PenstockError: one cannot be, or two are one file.
        """
        wanted = {f"--{form}": path for form in ("json", "csv", "html") if (path := getattr(self, form)) is not None}
        for option, path in wanted.items():
            see_writable(option, path)
            twin = next(
                (one for one, other in wanted.items() if one != option and other.absolute() == path.absolute()), None
            )
            if twin is not None:
                raise PenstockError(f"{option} and {twin} {path}: must be two files")
        if self.logs is not None:
            see_folder("--logs", self.logs)


def tell(show: Callable[[], None], content: dict[str, Any], files: Files) -> None:
    """Show a measurement that was just made, and write its files; none is lost where another, or the screen, fails.

    Raises:
        PenstockError: a file could not be written.
    """
    try:
        show()
    finally:
        steps: list[Callable[[], None]] = []
        if files.json is not None:
            steps.append(functools.partial(_write_json, content, files.json))
        if files.csv is not None or files.html is not None:
            steps.append(lambda: _write(_parsed(content), files.csv, files.html))
        _all(steps)


def _write_json(content: dict[str, Any], path: Path) -> None:
    with writing("--json", path, "the figures are not kept"):
        write_whole(path, dumps(content, indent=1, allow_nan=False).encode())
    say(f"wrote {path}")


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
    wanted = ((csv, "penstock.bench.table"), (html, "penstock.bench.page"))
    _all([functools.partial(_write_one, result, module, path) for path, module in wanted if path is not None])


def _write_one(result: Any, module: str, path: Path) -> None:
    import_stage(module, "bench").write(result, path)
    say(f"wrote {path}")


def compare(files: tuple[Path, Path], threshold: float | None, json: Path | None) -> None:
    """Compare two files, print what there is to say; exit with 1 if the new one is slower, 4 if that cannot be told."""
    recorded = import_stage("penstock.bench.recorded", "bench")
    comparison = import_stage("penstock.bench.comparison", "bench")
    old, new = (recorded.read(path, "--compare") for path in files)
    wanted = THRESHOLD if threshold is None else threshold
    found = import_stage("penstock.bench.compare", "bench").compare(old, new, wanted)
    try:
        comparison.show(found)
    finally:
        if json is not None:
            comparison.write_json(found, json)
    if found.regressions or found.untold:
        raise typer.Exit(1 if found.regressions else comparison.UNTOLD)

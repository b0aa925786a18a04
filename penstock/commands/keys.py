"""API keys of a server: keys add, keys list, keys remove, which need no server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands import completion
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say

app = typer.Typer(
    help="API keys of a server: what each may do, how often, and until when.\n\n"
    "Example: `penstock keys add keys.json alice`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys that penstock serve --keys reads.")]


@app.command()
def add(
    file: _File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is called in lists, logs and metrics.")],
    rights: Annotated[
        str,
        typer.Option(
            autocompletion=completion.rights,
            help="What it may do, with commas: infer, repository, shared-memory, metrics.",
        ),
    ] = "infer",
    rate: Annotated[
        float | None, typer.Option(help="Requests a second; default: as many as the server answers.")
    ] = None,
    burst: Annotated[
        float | None, typer.Option(help="Requests at once, beyond the rate; default: those of one second.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE", help="The last day, in UTC, as in 2030-12-31; or a time.")
    ] = None,
) -> None:
    """Make a random key, print it once, and keep its SHA-256 in the file, which a running server reads anew.

    Examples: `penstock keys add keys.json alice` ·
    `penstock keys add keys.json deploy --rights infer,repository --rate 100 --burst 20 --expires 2030-12-31`
    """
    keys = import_stage("penstock.serve.keys", "serve")
    entry = keys.make(name, options.commas(rights, "--rights"), rate, burst, expires)
    key = keys.add(file, entry)
    # The key alone on stdout, for KEY=$(penstock keys add …).
    told = ", ".join((*entry.rights, *([f"valid {entry.valid}"] if entry.valid else [])))
    print(f"{name}: {told}; {file} keeps its hash alone, so keep it now:", file=sys.stderr, flush=True)
    say(key)


@app.command(name="list")
def show(file: _File) -> None:
    """List the keys of a file by name: rights, rates, days. What the keys are is not known.

    Example: `penstock keys list keys.json`
    """
    from rich.table import Table

    from penstock.screen import Screen

    keys = import_stage("penstock.serve.keys", "serve")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "rights", "requests/s", "at once", "valid", "created"):
        table.add_column(column, no_wrap=column != "rights")
    for key in keys.read(file):
        rated = ("any", "") if key.rate is None else (f"{key.rate:g}", f"{key.most_at_once:g}")
        created = "" if key.created is None else f"{key.created:%Y-%m-%d}"
        table.add_row(key.name, ", ".join(key.rights), *rated, key.valid, created)
    Screen().print(table)
    if (fault := keys.open_to_others(file)) is not None:
        print(f"warning: {fault}", file=sys.stderr)


@app.command()
def remove(file: _File, name: Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]) -> None:
    """Take a key out of the file; a running server refuses it within a second.

    Example: `penstock keys remove keys.json alice`
    """
    import_stage("penstock.serve.keys", "serve").remove(file, name)
    say(f"{name}: removed from {file}")

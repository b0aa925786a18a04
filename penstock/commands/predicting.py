"""Predicting: predict, by a server or, with a checkpoint or an artifact, here."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.commands import checkpoints
from penstock.commands.serving import Ca, KeyFile
from penstock.errors import PenstockError, printable

_CHECKPOINTS = (".pth", ".pt", ".ckpt", ".safetensors")
_OF_SERVERS = ("concurrency", "retries", "timeout", "key_file", "ca")


def predict(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            help="The server, or its /predict/MODEL; or a checkpoint or an artifact's folder, which is run here."
        ),
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Pictures, folders of them, quoted patterns; .npz and .npy (tensors), .csv, .parquet (rows), .txt (a "
            "text in each line), .json (a whole request); - for standard input: a picture, JSON, or texts.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model; default: the only one that is served. Of a checkpoint the architecture, as ./net.py:Net, "
            "where penstock must not import it unasked."
        ),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, max=1000, help="Labels of each row.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Pictures or rows in one request.")] = 8,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Requests under way at once.")] = 2,
    csv: Annotated[
        Path | None, typer.Option(help="Write file, row, label, score … to this table; what there is, also after ^C.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each row.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder for class maps, as PNG.")] = None,
    retries: Annotated[
        int, typer.Option(min=0, max=1000, help="How often to ask again a server that is busy, or not there yet.")
    ] = 5,
    timeout: Annotated[float, typer.Option(min=0.001, max=86_400, help="Seconds for one answer.")] = 60.0,
    key_file: KeyFile = None,
    ca: Ca = None,
) -> None:
    """Send files to a server, or run them through a model here, and print what it answers, in the order of the files.

    Exits with 1 if a file had no answer; the reasons stand on stderr.

    Examples: `penstock predict runs/digits/best.pth scans/ --csv digits.csv` ·
    `penstock predict http://127.0.0.1:8000 digit.png` ·
    `penstock predict http://127.0.0.1:8000 --model fcn-onnx-fp32 'street/*.jpg' --output maps/` ·
    `penstock predict http://127.0.0.1:8000 samples.npz --top-k 3 --json`
    """
    from penstock.client import here, run
    from penstock.client.access import access
    from penstock.client.connection import Patience
    from penstock.client.desk import Wishes

    def complain(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    _see_order(url, files)
    if _is_model(url):
        _only_of_servers(context, url)
        about, runner = checkpoints.opened(Path(url), _overridden(Path(url), model), tell=complain)
        wishes = Wishes(top_k=top_k, batch=batch, csv=csv, json=json, output=output)
        with runner:
            failed = here.predict(here.Model(runner, about), files, wishes, complain)
    else:
        patience, let_in = Patience(retries, timeout), access(key_file, ca)
        wishes = Wishes(model, top_k, batch, concurrency, patience, csv, json, output, let_in)
        failed = run.predict(url, files, wishes, complain)
    if failed:
        raise typer.Exit(1)


def _see_order(url: str, files: list[str]) -> None:
    """See that no server stands among the files.

    Raises:
        PenstockError: one does.
    """
    server = next((word for word in files if word.startswith(("http://", "https://"))), None)
    if server is not None and "://" not in url:
        rest = shlex.join([url, *(word for word in files if word != server)])
        raise PenstockError(f"the server comes first: penstock predict {server} {rest}")


def _is_model(word: str) -> bool:
    """Whether it names a file or a folder that is there, or such a file as checkpoints are; a URL is neither."""
    return "://" not in word and (Path(word).exists() or Path(word).suffix in _CHECKPOINTS)


def _overridden(path: Path, model: str | None) -> Any:
    """What is said in place of a checkpoint.

    Raises:
        PenstockError: an artifact is told its architecture.
    """
    if model is None:
        return None
    if checkpoints.is_artifact(path):
        raise PenstockError(f"--model is told to servers, and of checkpoints; {path} is an artifact: leave it out")
    choice = checkpoints.choice(None, None, None, None)
    return checkpoints.override(model, None, None, choice=choice, allow_pickle=False)


def _only_of_servers(context: typer.Context, word: str) -> None:
    """Refuse what only a server can be told.

    Raises:
        PenstockError: it was given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _OF_SERVERS and source is not None and source.name == "COMMANDLINE":
            raise PenstockError(f"{parameter.opts[0]} is told to servers; {word} is run here: leave it out")

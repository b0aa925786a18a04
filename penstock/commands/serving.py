"""Asking a server: predict, health, check, which run where there is no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import printable

_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help="File with the API key; default: PENSTOCK_API_KEY's, if it is set."
    ),
]
_Ca = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="Certificates in PEM to trust over https; default: the system's."),
]


def predict(
    url: Annotated[str, typer.Argument(help="The server, or its /predict/MODEL.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Pictures, folders of them, quoted patterns; .npz and .npy (tensors), .csv (rows), .txt (a text in "
            "each line), .json (a whole request); - for standard input: a picture, JSON, or texts.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model; default: the only one that is served.")] = None,
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
    key_file: _KeyFile = None,
    ca: _Ca = None,
) -> None:
    """Send files to a server, and print what it answers, in the order of the files.

    Exits with 1 if a file had no answer; the reasons stand on stderr.

    Examples: `penstock predict http://127.0.0.1:8000 digit.png` ·
    `penstock predict http://127.0.0.1:8000/predict/digits-onnx-int8 scans/ --csv digits.csv` ·
    `penstock predict http://127.0.0.1:8000 --model fcn-onnx-fp32 'street/*.jpg' --output maps/` ·
    `penstock predict http://127.0.0.1:8000 samples.npz --top-k 3 --json`
    """
    from penstock.client import run
    from penstock.client.access import access
    from penstock.client.connection import Patience

    patience, let_in = Patience(retries, timeout), access(key_file, ca)
    wishes = run.Wishes(model, top_k, batch, concurrency, patience, csv, json, output, let_in)
    if run.predict(url, files, wishes, lambda line: print(printable(line), file=sys.stderr, flush=True)):
        raise typer.Exit(1)


def health(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    timeout_s: Annotated[float, typer.Option(min=0.001, max=3600, help="Seconds to wait for it.")] = 3.0,
    key_file: _KeyFile = None,
    ca: _Ca = None,
) -> None:
    """Exit with 0 if a server is ready, 1 if not, saying why; for a container's HEALTHCHECK.

    Example: `penstock health http://127.0.0.1:8000`
    """
    from penstock import health as health_check
    from penstock.client.access import access

    ready, why = health_check.ready(url, timeout_s, access(key_file, ca))
    say(why)
    if not ready:
        raise typer.Exit(1)


def check(
    url: Annotated[str, typer.Argument(help="A server of the Open Inference Protocol, anybody's.")],
    model: Annotated[
        str | None, typer.Option(help="The model to try things on; default: the first that takes one row of ones.")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of its gRPC, over TLS where URL is https; default: the port after URL's, if it is there."
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the verdicts to this file, as JUnit XML.")] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for one answer.")] = 20.0,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME: VALUE that goes with every request, over HTTP and gRPC; repeatable.")
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Also unload the model and load it again; its clients miss it meanwhile.")
    ] = False,
    key_file: _KeyFile = None,
    ca: _Ca = None,
) -> None:
    """Try a live server against the Open Inference Protocol, by extension, and with requests that nobody should send.

    Over HTTP and gRPC. Exits with 1 if a check fails. What a server does not list among its extensions is skipped.

    Examples: `penstock check http://127.0.0.1:8000 --junit check.xml` ·
    `penstock check http://127.0.0.1:8080 --grpc 127.0.0.1:8081 --model iris`
    """
    conformance = import_stage("penstock.serve.conformance.run", "serve")
    connection = import_stage("penstock.serve.conformance.connection", "serve")
    from penstock.client.access import access

    let_in = access(key_file, ca)
    target = connection.connect(url, model, timeout_s, grpc, reload=reload, headers=header or [], access=let_in)
    verdicts = list(conformance.run(target))
    if junit is not None:
        conformance.write_junit(verdicts, url, junit)
    conformance.show(verdicts, say)
    failed = sum(verdict.result == "failed" for verdict in verdicts)
    passed = sum(verdict.result == "passed" for verdict in verdicts)
    beside = "" if target.calls is None else f" and gRPC at {target.calls.address}"
    say(f"{target.url}{beside}, on {target.name}: {passed} of {len(verdicts)} checks passed, {failed} failed")
    if failed:
        raise typer.Exit(1)

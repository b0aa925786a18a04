"""Asking a server: health, check, which run where there is no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock import variables
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import PenstockError

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        show_envvar=False,
        help="File with the API key; default: PENSTOCK_API_KEY's, if it is set.",
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        show_envvar=False,
        help="Certificates in PEM to trust over https; default: the system's.",
    ),
]


def health(
    url: Annotated[
        str | None,
        typer.Argument(
            envvar=f"{variables.HEALTH}_URL",
            show_envvar=False,
            help="The server; default: where one listens that has this environment, http://127.0.0.1:8000.",
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, max=3600, show_envvar=False, help="Seconds to wait for it.")
    ] = 3.0,
    key_file: KeyFile = None,
    ca: Ca = None,
) -> None:
    """Exit with 0 if a server is ready, 1 if not, saying why; for a container's HEALTHCHECK.

    Example: `penstock health http://127.0.0.1:8000`. PENSTOCK_HEALTH_URL, _TIMEOUT_S, _KEY_FILE and _CA say the same.
    """
    from penstock import health as health_check
    from penstock.client.access import access

    ready, why = health_check.ready(url or health_check.own_url(os.environ), timeout_s, access(key_file, ca))
    say(why)
    if not ready:
        raise typer.Exit(1)


def check(
    url: Annotated[str, typer.Argument(help="A server of the Open Inference Protocol, anybody's.")],
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="The model to try things on; default: the first that takes one row of ones."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The same, as an option.")] = None,
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
    key_file: KeyFile = None,
    ca: Ca = None,
) -> None:
    """Try a live server against the Open Inference Protocol, by extension, and with requests that nobody should send.

    Over HTTP and gRPC. Exits with 1 if a check fails. What a server does not list among its extensions is skipped.

    Examples: `penstock check http://127.0.0.1:8000 --junit check.xml` ·
    `penstock check http://127.0.0.1:8080 iris --grpc 127.0.0.1:8081`
    """
    conformance = import_stage("penstock.serve.conformance.run", "serve")
    connection = import_stage("penstock.serve.conformance.connection", "serve")
    from penstock.client.access import access

    if named is not None and model not in (None, named):
        raise PenstockError(f"--model {model}: MODEL is {named}; give one or the other")
    let_in = access(key_file, ca)
    target = connection.connect(
        url, named or model, timeout_s, grpc, reload=reload, headers=header or [], access=let_in
    )
    verdicts = list(conformance.run(target))
    if junit is not None:
        conformance.write_junit(verdicts, url, junit)
    conformance.show(verdicts, say)
    failed = sum(verdict.result == "failed" for verdict in verdicts)
    passed = sum(verdict.result == "passed" for verdict in verdicts)
    skipped = len(verdicts) - passed - failed
    beside = "" if target.calls is None else f" and gRPC at {target.calls.address}"
    say(f"{target.url}{beside}, on {target.name}: {passed} checks passed, {failed} failed, {skipped} skipped")
    if failed:
        raise typer.Exit(1)

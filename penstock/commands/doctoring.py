"""What this machine can do: doctor, which runs where only penstock itself is installed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.commands import completion
from penstock.errors import PenstockError, nearest


def doctor(
    stages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STAGE]…",
            help="Exit with 1 if one of these does not work here: train, export, serve, bench, or gpu.",
            autocompletion=completion.stages,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only look; nothing is tried.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON, with the versions of all packages.")] = False,
) -> None:
    """Tell what this machine can do, and what to install for what it cannot. Takes some 10 seconds.

    Runtimes, providers, precisions and the server are tried with a tiny model, each in a process of its own; nothing
    is written, and nothing leaves the machine.

    Examples:

    `penstock doctor`

    `penstock doctor serve && penstock serve models/`

    `penstock doctor --quick --json`
    """
    from penstock import doctor as doctors
    from penstock.doctor import packages, report
    from penstock.doctor.findings import named

    known = (*packages.STAGES, "gpu")
    for name in stages or ():
        if name not in known:
            raise PenstockError(f"{name!r:.40} is no stage: {', '.join(known)}{nearest(name, known)}")
    findings = doctors.examine(quick=quick)
    print(report.as_json(findings)) if json else report.show(findings)
    asked = [named(findings, *(("machine", "GPU") if name == "gpu" else ("stages", name))) for name in stages or ()]
    if not all(each.works for each in asked):
        raise typer.Exit(1)

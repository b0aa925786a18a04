"""Measuring a server: the options of bench that are about servers, and what they ask for."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import options
from penstock.commands import completion, reporting
from penstock.commands.stages import import_stage
from penstock.errors import PenstockError

ENGINES, SERVERS = "Engines", "Servers"
_servers = functools.partial(typer.Option, rich_help_panel=SERVERS)
_FASTEST = 10_000_000
_ADDRESS = re.compile(r"(localhost|[\w.-]+:\d{1,5}|\[[\da-fA-F:.]+\]:\d{1,5})(/.*)?")

Concurrency = Annotated[
    str | None,
    _servers(
        metavar="N,…",
        help="Closed loops of so many connections, each with a request under way all the time: capacity. "
        "Default: 1,8,32 where neither --rate nor --slo-ms is given.",
    ),
]
Rate = Annotated[
    str | None,
    _servers(
        metavar="R,…",
        help="Open loops of so many requests a second, evenly spaced, whatever becomes of them; latency counts from "
        "the moment a request was due.",
    ),
]
Poisson = Annotated[bool, _servers("--poisson", help="Requests of an open loop come as from many independent clients.")]
SloMs = Annotated[
    float | None,
    _servers(
        min=0.01,
        max=3_600_000,
        help="Find the highest rate whose p99 stays under so many milliseconds: 10 to 20 runs, half a minute to one "
        "also with a short --seconds, more where rates are low.",
    ),
]
Form = Annotated[
    str | None,
    _servers(
        "--form",
        metavar="FORM",
        autocompletion=completion.forms,
        help="v2-binary, v2-json, image (an upload to penstock's /predict) or grpc. Default: image for pictures, else "
        "v2-binary, or v2-json where the server has no binary extension.",
    ),
]
RowsEach = Annotated[int, _servers("--rows", min=1, max=10_000, help="Rows, or pictures, in one request.")]
Shape = Annotated[
    list[str] | None,
    _servers(
        metavar="INPUT=SIZE,…", help="Shape of an input, rows first, for payloads that are made up: tokens=1,128."
    ),
]
ArtifactOf = Annotated[
    Path | None,
    _servers(
        "--artifact",
        metavar="DIR",
        help="The artifact that is served: its golden rows are sent, and its source's answers are due; or how --data's "
        "pictures, texts and table rows become numbers.",
    ),
]
Processes = Annotated[
    int | None, _servers(min=1, max=256, help="Processes that generate load; default: one for each four cores.")
]
Connections = Annotated[int, _servers(min=1, max=16_384, help="The most connections that an open loop opens.")]
Warmup = Annotated[float, _servers(min=0, max=600, help="Seconds before each run that do not count.")]
Timeout = Annotated[float, _servers(min=0.01, max=3600, help="Seconds for one answer.")]
Tolerance = Annotated[
    float | None,
    _servers(
        min=0,
        max=10,
        help="How far floats may be from the answer that is due, as relative L2 error. Default: 0.01, or the limit in "
        "--artifact's receipt, 0.1 at most.",
    ),
]
Grpc = Annotated[
    str | None, _servers(metavar="HOST:PORT", help="Its gRPC, for --form grpc; default: the port after URL's.")
]
KeyFile = Annotated[
    Path | None,
    _servers("--key-file", metavar="FILE", help="File with the API key; default: PENSTOCK_API_KEY's, if it is set."),
]
Header = Annotated[
    list[str] | None,
    _servers("--header", metavar="NAME: VALUE", help="Goes with every request, over HTTP and gRPC; repeatable."),
]
Ca = Annotated[
    Path | None, _servers("--ca", metavar="FILE", help="Certificates in PEM to trust; default: the system's.")
]
LoadGen = Annotated[
    str | None,
    _servers(
        "--loadgen",
        metavar="SCENARIO",
        autocompletion=completion.scenarios,
        help="Have MLPerf's LoadGen ask, a server or an artifact's runner: singlestream, multistream, server (takes "
        "--rate, and --slo-ms) or offline.",
    ),
]
Logs = Annotated[Path | None, _servers("--logs", metavar="DIR", help="Keep LoadGen's own logs there.")]


@dataclass(frozen=True)
class Asked:
    """The options as they were given."""

    concurrency: str | None
    rate: str | None
    poisson: bool
    slo_ms: float | None
    seconds: float | None
    form: str | None
    rows: int
    shape: list[str] | None
    artifact: Path | None
    data: Path | None
    processes: int | None
    connections: int
    warmup: float
    timeout: float
    tolerance: float | None
    grpc: str | None
    key_file: Path | None
    ca: Path | None
    header: list[str] | None
    loadgen: str | None
    logs: Path | None
    device: str = "cpu"
    threads: str | None = None


def is_server(paths: list[str]) -> bool:
    """Whether the words of the command line are a server's URL, and perhaps a model of it."""
    return paths[0].lower().startswith(("http://", "https://", "grpc://", "grpcs://"))


def see_no_address(paths: list[str]) -> None:
    """See that what is to be an artifact is not a server's address without its scheme.

    Raises:
        PenstockError: it is.
    """
    if _ADDRESS.fullmatch(paths[0]) and not Path(paths[0]).exists():
        words = " ".join([f"http://{paths[0]}", *paths[1:2]])
        raise PenstockError(f"{paths[0]}: no such file or folder; did you mean a server: penstock bench {words}")


def refuse_others(context: typer.Context, panel: str, why: str) -> None:
    """See that no option of a panel is given where it would do nothing.

    Raises:
        PenstockError: one is.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
        if given and getattr(parameter, "rich_help_panel", None) == panel:
            raise PenstockError(f"{parameter.opts[0]}: {why}")


def measure(paths: list[str], asked: Asked, files: reporting.Files) -> int:
    """Measure a server, or have LoadGen measure a server or an artifact; gives the exit status.

    Raises:
        PenstockError: an option does not fit, or there is nothing to measure.
    """
    server = import_stage("penstock.bench.server", "serve")
    report = import_stage("penstock.bench.serverreport", "serve")
    if len(paths) > 2 or (len(paths) == 2 and not is_server(paths)):
        what = "a URL, and one model of it" if is_server(paths) else "one artifact, with --loadgen"
        raise PenstockError(f"{' '.join(paths[1:])[:120]}: must be {what}")
    plan = _plan(server, asked)
    model = paths[1] if len(paths) == 2 else None
    if asked.loadgen is not None:
        scenarios = import_stage("penstock.bench.scenarios", "bench")
        choice = scenarios.Choice(asked.loadgen.lower(), asked.logs, asked.device, _threads(asked.threads))
        result = scenarios.measure(paths[0], model, plan, choice)
    else:
        if asked.logs is not None:
            raise PenstockError("--logs: is for --loadgen, which writes them")
        with report.watching() as watch:
            result = server.measure(paths[0], model, plan, watch)
    reporting.tell(lambda: report.show(result), result, files)
    return int(server.exit_code(result))


def _threads(text: str | None) -> int | None:
    return None if text is None else options.positive(text, "--threads", options.MOST_AT_ONCE)


def _plan(server: Any, asked: Asked) -> Any:
    from penstock.client.access import access, header

    sources = import_stage("penstock.bench.sources", "serve")
    counts, rates = asked.concurrency, _rates(asked.rate)
    if counts is None and not rates and asked.slo_ms is None and asked.loadgen is None:
        counts = "1,8,32"
    if asked.poisson and not rates and asked.slo_ms is None:
        raise PenstockError("--poisson: is of open loops; give --rate or --slo-ms too")
    if asked.grpc is not None and asked.form != "grpc":
        raise PenstockError(
            f"--grpc {asked.grpc[:100]!r}: says where a server's gRPC is; add --form grpc to ask it there"
        )
    concurrency = () if counts is None else options.commas(counts, "--concurrency")
    return server.Plan(
        concurrency=tuple(options.positive(part, "--concurrency") for part in concurrency),
        rates=rates,
        poisson=asked.poisson,
        slo_ms=asked.slo_ms,
        seconds=10.0 if asked.seconds is None else asked.seconds,
        warmup_s=asked.warmup,
        processes=asked.processes,
        connections=asked.connections,
        timeout_s=asked.timeout,
        tolerance=asked.tolerance,
        wanted=sources.Wanted(asked.form, asked.data, asked.artifact, asked.rows, sources.shapes(asked.shape or ())),
        access=replace(access(asked.key_file, asked.ca), more=tuple(header(text) for text in asked.header or ())),
        grpc=asked.grpc,
    )


def _rates(text: str | None) -> tuple[float, ...]:
    found = []
    for part in () if text is None else options.commas(text, "--rate"):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not 0.001 <= rate <= _FASTEST:
            raise PenstockError(f"--rate {part[:20]!r}: must be requests a second, from 0.001 to {_FASTEST:,}")
        found.append(rate)
    return tuple(found)

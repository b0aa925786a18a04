"""Measuring: bench."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import options
from penstock.commands import completion, loading, reporting
from penstock.commands.loading import ENGINES, SERVERS
from penstock.commands.stages import import_stage
from penstock.commands.terminal import one_interrupt, say
from penstock.errors import PenstockError

# Of the exit codes those that this command adds: 2 is an error of the user's in all of them.
PARTLY, INTERRUPTED = 3, 130

_engines = functools.partial(typer.Option, rich_help_panel=ENGINES)
_reports = functools.partial(typer.Option, rich_help_panel="Reports")


def bench(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATHS… | URL [MODEL]", help="Artifact folders or repositories; or a server, and a model of it."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            help="Measured time for each variant and setting, default 1; or for each run against a server, default 10.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data instead of the held-out split, as for eval; or what is sent to a server: pictures, .npz, .npy, "
            ".csv, .json."
        ),
    ] = None,
    batch: Annotated[str, _engines(help="Batch sizes, with commas.")] = "1,8,32",
    threads: Annotated[
        str | None, _engines(help="Numbers of intra-op threads, with commas; default: the runtime's.")
    ] = None,
    streams: Annotated[str, _engines(help="Numbers of callers at once, with commas.")] = "1",
    reference: Annotated[
        str | None, _engines(help="The row that ratios refer to; default: the source, else the first fp32.")
    ] = None,
    budget: Annotated[
        float, _engines(min=0, max=1, help="Accuracy that the fastest may lose of the reference's: 0.01 is 1 point.")
    ] = 0.01,
    device: Annotated[str, _engines(autocompletion=completion.devices, help="cpu, or cuda:0.")] = "cpu",
    source: Annotated[
        Path | None, _engines(help="The checkpoint that they were made of: PyTorch's own speed goes first.")
    ] = None,
    model: Annotated[
        str | None, _engines(help="Its architecture, where that is your own code: pkg.nets:Net or ./net.py:Net.")
    ] = None,
    allow_pickle: Annotated[
        bool, _engines("--allow-pickle", help="Run the code that --source holds, after listing what it imports.")
    ] = False,
    json: Annotated[Path | None, _reports(help="Write raw samples and figures to this file.")] = None,
    csv: Annotated[Path | None, _reports(help="Write a line for each cell or run to this file.")] = None,
    html: Annotated[Path | None, _reports(help="Write a page with charts to this file.")] = None,
    recorded: Annotated[
        Path | None,
        _reports("--from", help="Measure nothing: make the reports from what --json wrote, or show the tables again."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        _reports(
            metavar="OLD NEW",
            help="Compare two files of --json; exits with 1 if the new one is slower beyond noise, with 4 if too noisy "
            "to tell.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        _reports(min=0, max=10, help="With --compare: the slow-down that counts at least; default: 0.05, 5 %."),
    ] = None,
    concurrency: loading.Concurrency = None,
    rate: loading.Rate = None,
    poisson: loading.Poisson = False,
    slo_ms: loading.SloMs = None,
    form: loading.Form = None,
    rows: loading.RowsEach = 1,
    shape: loading.Shape = None,
    artifact: loading.ArtifactOf = None,
    processes: loading.Processes = None,
    connections: loading.Connections = 512,
    warmup: loading.Warmup = 1.0,
    timeout: loading.Timeout = 30.0,
    tolerance: loading.Tolerance = None,
    grpc: loading.Grpc = None,
    key_file: loading.KeyFile = None,
    ca: loading.Ca = None,
    header: loading.Header = None,
    loadgen: loading.LoadGen = None,
    logs: loading.Logs = None,
) -> None:
    """Measure artifacts side by side, or a server: latency, throughput, memory, accuracy, how near the ceiling.

    Examples: `penstock bench models/digits-* --batch 1,8,64 --html bench.html` ·
    `penstock bench models/digits-* --source runs/digits/best.pth` ·
    `penstock bench http://127.0.0.1:8000 digits-onnx-int8 --concurrency 1,8,32` ·
    `penstock bench http://127.0.0.1:8000 --slo-ms 20` · `penstock bench --compare old.json new.json`

    Exit codes: 0 all was measured, and answered rightly; 1 a server's answers failed or were wrong, no rate kept
    --slo-ms, or --compare found a slow-down; 2 nothing was measured (bad input); 3 some was not: an artifact failed, or
    the server was lost; 4 --compare found no slow-down, and not all could be told (too noisy: measure again); 130
    interrupted. After 1, 3 and 130 what was measured is shown and written.
    """
    given = dict(locals())
    files = reporting.Files(json, csv, html, logs)
    files.see()
    read = [(f"--{name.replace('_', '-')}", given[name]) for name in ("data", "source", "key_file", "ca")]
    read += [("--from", recorded), *(("--compare", path) for path in compare or ())]
    reporting.keep_apart({"--json": json, "--csv": csv, "--html": html}, read)
    if compare is not None:
        reporting.only(context, "--compare", "compare", "threshold", "json")
        reporting.compare(compare, threshold, json)
        return
    if threshold is not None:
        raise PenstockError("--threshold: means something only with --compare OLD NEW")
    if recorded is not None:
        reporting.only(context, "--from", "recorded", "csv", "html")
        reporting.again(recorded, csv, html)
        return
    if not paths:
        raise PenstockError(
            "bench needs artifacts or a server's URL to measure, --from a file of results, or --compare with two"
        )
    with one_interrupt():
        if loading.is_server(paths) or loadgen is not None:
            if loading.is_server(paths):
                loading.refuse_others(
                    context, ENGINES, "is for artifacts; a server takes --rows, --concurrency, --rate"
                )
            told = {name: given[name] for name in loading.Asked.__dataclass_fields__}
            code = loading.measure(paths, loading.Asked(**told), files)
        else:
            loading.see_no_address(paths)
            loading.refuse_others(
                context, SERVERS, "is for a server; give its URL, as in penstock bench http://127.0.0.1:8000"
            )
            plan = {
                "batches": _numbers(batch, "--batch"),
                "seconds": 1.0 if seconds is None else seconds,
                "threads": (None,) if threads is None else _numbers(threads, "--threads", options.MOST_AT_ONCE),
                "streams": _numbers(streams, "--streams", options.MOST_AT_ONCE),
                "device": device,
                "data": data,
                "budget": budget,
            }
            sources = _sources(source, device, model, allow_pickle=allow_pickle)
            code = _measured([Path(path) for path in paths], plan, reference, sources, files)
    if code:
        raise typer.Exit(code)


def _sources(source: Path | None, device: str, model: str | None, *, allow_pickle: bool) -> dict[str, Any]:
    """What gives rows of the source, if any are wanted, as `measure` takes it."""
    if source is None:
        if model is not None or allow_pickle:
            option = "--allow-pickle" if model is None else "--model"
            raise PenstockError(f"{option} is of --source CKPT; give that too")
        return {}
    rows = import_stage("penstock.bench.source", "export").rows
    told = {"path": source, "device": device, "say": say, "model": model, "allow_pickle": allow_pickle}
    return {"sources": functools.partial(rows, **told)}


def _measured(
    paths: list[Path],
    plan: dict[str, Any],
    reference: str | None,
    sources: dict[str, Any],
    files: reporting.Files,
) -> int:
    """Measure artifacts, show and write what was found; gives the exit code."""
    measure = import_stage("penstock.bench.measure", "bench")
    report = import_stage("penstock.bench.report", "bench")
    result = measure.measure(paths, measure.Plan(**plan), reference, **sources)
    figures = report.as_dict(result)
    reporting.tell(lambda: report.show_figures(figures), figures, files)
    return INTERRUPTED if result.interrupted else PARTLY if result.failures else 0


def _numbers(text: str, option: str, most: int = 999_999) -> tuple[int, ...]:
    return tuple(options.positive(part, option, most) for part in options.commas(text, option))

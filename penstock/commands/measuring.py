"""Measuring: bench."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands import loading
from penstock.commands.stages import import_stage

_engines = functools.partial(typer.Option, rich_help_panel=loading.ENGINES)


def bench(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS… | URL [MODEL]", help="Artifact folders or repositories; or a server, and a model of it."
        ),
    ],
    batch: Annotated[str, _engines(help="Batch sizes, with commas.")] = "1,8,32",
    reference: Annotated[str | None, _engines(help="The row that ratios refer to; default: the first fp32.")] = None,
    threads: Annotated[int | None, _engines(min=1, help="Intra-op threads; default: the runtime's.")] = None,
    device: Annotated[str, _engines(help="cpu, or cuda:0.")] = "cpu",
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            help="Measured time for each variant and batch, default 1; or for each run against a server, default 10.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data instead of the held-out split, as for eval; or what is sent to a server: pictures, .npz, .npy, "
            ".json."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and figures to this file.")] = None,
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
    """Measure artifacts side by side: latency, throughput, size, accuracy, agreement with the source. Or a server.

    Examples: `penstock bench models/digits-* --batch 1,8,64 --json bench.json` ·
    `penstock bench http://127.0.0.1:8000 digits-onnx-int8 --concurrency 1,8,32` ·
    `penstock bench http://127.0.0.1:8000 --rate 500 --poisson` · `penstock bench http://127.0.0.1:8000 --slo-ms 20`

    Exit status of a server's measurement: 0 all requests were answered rightly; 1 some failed or were answered wrongly,
    or no rate kept --slo-ms; 2 it could not begin; 3 the server was lost meanwhile; 130 interrupted. After 1, 3 and 130
    what was measured is shown and written.
    """
    if loading.is_server(paths) or loadgen is not None:
        if loading.is_server(paths):
            loading.refuse_others(
                context, loading.ENGINES, "is for artifacts; a server takes --rows, --concurrency, --rate"
            )
        asked = loading.Asked(
            concurrency=concurrency,
            rate=rate,
            poisson=poisson,
            slo_ms=slo_ms,
            seconds=seconds,
            form=form,
            rows=rows,
            shape=shape,
            artifact=artifact,
            data=data,
            processes=processes,
            connections=connections,
            warmup=warmup,
            timeout=timeout,
            tolerance=tolerance,
            grpc=grpc,
            key_file=key_file,
            ca=ca,
            header=header,
            loadgen=loadgen,
            logs=logs,
            device=device,
            threads=threads,
        )
        if code := loading.measure(paths, asked, json):
            raise typer.Exit(code)
        return
    loading.refuse_others(
        context, loading.SERVERS, "is for a server; give its URL, as in penstock bench http://127.0.0.1:8000"
    )
    measure = import_stage("penstock.bench.measure", "bench")
    report = import_stage("penstock.bench.report", "bench")
    plan = measure.Plan(
        batches=tuple(options.positive(part, "--batch") for part in options.commas(batch, "--batch")),
        seconds=1.0 if seconds is None else seconds,
        threads=threads,
        device=device,
        data=data,
    )
    result = measure.measure([Path(path) for path in paths], plan, reference)
    if json is not None:
        report.write_json(result, json)
    report.show(result)

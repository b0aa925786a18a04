"""Measuring: bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands import reporting
from penstock.commands.stages import import_stage
from penstock.errors import PenstockError


def bench(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(help="Artifact folders or repositories.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,32",
    reference: Annotated[
        str | None, typer.Option(help="The row that ratios refer to; default: the first fp32.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured time for each variant and batch.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Intra-op threads; default: the runtime's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Data instead of the held-out split, as for eval.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and figures to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a line for each cell or run to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts to this file.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: make the reports from what --json wrote.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="OLD NEW", help="Compare two files of --json; exits with 1 if the new one is slower, beyond noise."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=10, help="With --compare: the slow-down that counts at least; default: 0.05, 5 %."),
    ] = None,
) -> None:
    """Measure artifacts side by side: latency, throughput, size, accuracy, agreement with the source.

    Examples: `penstock bench models/digits-* --batch 1,8,64 --json bench.json --html bench.html` ·
    `penstock bench --from bench.json --csv bench.csv` · `penstock bench --compare old.json new.json`
    """
    if compare is not None:
        reporting.only(context, "--compare", "compare", "threshold", "json")
        reporting.compare(compare, threshold, json)
        return
    if threshold is not None:
        raise PenstockError("--threshold: means something only with --compare OLD NEW")
    if source is not None:
        reporting.only(context, "--from", "source", "csv", "html")
        reporting.again(source, csv, html)
        return
    if not paths:
        raise PenstockError("bench needs artifacts to measure, --from a file of results, or --compare with two")
    measure = import_stage("penstock.bench.measure", "bench")
    report = import_stage("penstock.bench.report", "bench")
    plan = measure.Plan(
        batches=tuple(options.positive(part, "--batch") for part in options.commas(batch, "--batch")),
        seconds=seconds,
        threads=threads,
        device=device,
        data=data,
    )
    result = measure.measure(paths, plan, reference)
    if json is not None:
        report.write_json(result, json)
    reporting.write(report.as_dict(result), csv, html)
    report.show(result)

"""Measuring: bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock import options
from penstock.commands.stages import import_stage


def bench(
    paths: Annotated[list[Path], typer.Argument(help="Artifact folders or repositories.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,32",
    reference: Annotated[
        str | None, typer.Option(help="The row that ratios refer to; default: the first fp32.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured time for each variant and batch.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Intra-op threads; default: the runtime's.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Data instead of the held-out split, as for eval.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and figures to this file.")] = None,
) -> None:
    """Measure artifacts side by side: latency, throughput, size, accuracy, agreement with the source.

    Example: `penstock bench models/digits-* --batch 1,8,64 --json bench.json`
    """
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
    report.show(result)

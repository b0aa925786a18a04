"""Measuring: bench."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import options
from penstock.commands import checkpoints
from penstock.commands.stages import import_stage
from penstock.commands.terminal import say
from penstock.errors import PenstockError

# Of the exit codes those that this command adds: 2 is an error of the user's in all of them.
PARTLY, INTERRUPTED = 3, 130


def bench(
    paths: Annotated[list[Path], typer.Argument(help="Artifact folders or repositories.")],
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,32",
    threads: Annotated[
        str | None, typer.Option(help="Numbers of intra-op threads, with commas; default: the runtime's.")
    ] = None,
    streams: Annotated[str, typer.Option(help="Numbers of callers at once, with commas.")] = "1",
    reference: Annotated[
        str | None, typer.Option(help="The row that ratios refer to; default: the first fp32.")
    ] = None,
    budget: Annotated[
        float,
        typer.Option(min=0, max=1, help="Accuracy that the fastest may lose of the reference's: 0.01 is 1 point."),
    ] = 0.01,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Measured time for each variant, batch, threads and streams.")
    ] = 1.0,
    device: Annotated[str, typer.Option(help="cpu, or cuda:0.")] = "cpu",
    data: Annotated[Path | None, typer.Option(help="Data instead of the held-out split, as for eval.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="The checkpoint that they were made of: PyTorch's own speed goes first.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Its architecture, where that is your own code: pkg.nets:Net or ./net.py:Net.")
    ] = None,
    allow_pickle: checkpoints.PickleOption = False,
    json: Annotated[Path | None, typer.Option(help="Write raw samples and figures to this file.")] = None,
) -> None:
    """Measure artifacts side by side: latency, throughput, memory, accuracy, and how near they come to this machine's
    ceiling.

    Example: `penstock bench models/digits-* --batch 1,8,64 --json bench.json`

    `penstock bench models/digits-* --source runs/digits/best.pth`

    Exit codes: 0 all that runs here was measured; 2 nothing was (bad input); 3 something failed, which the output
    names, and the rest was measured; 130 interrupted by ^C, the rounds that were finished are shown and written.
    """
    measure = import_stage("penstock.bench.measure", "bench")
    report = import_stage("penstock.bench.report", "bench")
    plan = measure.Plan(
        batches=_numbers(batch, "--batch"),
        seconds=seconds,
        threads=(None,) if threads is None else _numbers(threads, "--threads"),
        streams=_numbers(streams, "--streams"),
        device=device,
        data=data,
        budget=budget,
    )
    sources: dict[str, Any] = {}
    if source is not None:
        rows = import_stage("penstock.bench.source", "export").rows
        told = {"path": source, "device": device, "say": say, "model": model, "allow_pickle": allow_pickle}
        sources["sources"] = functools.partial(rows, **told)
    elif model is not None or allow_pickle:
        raise PenstockError(f"{'--allow-pickle' if model is None else '--model'} is of --source CKPT; give that too")
    result = measure.measure(paths, plan, reference, **sources)
    if json is not None:
        report.write_json(result, json)
    report.show(result)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.failures:
        raise typer.Exit(PARTLY)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    return tuple(options.positive(part, option) for part in options.commas(text, option))

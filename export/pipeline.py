"""The export road: checkpoint -> module -> fuse -> format and precision -> gate -> receipt -> publish."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import nn

from penstock import architecture, artifact, checkpoint, datasets, runtimes, trial
from penstock import receipt as receipts
from penstock.adapter import Adapted
from penstock.arrays import take
from penstock.artifact import Artifact
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, Say, first_line
from penstock.export import capture, formats, fusion, gate
from penstock.export.formats import Built, Source
from penstock.export.noise import Noise
from penstock.export.reference import Reference, refer
from penstock.export.request import Request
from penstock.files import sha256
from penstock.parity import Limits, worst
from penstock.receipt import Receipt, Verification
from penstock.signature import SignatureMismatch

PRECISIONS = tuple(gate.LIMITS)
GOLDEN_ROWS = 8
_NO_ROOM = 1 << 20


@dataclass(frozen=True)
class _Job:
    """One checkpoint made ready: what is exported, and what every variant of it is compared with."""

    request: Request
    origin: Checkpoint
    source: Source
    reference: Reference
    notes: dict[str, Any]


def export(request: Request, say: Say) -> list[Artifact]:
    """Export every variant that was asked for, each proven by the gate before it is published.

    Args:
        request: what to export, and how.
        say: told each step, in a line.

    Raises:
        PenstockError: the request, the checkpoint or the output folder is at fault.
        GateError: a variant left its limits; those before it stay published.
    """
    for name, precision in request.variants:
        if precision not in PRECISIONS:
            raise PenstockError(f"--precision {precision!r}: must be one or more of {', '.join(PRECISIONS)}")
        formats.check(name, precision)
    gate.limits("fp32", Noise(by="float64", values={}), request.max_error, request.min_agreement)
    if request.opset is not None and not {"onnx", "trt"} & set(request.formats):
        raise PenstockError(f"--opset {request.opset}: is of ONNX; --format onnx and trt take it")
    if request.road != "auto" and "torchscript" not in request.formats:
        raise PenstockError(f"--{request.road}: is of TorchScript; --format torchscript takes it")
    if "torchscript" in request.formats:
        say("note: PyTorch has deprecated TorchScript; pt2 is its successor, and ONNX gives the same answers")
    job = _prepare(request, say)
    return [_variant(job, name, precision, say) for name, precision in request.variants]


def _prepare(request: Request, say: Say) -> _Job:
    started = time.perf_counter()
    origin = checkpoint.load(request.checkpoint, request.override, say)
    card = origin.card
    given = None if request.data is None else datasets.read(request.data, card.preprocess, card.labels)
    say(f"{request.checkpoint}: {card.architecture.target}, {origin.proof}")
    _check(request, origin, given)
    load_s = time.perf_counter() - started
    module, notes = _fused(request, origin, say)
    reference = refer(origin, given)
    gate.check_source(reference, gate.source_limits(reference.noise, request.max_error))
    for precision in request.precisions:
        _limits(request, reference, precision)  # which refuses a source that is too noisy, before the work
    kind = "real" if reference.real else "synthetic"
    noise = max(reference.noise.values.values())
    say(
        f"the gate compares with the float32 source on {reference.samples} {kind} samples; the source's own noise is "
        f"{noise:.1e} ({reference.noise.by})"
    )
    source = Source(module, origin.call, card.signature, given or origin.calibration, origin.kind)
    return _Job(request, origin, source, reference, {**notes, "load_s": round(load_s, 3)})


def _limits(request: Request, reference: Reference, precision: str) -> dict[str, Limits]:
    return gate.limits(precision, reference.noise, request.max_error, request.min_agreement)


def _check(request: Request, origin: Checkpoint, given: Rows | None) -> None:
    """See to all that can be known before the work begins."""
    signature = origin.card.signature
    if origin.kind == "torchscript" and "pt2" in request.formats:
        raise PenstockError(
            "--format pt2: torch.export does not take TorchScript programs; --format torchscript and onnx do, and a "
            "checkpoint with its --model goes everywhere"
        )
    if signature.batch is None:
        raise PenstockError(
            "the model's inputs and outputs must share a dynamic first dimension, as in "
            f"--input image:float32[batch,3,224,224]; they are {', '.join(map(str, signature.inputs))} -> "
            f"{', '.join(map(str, signature.outputs))}"
        )
    for name, precision in request.variants:
        home = request.output / request.variant_name(origin.card.name, name, precision)
        artifact.check_contract(home, signature)
    if given is not None:
        try:
            signature.check(given.inputs, limit_batch=False)
        except SignatureMismatch as error:
            raise PenstockError(
                f"--data {request.data}: {error} (--dim widens a range, array.astype a dtype)"
            ) from None
    elif "int8" in request.precisions and origin.calibration is None:
        raise PenstockError(
            "--precision int8 needs real samples to measure its scales on, and the checkpoint holds none: give them "
            "with --data FILE.npz (one array for each input, by name)"
        )


def _fused(request: Request, origin: Checkpoint, say: Say) -> tuple[nn.Module, dict[str, Any]]:
    """The module to export, and what the receipt notes of its fusing."""
    if not request.fuse or origin.kind in ("torchscript", "exported"):
        return origin.module, {}
    fused = fusion.fuse(origin.adapted(), capture.examples(origin.card.signature))
    module = fused.module.inner if isinstance(fused.module, Adapted) else fused.module
    parts = [f"Conv-BatchNorm pairs fused: {fused.pairs}"] if fused.pairs else []
    parts += [f"blocks re-parameterised: {fused.reparameterised}"] if fused.reparameterised else []
    parts += [f"not fused: {fused.note}"] if fused.note is not None else []
    if parts:
        say("; ".join(parts))
    notes = {"fused": fused.pairs, "reparameterised": fused.reparameterised, "fuse_note": fused.note}
    return module, {name: value for name, value in notes.items() if value}


def _variant(job: _Job, name: str, precision: str, say: Say) -> Artifact:
    request, reference = job.request, job.reference
    variant = request.variant_name(job.origin.card.name, name, precision)
    with artifact.draft(request.output) as folder:
        work = folder.parent / "work"
        work.mkdir()
        started = time.perf_counter()
        built = _write(job, variant, name, precision, folder, work)
        shutil.rmtree(work)
        written = time.perf_counter()
        try:
            verification = _verify(job, built, folder, precision)
        except GateError as error:
            hint = "" if reference.real else "; the samples were synthetic, and --data gives real ones"
            raise GateError(f"{variant}: {error}{hint}") from None
        except PenstockError as error:
            raise PenstockError(f"{variant}: {error}") from None
        golden = slice(min(GOLDEN_ROWS, reference.samples))
        artifact.write_golden(folder, take(reference.rows.inputs, golden), take(reference.outputs, golden))
        seconds = {"export_s": round(written - started, 3), "verify_s": round(time.perf_counter() - written, 3)}
        receipt = _receipt(job, built, folder, variant, name, precision, verification, seconds)
        published = artifact.publish(folder, request.output, receipt)
    say(describe(published))
    return published


def _write(job: _Job, variant: str, name: str, precision: str, folder: Path, work: Path) -> Built:
    """Write the variant's files; whatever a library fails with becomes one sentence."""
    try:
        return formats.export(name, job.source, job.request.options(precision), folder, work)
    except PenstockError as error:
        raise PenstockError(f"{variant}: {error}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if shutil.disk_usage(work).free < _NO_ROOM:  # a short write that the library took for a damaged file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise PenstockError(f"{variant}: cannot be written: {first_line(error)}") from error


def _verify(job: _Job, built: Built, folder: Path, precision: str) -> Verification:
    runtime, file = built.runtime, built.model_file
    here = runtimes.unavailable(runtime, built.build) is None
    if not here and built.stand_in is not None:
        runtime, file = built.stand_in
    limits = _limits(job.request, job.reference, precision)
    return prove(
        job.reference, runtime, folder / file, limits, precision, engine_run=here, max_error=job.request.max_error
    )


def prove(
    reference: Reference,
    runtime: str,
    path: Path,
    limits: dict[str, Limits],
    precision: str,
    *,
    engine_run: bool = True,
    device: str = "cpu",
    max_error: float | None = None,
) -> Verification:
    """Run a model file at the ends and odd sizes of every range that its signature promises, and compare its answers.

    Args:
        reference: the source and its answers.
        runtime: what runs the file.
        path: the file.
        limits: what each output must keep.
        precision: float32 exports are held to their source beyond the samples too.
        engine_run: whether the file is the artifact's own model, and not a stand-in for an engine.
        device: what it runs on.
        max_error: what the user accepts.

    Raises:
        GateError: a limit is passed.
        PenstockError: the runtime refuses the file, or dies of it.
    """
    signature = reference.signature
    batch = signature.dims[str(signature.batch)]
    if runtime != "torch":  # PyTorch has run the module in this process already
        trial.attempt(runtime, path, signature)
    with runtimes.load(runtime, path, signature, device=device) as runner:
        columns = gate.column_limits(precision, reference, max_error)
        distances = gate.verify(runner, reference.rows, reference.outputs, limits, batch, columns)
        others = gate.verify_dims(runner, reference, limits)
        if precision == "fp32":
            gate.verify_extremes(runner, reference, max_error)
    return Verification(
        runtime=runtime,
        engine_run=engine_run,
        samples=reference.samples,
        real=reference.real,
        batches=gate.sizes(batch),
        distances=tuple(worst([*distances, *others])),
        limits=limits,
        noise=reference.noise.values,
        noise_by=reference.noise.by,
        passed=True,
    )


def _receipt(
    job: _Job,
    built: Built,
    folder: Path,
    variant: str,
    name: str,
    precision: str,
    verification: Verification,
    seconds: dict[str, float],
) -> Receipt:
    card = job.origin.card
    return Receipt(
        name=variant,
        version=1,
        created=datetime.now(timezone.utc),
        format=name,
        precision=precision,
        runtime=built.runtime,
        model_file=built.model_file,
        files=artifact.digests(folder),
        source=_source(job.request, job.origin, name),
        signature=card.signature,
        preprocess=card.preprocess,
        labels=card.labels,
        task=card.task,
        dataset=card.dataset,
        verification=verification,
        calibration=built.calibration,
        build={**built.build, **job.notes, **seconds},
        hardware=built.hardware,
    )


def _source(request: Request, origin: Checkpoint, format: str) -> receipts.Source:
    made, proof = origin.card.architecture, origin.proof
    code = architecture.code(made.target)
    return receipts.Source(
        checkpoint=str(request.checkpoint).encode("utf-8", "backslashreplace").decode(),
        sha256=origin.sha256,
        kind=origin.kind,
        architecture=made.target,
        arguments=made.kwargs,
        code=None if code is None else sha256(code),
        options=request.words(format),
        **{
            key: getattr(proof, key)
            for key in ("loaded", "expected", "wrapper", "why", "prefix", "initial", "tied", "own", "outside")
        },
    )


def describe(published: Artifact) -> str:
    """One line for a published artifact: what it is, how far it is from its source, and how large."""
    receipt = published.receipt
    figures = receipt.verification.distances
    error = max(item.rel_l2 for item in figures)
    agreements = [item.agreement for item in figures if item.agreement is not None]
    agreement = f", top-1 agreement {min(agreements):.2%}" if agreements else ""
    ran = "" if receipt.verification.engine_run else "; its graph was run, the engine itself not yet"
    return f"{published.folder}: relative error {error:.1e}{agreement}, {published.size}{ran}"

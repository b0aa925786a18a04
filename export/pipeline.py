"""The export road: checkpoint -> module -> fuse -> format and precision -> gate -> receipt -> publish."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock import artifact, checkpoint, datasets, evaluation, runtimes, trial
from penstock import receipt as receipts
from penstock.arrays import join, take
from penstock.artifact import MODEL_NAME, Artifact
from penstock.checkpoint import Checkpoint, Override
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError
from penstock.export import capture, formats, fusion, gate
from penstock.export.formats import Built, Options, Source
from penstock.export.quiet import quiet
from penstock.parity import Limits, worst
from penstock.receipt import Receipt, Verification
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Signature, SignatureMismatch, first_message
from penstock.synthetic import synthesize

PRECISIONS = tuple(gate.LIMITS)
GOLDEN_ROWS = 8
_NO_ROOM = 1 << 20
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What the user asked for; one variant is made for each format and precision."""

    checkpoint: Path
    formats: tuple[str, ...] = ("onnx",)
    precisions: tuple[str, ...] = ("fp32",)
    output: Path = Path("models")
    name: str | None = None
    override: Override = field(default_factory=Override)
    fuse: bool = True
    script: bool = False
    data: Path | None = None
    max_error: float | None = None
    min_agreement: float | None = None

    @property
    def variants(self) -> list[tuple[str, str]]:
        """Every format with every precision."""
        return [(name, precision) for name in self.formats for precision in self.precisions]


@dataclass(frozen=True)
class _Job:
    """One checkpoint made ready: what is exported, and what every variant of it is compared with."""

    request: Request
    origin: Checkpoint
    source: Source
    notes: dict[str, Any]
    samples: int
    real: bool
    rows: Rows
    reference: dict[str, Any]


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
        _check_precision(precision)
        formats.check(name, precision)
        _limits(request, precision)
    if "torchscript" in request.formats:
        say("note: PyTorch has deprecated TorchScript; ONNX takes the same inputs and gives the same outputs")
    job = _prepare(request, say)
    return [_variant(job, name, precision, say) for name, precision in request.variants]


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise PenstockError(f"--precision {precision!r}: must be one or more of {', '.join(PRECISIONS)}")


def _prepare(request: Request, say: Say) -> _Job:
    given = None if request.data is None else datasets.read_npz(request.data)
    origin = checkpoint.load(request.checkpoint, request.override)
    say(f"{request.checkpoint}: {origin.card.architecture.target}, {origin.proof}")
    signature = origin.card.signature
    _check(request, origin, given)
    module, notes = _fused(request, origin, say)
    rows, real = _rows(given, origin, signature)
    say(f"the gate compares with the float32 source on {len(rows)} {'real' if real else 'synthetic'} samples")
    samples, rows = len(rows), _whole_batches(rows, signature.max_batch)
    with quiet():
        runner = TorchRunner(origin.module, signature)
        reference = evaluation.outputs(runner, rows, signature.max_batch)
        again = evaluation.outputs(runner, rows.take(signature.max_batch), signature.max_batch)
    if any(
        not np.array_equal(again[name], array[: signature.max_batch], equal_nan=True)
        for name, array in reference.items()
    ):
        raise PenstockError("the model answers the same inputs differently each time; an export of it cannot be proven")
    source = Source(module, signature, given or origin.calibration)
    return _Job(request, origin, source, notes, samples, real, rows, reference)


def _check(request: Request, origin: Checkpoint, given: Rows | None) -> None:
    """See to all that can be known before the work begins."""
    signature = origin.card.signature
    if signature.batch is None:
        raise PenstockError(
            "the model's inputs and outputs must share a dynamic first dimension, as in "
            f"--input image:float32[batch,3,224,224]; they are {', '.join(map(str, signature.inputs))} -> "
            f"{', '.join(map(str, signature.outputs))}"
        )
    for name, precision in request.variants:
        artifact.check_contract(request.output / _variant_name(request, origin, name, precision), signature)
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
    if not request.fuse or not any(isinstance(module, _BatchNorm) for module in origin.module.modules()):
        return origin.module, {}
    module, pairs, reason = fusion.fuse(origin.module, capture.examples(origin.card.signature))
    if reason is not None:
        say(f"not fused: {reason}")
        return module, {"fused": 0, "fuse_note": reason}
    say(f"Conv-BatchNorm pairs fused: {pairs}")
    return module, {"fused": pairs}


def _variant_name(request: Request, origin: Checkpoint, format: str, precision: str) -> str:
    base = request.name or origin.card.name
    name = f"{base}-{format}-{precision}"
    if not MODEL_NAME.fullmatch(name):
        raise PenstockError(
            f"--name {base!r}: the variant {name!r} must be letters, digits, _, - and ., start with a letter or digit, "
            "and have 128 of them at most"
        )
    return name


def _rows(given: Rows | None, origin: Checkpoint, signature: Signature) -> tuple[Rows, bool]:
    """The samples that every variant is compared on: real ones where there are any."""
    held = [rows for rows in (origin.golden, origin.calibration) if rows is not None]
    if given is not None:
        return given, True
    if held:
        return Rows(join([rows.inputs for rows in held]), None), True
    sizes = {name: dim.opt for name, dim in signature.dims.items()}
    return synthesize(signature, {**sizes, str(signature.batch): max(32, signature.max_batch)}), False


def _whole_batches(rows: Rows, batch: int) -> Rows:
    """The rows, the first of them over again until they fill a whole number of batches."""
    index = np.arange(-(-len(rows) // batch) * batch) % len(rows)
    return Rows(take(rows.inputs, index), None)


def _variant(job: _Job, name: str, precision: str, say: Say) -> Artifact:
    request = job.request
    variant = _variant_name(request, job.origin, name, precision)
    with artifact.draft(request.output) as folder:
        work = folder.parent / "work"
        work.mkdir()
        built = _write(job, variant, name, precision, folder, work)
        shutil.rmtree(work)
        try:
            verification = _verify(job, built, folder, precision)
        except GateError as error:
            hint = "" if job.real else "; the samples were synthetic, and --data gives real ones"
            raise GateError(f"{variant}: {error}{hint}") from None
        except PenstockError as error:
            raise PenstockError(f"{variant}: {error}") from None
        golden = slice(min(GOLDEN_ROWS, job.samples))
        artifact.write_golden(
            folder,
            take(job.rows.inputs, golden),
            take(job.reference, golden),
        )
        receipt = _receipt(job, built, folder, variant, name, precision, verification)
        published = artifact.publish(folder, request.output, receipt)
    say(describe(published))
    return published


def _write(job: _Job, variant: str, name: str, precision: str, folder: Path, work: Path) -> Built:
    """Write the variant's files; whatever a library fails with becomes one sentence."""
    try:
        return formats.export(name, job.source, Options(precision, job.request.script), folder, work)
    except PenstockError as error:
        raise PenstockError(f"{variant}: {error}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if shutil.disk_usage(work).free < _NO_ROOM:  # a short write that the library took for a damaged file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        lines = str(error).strip().splitlines() or [""]
        raise PenstockError(f"{variant}: cannot be written: {type(error).__name__}: {lines[0][:300]}") from error


def _verify(job: _Job, built: Built, folder: Path, precision: str) -> Verification:
    runtime, file = built.runtime, built.model_file
    here = runtimes.unavailable(runtime, built.build) is None
    if not here and built.stand_in is not None:
        runtime, file = built.stand_in
    signature = job.source.signature
    limits = _limits(job.request, precision)
    if runtime != "torch":  # PyTorch has run the module in this process already
        trial.attempt(runtime, folder / file, signature)
    with runtimes.load(runtime, folder / file, signature) as runner:
        source, batch = TorchRunner(job.origin.module, signature), signature.dims[str(signature.batch)]
        batches, distances = gate.verify(runner, job.rows, job.reference, limits, batch, source)
        others = gate.verify_dims(runner, source, job.rows, signature, limits)
    return Verification(
        runtime=runtime,
        engine_run=here,
        samples=job.samples,
        real=job.real,
        batches=batches,
        distances=tuple(worst([*distances, *others])),
        limits=limits,
        passed=True,
    )


def _limits(request: Request, precision: str) -> Limits:
    limits = gate.LIMITS[precision]
    asked = {"max_error": request.max_error, "min_agreement": request.min_agreement}
    try:
        return Limits(**{**limits.model_dump(), **{key: value for key, value in asked.items() if value is not None}})
    except ValueError as error:
        raise PenstockError(f"--max-error, --min-agreement: {first_message(error)}") from None


def _receipt(
    job: _Job, built: Built, folder: Path, variant: str, name: str, precision: str, verification: Verification
) -> Receipt:
    card, origin = job.origin.card, job.origin
    return Receipt(
        name=variant,
        version=1,
        created=datetime.now(timezone.utc),
        format=name,
        precision=precision,
        runtime=built.runtime,
        model_file=built.model_file,
        files=artifact.digests(folder),
        source=receipts.Source(
            checkpoint=str(job.request.checkpoint).encode("utf-8", "backslashreplace").decode(),
            sha256=origin.sha256,
            architecture=card.architecture.target,
            arguments=card.architecture.kwargs,
            loaded=origin.proof.loaded,
            expected=origin.proof.expected,
            prefix=origin.proof.prefix,
            options=_options(job.request, name),
        ),
        signature=job.source.signature,
        preprocess=card.preprocess,
        labels=card.labels,
        task=card.task,
        dataset=card.dataset,
        verification=verification,
        calibration=built.calibration,
        build={**built.build, **job.notes},
        hardware=built.hardware,
    )


def _options(request: Request, format: str) -> tuple[str, ...]:
    """The words of the command line that made this request, without format, precision and output."""
    given = request.override
    pairs: list[tuple[str, Any]] = [
        ("--name", request.name),
        ("--model", given.model),
        *(("--model-args", f"{name}={value!r}") for name, value in given.model_args.items()),
        *(("--input", text) for text in given.inputs),
        *(("--dim", f"{name}={dim.min},{dim.opt},{dim.max}") for name, dim in given.dims.items()),
        ("--batch", given.batch and f"{given.batch.min},{given.batch.opt},{given.batch.max}"),
        ("--data", request.data),
        ("--max-error", request.max_error),
        ("--min-agreement", request.min_agreement),
    ]
    words = [word for option, value in pairs if value is not None for word in (option, str(value))]
    words += ["--no-fuse"] if not request.fuse else []
    words += ["--script"] if request.script and format == "torchscript" else []
    return tuple(words)


def describe(published: Artifact) -> str:
    """One line for a published artifact: what it is, how far it is from its source, and how large."""
    receipt = published.receipt
    figures = receipt.verification.distances
    error = max(item.rel_l2 for item in figures)
    agreements = [item.agreement for item in figures if item.agreement is not None]
    agreement = f", top-1 agreement {min(agreements):.2%}" if agreements else ""
    ran = "" if receipt.verification.engine_run else "; its graph was run, the engine itself not yet"
    return f"{published.folder}: relative error {error:.1e}{agreement}, {published.size}{ran}"

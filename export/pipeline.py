"""The export road: checkpoint -> module -> fuse -> format and precision -> gate -> receipt -> publish."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from penstock import (
    architecture,
    artifact,
    checkpoint,
    datasets,
    engines,
    evaluation,
    evidence,
    replay,
    runtimes,
    trial,
)
from penstock.adapter import Adapted
from penstock.arrays import take
from penstock.artifact import Artifact
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, Say, first_line, nearest
from penstock.export import (
    capture,
    choice,
    formats,
    fusion,
    labels,
    limits,
    lowering,
    proving,
    record,
    speed,
    steadiness,
)
from penstock.export import graph as graphs
from penstock.export import wire as wires
from penstock.export.engine import recipe
from penstock.export.formats import Built, Options, Source
from penstock.export.noise import Noise
from penstock.export.precision import calibration as calibrations
from penstock.export.precision import dynamic
from penstock.export.proving import Terms
from penstock.export.reference import Reference, refer
from penstock.export.request import Request
from penstock.export.wire import Wire
from penstock.parity import worst
from penstock.receipt import Candidate, Verification
from penstock.runtimes.torch import TorchRunner
from penstock.signature import SignatureMismatch

PRECISIONS = tuple(limits.LIMITS)
GOLDEN_ROWS = 8
_RANDOM_ROWS = 128
AUTO = "auto"
# The precisions that have scales, which are measured on samples.
_SCALED = {"int8", "int8-fp16", "fp8"}
# Measured seconds for each candidate.
_AUTO_S = 2.0
_NO_ROOM = 1 << 20


@dataclass(frozen=True)
class _Job:
    """One checkpoint made ready: what is exported, and what every variant of it is compared with.

    `source` and `terms` are of the float road, which lowering and limits are of whatever artifacts take; `origin.card`
    and `seen`, the reference of the gate, are of what they take.
    """

    request: Request
    origin: Checkpoint
    source: Source
    terms: Terms
    wire: Wire
    seen: Reference
    notes: dict[str, Any]
    stage: Say = lambda stage: None


def export(request: Request, say: Say, stage: Say = lambda stage: None) -> list[Artifact]:
    """Export every variant that was asked for, each proven by the gate before it is published.

    Args:
        request: what to export, and how.
        say: told each step, in a line.
        stage: told what is being done, before it is.

    Raises:
        PenstockError: the request, the checkpoint or the output folder is at fault.
        GateError: a variant left its limits; those before it stay published.
    """
    for precision in request.precisions:
        if precision not in PRECISIONS:
            near = nearest(precision, PRECISIONS)
            raise PenstockError(f"--precision {precision!r}: must be one or more of {', '.join(PRECISIONS)}{near}")
    limits.of_variant("fp32", Noise(by="float64", values={}), request.max_error, request.min_agreement)
    if request.calibration not in (lowering.AUTO, dynamic.METHOD):
        calibrations.check_method(request.calibration)
    _refuse_idle(request)
    _see_files(request)
    if request.formats == (AUTO,):
        if request.opset is not None or request.road != "auto":
            raise PenstockError("--format auto: takes no --opset, --trace and --script; they are of one format")
        return [_chosen(request, say, stage)]
    for name, precision in request.variants:
        formats.check(name, precision)
    if request.opset is not None and not {"onnx", "trt"} & set(request.formats):
        raise PenstockError(f"--opset {request.opset}: is of ONNX; --format onnx and trt take it")
    for option, given in request.engine_options():
        if given and "trt" not in request.formats:
            raise PenstockError(f"{option}: is of TensorRT; --format trt takes it")
    if "trt" in request.formats:
        _check_builder(request)
    if request.road != "auto" and "torchscript" not in request.formats:
        raise PenstockError(f"--{request.road}: is of TorchScript; --format torchscript takes it")
    if "torchscript" in request.formats:
        say("note: PyTorch has deprecated TorchScript; pt2 is its successor, and ONNX gives the same answers")
    stage("loading, and measuring the source's own noise")
    job = replace(_prepare(request, say), stage=stage)
    _refuse_unscaled(job)
    return [_variant(job, name, precision, say) for name, precision in request.variants]


def _check_builder(request: Request) -> None:
    """See at once that an engine can be built here as it is asked for, or is to be built elsewhere."""
    wishes = request.engine
    if request.defer:
        recipe.check(wishes, wishes.flavor)
        return
    try:
        flavor, _ = engines.flavor_of(wishes.flavor, build=True)
    except PenstockError as error:
        raise PenstockError(f"{error}; or leave the building to the machine that is to run it: --defer") from None
    recipe.check(wishes, flavor)


def _see_files(request: Request) -> None:
    """See that the files beside the checkpoint are there, and the names in one, before a large checkpoint is read."""
    datasets.see_there(request.data)
    architecture.see_there(request.override.model)
    if request.labels is not None:
        labels.read(request.labels)


def _refuse_idle(request: Request) -> None:
    """Refuse options that none of the precisions makes use of."""
    asked = ", ".join(request.precisions)
    if request.accuracy_drop is not None and set(request.precisions) == {"fp32"}:
        raise PenstockError(
            f"--accuracy-drop {request.accuracy_drop:g}: is of a lower precision, as --int8 is, not of {asked}"
        )
    if request.calibration != lowering.AUTO and not _SCALED & set(request.precisions):
        raise PenstockError(f"--calibration {request.calibration}: is of int8 and fp8, not of {asked}")


def _chosen(request: Request, say: Say, stage: Say) -> Artifact:
    """Export what may be fast here, measure it, and publish the fastest that is within the budget."""
    place = choice.device()
    able, refused = choice.candidates(request.precisions, place)
    choice.refuse_none(able, refused)
    # Of the candidates those that lack samples fall out by themselves.
    job = _prepare(replace(request, formats=tuple(dict.fromkeys(name for name, _ in able))), say, needing_samples=())
    with artifact.draft(request.output) as folder:
        inside = replace(job, stage=stage, request=replace(job.request, output=folder.parent / "candidates"))
        found = []
        for name, precision in able:
            try:
                found.append(_variant(inside, name, precision, lambda line: None))
            except PenstockError as error:
                refused.append(Candidate(format=name, precision=precision, refused=choice.reason_of(error)))
        choice.refuse_none(found, refused)
        signature = job.origin.card.signature
        cells = choice.measure(found, signature.dims[str(signature.batch)].opt, _AUTO_S, place)
        made = choice.choose(found, cells, refused).model_copy(update={"device": place})
        for line in choice.table(made):
            say(line)
        (best,) = [item for item in found if item.receipt.name == made.chosen]
        receipt = best.receipt.model_copy(update={"choice": made})
        (best.folder / artifact.RECEIPT).unlink()
        published = artifact.publish(best.folder, request.output, receipt, say)
    say(replay.describe(published))
    return published


def _prepare(request: Request, say: Say, needing_samples: Sequence[tuple[str, str]] | None = None) -> _Job:
    started = time.perf_counter()
    origin = checkpoint.load(request.checkpoint, request.override, say)
    say(f"{request.checkpoint}: {origin.card.architecture.target}, {origin.proof}")
    origin = replace(origin, card=labels.named(request, origin.card, say))
    card = origin.card
    wire = wires.of(request.checkpoint, card, pixels=request.pixels)
    given = None
    if request.data is not None:
        given = datasets.read(request.data, wire.card.preprocess, card.labels, task=card.task, dataset=card.dataset)
    taking = replace(origin, card=wire.card)
    _check(request, taking, given, request.variants if needing_samples is None else needing_samples)
    given = None if given is None else wire.numbers(given)
    load_s = time.perf_counter() - started
    module, notes = _fused(request, origin, say)
    reference = refer(origin, wire.samples(origin, given))
    steadiness.check_source(reference, limits.of_source(reference.noise, request.max_error))
    terms = _terms(request, origin, reference, given)
    for precision in request.precisions:
        terms.budget(precision)  # which refuses a source that is too noisy, before the work
    kind = "real" if reference.real else "synthetic"
    noise = max(reference.noise.values.values())
    say(
        f"the gate compares with the float32 source on {reference.samples} {kind} samples; the source's own noise is "
        f"{noise:.1e} ({reference.noise.by})"
    )
    calibration = given or origin.calibration
    if request.random_data and request.calibration != dynamic.METHOD and _SCALED & set(request.precisions):
        say("note: scales are measured on RANDOM numbers, as --data random asks; the receipt says so")
        calibration = wire.drawn(_RANDOM_ROWS)
    samples = Rows(reference.rows.inputs, None, reference.real).take(reference.samples)
    source = Source(module, origin.call, card.signature, calibration, samples, origin.kind, wire.image)
    seen = wire.reference(reference)
    return _Job(request, taking, source, terms, wire, seen, {**notes, "load_s": round(load_s, 3)})


def _refuse_unscaled(job: _Job) -> None:
    """Refuse int8 that lacks samples before the variants in front of it are made and published."""
    request, source = job.request, job.source
    if ("onnx", "int8") not in request.variants[1:] or source.calibration is not None or source.samples is None:
        return
    lacking = False
    with suppress(Exception), tempfile.TemporaryDirectory() as work:  # the variant itself tells what is wrong then
        lacking = lowering.scaled_before(
            *(source.graph, source.signature, source.samples, request.calibration, Path(work))
        )
    if lacking:
        raise PenstockError(lowering.needs_samples("int8"))


def _terms(request: Request, origin: Checkpoint, reference: Reference, given: Rows | None) -> Terms:
    """What variants must keep, labelled samples among it where accuracy is asked for."""
    lowered = set(request.precisions) != {"fp32"}
    terms = Terms(reference, request.max_error, request.min_agreement, lowered=lowered)
    if request.accuracy_drop is None:
        return terms
    card = origin.card
    labelled = given if given is not None else evaluation.held_out(card.dataset, card.preprocess, "val", card.task)
    return replace(terms, accuracy=proving.accuracy(reference, labelled, request.accuracy_drop))


def _check(
    request: Request, origin: Checkpoint, given: Rows | None, needing_samples: Sequence[tuple[str, str]]
) -> None:
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
    elif origin.calibration is None and not request.random_data:
        for name, precision in needing_samples:
            static = name == "trt" or request.calibration not in (lowering.AUTO, dynamic.METHOD)
            if precision == "fp8" or (precision.startswith("int8") and static):
                raise PenstockError(lowering.needs_samples(precision))


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
    request, reference = job.request, job.seen
    variant = request.variant_name(job.origin.card.name, name, precision)
    place = f"{name} {precision}, {request.variants.index((name, precision)) + 1} of {len(request.variants)}"
    with artifact.draft(request.output) as folder:
        work = folder.parent / "work"
        work.mkdir()
        started = time.perf_counter()
        job.stage(f"{place}: writing")
        built = _write(job, variant, name, precision, folder, work, say)
        written = time.perf_counter()
        job.stage(f"{place}: comparing with the source")
        try:
            verification, careful = _verify(job, built, folder, precision)
        except GateError as error:
            hint = "" if reference.real else "; the samples were synthetic, and --data gives real ones"
            raise GateError(f"{variant}: {error}{hint}") from None
        except PenstockError as error:
            raise PenstockError(f"{variant}: {error}") from None
        if built.build.get("rows_share_scales"):
            say(
                f"{variant}: note: rows of a run share their scales; penstock serve gives each request a run of its own"
            )
        job.stage(f"{place}: measuring its speed")
        timed = _timed(job, variant, built, folder, precision, work, say, careful=careful)
        shutil.rmtree(work)
        golden = slice(min(GOLDEN_ROWS, reference.samples))
        artifact.write_golden(folder, take(reference.rows.inputs, golden), take(reference.outputs, golden))
        if not verification.engine_run:
            evidence.write(folder, reference.rows, reference.outputs, reference.samples, reference.places)
        seconds = {"export_s": round(written - started, 3), "verify_s": round(time.perf_counter() - written, 3)}
        more = {**job.notes, **timed, **seconds, **({"careful": True} if careful else {})}
        receipt = record.of(request, job.origin, built, folder, variant, name, precision, verification, more)
        published = artifact.publish(folder, request.output, receipt, say)
    say(replay.describe(published))
    return published


def _write(job: _Job, variant: str, name: str, precision: str, folder: Path, work: Path, say: Say) -> Built:
    """Write the variant's files; whatever a library fails with becomes one sentence."""
    request = job.request
    try:
        wish = job.terms.wish(precision, request.calibration, say)
        options = Options(
            *(precision, request.road, request.opset, wish), request.engine, request.narrower, request.defer
        )
        return formats.export(name, job.source, options, folder, work)
    except PenstockError as error:
        raise PenstockError(f"{variant}: {error}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # A short write that the library took for a damaged file.
        if min(shutil.disk_usage(place).free for place in (work, tempfile.gettempdir())) < _NO_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise PenstockError(f"{variant}: cannot be written: {first_line(error)}") from error


def _judged_on(built: Built, precision: str) -> str:
    """Where the gate runs a variant: half precision where its kernels are; onnxruntime's CPU computes it in float32."""
    half = built.runtime == "onnxruntime" and precision in ("fp16", "bf16")
    return choice.device() if half else "cpu"


def _timed(
    job: _Job, variant: str, built: Built, folder: Path, precision: str, work: Path, say: Say, *, careful: bool
) -> dict[str, tuple[float, ...]]:
    """How a lowered model's speed compares with float32's here, an engine's with fp16's; a slower one is told."""
    if precision == "fp32" or runtimes.unavailable(built.runtime, built.build):
        return {}
    reference, device = job.seen, choice.device() if built.runtime == "onnxruntime" else "cpu"
    inputs, signature = take(reference.rows.inputs, slice(GOLDEN_ROWS)), reference.signature
    sibling = job.request.output / f"{variant.removesuffix(precision)}fp16"
    if built.runtime == "tensorrt":
        facts, said = speed.of_engine(folder / built.model_file, signature, precision, sibling, inputs)
        if said is not None:
            say(f"{variant}: {said}")
        return facts
    if built.runtime == "onnxruntime":
        plain = graphs.write(job.source.finished(job.source.graph), work, "reference.onnx")[0]
        full = runtimes.load("onnxruntime", plain, signature, device=device)
    else:
        full = TorchRunner(reference.module, signature)
    file = folder / built.model_file
    with full, runtimes.load(built.runtime, file, signature, device=device, careful=careful) as low:
        found = speed.against(low, full, signature, inputs)
    half = speed.of_sibling(sibling)
    if (said := speed.note(precision, found[0], half, device)) is not None:
        say(f"{variant}: {said}")
    return {"speed_vs_fp32": tuple(round(value, 3) for value in found)}


def _verify(job: _Job, built: Built, folder: Path, precision: str) -> tuple[Verification, bool]:
    """What the gate saw, and whether the runtime must be careful with the file."""
    runtime, file = built.runtime, folder / built.model_file
    here = runtimes.unavailable(runtime, built.build) is None
    if not here and built.stand_in is not None:
        runtime, file = built.stand_in
    device = _judged_on(built, precision) if here else "cpu"
    # PyTorch has run the module in this process already.
    careful = runtime != "torch" and trial.needs_care(runtime, file, job.seen.signature, device)
    budget = job.wire.budget(job.terms.budget(precision))
    proven = proving.prove(
        job.seen,
        runtime,
        file,
        budget,
        precision,
        engine_run=here,
        device=device,
        max_error=job.terms.accepted(precision),
        careful=careful,
    )
    if here and built.rounding is not None and device == "cpu":
        # This CPU computes it in float32; what its precision does elsewhere counts too.
        rounded = proving.prove(
            *(job.seen, "onnxruntime", built.rounding, budget, precision),
            max_error=job.terms.accepted(precision),
        )
        proven = proven.model_copy(update={"distances": tuple(worst([*proven.distances, *rounded.distances]))})
    return proven, careful

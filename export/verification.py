"""Verification anew: a published artifact run again, against the checkpoint that it was made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock import architecture, card, checkpoint, datasets, evaluation, options, trial
from penstock.artifact import Artifact
from penstock.checkpoint import Checkpoint, Override
from penstock.errors import GateError, PenstockError, Say
from penstock.export import gate, limits, proving, steadiness
from penstock.export.proving import Terms
from penstock.export.reference import refer
from penstock.files import sha256
from penstock.parity import Limits
from penstock.receipt import Source
from penstock.replay import opened, show
from penstock.signature import Signature
from penstock.state import Choice

_OWN_LIMITS = {"--max-error", "--min-agreement", "--accuracy-drop"}


def verify(
    folder: Path,
    against: Path,
    data: Path | None,
    model: str | None,
    say: Say,
    device: str = "cpu",
    *,
    allow_pickle: bool = False,
) -> None:
    """Check an artifact's digests, load it by its runtime, and compare it with a checkpoint as the gate does.

    Args:
        folder: the artifact.
        against: the checkpoint.
        data: samples, `.npz` or a folder; without them those that the checkpoint holds, or synthetic ones.
        model: the architecture, where it is the user's own code: a receipt alone does not get it imported.
        say: told each step, in a line.
        device: what runs the artifact; the checkpoint runs on the CPU.
        allow_pickle: run the code that the checkpoint holds, whatever the receipt says of it.

    Raises:
        GateError: it does not answer as the checkpoint does.
        PenstockError: it is damaged, cannot run here, or the checkpoint is of another contract.
    """
    found = opened(folder, say, device)
    receipt = found.receipt
    origin = _source(found, against, _override(receipt.source, model, allow_pickle), say)
    given = None if data is None else datasets.read(data, receipt.preprocess, receipt.labels)
    if given is not None:
        receipt.signature.check(given.inputs, limit_batch=False)
    reference = refer(origin, given)
    held = [limit.max_error for limit in receipt.verification.limits.values()]
    accepted = max(held) if "--max-error" in receipt.source.options else None
    steadiness.check_source(reference, limits.of_source(reference.noise, accepted))
    terms = Terms(reference, accepted)
    labelled = given
    if (kept := receipt.verification.accuracy) is not None and given is None and "--data" not in receipt.source.options:
        labelled = evaluation.held_out(receipt.dataset, receipt.preprocess, "val")  # as the export took them
    if kept is not None and labelled is not None and labelled.labels is not None:
        terms = replace(terms, accuracy=proving.accuracy(reference, labelled, kept.most_lost))
    budget = terms.budget(receipt.precision)
    kind = "real" if reference.real else "SYNTHETIC"
    budget = replace(budget, limits=_widened(found) or budget.limits)
    careful = bool(receipt.build.get("careful"))
    if receipt.runtime != "torch":
        trial.attempt(receipt.runtime, found.model_path, receipt.signature, device, careful=careful)
    try:
        proven = proving.prove(
            reference,
            receipt.runtime,
            found.model_path,
            budget,
            receipt.precision,
            device=device,
            max_error=accepted,
            careful=careful,
        )
    except GateError as error:
        told = str(error).removeprefix(gate.STOPPED).lstrip(": ").partition("; nothing was published")[0]
        seen = f"on {reference.samples} {kind} samples"
        hint = _of_receipt(found) if data is None and not reference.real else ""
        raise GateError(f"{found.folder} does not answer as {against} does, {seen}: {told}{hint}") from None
    batches = ", ".join(map(str, proven.batches))
    say(f"compared with {against} on {reference.samples} {kind} samples, at batches {batches}")
    if (scored := proven.accuracy) is not None:
        figures = f"{scored.source:.2%} -> {scored.export:.2%} of {scored.samples}"
        say(f"  accuracy {figures} (may fall by {scored.most_lost:g} points)")
    elif kept is not None:
        say("note: the accuracy that it was exported for was not looked at: --data with labels does")
    show(found, list(proven.distances), budget.limits, say)


def _of_receipt(found: Artifact) -> str:
    """The samples that an artifact was proven on, where those were real and named."""
    data = _first(found.receipt.source, "--data")
    real = found.receipt.verification.real and data not in (None, "random")
    return f"; its receipt's were {found.receipt.verification.samples} real ones: --data {data}" if real else ""


def _widened(found: Artifact) -> dict[str, Limits]:
    """The limits that the user gave when the artifact was exported, which hold here too."""
    words = found.receipt.source.options
    return found.receipt.verification.limits if _OWN_LIMITS & set(words) else {}


def _source(found: Artifact, against: Path, override: Override, say: Say) -> Checkpoint:
    """The checkpoint, loaded as it was when the artifact was made of it."""
    source = found.receipt.source
    origin = checkpoint.load(against, override, say)
    say(f"{against}: {origin.card.architecture.target}, {origin.proof}")
    if origin.sha256 != source.sha256:
        say(f"note: {against} is not the file that the artifact was made of ({source.checkpoint}); its answers decide")
    code = architecture.code(origin.card.architecture.target)
    if code is not None and source.code is not None and sha256(code) != source.code:
        say(f"note: {code} has changed since")
    ours, theirs = found.receipt.signature, origin.card.signature
    if (ours.inputs, ours.outputs, ours.dims) != (theirs.inputs, theirs.outputs, theirs.dims):
        raise PenstockError(
            f"--against {against}: {_text(theirs)}; the artifact takes {_text(ours)}: it is of another model"
        )
    return origin


def _override(source: Source, model: str | None, allow_pickle: bool) -> Override:
    """What the user said when the artifact was made, from the receipt's words."""
    target = model or _first(source, "--model")
    library = (target or "").partition(":")[0] in architecture.LIBRARIES
    if target is not None and model is None and not library and not card.trusted(target):
        raise PenstockError(
            f"the artifact was made of the architecture {target!r}, whose import would run its code; if you trust it, "
            f"give it yourself: --model {target}"
        )
    batch = _first(source, "--batch")
    ema = True if "--ema" in source.options else False if "--no-ema" in source.options else None
    return Override(
        model=target,
        model_args=architecture.parse_arguments(_all(source, "--model-args")),
        inputs=tuple(_all(source, "--input")),
        dims=options.size_ranges(_all(source, "--dim")),
        batch=None if batch is None else options.size_range(batch, "--batch"),
        ranges=options.value_ranges(_all(source, "--range")),
        keep=tuple(_all(source, "--keep")),
        allow_pickle=allow_pickle,
        choice=Choice(ema, _first(source, "--key"), _first(source, "--prefix"), tuple(_all(source, "--allow-partial"))),
    )


def _all(source: Source, option: str) -> list[str]:
    return [source.options[place + 1] for place, word in enumerate(source.options[:-1]) if word == option]


def _first(source: Source, option: str) -> str | None:
    return next(iter(_all(source, option)), None)


def _text(signature: Signature) -> str:
    dims = ", ".join(f"{name} {dim.min} to {dim.max}" for name, dim in signature.dims.items())
    return f"{', '.join(map(str, signature.inputs))} -> {', '.join(map(str, signature.outputs))} ({dims})"

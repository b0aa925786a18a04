"""Verification anew: a published artifact run again, against the checkpoint that it was made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock import datasets, evaluation, trial
from penstock import origin as origins
from penstock.artifact import Artifact
from penstock.errors import GateError, Say
from penstock.export import gate, limits, proving, steadiness
from penstock.export import wire as wires
from penstock.export.proving import Terms
from penstock.export.reference import refer
from penstock.parity import Limits
from penstock.preprocess import ImagePreprocess
from penstock.replay import opened, show

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
    datasets.see_there(data)
    found = opened(folder, say, device)
    receipt = found.receipt
    origin = origins.opened(found, against, say, option="--against", model=model, allow_pickle=allow_pickle)
    given = None
    if data is not None:
        given = datasets.read(data, receipt.preprocess, receipt.labels, task=receipt.task, dataset=receipt.dataset)
    pixels = isinstance(receipt.preprocess, ImagePreprocess) and receipt.preprocess.dtype == "uint8"
    wire = wires.of(against, origin.card, pixels=pixels)
    if given is not None:
        receipt.signature.check(given.inputs, limit_batch=False)
        given = wire.numbers(given)
    reference = refer(origin, wire.samples(origin, given))
    held = [limit.max_error for limit in receipt.verification.limits.values()]
    accepted = max(held) if "--max-error" in receipt.source.options else None
    steadiness.check_source(reference, limits.of_source(reference.noise, accepted))
    terms = Terms(reference, accepted)
    labelled = given
    if (kept := receipt.verification.accuracy) is not None and given is None and "--data" not in receipt.source.options:
        card = origin.card
        labelled = evaluation.held_out(receipt.dataset, card.preprocess, "val", card.task)  # as the export took them
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
            wire.reference(reference),
            receipt.runtime,
            found.model_path,
            wire.budget(budget),
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
    data = origins.first(found.receipt.source, "--data")
    real = found.receipt.verification.real and data not in (None, "random")
    return f"; its receipt's were {found.receipt.verification.samples} real ones: --data {data}" if real else ""


def _widened(found: Artifact) -> dict[str, Limits]:
    """The limits that the user gave when the artifact was exported, which hold here too."""
    words = found.receipt.source.options
    return found.receipt.verification.limits if _OWN_LIMITS & set(words) else {}

"""Replay: an artifact's stored inputs run again, and its answers compared with those stored of its source."""

from __future__ import annotations

from pathlib import Path

from penstock import artifact, evaluation, parity
from penstock.artifact import Artifact
from penstock.datasets import Rows
from penstock.errors import PenstockError, Say
from penstock.parity import Distance, Limits
from penstock.runtimes import Runner


def replay(found: Artifact, runner: Runner) -> list[Distance]:
    """See that a loaded runner still gives the source model's outputs for the stored inputs.

    Returns:
        How far each output is from the stored one.

    Raises:
        PenstockError: a limit of the receipt's is passed.
    """
    receipt = found.receipt
    inputs, outputs = found.golden()
    signature, limits = receipt.signature, receipt.verification.limits
    try:
        answer = evaluation.outputs(runner, Rows(inputs, None), signature.max_batch, signature.min_batch)
        # Agreement over eight rows says little; the gate held it over all samples.
        distances = [item.without_agreement() for item in parity.compare(outputs, answer)]
    except ValueError as error:
        raise PenstockError(f"{receipt.name}: its answer to its own golden inputs is wrong: {error}") from None
    for item in distances:
        failure = item.failure(limits[item.output])
        if failure is not None:
            raise PenstockError(
                f"{receipt.name}: output {item.output!r} for its own golden inputs is wrong on this machine: {failure}"
            )
    return distances


def verify(folder: Path, say: Say, device: str = "cpu") -> None:
    """Check an artifact's digests, load it by its runtime, and replay the answers that it stores of its source.

    Raises:
        PenstockError: it is damaged, cannot run here, or does not answer as it should.
    """
    found = opened(folder, say, device)
    with found.load(device=device) as runner:
        distances = replay(found, runner)
    show(found, distances, found.receipt.verification.limits, say)


def opened(folder: Path, say: Say, device: str = "cpu") -> Artifact:
    """The artifact in a folder, undamaged and fit to run on a device here.

    Raises:
        PenstockError: it is not.
    """
    found = artifact.read(folder)
    found.check_digests()
    say(f"{found.folder}: {len(found.receipt.files)} files, digests as in the receipt")
    reason = found.unavailable(device)
    if reason is not None:
        raise PenstockError(f"{found.folder}: {reason}")
    return found


def show(found: Artifact, distances: list[Distance], limits: dict[str, Limits], say: Say) -> None:
    """Say how far each output is from its source, and that this is within the limits."""
    receipt = found.receipt
    for item in distances:
        agreement = "" if item.agreement is None else f", top-1 agreement {item.agreement:.2%}"
        say(
            f"  {item.output}: relative L2 error {item.rel_l2:.2e} (limit "
            f"{limits[item.output].max_error:.2e}), largest absolute {item.max_abs:.2e}, "
            f"cosine {item.cosine:.9f}{agreement}"
        )
    say(f"verified: {receipt.name} version {receipt.version} answers as its source does")


def describe(published: Artifact) -> str:
    """One line for a published artifact: what it is, how far it is from its source, and how large."""
    receipt = published.receipt
    figures = receipt.verification.distances
    error = max(item.rel_l2 for item in figures)
    agreements = [item.agreement for item in figures if item.agreement is not None]
    agreement = f", top-1 agreement {min(agreements):.2%}" if agreements else ""
    kept, ran = receipt.verification.accuracy, ""
    scored = f", accuracy {kept.source:.2%} -> {kept.export:.2%} of {kept.samples}" if kept else ""
    if not receipt.verification.engine_run:
        ran = (
            _unrun(published) if receipt.runtime == "tensorrt" else "; emulated in float32, run by its kernels not yet"
        )
    return f"{published.folder}: relative error {error:.1e}{agreement}{scored}, {published.size}{ran}"


def _unrun(published: Artifact) -> str:
    """What is still to be done for an engine that has not run."""
    graph = "its graph was run"
    if published.receipt.precision == "tf32":
        graph += " in float32, which tf32 rounds"
    if published.receipt.build.get("deferred"):
        command = artifact.rebuild_command(published)
        return f"; {graph}; there is no engine yet: on the machine that is to run it, {command}"
    return f"; {graph}, the engine itself not yet: on a machine that runs it, {artifact.verify_command(published)}"

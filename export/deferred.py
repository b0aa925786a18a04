"""Deferred engines: built on the machine that is to run them, and held to what their source answered elsewhere.

Needs TensorRT and a GPU, and neither torch nor onnx.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact, evidence, replay, runtimes, trial
from penstock.arrays import take
from penstock.artifact import Artifact
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, Say
from penstock.evidence import Evidence
from penstock.export import gate, speed
from penstock.export.engine import recipe as recipes
from penstock.export.engine.build import build as build_engine
from penstock.export.engine.build import hardware
from penstock.export.engine.recipe import GRAPH_FILE, LATER_FILE, MODEL_FILE, Recipe
from penstock.files import write_whole
from penstock.parity import HIDDEN_LOWER, Columns, Limits, small_columns, worst
from penstock.receipt import Receipt, Verification

_TIMED_ROWS = 8
# How much further from its source than its graph an engine may be, where the budget was of labels.
_SLACK, _MORE = 1.5, 0.02
# What another machine's build said of itself, and the next one may not say.
_OF_ONE_BUILD = {
    *("deferred", "tool", "graph", "flags", "layers", "seconds", "warnings", "timing_cache", "speed_vs_fp16"),
    *("gpu", "compute_capability", "driver", "cuda"),
}


def build(folder: Path, say: Say, **wishes: Any) -> Artifact:
    """Build the engine of a deferred artifact, run it against its source's answers, and publish it as a new version.

    Args:
        folder: the artifact.
        say: told each step, in a line.
        **wishes: fields of `Wishes` that take the place of the recipe's.

    Raises:
        GateError: the engine does not answer as its source did; nothing is published.
        PenstockError: the artifact is damaged or of another kind, or its engine cannot be built here.
    """
    found = artifact.read(folder)
    found.check_digests()
    receipt = found.receipt
    recipe = recipes.of_build(receipt.build)
    if receipt.format != "trt" or recipe is None:
        raise PenstockError(
            f"{found.folder}: is an artifact of format {receipt.format}, without a build recipe; penstock export "
            "--format trt leaves one"
        )
    _check_recipe(found, recipe)
    # How long it may take is of one machine.
    recipe = Recipe.model_validate({**recipe.model_dump(exclude={"limit_s"}), **wishes})
    where = found.folder.resolve()
    if (where.name, where.parent.name) != (str(receipt.version), receipt.name):
        raise PenstockError(
            f"{where}: its receipt says version {receipt.version} of {receipt.name}, so it must lie in "
            f"{receipt.name}/{receipt.version}: what is built is published beside it"
        )
    with artifact.draft(_repository(found), "repository") as draft:
        made = _built(found, recipe, draft, say)
        published = artifact.publish(draft, _repository(found), _first_run(found, made, draft, say), say)
    say(replay.describe(published))
    return published


def _check_recipe(found: Artifact, recipe: Recipe) -> None:
    """See that what is to be built is what the receipt promises."""
    receipt = found.receipt
    for field, value, rule in (
        ("runtime", receipt.runtime, "tensorrt"),
        ("build.recipe.precision", recipe.precision, receipt.precision),
        ("build.recipe.profiles", recipe.profiles[-1], recipes.profiles(receipt.signature)[-1]),
    ):
        if value != rule:
            raise PenstockError(
                f"{found.folder / artifact.RECEIPT}: damaged receipt: {field} is {str(value)[:200]}; by its signature "
                f"and format it is {str(rule)[:200]}: {artifact.rebuild_command(found, whole=False)}"
            )


def _repository(found: Artifact) -> Path:
    return found.folder.resolve().parent.parent


def _built(found: Artifact, recipe: Recipe, draft: Path, say: Say) -> Receipt:
    """Build the engine into a draft of the artifact; the receipt with the facts of that."""
    work = draft.parent / "work"
    work.mkdir()
    for name in found.receipt.files:
        if name != MODEL_FILE:
            shutil.copyfile(found.folder / name, draft / name)
    if GRAPH_FILE not in found.receipt.files:
        raise PenstockError(
            f"{found.folder / artifact.RECEIPT}: damaged receipt: {GRAPH_FILE}, which the engine is built from, has no "
            f"digest among its files: {artifact.rebuild_command(found, whole=False)}"
        )
    facts = build_engine(draft / GRAPH_FILE, recipe, draft / MODEL_FILE, work, found.receipt.signature)
    shutil.rmtree(work)
    say(f"{found.receipt.name}: engine built in {facts['seconds']:.1f} s by {facts['tool']}")
    kept = {name: fact for name, fact in found.receipt.build.items() if name not in _OF_ONE_BUILD}
    if facts["graph"] == LATER_FILE:
        kept["opset"] = kept.get("later_opset", kept.get("opset"))
    update = {"model_file": MODEL_FILE, "hardware": hardware(facts), "build": {**kept, **facts}}
    return found.receipt.model_copy(update={**update, "files": artifact.digests(draft)})


def _first_run(found: Artifact, made: Receipt, draft: Path, say: Say) -> Receipt:
    """The receipt of an engine that has been held to its source here, and timed, if this machine can run it."""
    started = time.perf_counter()
    verification, timed = made.verification, dict[str, tuple[float, ...]]()
    if (reason := runtimes.unavailable(made.runtime, made.build)) is None:
        trial.attempt(made.runtime, draft / MODEL_FILE, made.signature)
        held = _evidence(found)
        verification = _proven(Artifact(draft, made), held)
        timed = _timed(found, made, draft / MODEL_FILE, held, say)
    else:
        say(f"note: the engine was not run: {reason}")
        verification = verification.model_copy(update={"engine_run": False})
    build = {**made.build, **timed, "verify_s": round(time.perf_counter() - started, 3)}
    return made.model_copy(update={"verification": verification, "build": build, "files": artifact.digests(draft)})


def _timed(
    found: Artifact, made: Receipt, path: Path, held: Evidence, say: Say, device: str = "cpu"
) -> dict[str, tuple[float, ...]]:
    """What the receipt says of an int8 or fp8 engine's speed beside fp16's."""
    half = _repository(found) / f"{made.name.removesuffix(made.precision)}fp16"
    few = take(held.rows.inputs, slice(_TIMED_ROWS))
    timed, said = speed.of_engine(path, made.signature, made.precision, half, few, device)
    if said is not None:
        say(f"{made.name}: {said}")
    return timed


def complete(folder: Path, say: Say, device: str = "cpu") -> None:
    """Give an engine its first run, against the answers stored of its source, and write that into its receipt.

    Raises:
        GateError: it does not answer as its source did; the receipt stays as it was.
        PenstockError: it is damaged, or cannot run here.
    """
    found = replay.opened(folder, say, device)
    receipt = found.receipt
    trial.attempt(receipt.runtime, found.model_path, receipt.signature, device)
    held = _evidence(found)
    verification = _proven(found, held, device)
    timed = _timed(found, receipt, found.model_path, held, say, device)
    completed = receipt.model_copy(update={"verification": verification, "build": {**receipt.build, **timed}})
    write_whole(found.folder / artifact.RECEIPT, completed.to_json().encode())
    say(f"the engine's first run is in the receipt: {replay.describe(Artifact(found.folder, completed))}")


def _held_to(seen: Verification) -> dict[str, Limits]:
    """What an engine must keep: the limits, or where labels were judged, which are not here, what its graph kept."""
    if seen.accuracy is None:
        return seen.limits
    graph = {item.output: item for item in seen.distances}
    return {
        name: Limits(
            max_error=min(limit.max_error, _SLACK * graph[name].rel_l2 + _MORE),
            min_agreement=max(limit.min_agreement, (graph[name].agreement or 0.0) - _MORE),
        )
        for name, limit in seen.limits.items()
    }


def _small(held: Evidence) -> list[tuple[Columns, float]]:
    """The columns that an output's norm hides, with the limit of their own that an export in lower precision has."""
    large = {name: array for name, array in held.outputs.items() if np.abs(array).max(initial=0) > 1}
    return [(group, HIDDEN_LOWER) for name, array in large.items() for group in small_columns(name, array)]


def _evidence(found: Artifact) -> Evidence:
    """What the engine must answer: the evidence, or else the golden rows."""
    signature = found.receipt.signature
    if evidence.EVIDENCE in found.receipt.files:  # a file that the receipt does not vouch for is none
        held = evidence.read(found.folder, signature)
        if held is not None:
            return held
    inputs, outputs = found.golden()
    return evidence.filled(inputs, outputs, signature)


def _proven(found: Artifact, held: Evidence, device: str = "cpu") -> Verification:
    """What the gate sees of an engine."""
    receipt = found.receipt
    signature, seen = receipt.signature, receipt.verification
    batch = signature.dims[str(signature.batch)]
    try:
        with runtimes.load(receipt.runtime, found.model_path, signature, device=device) as runner:
            kept = _held_to(seen)
            rows = Rows(held.rows.inputs, None)
            distances = gate.verify(*(runner, rows, held.outputs, kept, batch, _small(held)), samples=held.samples)
            others = gate.verify_places(runner, held.places, kept)
    except GateError as error:
        # Which options widen limits is of use where the model is exported.
        told = str(error).partition("; nothing was published")[0]
        raise GateError(f"{receipt.name}: {told}; its receipt is what it was, and nothing was published") from None
    return seen.model_copy(
        update={
            "runtime": receipt.runtime,
            "engine_run": True,
            "samples": held.samples,
            "batches": gate.sizes(batch),
            "distances": tuple(worst([*distances, *others])),
            "accuracy": None,
        }
    )

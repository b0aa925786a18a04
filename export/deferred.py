"""Deferred engines: built on the machine that is to run them, and held to what their source answered elsewhere.

Needs TensorRT and a GPU, and neither torch nor onnx.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from penstock import artifact, evidence, replay, runtimes, trial
from penstock.artifact import Artifact
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, Say
from penstock.evidence import Evidence
from penstock.export import gate
from penstock.export.engine import recipe as recipes
from penstock.export.engine.build import build as build_engine
from penstock.export.engine.build import hardware
from penstock.export.engine.recipe import GRAPH_FILE, MODEL_FILE
from penstock.files import write_whole
from penstock.parity import worst
from penstock.receipt import Verification


def build(folder: Path, say: Say) -> Artifact:
    """Build the engine of a deferred artifact, run it against its source's answers, and publish it as a new version.

    Args:
        folder: the artifact.
        say: told each step, in a line.

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
            f"{found.folder}: is a {receipt.format} artifact without a build recipe; --format trt leaves one"
        )
    home = found.folder.parent
    with artifact.draft(home.parent) as draft:
        work = draft.parent / "work"
        work.mkdir()
        for name in receipt.files:
            if name not in (MODEL_FILE, evidence.EVIDENCE):
                shutil.copyfile(found.folder / name, draft / name)
        facts = build_engine(draft / GRAPH_FILE, recipe, draft / MODEL_FILE, work)
        shutil.rmtree(work)
        say(f"{receipt.name}: engine built in {facts['seconds']:.1f} s by {facts['tool']}")
        kept = {name: fact for name, fact in receipt.build.items() if name not in ("deferred", "tool")}
        made = receipt.model_copy(
            update={
                "model_file": MODEL_FILE,
                "hardware": hardware(facts),
                "build": {**kept, **facts},
                "files": artifact.digests(draft),
            }
        )
        started = time.perf_counter()
        if (reason := runtimes.unavailable(receipt.runtime, made.build)) is None:
            trial.attempt(receipt.runtime, draft / MODEL_FILE, receipt.signature)
            verification = _proven(Artifact(draft, made), _evidence(found))
        else:
            say(f"note: the engine was not run: {reason}")
            verification = receipt.verification
            if (found.folder / evidence.EVIDENCE).is_file():
                shutil.copyfile(found.folder / evidence.EVIDENCE, draft / evidence.EVIDENCE)
        seconds = {"verify_s": round(time.perf_counter() - started, 3)}
        update: dict[str, Any] = {
            "verification": verification,
            "build": {**made.build, **seconds},
            "files": artifact.digests(draft),
        }
        published = artifact.publish(draft, home.parent, made.model_copy(update=update))
    say(replay.describe(published))
    return published


def complete(folder: Path, say: Say, device: str = "cpu") -> None:
    """Give an engine its first run, against the answers stored of its source, and write that into its receipt.

    Raises:
        GateError: it does not answer as its source did; the receipt stays as it was.
        PenstockError: it is damaged, or cannot run here.
    """
    found = replay.opened(folder, say)
    receipt = found.receipt
    trial.attempt(receipt.runtime, found.model_path, receipt.signature, device)
    verification = _proven(found, _evidence(found), device)
    completed = receipt.model_copy(update={"verification": verification})
    write_whole(found.folder / artifact.RECEIPT, completed.to_json().encode())
    say(f"the engine's first run is in the receipt: {replay.describe(Artifact(found.folder, completed))}")


def _evidence(found: Artifact) -> Evidence:
    """What the engine must answer: the evidence, or else the golden rows."""
    signature = found.receipt.signature
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
            distances = gate.verify(runner, Rows(held.rows.inputs, None), held.outputs, seen.limits, batch)
            others = gate.verify_places(runner, held.places, seen.limits)
    except GateError as error:
        raise GateError(f"{receipt.name}: {error}") from None
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

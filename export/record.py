"""Records: what a receipt says of a variant, and the line that a user reads."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from penstock import architecture, artifact
from penstock import receipt as receipts
from penstock.checkpoint import Checkpoint
from penstock.export.formats import Built
from penstock.export.request import Request
from penstock.files import sha256
from penstock.receipt import Receipt, Verification


def of(
    request: Request,
    origin: Checkpoint,
    built: Built,
    folder: Path,
    variant: str,
    name: str,
    precision: str,
    verification: Verification,
    more: dict[str, Any],
) -> Receipt:
    """The receipt of a variant that was proven, but for what publishing sets.

    Args:
        request: what the user asked for.
        origin: the checkpoint.
        built: what the format wrote.
        folder: where, with golden.npz.
        variant: its name.
        name: the format.
        precision: the precision.
        verification: what the gate saw.
        more: what else to note of how it was built.
    """
    card = origin.card
    return Receipt(
        name=variant,
        version=1,
        created=datetime.now(timezone.utc),
        format=name,
        precision=precision,
        runtime=built.runtime,
        model_file=built.model_file,
        files=artifact.digests(folder),
        source=_source(request, origin, name),
        signature=card.signature,
        preprocess=card.preprocess,
        labels=card.labels,
        task=card.task,
        dataset=card.dataset,
        verification=verification,
        calibration=built.calibration,
        plan=built.plan,
        build={**built.build, **more},
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

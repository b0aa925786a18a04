"""The receipt: what `penstock.json` in an artifact says of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.data.specs import DatasetSpec
from penstock.parity import Distance, Limits
from penstock.preprocessing import Preprocess
from penstock.signature import Signature

SCHEMA = 2


class FileDigest(BaseModel):
    """One file of the artifact: sha256 in hexadecimal, size in bytes."""

    sha256: str
    bytes: int


class Source(BaseModel):
    """Where the weights came from, and how surely they all arrived.

    `kind` is that of the file, `code` the sha256 of the user's own file that defines the architecture. `loaded` of
    `expected` tensors came from `wrapper` in the file (chosen for the reason `why`), without `prefix`; `initial` are
    those that the user allowed to stay at their initial values. `options`: what `penstock export` was told beside
    format and precision.
    """

    checkpoint: str
    sha256: str
    kind: str = "weights"
    architecture: str
    arguments: dict[str, Any] = {}
    code: str | None = None
    options: tuple[str, ...] = ()
    loaded: int
    expected: int
    wrapper: str = ""
    why: str = ""
    prefix: str = ""
    initial: tuple[str, ...] = ()
    tied: int = 0
    own: int = 0
    outside: int = 0


class AccuracyKept(BaseModel):
    """Top-1 accuracy, 0 to 1, of the source and of the export on the same labelled samples; points that may be lost."""

    source: float
    export: float
    samples: int
    most_lost: float


class Verification(BaseModel):
    """What the gate saw. `engine_run` is False where only the graph of an engine was run, by `runtime`.

    `limits` are those of each output; `noise` is the source's own error, which they come from, measured `noise_by`
    running it in float64 or with perturbed weights.
    """

    runtime: str
    engine_run: bool
    samples: int
    real: bool
    batches: tuple[int, ...]
    distances: tuple[Distance, ...]
    limits: dict[str, Limits]
    noise: dict[str, float] = {}
    noise_by: str = ""
    accuracy: AccuracyKept | None = None
    passed: bool


class Calibration(BaseModel):
    """What scales were measured on: how many samples were really seen, whether real ones, and the data's sha256."""

    method: str
    samples: int
    digest: str
    real: bool = True


class PlanPoint(BaseModel):
    """One plan that was tried: the nodes kept in float32, how far it is off, and what it lowers.

    `error` is the relative L2 error of the worst output, None where its answers were no numbers; `drop` the accuracy
    lost in points; `failure` the first limit that it leaves, in words, where it is not `within`; `lowered_operations`
    the share of all multiply-adds in lower precision, `saved_bytes` what its weights take less than in float32.
    """

    model_config = ConfigDict(frozen=True)
    kept: tuple[str, ...]
    error: float | None
    drop: float | None = None
    within: bool
    failure: str | None = None
    lowered_operations: float
    saved_bytes: int


class Plan(BaseModel):
    """Which nodes stay in float32 so that the budget is kept, and what else was tried on the way."""

    kept: tuple[str, ...] = ()
    points: tuple[PlanPoint, ...] = ()
    lowered_operations: float


class Candidate(BaseModel):
    """A variant that was tried for speed, or why it was not.

    `median_s`: seconds of a run; `times_as_slow`: how many times the chosen one's time, the bounds of 95 % of
    bootstrap resamples; `confidence`: the share of them in which the chosen one is faster.
    """

    model_config = ConfigDict(frozen=True)
    format: str
    precision: str
    name: str = ""
    median_s: float | None = None
    times_as_slow: tuple[float, float] | None = None
    confidence: float | None = None
    error: float | None = None
    refused: str | None = None


class Choice(BaseModel):
    """Why this variant was taken of those there could be: measured together, at one batch size, in so many rounds."""

    batch: int
    rounds: int
    chosen: str
    reason: str
    candidates: tuple[Candidate, ...]
    device: str = "cpu"


class Receipt(BaseModel):
    """`penstock.json`: where an artifact came from, what it promises, what was measured, where it may run."""

    model_config = ConfigDict(extra="forbid")
    schema_version: int = Field(default=SCHEMA, alias="schema")
    name: str
    version: int = Field(ge=1)
    created: datetime
    format: str
    precision: str
    runtime: str
    model_file: str
    files: dict[str, FileDigest]
    source: Source
    signature: Signature
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None
    task: str | None = None
    dataset: DatasetSpec | None = None
    verification: Verification
    calibration: Calibration | None = None
    plan: Plan | None = None
    choice: Choice | None = None
    build: dict[str, Any] = {}
    hardware: str

    @field_validator("build")
    @classmethod
    def _told(cls, build: dict[str, Any]) -> dict[str, Any]:
        """Facts that decide where an artifact runs are of the kind that they are read as."""
        for field in ("flavor", "version", "gpu", "compute_capability", "needs", "graph"):
            if field in build and not isinstance(build[field], str | None):
                raise ValueError(f"build.{field} is {build[field]!r:.60}; it must be text")
        if not isinstance(build.get("recipe", {}), dict):
            raise ValueError(f"build.recipe is {build['recipe']!r:.60}; it must be an object")
        return build

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

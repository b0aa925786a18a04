"""The receipt: what `penstock.json` in an artifact says of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from penstock.datasets import DatasetSpec
from penstock.parity import Distance, Limits
from penstock.preprocess import ImagePreprocess
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
    passed: bool


class Calibration(BaseModel):
    """What int8 scales were measured on; `digest` is the sha256 of the data."""

    method: str
    samples: int
    digest: str


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
    preprocess: ImagePreprocess | None = None
    labels: tuple[str, ...] | None = None
    task: str | None = None
    dataset: DatasetSpec | None = None
    verification: Verification
    calibration: Calibration | None = None
    build: dict[str, Any] = {}
    hardware: str

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

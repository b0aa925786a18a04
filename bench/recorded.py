"""Results of `penstock bench --json` read back: checked once, so that reports and comparisons need not doubt them.

Keys that are not named here are left alone: what later versions add does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from penstock.bench import loads
from penstock.bench.amounts import Amount, Count, Facts, Number, Positive, Seconds, Share, Some, in_order
from penstock.errors import PenstockError
from penstock.signature import first_message

VERSION = 1
_LARGEST = 2**30

Interval = Annotated[tuple[Seconds, Seconds], AfterValidator(in_order)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Warned(_Part):
    """Something that makes the figures doubtful, and what to do about it."""

    text: str
    remedy: str = ""


class Clock(_Part):
    """Seconds that one fixed piece of work took in each round: how fast the machine was then."""

    rounds_s: tuple[Positive, ...] = ()
    others_cores: tuple[Amount, ...] = ()  # what other processes used in each round


class Control(_Part):
    """Seconds that a fixed piece of work took before and after each round, with as many threads as the cell."""

    rounds_s: tuple[tuple[Positive, Positive], ...] = ()


class Ratio(_Part):
    """How many times as fast as the reference; without an interval where there were too few rounds."""

    value: Positive
    lo: Seconds | None = None
    hi: Positive | None = None

    @model_validator(mode="after")
    def _is_in_order(self) -> Ratio:
        if self.ends is not None:
            in_order(self.ends)
        return self

    @property
    def ends(self) -> tuple[float, float] | None:
        """Of the interval."""
        return None if self.lo is None or self.hi is None else (self.lo, self.hi)


class Score(_Part):
    value: Share
    samples: Some


class Memory(_Part):
    host_bytes: Count | None = None
    device_bytes: Count | None = None


class Transfer(_Part):
    into: Seconds | None = Field(None, alias="in")
    out: Seconds | None = None


class Figures(_Part):
    """Percentiles of seconds with their intervals; None where there were too few samples."""

    median_s: Seconds | None = None
    median_ci_s: Interval | None = None
    p90_s: Seconds | None = None
    p90_ci_s: Interval | None = None
    p95_s: Seconds | None = None
    p95_ci_s: Interval | None = None
    p99_s: Seconds | None = None
    p99_ci_s: Interval | None = None


class Cell(Figures):
    """One variant at one batch size: its runs by round, in seconds."""

    batch: Some
    threads: Count | None = None
    streams: Count | None = None
    samples: Count = 0
    rows_per_second: Positive | None = None
    transfer_s: Transfer | None = None
    joules_per_row: Seconds | None = None
    ceiling_s: Seconds | None = None
    share_of_ceiling: Seconds | None = None
    ratio: Ratio | None = None
    rounds_s: tuple[Annotated[tuple[Positive, ...], Field(min_length=1)], ...] = ()
    control: Control | None = None
    loads: Some = 1  # in how many loads of the model the rounds were measured


class Row(_Part):
    """One variant."""

    name: str
    version: Count | None = None
    format: str = ""
    precision: str = ""
    model_bytes: Count | None = None
    unavailable: str | None = None
    accuracy: Score | None = None
    agreement: dict[str, Share | None] = {}
    load_s: Seconds | None = None
    first_call_s: Seconds | None = None
    memory: Memory | None = None
    cells: tuple[Cell, ...] = ()


class Verdict(_Part):
    fastest: str
    batch: Count | None = None
    budget: Number | None = None
    text: str = ""


class _Result(_Part):
    environment: Facts = {}
    notes: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    interrupted: bool = False
    clock: Clock = Clock()


class Engines(_Result):
    """What `penstock bench ARTIFACT…` found."""

    kind: Literal["engines"] = "engines"
    reference: str | None = None
    ceiling: Facts | None = None
    verdict: Verdict | None = None
    rows: tuple[Row, ...] = ()

    def cells(self) -> Iterator[tuple[Row, Cell]]:
        """Every cell with its row, in the order of the file."""
        for row in self.rows:
            for cell in row.cells:
                yield row, cell


class Stages(_Part):
    """Mean seconds that a request spends in each."""

    client: Seconds | None = None
    network: Seconds | None = None
    server: Seconds | None = None
    queue: Seconds | None = None
    compute: Seconds | None = None


class Generator(_Part):
    processes: Count | None = None
    cores: Amount | None = None
    late_p99_s: Number | None = None


class Window(_Part):
    """A second or so of a run, in order of time."""

    requests: Count = 0
    throughput_per_s: Seconds | None = None
    median_s: Seconds | None = None
    p99_s: Seconds | None = None


class Run(Figures):
    """One load on a server: at a concurrency (closed), or at a rate (open)."""

    mode: str
    concurrency: Count | None = None
    rate_per_s: Positive | None = None
    seconds: Seconds | None = None
    requests: Count = 0
    failures: dict[str, Count] = {}
    throughput_per_s: Seconds | None = None
    latencies_s: tuple[Seconds, ...] = ()
    windows: tuple[Window, ...] = ()
    stages_s: Stages | None = None
    generator: Generator | None = None
    void: str | None = None
    purpose: str | None = None
    ended: str | None = None

    @model_validator(mode="after")
    def _fails_what_it_asks(self) -> Run:
        if (failed := sum(self.failures.values())) > self.requests:
            raise ValueError(f"{failed} failures of {self.requests} requests: there cannot be more than were asked")
        return self

    @property
    def load(self) -> str:
        """`closed, 8 connections`, or `poisson, 200/s`."""
        return loads.named(self.mode, self.rate_per_s, self.concurrency)

    @property
    def marked(self) -> str:
        """The load, and whether the run is short, ended early, or void."""
        return loads.marked(self.load, self.purpose, self.ended, self.void)


class Capacity(_Part):
    rate_per_s: Positive
    concurrency: Count | None = None


class Objective(_Part):
    slo_ms: Positive
    rate_per_s: Seconds | None = None
    p99_s: Seconds | None = None
    generator_bound: bool = False
    generator_gives_out_per_s: Seconds | None = None
    probed_per_s: Seconds | None = None
    refuted_per_s: list[Seconds] = []
    finished: bool = True


class LoadGen(_Part):
    """What LoadGen says of a run."""

    scenario: str
    verdict: str = ""


class Server(_Result):
    """What `penstock bench URL` found."""

    kind: Literal["server"] = "server"
    server: Facts = {}
    payload: Facts = {}
    runs: tuple[Run, ...] = ()
    capacity: Capacity | None = None
    slo: Objective | None = None
    loadgen: LoadGen | None = None
    lost: bool = False

    @property
    def rows(self) -> int:
        """In each request."""
        held = self.payload.get("rows")
        return held if isinstance(held, int) and held > 0 else 1


Result = Engines | Server
_KINDS: dict[str, type[Engines | Server]] = {"engines": Engines, "server": Server}


def read(path: Path, option: str) -> Result:
    """A result from its file.

    Args:
        path: what `penstock bench --json` wrote.
        option: what the user gave the path with, `--from`.

    Raises:
        PenstockError: no such file, or it holds no such result.
    """
    where = f"{option} {path}"
    try:
        if path.stat().st_size > _LARGEST:
            raise PenstockError(f"{where}: is over {_LARGEST >> 30} GiB; a result of penstock bench --json is not")
        text = path.read_bytes()
    except OSError as error:
        raise PenstockError(f"{where}: cannot be read: {error.strerror}") from None
    return parse(_decoded(text, where), where)


def _decoded(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise PenstockError(f"{where}: is not JSON; give what penstock bench --json FILE wrote") from None
    if not isinstance(found, dict):
        raise PenstockError(f"{where}: holds no result; give what penstock bench --json FILE wrote")
    return found


def parse(content: dict[str, Any], where: str = "the result") -> Result:
    """A result from its JSON, or of a measurement that was just made.

    Raises:
        PenstockError: a key is missing or has no such value; names it.
    """
    version = content.get("penstock_bench")
    if version is None:
        raise PenstockError(f"{where}: has no penstock_bench; give what penstock bench --json FILE wrote")
    if version != VERSION:
        raise PenstockError(f"{where}: penstock_bench {version!r}: this penstock reads {VERSION}; measure again")
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PenstockError(f"{where}: kind {kind!r}: must be one of {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].model_validate(content)
    except ValidationError as error:
        raise PenstockError(f"{where}: {first_message(error)}") from None

"""A server measured: what it takes, what is due, one run after another, and what is to be said of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.bench import clock, environment, loads, objective, rehearsal, runs, stages, target
from penstock.bench.fleet import Fleet, Progress
from penstock.bench.generator import Order
from penstock.bench.payloads import GRPC, IMAGE, PREDICT
from penstock.bench.runs import Run
from penstock.bench.sources import Payloads, Wanted
from penstock.bench.target import Target
from penstock.client.access import Access
from penstock.machine import Others

_GUESS_CONNECTIONS = 32
_OTHERS, _LOOK_S = 0.2, 0.1
# One core drives some 20,000 requests/s of small bodies; servers do less with the rest.
_CORES_FOR_ONE, _MOST_PROCESSES = 4, 16

Watch = Callable[[str, float, Progress], None]


@dataclass(frozen=True)
class Plan:
    """What to measure: closed loops of `concurrency`, then open ones of `rates`, then the search for `slo_ms`.

    `connections` are the most that an open loop opens, `tolerance` is for answers; None is what the artifact's receipt
    says, or else rehearsal.TOLERANCE.
    """

    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    poisson: bool = False
    slo_ms: float | None = None
    seconds: float = 10.0
    warmup_s: float = 1.0
    processes: int | None = None
    connections: int = 512
    timeout_s: float = 30.0
    tolerance: float | None = None
    wanted: Wanted = field(default_factory=Wanted)
    access: Access = field(default_factory=Access)
    grpc: str | None = None


def measure(
    url: str, model: str | None, plan: Plan, watch: Watch = lambda load, seconds, progress: None
) -> dict[str, Any]:
    """Measure a model on a server, and give what --json holds; what was measured until ^C or the server's end is kept.

    Args:
        url: http://, https://, grpc:// or grpcs://.
        model: its name; None is the only one there is.
        plan: what to measure.
        watch: told how each run goes.

    Raises:
        PenstockError: nobody is there, there is no such model, or it does not take what is to be sent.
    """
    found = target.connect(url, model, plan.access, plan.timeout_s, plan.grpc)
    try:
        made, expected, notes, tolerance = rehearsal.held(found, plan.wanted, plan.tolerance)
        goal = found.goal(grpc=made.form == GRPC, timed=made.form in (IMAGE, PREDICT))
        requests = rehearsal.wired(found, made)
        processes = plan.processes or processes_for(plan)
        with Fleet(goal, requests, expected, processes, plan.timeout_s, tolerance) as fleet:
            session = Session(found, fleet, plan, watch, made.form)
            session.carry_out()
        return _result(found, made, session, [*made.notes, *notes])
    finally:
        found.close()


def processes_for(plan: Plan) -> int:
    """How many generators there are unless told: one for four cores, which a server may need more."""
    most = max([*plan.concurrency, *([_GUESS_CONNECTIONS] if plan.rates or plan.slo_ms else [])], default=1)
    return max(1, min(_cores() // _CORES_FOR_ONE, most, _MOST_PROCESSES))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class Session:
    """The runs of a plan, one after another, until all are done, the user ends them, or the server is gone."""

    def __init__(self, found: Target, fleet: Fleet, plan: Plan, watch: Watch, form: str) -> None:
        self.runs: list[Run] = []
        self.clock_s: list[float] = []
        self.warnings: list[dict[str, str]] = []
        self.interrupted = self.lost = False
        self.capacity: dict[str, Any] | None = None
        self.slo: dict[str, Any] | None = None
        self._found, self._fleet, self._plan, self._watch = found, fleet, plan, watch
        self._form = form

    def carry_out(self) -> None:
        self._see_the_machine()
        try:
            with suppress(_Ended):
                self._all()
        except KeyboardInterrupt:  # between two runs
            self.interrupted = True
        if not self.lost:
            self.capacity = runs.capacity(self.runs)

    def _all(self) -> None:
        for count in self._plan.concurrency:
            self._run(self._order(slots=count), "sweep")
        for rate in self._plan.rates:
            self._run(self._order(rate=rate), "rate")
        if self._plan.slo_ms is not None:
            self._search(self._plan.slo_ms)

    def _see_the_machine(self) -> None:
        others = Others()
        time.sleep(_LOOK_S)
        if (busy := others.cores()) > _OTHERS:
            self.warnings.append(
                {
                    "text": f"this machine is busy: {busy:.1f} of its {_cores()} cores were at work before "
                    f"the first run",
                    "remedy": "end what else runs on it, or run the bench on a machine that is idle",
                }
            )

    def _order(self, *, slots: int | None = None, rate: float | None = None, seconds: float | None = None) -> Order:
        plan = self._plan
        begun = slots or min(plan.connections, max(self._fleet.processes, _GUESS_CONNECTIONS))
        return Order(
            begin=0.0,
            warmup_s=plan.warmup_s,
            seconds=seconds or plan.seconds,
            timeout_s=plan.timeout_s,
            slots=begun,
            most=begun if rate is None else max(begun, plan.connections),
            rate_per_s=rate,
            poisson=plan.poisson and rate is not None,
            seed=len(self.runs),
        )

    def _run(self, order: Order, purpose: str) -> Run:
        """One run, into `runs`.

        Raises:
            _Ended: it was the last, since the user ended it or nobody answers any more.
        """
        self.clock_s.append(clock.tick())
        kind = "closed" if order.rate_per_s is None else "poisson" if order.poisson else "constant"
        name = runs.load({"mode": kind, "rate_per_s": order.rate_per_s, "concurrency": order.slots})
        before, machine = self._found.stages(), Others()
        tally, ended = self._fleet.run(
            order, lambda progress: self._watch(name, order.warmup_s + order.seconds, progress)
        )
        busy = machine.all_cores()
        after = None if before is None or ended or tally.lost else self._found.stages()
        done = None if before is None or after is None else stages.between(before, after)
        if after is not None and done is None and not tally.timed:
            self.warnings.append(runs.recounted(name))
        run = {**runs.described(tally, order, self._fleet.processes, done), "purpose": purpose}
        run["generator"]["machine_busy"] = None if busy is None else round(busy / (os.cpu_count() or 1), 3)
        self.runs.append(run)
        if purpose not in (*loads.SHORT, "confirm"):  # which are there to find what fails
            self._doubt(run, order.most)
        self.interrupted = self.interrupted or ended
        self.lost = self.lost or tally.lost or silent(run)
        if self.lost or self.interrupted or tally.missing:
            raise _Ended
        return run

    def _doubt(self, run: Run, most: int) -> None:
        self.warnings += runs.warnings(run, most, self._form)

    def _search(self, slo_ms: float) -> None:
        """The highest rate whose p99 is under the limit."""
        self.slo = objective.begun(slo_ms)  # until it is known, which it may never be
        self.slo = objective.sought(slo_ms, self._plan.seconds, self._order, self._run, self._fleet.processes)
        self.warnings += objective.warnings(self.slo, self._fleet.processes)
        if self.slo["rate_per_s"] is not None:
            self._doubt(self.runs[-1], self._plan.connections)


class _Ended(Exception):
    """There is no next run."""


def silent(run: Run) -> bool:
    """Nothing was answered rightly, nothing else was answered either, and that is not for the generator's sake."""
    quiet, kinds = {"timeout", "refused", "connection"}, set(run["failures"]) - {"unsent"}
    return not (run["latencies_s"] or run["ended"] or run["void"]) and bool(kinds) and kinds <= quiet


def _result(found: Target, made: Payloads, session: Session, notes: list[str]) -> dict[str, Any]:
    sizes = [len(payload.body) for payload in made.requests]
    return {
        "penstock_bench": 1,
        "kind": "server",
        "environment": {**environment.machine(), "processes": session._fleet.processes},
        "notes": notes,
        "warnings": session.warnings,
        "interrupted": session.interrupted,
        "lost": session.lost,
        "clock": {"unit": "s", "rounds_s": session.clock_s},
        "server": {
            **{"url": found.url, "name": found.name, "version": found.version},
            **{"model": found.model, "model_version": found.model_version},
        },
        "payload": {
            **{"form": made.form, "bytes": round(sum(sizes) / len(sizes)), "rows": made.requests[0].rows},
            **{"source": made.source, "different": len(sizes)},
        },
        "runs": session.runs,
        "capacity": session.capacity,
        "slo": session.slo,
    }


def exit_code(result: dict[str, Any]) -> int:
    """0 all is well; 1 some failed, were wrong or none, or no rate kept the limit; 3 it was cut off; 130 ^C."""
    if result["interrupted"]:
        return 130
    if result["lost"] or any(run["generator"].get("missing") for run in result["runs"]):
        return 3
    missed = result["slo"] is not None and result["slo"]["rate_per_s"] is None
    judged = [run for run in result["runs"] if run["purpose"] in ("sweep", "rate", "confirm", "loadgen")]
    kept = [run for run in judged if run["purpose"] != "confirm"] + [
        run for run in judged if run["purpose"] == "confirm"
    ][-1:]
    wrong = any("wrong" in run["failures"] for run in result["runs"])
    return int(missed or wrong or any(runs.failed(run) or not run["requests"] for run in kept))

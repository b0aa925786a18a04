"""A server measured: what it takes, what is due, one run after another, and what is to be said of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.bench import clock, environment, runs, search, sources, target
from penstock.bench.answers import Checker, Expected
from penstock.bench.fleet import Fleet, Progress
from penstock.bench.generator import Order
from penstock.bench.httpanswers import Answer
from penstock.bench.payloads import GRPC, IMAGE, JSON, PREDICT, Payload
from penstock.bench.runs import Run
from penstock.bench.search import Verdict
from penstock.bench.sources import Payloads, Wanted
from penstock.bench.statistics import needed
from penstock.bench.target import Gone, Target
from penstock.client.access import Access
from penstock.errors import PenstockError
from penstock.machine import Others

# How far an answer may be from the one that the payload had alone: a batch changes the last bits, of fp16 more of them.
TOLERANCE = 0.01
_PROBE_S, _LONGEST_PROBE_S, _GUESS_CONNECTIONS = 3.0, 60.0, 32
_OVER, _OTHERS, _LOOK_S = 0.01, 0.2, 0.1
# One core drives some 20,000 requests/s of small bodies; servers do less with the rest.
_CORES_FOR_ONE, _MOST_PROCESSES = 4, 16

Watch = Callable[[str, float, Progress], None]


@dataclass(frozen=True)
class Plan:
    """What to measure: closed loops of `concurrency`, then open ones of `rates`, then the search for `slo_ms`.

    `connections` are the most that an open loop opens, `tolerance` is for answers; None is what the artifact's receipt
    says, or else TOLERANCE.
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
        made, expected, notes, compared = prepared(found, plan)
        tolerance = tolerated(plan, made) if compared else math.inf
        goal = found.goal(grpc=made.form == GRPC, timed=made.form in (IMAGE, PREDICT))
        requests = wired(found, made)
        processes = plan.processes or processes_for(plan)
        with Fleet(goal, requests, expected, processes, plan.timeout_s, tolerance) as fleet:
            session = Session(found, fleet, plan, watch)
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


def tolerated(plan: Plan, made: Payloads) -> float:
    if plan.tolerance is not None:
        return plan.tolerance
    return TOLERANCE if made.tolerance is None else made.tolerance


def wired(found: Target, made: Payloads) -> list[bytes]:
    """Requests as they go over the wire."""
    where = found.place
    if where is None:
        return [payload.body for payload in made.requests]
    host = str(where).partition("://")[2].partition("/")[0]
    return [payload.request(host, found.access.headers, where.path) for payload in made.requests]


def alone(found: Target, payload: Payload) -> Answer:
    """The answer to a payload that is asked alone.

    Raises:
        PenstockError: it is answered with an error.
    """
    if payload.form == GRPC:
        return target.asked_by_call(found, payload.body)
    answer = found.ask(payload.path, payload.headers, payload.body)
    if answer.head.status != 200:
        said = answer.body[:300].decode("utf-8", "replace")
        raise PenstockError(f"{found.url}{payload.path}: a request alone is answered {answer.head.status}: {said}")
    return answer


def prepared(found: Target, plan: Plan) -> tuple[Payloads, list[Expected], list[str], bool]:
    """Payloads, the answers that are due, notes, and whether answers are compared.

    Raises:
        PenstockError: there is nothing to send, or the server refuses it.
    """
    made, notes = sources.prepare(found, plan.wanted), list[str]()
    try:
        first = alone(found, made.requests[0])
    except Gone:
        raise
    except PenstockError:
        if made.form != "v2-binary" or plan.wanted.form is not None:
            raise
        made = sources.prepare(found, _in_json(plan.wanted))
        first = alone(found, made.requests[0])
        notes.append("the server refuses the binary extension, though its /v2 names it: asked in JSON")
    grpc = made.form == GRPC
    asked = [first, *(alone(found, payload) for payload in made.requests[1:])]
    due = [Expected.of(answer, grpc=grpc) for answer in asked]
    tolerance = tolerated(plan, made)
    if not Checker([due[0]], tolerance).right(0, alone(found, made.requests[0])):
        notes.append("answers to the same payload differ from call to call: they are not compared, only counted")
        return made, due, notes, False
    if made.expected is not None:
        checker = Checker(made.expected, tolerance)
        for place, answer in enumerate(asked):
            if not checker.right(place, answer):
                raise PenstockError(
                    f"{found.url}: {found.model} does not answer the artifact's golden inputs as its source did: "
                    f"{checker.example}; is it that artifact which is served?"
                )
        due = made.expected
    notes.append(_rule(made, tolerance))
    return made, due, notes, True


def _in_json(wanted: Wanted) -> Wanted:
    return Wanted(JSON, wanted.data, wanted.artifact, wanted.rows, wanted.shapes)


def _rule(made: Payloads, tolerance: float) -> str:
    due = (
        "what the artifact's source answered"
        if made.expected is not None
        else "what the same payload was answered alone"
    )
    return (
        f"an answer is right if its bytes, or else its names, datatypes, shapes and whole numbers are those of {due}, "
        f"and "
        f"floats within a relative L2 error of {tolerance:g}"
    )


class Session:
    """The runs of a plan, one after another, until all are done, the user ends them, or the server is gone."""

    def __init__(self, found: Target, fleet: Fleet, plan: Plan, watch: Watch) -> None:
        self.runs: list[Run] = []
        self.clock_s: list[float] = []
        self.warnings: list[dict[str, str]] = []
        self.interrupted = self.lost = False
        self.capacity: dict[str, Any] | None = None
        self.slo: dict[str, Any] | None = None
        self._found, self._fleet, self._plan, self._watch = found, fleet, plan, watch

    def carry_out(self) -> None:
        self._see_the_machine()
        try:
            with suppress(_Ended):
                self._all()
        except KeyboardInterrupt:  # between two runs
            self.interrupted = True
        best = [run for run in self.runs if run["mode"] == "closed" and not run["void"] and not runs.failed(run)]
        if best and not self.lost:
            top = max(best, key=lambda run: float(run["throughput_per_s"]))
            self.capacity = {"rate_per_s": top["throughput_per_s"], "concurrency": top["concurrency"]}

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
        stages = None if before is None or after is None else after.since(before)
        run = {**runs.described(tally, order, self._fleet.processes, stages), "purpose": purpose}
        run["generator"]["machine_busy"] = None if busy is None else round(busy / (os.cpu_count() or 1), 3)
        self.runs.append(run)
        if purpose not in ("guess", "probe", "confirm"):  # which are there to find what fails
            self.warnings += runs.warnings(run, order.most)
        self.interrupted = self.interrupted or ended
        self.lost = self.lost or tally.lost or silent(run)
        if self.lost or self.interrupted:
            raise _Ended
        return run

    def _search(self, slo_ms: float) -> None:
        """The highest rate whose p99 is under the limit."""
        limit_s = slo_ms / 1e3
        guess = self._run(self._order(slots=_GUESS_CONNECTIONS, seconds=min(_PROBE_S, self._plan.seconds)), "guess")

        def at(rate: float, seconds: float, purpose: str) -> Verdict:
            # As many samples as a p99 takes, and twice as many where it is confirmed.
            samples = needed(99.0) * (2 if purpose == "confirm" else 1.1)
            seconds = min(_LONGEST_PROBE_S, max(seconds, samples / rate))
            run = self._run(self._hopeful(rate, seconds, limit_s), purpose)
            kept = runs.over(run, limit_s) <= _OVER and run["ended"] is None
            # What the generator adds is in the latencies: where they are within the limit all the same, it is kept.
            return Verdict(kept, run["void"] is not None and not kept)

        short = min(_PROBE_S, self._plan.seconds)
        start = max(1.0, 0.6 * float(guess["throughput_per_s"]))
        self.slo = {"slo_ms": slo_ms, "rate_per_s": None, "p99_s": None, "generator_bound": False}
        found = search.highest(
            start, lambda rate: at(rate, short, "probe"), lambda rate: at(rate, self._plan.seconds, "confirm")
        )
        self.slo |= {"rate_per_s": found.rate_per_s, "generator_bound": found.bounded}
        if found.rate_per_s is not None:
            self.slo["p99_s"] = self.runs[-1]["p99_s"]
            self.warnings += runs.warnings(self.runs[-1], self._plan.connections)
        if found.bounded:
            self.warnings.append(
                {
                    "text": "the generator, and not the server, ended the search for the highest rate: the server may "
                    "do more",
                    "remedy": f"--processes {2 * self._fleet.processes}, or run the bench on a machine of its own",
                }
            )

    def _hopeful(self, rate: float, seconds: float, limit_s: float) -> Order:
        """An order that ends as soon as so many were over the limit that it cannot be kept."""
        order = self._order(rate=rate, seconds=seconds)
        most = math.ceil(_OVER * rate * seconds) + self._fleet.processes
        return Order(**{**order.as_dict(), "hopeless_s": limit_s, "hopeless": 2 * most})


class _Ended(Exception):
    """There is no next run."""


def silent(run: Run) -> bool:
    """Nothing was answered rightly, and nothing else was answered either."""
    quiet = {"timeout", "refused", "connection", "unsent"}
    return not run["latencies_s"] and bool(run["failures"]) and set(run["failures"]) <= quiet and run["ended"] is None


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
    """0 all is well; 1 requests failed or were wrong, or no rate kept the limit; 3 the server was lost; 130 ^C."""
    if result["interrupted"]:
        return 130
    if result["lost"]:
        return 3
    missed = result["slo"] is not None and result["slo"]["rate_per_s"] is None
    judged = [run for run in result["runs"] if run["purpose"] in ("sweep", "rate", "confirm", "loadgen")]
    kept = [run for run in judged if run["purpose"] != "confirm"] + [
        run for run in judged if run["purpose"] == "confirm"
    ][-1:]
    wrong = any("wrong" in run["failures"] for run in result["runs"])
    return int(missed or wrong or any(runs.failed(run) for run in kept))

"""LoadGen's scenarios against a server, or an artifact's runner, as runs like any others."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact, options, parity
from penstock.bench import clock, environment, loadgen, rehearsal, runs, server, target
from penstock.bench.answers import Checker
from penstock.bench.loadgen import SCENARIOS, Outcome, OverHttp, Settings, Subject
from penstock.bench.payloads import GRPC
from penstock.bench.server import Plan
from penstock.bench.target import Target
from penstock.errors import PenstockError
from penstock.runtimes import Runner

# Each scenario's metric, by the names that LoadGen's versions have for it, and in words.
_RESULTS = {
    "singlestream": ("90.0th percentile latency (ns)", "90th percentile latency (ns)", "90.00 percentile latency (ns)"),
    "multistream": ("99.0th percentile latency (ns)", "99th percentile latency (ns)", "99.00 percentile latency (ns)"),
    "server": ("Completed samples per second", "Scheduled samples per second"),
    "offline": ("Samples per second",),
}
_METRICS = {
    "singlestream": "p90 {:,.4g} ms",
    "multistream": "p99 {:,.4g} ms for a query of " + f"{loadgen.STREAMS} samples",
    "server": "{:,.6g} samples/s",
    "offline": "{:,.6g} samples/s",
}


@dataclass(frozen=True)
class Choice:
    """The scenario, the folder of its logs (None keeps none), and for an artifact its device and threads."""

    scenario: str
    logs: Path | None = None
    device: str = "cpu"
    threads: int | None = None


def measure(word: str, model: str | None, plan: Plan, choice: Choice) -> dict[str, Any]:
    """Have LoadGen ask a server, or an artifact's runner, and give what --json holds.

    Args:
        word: the server's URL, or the artifact's path.
        model: the server's model.
        plan: `seconds`, `rates` and `slo_ms` are told to LoadGen; payloads are as for other runs.
        choice: the scenario.

    Raises:
        PenstockError: an option does not fit, LoadGen is missing, or there is nothing to measure.
    """
    if choice.scenario not in SCENARIOS:
        raise PenstockError(f"--loadgen {choice.scenario!r}: must be one of {', '.join(SCENARIOS)}")
    if plan.concurrency and (choice.scenario == "singlestream" or len(plan.concurrency) > 1):
        raise PenstockError("--concurrency: LoadGen's scenarios take one number, and a single stream is of one")
    if plan.concurrency and plan.concurrency[0] > (most := options.MOST_AT_ONCE):
        raise PenstockError(
            f"--concurrency {plan.concurrency[0]}: with --loadgen must be at most {most}: each is a thread"
        )
    if plan.poisson:
        raise PenstockError("--poisson: LoadGen's scenario server always comes so; leave it out")
    if choice.scenario == "server" and len(plan.rates) != 1:
        raise PenstockError("--loadgen server: needs the rate to ask at, --rate R")
    if plan.rates and choice.scenario in ("singlestream", "multistream"):
        raise PenstockError(f"--rate: is none of {choice.scenario}'s, which asks again when it is answered")
    if plan.slo_ms is not None and choice.scenario != "server":
        raise PenstockError("--slo-ms: of LoadGen's scenarios the server alone has a limit")
    with tempfile.TemporaryDirectory(prefix="penstock-loadgen-") as passing:
        folder = choice.logs or Path(passing)
        result = (_of_server if target.is_url(word) else _of_artifact)(word, model, plan, choice, folder)
    result["loadgen"]["logs"] = None if choice.logs is None else str(choice.logs)
    kept = "--logs DIR keeps LoadGen's logs" if choice.logs is None else f"LoadGen's logs are in {choice.logs}"
    result["notes"].append(f"{kept}; its summary counts, the percentiles here are of all samples")
    return result


# LoadGen's queries are made beforehand: of too few the run ends early, of some more it takes a little memory.
_MORE = {"singlestream": 2.0, "multistream": 2.0, "offline": 1.1}


def _settings(
    plan: Plan,
    choice: Choice,
    logs: Path,
    samples: int,
    make: Callable[[], Subject],
    threads: int,
    most_at_once: int,
) -> Settings:
    rate = plan.rates[0] if plan.rates else None
    if rate is None:
        rate = _MORE[choice.scenario] * loadgen.guessed_rate(make, threads, most_at_once)
    return Settings(
        scenario=choice.scenario,
        logs=logs,
        seconds=plan.seconds,
        samples=samples,
        target_qps=rate,
        target_ms=plan.slo_ms,
        threads=threads,
        most_at_once=most_at_once,
    )


def _threads(plan: Plan, choice: Choice) -> int:
    if choice.scenario == "singlestream":
        return 1
    return plan.concurrency[0] if plan.concurrency else loadgen.STREAMS if choice.scenario == "multistream" else 32


def _of_server(url: str, model: str | None, plan: Plan, choice: Choice, logs: Path) -> dict[str, Any]:
    found = target.connect(url, model, plan.access, plan.timeout_s, plan.grpc)
    try:
        made, expected, notes, tolerance = rehearsal.held(found, plan.wanted, plan.tolerance)
        if made.form == GRPC:
            raise PenstockError("--loadgen: asks servers over HTTP; give an http:// URL, and no --form grpc")
        checker = Checker(expected, tolerance)
        requests, connect = rehearsal.wired(found, made), _connector(found)

        def subject() -> Subject:
            return OverHttp(connect, requests, checker.right)

        settings = _settings(plan, choice, logs, len(requests), subject, _threads(plan, choice), 1)
        outcome = loadgen.run(settings, subject)
        sizes = [len(payload.body) for payload in made.requests]
        return {
            **_result(outcome, settings, [*made.notes, *notes]),
            "server": {
                **{"url": found.url, "name": found.name, "version": found.version},
                **{"model": found.model, "model_version": found.model_version},
            },
            "payload": {
                **{"form": made.form, "bytes": round(sum(sizes) / len(sizes)), "rows": made.requests[0].rows},
                **{"source": made.source, "different": len(sizes)},
            },
        }
    finally:
        found.close()


def _connector(found: Target) -> Callable[[], socket.socket]:
    goal = found.goal(grpc=False, timed=False)

    def connect() -> socket.socket:
        made = socket.create_connection((goal.host, goal.port), timeout=found.timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found.access.context.wrap_socket(made, server_hostname=goal.host) if goal.tls else made

    return connect


class Runs:
    """An artifact's golden rows through its runner, for one thread at a time; in batches where several are asked."""

    def __init__(self, runner: Runner, found: artifact.Artifact) -> None:
        self._runner = runner
        self._inputs, self._outputs = found.golden()
        self._limits = found.receipt.verification.limits

    def ask(self, indices: Sequence[int]) -> list[str | None]:
        rows = np.asarray(indices) % len(next(iter(self._inputs.values())))
        try:
            answer = self._runner.run({name: array[rows] for name, array in self._inputs.items()})
        except Exception as error:
            return [f"error {type(error).__name__}"] * len(indices)
        due = {name: array[rows] for name, array in self._outputs.items()}
        return [None if self._right(due, answer) else "wrong"] * len(indices)

    def _right(self, due: dict[str, Any], answer: dict[str, Any]) -> bool:
        """Within the limits of the gate, of which agreement is for more rows than these."""
        return all(
            distance.without_agreement().failure(self._limits[distance.output]) is None
            for distance in parity.compare(due, {name: answer[name] for name in due})
        )


def _of_artifact(word: str, model: str | None, plan: Plan, choice: Choice, logs: Path) -> dict[str, Any]:
    paths = artifact.find([Path(word)])
    if len(paths) != 1 or paths[0].is_file():
        raise PenstockError(
            f"{word}: --loadgen measures one artifact, a folder that penstock export wrote, or a server"
        )
    found = artifact.read(paths[0])
    receipt = found.receipt
    signature = receipt.signature
    golden = len(next(iter(found.golden()[0].values())))
    with found.load(device=choice.device, threads=choice.threads) as runner:
        subject = Runs(runner, found)
        most = signature.max_batch if choice.scenario in ("offline", "multistream") else 1
        settings = _settings(
            plan, choice, logs, golden, lambda: subject, 1, most
        )  # a runner is called by one thread at a time
        outcome = loadgen.run(settings, lambda: subject)
    return {
        **_result(outcome, settings, ["an answer is right if it is within the limits of the artifact's receipt"]),
        "server": {
            **{"url": str(found.folder), "name": f"{receipt.runtime}, in this process", "version": ""},
            **{"model": receipt.name, "model_version": str(receipt.version)},
        },
        "payload": {"form": "arrays", "bytes": 0, "rows": 1, "source": "its golden rows", "different": golden},
    }


def _result(outcome: Outcome, settings: Settings, notes: list[str]) -> dict[str, Any]:
    run = _run(outcome, settings)
    return {
        "penstock_bench": 1,
        "kind": "server",
        "environment": {**environment.machine(), "processes": 1},
        "notes": notes,
        "warnings": _warnings(run, outcome),
        "interrupted": outcome.interrupted,
        "lost": outcome.lost or server.silent(run),
        "clock": {"unit": "s", "rounds_s": [clock.tick()]},
        "runs": [run],
        "capacity": None,
        "slo": None,
        "loadgen": {"scenario": settings.scenario, "verdict": _verdict(run, outcome), "summary": outcome.summary},
    }


def _verdict(run: runs.Run, outcome: Outcome) -> str:
    """Whether LoadGen calls the run valid, and its scenario's own metric."""
    scenario = run["mode"].removeprefix("loadgen ")
    said = outcome.summary.get("Result is", "interrupted" if outcome.interrupted else "no verdict")
    try:
        value = float(run["loadgen_result"])
    except (TypeError, ValueError):
        return f"LoadGen, {SCENARIOS[scenario]}: {said}"
    value = value / 1e6 if scenario in ("singlestream", "multistream") else value  # it tells nanoseconds
    return f"LoadGen, {SCENARIOS[scenario]}: {said}, {_METRICS[scenario].format(value)}"


def _warnings(run: runs.Run, outcome: Outcome) -> list[dict[str, str]]:
    found = runs.warnings(run, 0)
    if outcome.summary.get("Result is") == "INVALID":
        reasons = [f"{name}: {value}" for name, value in outcome.summary.items() if value in ("NO", "Skipped")]
        found.append(
            {
                "text": f"LoadGen calls the run INVALID ({'; '.join(reasons) or 'see --logs'})",
                "remedy": "a longer --seconds",
            }
        )
    return found


def _run(outcome: Outcome, settings: Settings) -> runs.Run:
    latencies = np.array(outcome.latencies_s)
    count = len(latencies) + sum(outcome.failures.values())
    said = next((outcome.summary[name] for name in _RESULTS[settings.scenario] if name in outcome.summary), None)
    return {
        "mode": f"loadgen {settings.scenario}",
        "concurrency": 1 if settings.scenario == "singlestream" else settings.threads,
        "rate_per_s": settings.target_qps if settings.scenario == "server" else None,
        "seconds": round(outcome.seconds, 4),
        "requests": count,
        "failures": dict(sorted(outcome.failures.items())),
        "throughput_per_s": len(latencies) / outcome.seconds if outcome.seconds else 0.0,
        "latencies_s": [round(value, 7) for value in outcome.latencies_s],
        **runs.percentiles(latencies),
        "windows": [],
        "stages_s": None,
        "generator": {
            **{"processes": 1, "cores": None, "busiest_core": 0.0, "waited_for_core": 0.0},
            **{"late_p99_s": None, "backlogged": 0},
        },
        "answers": {"compared": 0, "first_wrong": None},
        "connections_opened": None,
        "loadgen_result": said,
        "ended": "lost" if outcome.lost else "stopped" if outcome.interrupted else None,
        "void": None,
        "purpose": "loadgen",
    }

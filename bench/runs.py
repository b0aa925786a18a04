"""Runs described: throughput and percentiles with what they rest on, where the time went, and whether they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.bench import loads
from penstock.bench.generator import Order
from penstock.bench.payloads import BINARY, GRPC, JSON
from penstock.bench.stages import Stages
from penstock.bench.statistics import needed, percentile
from penstock.bench.tally import Tally

Run = dict[str, Any]
PERCENTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
# A process that takes this much of a core had no time to spare: it was the limit, or may have been.
_BUSY = 0.95
# Sends that are late by this share of the p99, and this many seconds, are part of what was measured.
_LATE, _LATE_S = 0.2, 0.0005
# So far behind what is due the generator cannot reach the rate, whatever the server does.
_BEHIND_S = 0.1
_WINDOW_S, _DIGITS = 1.0, 7


def described(tally: Tally, order: Order, processes: int, stages: Stages | None) -> Run:
    """A run as --json has it.

    Args:
        tally: of all generators.
        order: what they were told, for all together.
        processes: how many they were.
        stages: what the server counted meanwhile, if it does.
    """
    latencies = np.frombuffer(tally.latencies)
    moments = np.frombuffer(tally.moments)
    turn = np.argsort(moments, kind="stable")
    latencies, moments = latencies[turn], moments[turn]
    late = np.frombuffer(tally.late)
    run: Run = {
        "mode": "closed" if order.rate_per_s is None else "poisson" if order.poisson else "constant",
        "concurrency": order.slots if order.rate_per_s is None else max(tally.opened, order.slots),
        "rate_per_s": order.rate_per_s,
        "seconds": round(tally.seconds, 4),
        "requests": tally.requests,
        "failures": dict(sorted(tally.failures.items())),
        "throughput_per_s": tally.arrived / tally.seconds if tally.seconds else 0.0,
        "latencies_s": [round(value, _DIGITS) for value in latencies.tolist()],
        **percentiles(latencies),
        "windows": _windows(latencies, moments, tally.seconds),
        "stages_s": split(tally, stages),
        "generator": {
            "processes": processes,
            "missing": tally.missing,
            "cores": round(tally.cores, 3),
            "busiest_core": round(tally.busiest, 3),
            "waited_for_core": round(tally.starved, 3),
            "late_p99_s": round(float(np.percentile(late, 99)), _DIGITS) if len(late) else None,
            "backlogged": tally.backlogged,
            "behind_s": round(tally.behind_s, _DIGITS),
        },
        "answers": {"compared": tally.compared, "first_wrong": tally.example or None},
        "connections_opened": tally.opened,
        "ended": "lost" if tally.lost else "stopped" if tally.stopped else "hopeless" if tally.hopeless else None,
    }
    return {**run, "void": void(run)}


def percentiles(latencies: Any) -> dict[str, Any]:
    """Each with its 95 % interval, or None where there are too few samples for it."""
    found: dict[str, Any] = {}
    for name, q in PERCENTILES.items():
        held = percentile(latencies, q)
        found[f"{name}_s"] = None if held is None else held.value
        found[f"{name}_ci_s"] = None if held is None else [held.low, held.high]
    return found


def _windows(latencies: Any, moments: Any, seconds: float) -> list[dict[str, Any]]:
    """The run cut into parts of about a second, by when requests were due."""
    count = max(1, round(seconds / _WINDOW_S))
    length, found = seconds / count, []
    for number in range(count if length else 0):
        low, high = np.searchsorted(moments, [number * length, (number + 1) * length])
        part = latencies[low:high]
        median, worst = percentile(part, 50.0), percentile(part, 99.0)
        found.append(
            {
                "requests": int(high - low),
                "throughput_per_s": (high - low) / length,
                "median_s": None if median is None else median.value,
                "p99_s": None if worst is None else worst.value,
            }
        )
    return found


def split(tally: Tally, stages: Stages | None) -> dict[str, float] | None:
    """Mean seconds of a request in each stage; None where the server does not tell.

    `client` is from the due moment to the sending, and what the answer waited here to be read. `network` is what is
    left of the time between sending and reading beside what the server counts as its own, its sockets included;
    `server` what is left of that beside queue and compute: reading, checking and writing.
    """
    count, sums = len(tally.latencies), tally.sums
    if tally.timed:
        stages = Stages(tally.timed, sums["server_s"], sums["queue_s"], sums["compute_s"])
    if not count or stages is None or stages.count <= 0:
        return None
    total, queue, compute = (each / stages.count for each in (stages.total_s, stages.queue_s, stages.compute_s))
    found = {
        "client": sums["client_s"] / count,
        "network": max(0.0, sums["waited_s"] / count - total),
        "server": max(0.0, total - queue - compute),
        "queue": queue,
        "compute": compute,
    }
    return {name: round(value, 9) for name, value in found.items()}


def void(run: Run) -> str | None:
    """Why a run says nothing of the server: the generator was what was measured. None where it counts."""
    generator = run["generator"]
    if missing := generator.get("missing", 0):
        return f"{missing} of {generator['processes']} generators died or said nothing of it; it holds what others saw"
    if (behind := generator.get("behind_s", 0.0)) > _BEHIND_S:
        return f"requests were due faster than the generator sends them: at the end it was {behind:.2f} s behind"
    if not run["requests"] and not run["ended"]:
        return "no request was due while it was measured"
    if generator["busiest_core"] >= _BUSY:
        return f"a generator took {generator['busiest_core']:.0%} of a core: it may be what was measured"
    late, slowest = generator["late_p99_s"], run["p99_s"]
    if slowest is None and run["ended"] == "hopeless":  # of however few: who was too slow is the question
        slowest = float(np.percentile(run["latencies_s"], 99)) if run["latencies_s"] else None
    if late is not None and late > _LATE_S and slowest is not None and late > _LATE * slowest:
        return (
            f"requests were sent late by {1e3 * late:.2f} ms (p99), of a p99 of {1e3 * slowest:.2f} ms: the "
            f"generator's "
            "delay is part of it"
        )
    return None


def failed(run: Run) -> int:
    return sum(run["failures"].values())


def over(run: Run, limit_s: float) -> float:
    """The share of requests that took longer than a limit, or failed."""
    if not run["requests"]:
        return 1.0
    late = sum(latency > limit_s for latency in run["latencies_s"])
    return float((late + failed(run)) / run["requests"])


def capacity(listed: Sequence[Run]) -> dict[str, Any] | None:
    """The closed loop with the most answers a second, of those that took their time, count, and had no failures."""
    best = [run for run in listed if run["mode"] == "closed" and not (run["void"] or run["ended"] or failed(run))]
    if not best:
        return None
    top = max(best, key=lambda run: float(run["throughput_per_s"]))
    return {"rate_per_s": top["throughput_per_s"], "concurrency": top["concurrency"]}


def warnings(run: Run, most: int, form: str = BINARY) -> list[dict[str, str]]:
    """What makes a run doubtful, each with what can be done about it.

    Args:
        run: as `described` gives it.
        most: connections that an open loop may open.
        form: in which requests went.
    """
    found, name, generator = list[tuple[str, str]](), load(run), run["generator"]
    if run["void"]:
        found.append((f"{name}: void: {run['void']}", _against_void(run, form)))
    elif generator["busiest_core"] + generator["waited_for_core"] >= _BUSY:
        found.append(
            (
                f"{name}: the generator waited for a core {generator['waited_for_core']:.0%} of the time, as the "
                f"server and "
                "it share them: the figures are of both together",
                "run the bench on a machine of its own, or keep cores for it (taskset)",
            )
        )
    elif (generator.get("machine_busy") or 0.0) >= _BUSY:
        found.append(
            (
                f"{name}: all cores of this machine were at work; where the server is on it too, the "
                f"{generator['cores']:.2f} cores that the generator took are missing there",
                "run the bench on a machine of its own, or keep cores for each (taskset)",
            )
        )
    if share := failed(run) / max(1, run["requests"]):
        kinds = ", ".join(f"{kind}: {count}" for kind, count in run["failures"].items())
        wrong = run["answers"]["first_wrong"]
        found.append(
            (
                f"{name}: {failed(run)} of {run['requests']} requests failed ({kinds}), {share:.2%}; percentiles are "
                f"of the "
                f"rest{f'; the first wrong answer: {wrong}' if wrong else ''}",
                _remedy(run["failures"]),
            )
        )
    if run["mode"] != "closed" and generator["backlogged"] > 0.01 * run["requests"]:
        found.append(
            (
                f"{name}: {generator['backlogged']} requests waited for a connection, since all {most} were in use",
                "the server does not keep up with this rate; or --connections gives more, if its answers take that "
                "long",
            )
        )
    if run["p99_s"] is None and run["requests"] and not run["ended"]:
        enough = run["seconds"] * needed(99.0) / max(1, len(run["latencies_s"]))
        found.append(
            (
                f"{name}: {len(run['latencies_s'])} answers are too few for a p99, which takes {needed(99.0)}",
                f"--seconds {max(1, round(1.2 * enough + 0.5))}",
            )
        )
    return [{"text": text, "remedy": remedy} for text, remedy in found]


def recounted(name: str) -> dict[str, str]:
    """That the server's counters of a run cannot be subtracted from one another.

    Args:
        name: the run's load.
    """
    return {
        "text": f"{name}: where the time went is not known: the server began to count anew meanwhile, as it does when "
        f"a version of the model is loaded or unloaded",
        "remedy": "measure again while no version is loaded or unloaded",
    }


def _against_void(run: Run, form: str) -> str:
    generator = run["generator"]
    if generator.get("missing"):
        return "see what it said above, and whether memory ran out (dmesg)"
    if not run["requests"] and not generator.get("behind_s"):
        return "a longer --seconds: answers take longer, or the rate is too low"
    more, least = 2 * generator["processes"], form in (JSON, GRPC)
    return (
        f"--processes {more} where cores are free, or run the bench on a machine of its own"
        f"{f'; --form {BINARY} costs it the least' if least else ''}"
    )


def _remedy(failures: dict[str, int]) -> str:
    """What helps against each kind of failure that has one; else where to look."""
    kinds, told = " ".join(failures), list[str]()
    if "wrong" in failures:
        told.append(
            "compare a single request with the source model (penstock predict); --tolerance says how near is near "
            "enough"
        )
    if "429" in kinds:
        told.append(
            "status 429: the key is over its --rate; give a key without one (penstock keys add), or ask less often"
        )
    if "503" in kinds:
        told.append(
            "the server refuses what it cannot do in time: lower --concurrency or --rate, or let more wait there"
        )
    if "no socket" in failures:
        told.append("lower --concurrency or --connections, or allow more descriptors (ulimit -n)")
    if "timeout" in failures:
        told.append("lower --concurrency or --rate, or give answers longer with --timeout")
    if set(failures) == {"unsent"}:
        told.append(
            "the server does not keep up: lower --rate, or give more --connections if its answers take that long"
        )
    if "401" in kinds or "403" in kinds:
        told.append("give a key that has the right to infer (--key-file)")
    return "; ".join(told) or "see the server's log of that time"


def load(run: Run) -> str:
    """`closed, 8 connections`, or `poisson, 200/s`."""
    return loads.named(run["mode"], run["rate_per_s"], run["concurrency"])

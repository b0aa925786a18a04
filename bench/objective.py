"""The objective of a server: the highest rate whose p99 stays under a limit, searched by runs, and told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from penstock.bench import runs, search
from penstock.bench.generator import Order
from penstock.bench.runs import Run
from penstock.bench.search import Verdict
from penstock.bench.statistics import needed

# A p99 is kept where at most so many requests took longer or failed.
_OVER = 0.01
_PROBE_S, _LONGEST_PROBE_S = 3.0, 60.0
# How often the samples that a p99 takes: a run that confirms a rate has more to spare.
_SAMPLES = {"probe": 1.1, "confirm": 2.0}

Orders = Callable[..., Order]


def begun(slo_ms: float) -> dict[str, Any]:
    """What --json says of a search that has found nothing yet."""
    return {
        **{"slo_ms": slo_ms, "rate_per_s": None, "p99_s": None, "finished": False},
        **{"generator_bound": False, "generator_gives_out_per_s": None},
        **{"probed_per_s": None, "refuted_per_s": []},
    }


def sought(
    slo_ms: float, seconds: float, orders: Orders, carry_out: Callable[[Order, str], Run], processes: int
) -> dict[str, Any]:
    """Search the highest rate, from a guess by a closed loop on, and give what --json says of it.

    Args:
        slo_ms: the limit of the p99, in milliseconds.
        seconds: how long the rate that was found is confirmed; probes take 3 s at most, more where samples are rare.
        orders: makes an order, of slots or of a rate, and of seconds.
        carry_out: runs it, for a purpose.
        processes: how many generators share it.
    """
    limit_s, short, last = slo_ms / 1e3, min(_PROBE_S, seconds), dict[str, Run]()

    def at(rate: float, least_s: float, purpose: str) -> Verdict:
        lasting = min(_LONGEST_PROBE_S, max(least_s, _SAMPLES[purpose] * needed(99.0) / rate))
        for _ in range(2):  # once more where it would be kept but for the generator, which a neighbour may have delayed
            order = _hopeful(orders(rate=rate, seconds=lasting), limit_s, processes)
            last[purpose] = run = carry_out(order, purpose)
            verdict = Verdict(runs.over(run, limit_s) <= _OVER and run["ended"] is None, run["void"] is not None)
            if not (verdict.kept and verdict.void):
                break
        return verdict

    guess = carry_out(orders(seconds=short), "guess")
    start = max(1.0, 0.6 * float(guess["throughput_per_s"]))
    found = search.highest(start, lambda rate: at(rate, short, "probe"), lambda rate: at(rate, seconds, "confirm"))
    return {
        **{"slo_ms": slo_ms, "rate_per_s": found.rate_per_s, "finished": True},
        "p99_s": None if found.rate_per_s is None else last["confirm"]["p99_s"],
        "generator_bound": found.gives_out_per_s is not None,
        "generator_gives_out_per_s": found.gives_out_per_s,
        **{"probed_per_s": found.probed_per_s, "refuted_per_s": found.refuted_per_s},
    }


def _hopeful(order: Order, limit_s: float, processes: int) -> Order:
    """An order that ends as soon as so many were over the limit that it cannot be kept."""
    assert order.rate_per_s is not None
    most = math.ceil(_OVER * order.rate_per_s * order.seconds) + processes
    return Order(**{**order.as_dict(), "hopeless_s": limit_s, "hopeless": 2 * most})


def warnings(slo: dict[str, Any], processes: int) -> list[dict[str, str]]:
    """That the generator, and not the server, ended the search."""
    if not slo["generator_bound"]:
        return []
    return [
        {
            "text": f"{gives_out(slo)}: what the server does from there on is not known",
            "remedy": f"--processes {2 * processes} where cores are free; else fewer cores shared with the server: "
            f"taskset, or a machine of its own for the bench",
        }
    ]


def gives_out(slo: dict[str, Any]) -> str:
    if slo["generator_gives_out_per_s"] is None:
        return "the generator was the limit"
    return f"the generator gives out at {slo['generator_gives_out_per_s']:,.6g}/s"


def tried(listed: Sequence[Run]) -> list[float]:
    """The rates that a search tried, of all runs of a measurement."""
    return [run["rate_per_s"] for run in listed if run["purpose"] in ("probe", "confirm")]


def verdict(slo: dict[str, Any], rates: Sequence[float]) -> str:
    """What the search came to, in a sentence.

    Args:
        slo: as `sought` gives it, or `begun` where it did not end.
        rates: those that were tried.
    """
    slo = {**begun(slo["slo_ms"]), "finished": True, **slo}  # a file of before has fewer keys
    limit = f"p99 under {slo['slo_ms']:g} ms"
    if not slo["finished"]:
        return f"{limit}: not known, the search did not end; runs at a rate so far: {len(rates)}"
    bound = f"; {gives_out(slo)}, the server may do more" if slo["generator_bound"] else ""
    if slo["rate_per_s"] is None and slo["probed_per_s"] is not None:
        return f"{limit}: {search.refuted(slo['probed_per_s'], slo['refuted_per_s'])}{bound}"
    if slo["rate_per_s"] is None:
        span = f", from {min(rates):,.6g} to {max(rates):,.6g}/s" if rates else ""
        return f"{limit}: kept at no rate that was tried{span}{bound}"
    p99 = "" if slo["p99_s"] is None else f" (p99 {1e3 * slo['p99_s']:.4g} ms)"
    return f"{limit}: kept up to {slo['rate_per_s']:,.0f} requests/s{p99}{bound}"

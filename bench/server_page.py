"""The page of a server: what it sustains, load, percentiles, stages, failures, every run."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from penstock.bench import facts, scales, server_charts
from penstock.bench.engine_page import interval
from penstock.bench.markup import element
from penstock.bench.parts import Section, Table, beside, listed, table
from penstock.bench.recorded import Run, Server
from penstock.bench.scales import ms


def title(result: Server) -> str:
    model = result.server.get("model")
    return f"Load on {model or result.server.get('url') or 'a server'}"


def lead(result: Server) -> list[Element]:
    """What it sustains, before everything else."""
    told = facts.of(result.server)
    where = " · ".join(told[name] for name in ("name", "version", "url") if name in told)
    found = [element("p", where, class_="soft")] if where else []
    said = []
    if result.capacity:
        at = f" with {result.capacity.concurrency} connections" if result.capacity.concurrency else ""
        said.append(f"Capacity: {scales.figure(result.capacity.rate_per_s)} requests/s{at}.")
    if result.slo and result.slo.rate_per_s:
        p99 = f" (p99 {ms(result.slo.p99_s)} ms)" if result.slo.p99_s is not None else ""
        said.append(
            f"Up to {scales.figure(result.slo.rate_per_s)}/s its p99 stays under {result.slo.slo_ms:g} ms{p99}."
        )
    elif result.slo:
        said.append(f"At no rate that was tried did its p99 stay under {result.slo.slo_ms:g} ms.")
    found.append(
        element("p", " ".join(said) or "No verdict: neither capacity nor a limit was measured.", class_="verdict")
    )
    return found


def sections(result: Server) -> list[Section]:
    """Everything else but the environment, in the order in which one asks."""
    found = []
    load = server_charts.load(result)
    if load:
        found.append(Section("load", "Throughput and latency over load", [beside(load)]))
    tails = server_charts.percentiles(result)
    if tails:
        found.append(Section("percentiles", "Latency by percentile", [beside(tails)]))
    found += [
        Section("stages", "Where the time goes", server_charts.stages(result)),
        Section("failures", "Failures", server_charts.failures(result)),
        Section("figures", "All figures", [_all(result), *_void(result)]),
        Section("payload", "Payload and server", [listed(facts.of({**result.server, **_payload(result)}))]),
    ]
    return found


def _payload(result: Server) -> dict[str, object]:
    return {f"payload {name}": value for name, value in result.payload.items()}


def _all(result: Server) -> Element:
    columns = ["load", "requests", "failures", "requests/s", "median ms", "95 % interval", "p90 ms", "p95 ms", "p99 ms"]
    columns += ["p99 interval", "seconds", "generator's cores", "late p99 ms", "counts"]
    return table("all", Table("Every run", columns, [_run(run) for run in result.runs]))


def _run(run: Run) -> list[str]:
    generator = run.generator
    return [
        run.load,
        *(f"{run.requests:,}", f"{sum(run.failures.values()):,}", scales.figure(run.throughput_per_s)),
        *(ms(run.median_s), interval(run.median_ci_s), ms(run.p90_s), ms(run.p95_s), ms(run.p99_s)),
        *(interval(run.p99_ci_s), scales.figure(run.seconds)),
        *(scales.figure(generator.cores if generator else None), ms(generator.late_p99_s if generator else None)),
        "no" if run.void else "yes",
    ]


def _void(result: Server) -> list[Element]:
    return [
        element("p", f"{run.load}: does not count: {run.void}", class_="warning") for run in result.runs if run.void
    ]

"""The page of a server: what it sustains, load, percentiles, stages, failures, every run."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from penstock.bench import facts, search, server_charts
from penstock.bench.engine_page import interval
from penstock.bench.recorded import Objective, Run, Server
from penstock.pages import scales
from penstock.pages.markup import element
from penstock.pages.parts import Section, Table, beside, listed, table
from penstock.pages.scales import ms


def title(result: Server) -> str:
    model = result.server.get("model")
    return f"Load on {model or result.server.get('url') or 'a server'}"


def lead(result: Server) -> list[Element]:
    """What it sustains, before everything else."""
    told = facts.of(result.server)
    where = " · ".join(told[name] for name in ("name", "version", "url") if name in told)
    found = [element("p", where, class_="soft")] if where else []
    said = _said(result)
    found.append(element("p", " ".join(said) or "No verdict: no closed loop gives a capacity.", class_="verdict"))
    return found


def _said(result: Server) -> list[str]:
    """What was found, a sentence each."""
    said = []
    if result.lost:
        said.append("The server was lost: nobody answered any more. The figures are of what came before.")
    if result.capacity:
        at = f" with {result.capacity.concurrency} connections" if result.capacity.concurrency else ""
        each = f" ({scales.figure(result.rows * result.capacity.rate_per_s)} rows/s)" if result.rows > 1 else ""
        said.append(f"Capacity: {scales.figure(result.capacity.rate_per_s)} requests/s{each}{at}.")
    if result.slo:
        said += _objective(result.slo)
    if result.loadgen and result.loadgen.verdict:
        said.append(f"{result.loadgen.verdict}.")
    return said


def _objective(slo: Objective) -> list[str]:
    if not slo.finished:
        return [f"The search for the rate whose p99 stays under {slo.slo_ms:g} ms did not end."]
    if slo.rate_per_s:
        p99 = f" (p99 {ms(slo.p99_s)} ms)" if slo.p99_s is not None else ""
        said = [f"Up to {scales.figure(slo.rate_per_s)}/s its p99 stays under {slo.slo_ms:g} ms{p99}."]
    elif slo.probed_per_s and slo.refuted_per_s:
        told = search.refuted(slo.probed_per_s, slo.refuted_per_s)
        said = [f"Its p99 under {slo.slo_ms:g} ms is not confirmed: {told}."]
    else:
        said = [f"At no rate that was tried did its p99 stay under {slo.slo_ms:g} ms."]
    if slo.generator_bound:
        at = f" at {scales.figure(slo.generator_gives_out_per_s)}/s" if slo.generator_gives_out_per_s else ""
        said.append(f"The generator gives out{at}, and not the server, which may do more.")
    return said


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
        Section(
            "payload", "Payload and server", [listed(facts.labelled(facts.of({**result.server, **_payload(result)})))]
        ),
    ]
    return found


def _payload(result: Server) -> dict[str, object]:
    return {f"payload {name}": value for name, value in result.payload.items()}


def _all(result: Server) -> Element:
    rates = ["requests/s", "rows/s"] if result.rows > 1 else ["requests/s"]
    columns = [
        "load",
        "counts",
        "requests",
        "failures",
        *rates,
        "median ms",
        "95 % interval",
        "p90 ms",
        "p95 ms",
        "p99 ms",
    ]
    columns += ["p99 interval", "seconds", "generator's cores", "late p99 ms"]
    return table("all", Table("Every run", columns, [_run(run, result.rows) for run in result.runs]))


def _run(run: Run, rows: int) -> list[str]:
    generator, answered = run.generator, run.throughput_per_s
    each = [scales.figure(None if answered is None else rows * answered)] if rows > 1 else []
    return [
        *(run.marked, "no" if run.void else "yes"),
        *(f"{run.requests:,}", f"{sum(run.failures.values()):,}", scales.figure(answered), *each),
        *(ms(run.median_s), interval(run.median_ci_s), ms(run.p90_s), ms(run.p95_s), ms(run.p99_s)),
        *(interval(run.p99_ci_s), scales.figure(run.seconds)),
        *(scales.figure(generator.cores if generator else None), ms(generator.late_p99_s if generator else None)),
    ]


def _void(result: Server) -> list[Element]:
    return [
        element("p", f"{run.load}: does not count: {run.void}", class_="warning") for run in result.runs if run.void
    ]

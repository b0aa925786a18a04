"""Reports of a measurement: tables for people, JSON with every raw sample for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from penstock.bench.figures import as_dict
from penstock.bench.measure import Result
from penstock.screen import Screen

_WIDE = 140
Figures = dict[str, Any]


def show(result: Result) -> None:
    """Print what was measured; the table of speeds is the last thing on stdout."""
    show_figures(as_dict(result))


def show_figures(figures: Figures) -> None:
    """The same for figures that were written to a file."""
    console = Screen(_WIDE)
    for line in (*_head(figures), *_remarks(figures)):
        console.print(line, soft_wrap=True)
    if figures["verdict"]:
        console.print(f"verdict: {figures['verdict']['text']}", soft_wrap=True)
    console.print(_variants(figures))
    console.print()
    console.print(_speeds(figures))


def _head(figures: Figures) -> list[str]:
    facts = figures["environment"]
    threads = ", ".join("the runtime's own" if count is None else str(count) for count in facts["threads"])
    device = facts["device"]
    if facts["gpu"] and device == "cpu":
        device = "cuda:0 for engines, cpu for others"
    gpu = f"{facts['gpu']['gpu']}, driver {facts['gpu'].get('driver', 'unknown')}; " if facts["gpu"] else ""
    head = (
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_1min']}; {gpu}device {device}, "
        f"threads: {threads}; {facts['seconds']:g} s for each line in interleaved rounds; "
        "copies to and from the runtime included; times in ms"
    )
    return [head, *_ceiling(figures["ceiling"])]


def _ceiling(held: Figures | None) -> list[str]:
    if held is None:
        return []
    lines = []
    for name, peaks in held["peaks"].items():
        where = name if not name.isdigit() else f"{name} core{'s' * (name != '1')}"
        rates = [f"{rate / 1e9:,.0f} G {kind} operations/s" for kind, rate in peaks["operations_per_s"].items()]
        rates += [_read(peaks["bytes_per_s"])] if peaks["bytes_per_s"] else []
        lines.append(f"ceiling, {where}: {', '.join(rates) or 'unknown'}")
    return lines


def _read(rates: dict[int, float]) -> str:
    sizes = sorted(rates, key=int)
    slow, fast = rates[sizes[-1]] / 1e9, max(rates.values()) / 1e9
    return (
        f"{slow:,.0f} GB/s" if len(sizes) == 1 else f"{slow:,.0f} GB/s from memory and up to {fast:,.0f} from a cache"
    )


def _remarks(figures: Figures) -> list[str]:
    lines = [f"note: {note}" for note in figures["notes"]]
    for row in figures["rows"]:
        if row["unavailable"]:
            lines.append(f"note: {row['name']} not measured: {row['unavailable']}")
        for error in dict.fromkeys(held["error"] for held in row["failures"]):
            batches = dict.fromkeys(str(held["batch"]) for held in row["failures"] if held["error"] == error)
            lines.append(f"failed: {row['name']} at batch {', '.join(batches)}: {error}")
    if figures["interrupted"]:
        lines.append("note: interrupted; the figures are of the rounds that were finished")
    return lines + [f"warning: {held['text']}; {held['remedy']}" for held in figures["warnings"]]


def _variants(figures: Figures) -> Table:
    """What a variant is, whatever it is asked."""
    rows = [row for row in figures["rows"] if not row["unavailable"]]
    names = ["MB", "load ms", "first call ms", "host MB", "device MB", "accuracy", "agrees"]
    if not any(row["memory"]["device_bytes"] for row in rows):
        names.remove("device MB")
    table = _table("variant", names)
    for row in rows:
        told = [held for held in row["agreement"].values() if held is not None]
        texts = {
            "MB": f"{row['model_bytes'] / 1e6:.2f}",
            "load ms": _ms(row["load_s"], 1),
            "first call ms": _ms(row["first_call_s"], 1),
            "host MB": _mb(row["memory"]["host_bytes"]),
            "device MB": _mb(row["memory"]["device_bytes"]),
            "accuracy": f"{row['accuracy']['value']:.2%}" if row["accuracy"] else "-",
            "agrees": f"{min(told):.2%}" if told else "-",
        }
        table.add_row(row["name"], *(texts[name] for name in names))
    return table


def _speeds(figures: Figures) -> Table:
    """One line for each variant and setting; columns that say nothing here are left out."""
    cells = [cell for row in figures["rows"] for cell in row["cells"]]
    optional = {
        "threads": len(figures["environment"]["threads"]) > 1,
        "streams": len(figures["environment"]["streams"]) > 1,
        "gpu ms": any(cell["gpu_s"] is not None for cell in cells),
        "copies": any(cell["transfer_s"]["in"] is not None for cell in cells),
        "J/row": any(cell["joules_per_row"] is not None for cell in cells),
        "ceiling": any(cell["share_of_ceiling"] is not None for cell in cells),
    }
    timed = ("median ms", "±", "p90", "p95", "p99", "n", "gpu ms", "copies")
    names = ["batch", "threads", "streams", *timed, "rows/s", "J/row"]
    names = [name for name in (*names, "ceiling") if optional.get(name, True)]
    table = _table("variant", names)
    table.add_column(f"speed vs {figures['reference']}", justify="right", overflow="fold")
    for row in figures["rows"]:
        for index, cell in enumerate(row["cells"]):
            texts = _texts(cell)
            first = row["name"] if index == 0 else ""
            reference = row["name"] == figures["reference"]
            table.add_row(first, *(texts[name] for name in names), _speed(cell["ratio"], reference))
    return table


def _table(first: str, names: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _texts(cell: Figures) -> dict[str, str]:
    copies = [held for held in cell["transfer_s"].values() if held is not None]
    share = cell["share_of_ceiling"]
    return {
        "batch": str(cell["batch"]),
        "threads": "own" if cell["threads"] is None else str(cell["threads"]),
        "streams": str(cell["streams"]),
        "median ms": _ms(cell["median_s"]),
        "±": _half_width(cell["median_s"], cell["median_ci_s"]),
        **{name: _ms(cell[f"{name}_s"]) for name in ("p90", "p95", "p99")},
        "n": str(cell["samples"]),
        "gpu ms": "-" if cell["gpu_s"] is None else _ms(cell["gpu_s"] - sum(copies)),
        "copies": _ms(sum(copies)) if copies else "-",
        "rows/s": f"{cell['rows_per_second']:,.0f}",
        "J/row": "-" if cell["joules_per_row"] is None else f"{cell['joules_per_row']:.3g}",
        "ceiling": "-" if share is None else f"{share:.0%}",
    }


def _ms(seconds: float | None, digits: int = 3) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.{digits}f}"


def _mb(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f}"


def _half_width(middle: float | None, interval: list[float] | None) -> str:
    """The further end of an interval, as a share of the figure."""
    if not middle or interval is None:
        return "-"
    return f"{max(middle - interval[0], interval[1] - middle) / middle:.1%}"


def _speed(ratio: Figures | None, reference: bool) -> str:
    if reference:
        return "1 (reference)"
    if ratio is None:
        return "-"
    if ratio["lo"] is None:
        return f"{ratio['value']:.2f}"
    return f"{ratio['value']:.2f} ({ratio['lo']:.2f}-{ratio['hi']:.2f})"

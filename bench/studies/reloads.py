"""A model loaded anew under traffic: `python bench/studies/reloads.py [--times 200] [--rate 100] [--workers 0]`.

Two versions of different weights take turns under one name, so that each answer tells which of them gave it. Clients
ask at a steady rate all along. Exits with 1 if an answer is of neither version, or of the former one though its request
was sent after the load of the next had been answered, or is no 200, or if memory grows: the median of the last fifth
over that of the second fifth by more than 5 % and 8 MiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.traffic import Crowd, Question, Reply, Served, Tally, drawn, request, serving, write_model

CLIENTS = 4
SHIFTS = (7, 1_000_007)
MOST_GROWTH, MOST_GROWTH_MB = 1.05, 8.0


class Versions:
    """What may be answered while versions take turns; `turn` is the last whose load has been answered."""

    def __init__(self) -> None:
        self.turn = 0

    def question(self, number: int, rng: np.random.Generator) -> Question:
        x, loaded = drawn(rng), self.turn

        def right(answer: Reply) -> bool:
            found = answer.tensor()[0] - 3 * x
            # The next may have taken its place by now, which its load has not been answered for.
            may = {SHIFTS[turn % 2] for turn in range(loaded, self.turn + 2)}
            return any(np.array_equal(found, np.full_like(found, shift)) for shift in may)

        return request("line", x, binary=bool(number % 2)), right


def reload(served: Served, model: Path, times: int, versions: Versions) -> dict[str, Any]:
    seconds, memory, failed = [], [served.rss_mb], 0
    for number in range(1, times + 1):
        write_model(model, 3, SHIFTS[number % 2])
        began = time.perf_counter()
        failed += served.post("/v2/repository/models/line/load").status != 200
        seconds.append(time.perf_counter() - began)
        versions.turn = number
        memory.append(served.rss_mb)
        if number % max(1, times // 10) == 0:
            print(f"{number} reloads: {memory[-1]:.1f} MiB, {served.open_files} open files", flush=True)
    return {"seconds": seconds, "rss_mb": memory, "loads_failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second, of all clients together")
    parser.add_argument("--workers", type=int, default=0, help="front ends of the server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = Versions()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "line.onnx"
        write_model(model, 3, SHIFTS[0])
        with serving(model, "--workers", str(options.workers)) as served:
            files, threads = served.open_files, served.status("Threads")
            crowd = Crowd(served.port, options.rate, CLIENTS, versions.question)
            time.sleep(2)
            figures = reload(served, model, options.times, versions)
            time.sleep(1)
            tally = crowd.end()
            figures |= {"files": [files, served.open_files], "threads": [threads, served.status("Threads")]}
    figures |= {"statuses": tally.statuses, "wrong": tally.wrong, "notes": tally.notes}
    figures |= {"p50_ms": tally.percentile(50), "p99_ms": tally.percentile(99)}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return report(figures, tally, options.times)


def report(figures: dict[str, Any], tally: Tally, times: int) -> int:
    memory, fifth = figures["rss_mb"], max(1, times // 5)
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    grown = late > early * MOST_GROWTH and late > early + MOST_GROWTH_MB
    rows = {
        "reloads": f"{times}, {figures['loads_failed']} failed; median {statistics.median(figures['seconds']):.2f} s",
        "requests": f"{sum(tally.statuses.values())}: " + ", ".join(f"{n} {s}" for s, n in tally.statuses.items()),
        "wrong answers": str(tally.wrong),
        "latency": f"p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms",
        "memory": f"{memory[0]:.1f} MiB at first, {early:.1f} in the second fifth, {late:.1f} in the last",
        "open files": "{} before, {} after".format(*figures["files"]),
        "threads": "{} before, {} after".format(*figures["threads"]),
    }
    print()
    for name, text in rows.items():
        print(f"{name:15}{text}")
    for note in tally.notes:
        print(f"  {note}")
    return 1 if figures["loads_failed"] or tally.failed or tally.wrong or grown else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Isolated runners killed and stopped under load: `python bench/studies/kills.py [--times 20] [--rate 200]`.

A server with --isolate; its runner's process is ended by SIGKILL and stopped by SIGSTOP, in turns, while clients ask at
a steady rate and hold each answer to what it must be. Exits with 1 if an answer is wrong or no 200, if readiness never
goes red, or if the server is not ready again within the limit: 3 s after a SIGKILL, 10 s after a SIGSTOP.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.traffic import Client, Crowd, Question, Served, Tally, drawn, request, serving, write_model

CLIENTS = 8
LIMITS_S = {signal.SIGKILL: 3.0, signal.SIGSTOP: 10.0}
_READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: here\r\n\r\n"


def question(number: int, rng: np.random.Generator) -> Question:
    x = drawn(rng)
    return request("line", x, binary=bool(number % 2)), lambda answer: np.array_equal(answer.tensor()[0], 3 * x + 7)


def runners(served: Served) -> list[int]:
    """The processes of the server's runners."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == served.process.pid and b"penstock.serve.worker" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def hit(served: Served, number: signal.Signals) -> dict[str, Any]:
    """One runner hit: the seconds until readiness was red, and until it was green again."""
    (pid,) = runners(served)
    probe, began, red = Client(served.port), time.perf_counter(), None
    os.kill(pid, number)
    while time.perf_counter() - began < 2 * LIMITS_S[number]:
        status = probe.ask(_READY).status
        passed = time.perf_counter() - began
        if status != 200 and red is None:
            red = passed
        if status == 200 and (found := runners(served)) and pid not in found:
            return {"signal": number.name, "red_s": red, "green_s": passed}
        time.sleep(0.005)
    return {"signal": number.name, "red_s": red, "green_s": None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second, of all clients together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "line.onnx", 3, 7)
        with serving(Path(folder) / "line.onnx", "--isolate") as served:
            crowd = Crowd(served.port, options.rate, CLIENTS, question)
            time.sleep(1)
            files, hits = served.open_files, []
            for turn in range(options.times):
                hits.append(hit(served, (signal.SIGKILL, signal.SIGSTOP)[turn % 2]))
                time.sleep(1)
            files_after = served.open_files
            tally = crowd.end()
            left = runners(served)
        time.sleep(2)  # the server was killed too: its runners see that by themselves
        orphans = [pid for pid in left if Path(f"/proc/{pid}/exe").exists()]
    figures = {"hits": hits, "statuses": tally.statuses, "wrong": tally.wrong, "notes": tally.notes}
    figures |= {"p50_ms": tally.percentile(50), "max_ms": tally.percentile(100), "files": [files, files_after]}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return report(hits, tally, (files, files_after), orphans)


def report(hits: list[dict[str, Any]], tally: Tally, files: tuple[int, int], orphans: list[int]) -> int:
    failed = bool(tally.failed or tally.wrong or orphans)
    for number, limit_s in LIMITS_S.items():
        own = [one for one in hits if one["signal"] == number.name]
        greens = [one["green_s"] for one in own if one["green_s"] is not None]
        reds = [one["red_s"] for one in own if one["red_s"] is not None]
        failed |= len(greens) < len(own) or len(reds) < len(own) or max(greens, default=0) > limit_s
        told = f"red after {statistics.median(reds):.2f} s" if reds else "never red"
        again = (
            f"ready again after {statistics.median(greens):.2f} s, {max(greens):.2f} at most" if greens else "no end"
        )
        print(f"{number.name}, {len(own)} times: {told} ({len(reds)} seen), {again} (limit {limit_s:g})")
    print(f"requests: {sum(tally.statuses.values())}: " + ", ".join(f"{n} {s}" for s, n in tally.statuses.items()))
    print(f"wrong answers: {tally.wrong}; p50 {tally.percentile(50):.1f} ms, longest {tally.percentile(100):.0f} ms")
    print(f"open files: {files[0]} before, {files[1]} after; processes left behind: {len(orphans)}")
    for note in tally.notes:
        print(f"  {note}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

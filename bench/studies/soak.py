"""Good clients among bad ones: `python bench/studies/soak.py [--minutes 10] [--rate 60] [--json FILE]`.

Good clients ask two models at a steady rate, whether or not the last answer has come, each request with other numbers,
and check every answer. They are alone at first and at the end. Between, those of abusers.py go by turns to another such
server on the same machine, for TURN_S[0] seconds, and to theirs, for TURN_S[1]: what both turns cost is of the cores
that all share, which are not the same from one minute to the next. A latency is counted from when the request was due.
The rates of the abusers are low, as all share the machine's cores; they are printed.

Exits with 1 if a good client got a wrong answer, none, or anything but a 200; if an abuser was answered wrongly or with
a 5xx (a full queue's 503 aside); if the good clients' p99 among abusers is over --most-p99-times what it is with the
abusers elsewhere; or if memory grows: the
median of the last quarter among abusers over that of the second by more than 10 % and 64 MiB (in the first one the
allocator takes what it then keeps).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.abusers import RATES, Aim, abuse
from penstock.bench.studies.traffic import Crowd, Question, Reply, Served, Tally, drawn, request, serving, write_model

CLIENTS = 6
MODELS = {"line": (3, 7), "slope": (5, -11)}
MOST_GROWTH, MOST_GROWTH_MB = 1.1, 64.0
PHASES = ("alone", "abusers elsewhere", "among abusers", "alone again")
AMONG = PHASES[2]
# The abusers' turns at the other server and at the good clients'; what lies between, when what was begun there ends.
TURN_S, BETWEEN_S = (30.0, 45.0), 8.0


@dataclass
class Abuse:
    """Abusers that are ready, and aim at the port given; what they got, once they have ended, by kind."""

    aim: Aim
    got: dict[str, tuple[dict[str, int], list[str]]] = field(default_factory=dict)


def question(number: int, rng: np.random.Generator) -> Question:
    name, (scale, shift) = list(MODELS.items())[number % len(MODELS)]
    x, id = drawn(rng), f"{number}-{rng.integers(2**62)}"

    def right(answer: Reply) -> bool:
        found, said = answer.tensor()
        return said == id and np.array_equal(found, scale * x + shift)

    return request(name, x, binary=number % 3 == 0, id=id), right


def watch(served: Served, seconds: float, samples: list[dict[str, Any]], phase: str, began: float) -> None:
    """Sample the server's memory, threads and open files each second."""
    until = time.perf_counter() + seconds
    while (now := time.perf_counter()) < until:
        at = now - began
        figures = {"rss_mb": served.rss_mb, "files": served.open_files, "threads": served.status("Threads")}
        if not samples or int(at // 60) != int(samples[-1]["at_s"] // 60):
            shown = f"{figures['rss_mb']:.0f} MiB, {figures['files']} open files, {figures['threads']} threads"
            print(f"minute {at / 60:.0f}, {phase}: {shown}", flush=True)
        samples.append({"at_s": at, "phase": phase, **figures})
        time.sleep(min(1.0, until - now))


@contextmanager
def abusing(kinds: list[str]) -> Iterator[Abuse]:
    """Abusers in a process of their own, without an aim; they end with the block, and have told then what they got."""
    spawning = multiprocessing.get_context("spawn")
    aim, over, results = spawning.Value("i", 0), spawning.Event(), spawning.Queue()
    process = spawning.Process(target=abuse, args=(aim, kinds, over, results))
    process.start()
    try:
        results.get(timeout=120)
        held = Abuse(aim)
        yield held
    finally:
        over.set()
    held.got = results.get(timeout=180)
    process.join()


def soak(minutes: float, rate: float, kinds: list[str], workers: int) -> dict[str, Any]:
    seconds = 60 * minutes
    alone_s, again_s = min(60.0, seconds / 5), min(30.0, seconds / 10)
    turns = max(1, round((seconds - alone_s - again_s) / (sum(TURN_S) + 2 * BETWEEN_S)))
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.onnx" for name in MODELS]
        for path in paths:
            write_model(path, *MODELS[path.stem])
        given: list[str | Path] = [*paths, "--workers", str(workers)]
        with serving(*given) as served, serving(*given) as other:
            crowd, began, tallies = Crowd(served.port, rate, CLIENTS, question), time.perf_counter(), dict[str, Tally]()

            def during(phase: str, lasting: float) -> None:
                crowd.tally = tallies.setdefault(phase, Tally())
                watch(served, lasting, samples, phase, began)

            during("alone", alone_s)
            crowd.tally = tallies["between"] = Tally()  # what they send takes a while to make
            with abusing(kinds) as abusers:
                for _ in range(turns):
                    for phase, port, lasting in zip(PHASES[1:3], (other.port, served.port), TURN_S, strict=True):
                        abusers.aim.value = port
                        during(phase, lasting)
                        abusers.aim.value = 0
                        during("between", BETWEEN_S)
            during("alone again", again_s)
            crowd.end()
            peak_mb = served.status("VmHWM") / 1024
            served.process.terminate()
            code = served.process.wait(timeout=60)
    return {"good": tallies, "abused": abusers.got, "samples": samples, "peak_mb": peak_mb, "exit": code}


def broken_rules(found: dict[str, Any], most_p99_times: float) -> list[str]:
    """Which of the rules in this file's text did not hold."""
    rules = []
    for phase, tally in found["good"].items():
        if tally.wrong or tally.failed:
            rules.append(f"good clients {phase}: {tally.wrong} wrong answers, {tally.failed} failed")
            rules += [f"  {note}" for note in tally.notes]
    for kind, (statuses, notes) in found["abused"].items():
        bad = {status: count for status, count in statuses.items() if status in ("wrong", "500", "broken")}
        if bad:
            rules.append(f"{kind}: {bad} {'; '.join(notes[:3])}")
    elsewhere, among_them = (found["good"][phase].percentile(99) for phase in PHASES[1:3])
    if among_them > most_p99_times * elsewhere:
        rules.append(f"p99 among abusers is {among_them / elsewhere:.2f} times what it is with them elsewhere")
    among = [sample["rss_mb"] for sample in found["samples"] if sample["phase"] == AMONG]
    quarter = max(1, len(among) // 4)
    early, late = statistics.median(among[quarter : 2 * quarter] or among), statistics.median(among[-quarter:])
    if late > early * MOST_GROWTH and late > early + MOST_GROWTH_MB:
        rules.append(f"memory grew from {early:.0f} to {late:.0f} MiB")
    if found["exit"]:
        rules.append(f"the server ended with {found['exit']}")
    return rules


def report(found: dict[str, Any]) -> None:
    print(f"\n{'good clients':18}{'requests':>9}{'wrong':>7}{'not 200':>9}{'p50 ms':>9}{'p99 ms':>9}{'worst ms':>10}")
    for phase, tally in found["good"].items():
        count = sum(tally.statuses.values())
        times = "".join(f"{tally.percentile(share):{width}.1f}" for share, width in ((50, 9), (99, 9), (100, 10)))
        print(f"{phase:18}{count:9}{tally.wrong:7}{tally.failed:9}{times}")
    print(f"\n{'abusers':18}{'a second':>9}  what they got")
    for kind, (statuses, _) in found["abused"].items():
        print(f"{kind:18}{RATES[kind]:9}  " + ", ".join(f"{count} {status}" for status, count in statuses.items()))
    for figure, unit in (("rss_mb", "MiB"), ("files", "open files"), ("threads", "threads")):
        by_minute: dict[int, float] = {}
        for sample in found["samples"]:
            by_minute[int(sample["at_s"] // 60)] = sample[figure]
        print(f"{unit} by minute: " + " ".join(f"{value:.0f}" for value in by_minute.values()))
    print(f"peak {found['peak_mb']:.0f} MiB; exit {found['exit']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second of the good clients together")
    parser.add_argument("--only", help="these kinds of abusers alone, by name, with commas")
    parser.add_argument("--most-p99-times", type=float, default=1.5)
    parser.add_argument("--workers", type=int, default=0, help="front ends of the server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = options.only.split(",") if options.only else list(RATES)
    found = soak(options.minutes, options.rate, kinds, options.workers)
    report(found)
    rules = broken_rules(found, options.most_p99_times)
    for rule in rules:
        print(rule if rule.startswith(" ") else f"BROKEN: {rule}")
    if options.json:
        good = {phase: vars(tally) for phase, tally in found["good"].items()}
        held = {**found, "good": good, "rates": RATES, "broken": rules}
        options.json.write_text(json.dumps(held, indent=1, default=lambda value: None))
    return 1 if rules else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Good clients among bad ones: `python bench/studies/soak.py [--minutes 10] [--rate 60] [--json FILE]`.

Good clients ask two models at a steady rate, whether or not the last answer has come, each request with other numbers,
and check every answer. They are alone for the first minute (a fifth of a shorter run); then those of abusers.py join
them, and leave them alone again for the end. A latency is counted from when the request was due. All share the
machine's cores, so the rates of the abusers are low; they are printed.

Exits with 1 if a good client got a wrong answer, none, or anything but a 200; if an abuser was answered wrongly or with
a 5xx (a full queue's 503 aside); if the good clients' p99 among abusers is over --most-p99-ms; or if memory grows: the
median of the last quarter among abusers over that of the second by more than 10 % and 64 MiB (in the first one the
allocator takes what it then keeps).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.abusers import RATES, abuse
from penstock.bench.studies.traffic import (
    Broken,
    Client,
    Served,
    Tally,
    drawn,
    request,
    serving,
    wait_until,
    write_model,
)

CLIENTS = 6
MODELS = {"line": (3, 7), "slope": (5, -11)}
MOST_GROWTH, MOST_GROWTH_MB = 1.1, 64.0
PHASES = ("alone", "among abusers", "alone again")


class Good:
    """Clients at a steady rate, whose figures go to the tally of the phase that it is."""

    def __init__(self, port: int, rate: float) -> None:
        self.tallies = {phase: Tally() for phase in PHASES}
        self.phase = PHASES[0]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port, rate / CLIENTS, n)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int, rate: float, seed: int) -> None:
        rng, held = np.random.default_rng(seed), Client(port)
        name, (scale, shift) = list(MODELS.items())[seed % len(MODELS)]
        moment = time.perf_counter() + seed / rate / CLIENTS
        while not self._over.is_set():
            moment += 1 / rate
            wait_until(moment)
            x, tally = drawn(rng), self.tallies[self.phase]
            try:
                answer = held.ask(request(name, x, binary=seed % 3 == 0, id=f"{seed}-{moment}"))
            except (Broken, OSError) as error:
                tally.add("broken", note=str(error))
                continue
            ms, right = 1e3 * (time.perf_counter() - moment), False
            if answer.status == 200:
                found, id = answer.tensor()
                right = id == f"{seed}-{moment}" and np.array_equal(found, scale * x + shift)
            note = "" if right else f"{answer.status} {answer.body[:120]!r}"
            tally.add(str(answer.status), wrong=answer.status == 200 and not right, ms=ms, note=note)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


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


def soak(minutes: float, rate: float, kinds: list[str]) -> dict[str, Any]:
    seconds = 60 * minutes
    alone_s, again_s = min(60.0, seconds / 5), min(30.0, seconds / 10)
    spawning = multiprocessing.get_context("spawn")
    begin, over, results = spawning.Event(), spawning.Event(), spawning.Queue()
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.onnx" for name in MODELS]
        for path in paths:
            write_model(path, *MODELS[path.stem])
        with serving(*paths) as served:
            abusers = spawning.Process(target=abuse, args=(served.port, kinds, begin, over, results))
            abusers.start()
            results.get(timeout=120)
            good, began = Good(served.port, rate), time.perf_counter()
            watch(served, alone_s, samples, PHASES[0], began)
            good.phase = PHASES[1]
            begin.set()
            watch(served, seconds - alone_s - again_s, samples, PHASES[1], began)
            over.set()
            abused = results.get(timeout=180)
            abusers.join()
            good.phase = PHASES[2]
            watch(served, again_s, samples, PHASES[2], began)
            good.end()
            peak_mb = served.status("VmHWM") / 1024
            served.process.terminate()
            code = served.process.wait(timeout=60)
    return {"good": good.tallies, "abused": abused, "samples": samples, "peak_mb": peak_mb, "exit": code}


def broken_rules(found: dict[str, Any], most_p99_ms: float) -> list[str]:
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
    p99 = found["good"][PHASES[1]].percentile(99)
    if p99 > most_p99_ms:
        rules.append(f"p99 among abusers is {p99:.0f} ms; --most-p99-ms is {most_p99_ms:g}")
    among = [sample["rss_mb"] for sample in found["samples"] if sample["phase"] == PHASES[1]]
    quarter = max(1, len(among) // 4)
    early, late = statistics.median(among[quarter : 2 * quarter] or among), statistics.median(among[-quarter:])
    if late > early * MOST_GROWTH and late > early + MOST_GROWTH_MB:
        rules.append(f"memory grew from {early:.0f} to {late:.0f} MiB")
    if found["exit"]:
        rules.append(f"the server ended with {found['exit']}")
    return rules


def report(found: dict[str, Any]) -> None:
    print(f"\n{'good clients':16}{'requests':>9}{'wrong':>7}{'not 200':>9}{'p50 ms':>9}{'p99 ms':>9}{'worst ms':>10}")
    for phase, tally in found["good"].items():
        count = sum(tally.statuses.values())
        times = "".join(f"{tally.percentile(share):{width}.1f}" for share, width in ((50, 9), (99, 9), (100, 10)))
        print(f"{phase:16}{count:9}{tally.wrong:7}{tally.failed:9}{times}")
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
    parser.add_argument("--most-p99-ms", type=float, default=100.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = soak(options.minutes, options.rate, options.only.split(",") if options.only else list(RATES))
    report(found)
    rules = broken_rules(found, options.most_p99_ms)
    for rule in rules:
        print(rule if rule.startswith(" ") else f"BROKEN: {rule}")
    if options.json:
        good = {phase: vars(tally) for phase, tally in found["good"].items()}
        held = {**found, "good": good, "rates": RATES, "broken": rules}
        options.json.write_text(json.dumps(held, indent=1, default=lambda value: None))
    return 1 if rules else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""SIGTERM under load, again and again: `python bench/studies/sigterm.py [--times 20] [--connections 32] [--json FILE]`.

Of the connections three quarters ask without a pause and the others pause for up to two seconds between requests. A
client that is asked to leave (Connection: close), or finds its connection ended before it writes, connects anew, and
gives up once it is refused. A request that was written and got no answer is a failure, whatever the cause; so is an
answer that is not right, a lost request by the server's own count, and an exit status other than 0. Exits with 1 then.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.traffic import (
    TOLD,
    Broken,
    Client,
    Refused,
    Served,
    Tally,
    drawn,
    request,
    serving,
    write_model,
)


def client(port: int, seed: int, pause_s: float, tally: Tally) -> None:
    rng, held = np.random.default_rng(seed), Client(port)
    while True:
        x = drawn(rng)
        try:
            answer = held.ask(request("line", x, binary=bool(seed % 2)))
        except Refused:
            return
        except Broken as error:
            tally.add("broken", note=str(error))
            return
        right = answer.status == 200 and np.array_equal(answer.tensor()[0], 3 * x + 7)
        tally.add(str(answer.status), wrong=not right)
        if pause_s:
            time.sleep(rng.uniform(0, pause_s))


def ended_once(served: Served, connections: int, seed: int) -> dict[str, Any]:
    tally = Tally()
    pauses = [2.0 if number % 4 == 0 else 0.0 for number in range(connections)]
    threads = [
        threading.Thread(target=client, args=(served.port, seed + number, pause_s, tally))
        for number, pause_s in enumerate(pauses)
    ]
    for thread in threads:
        thread.start()
    time.sleep(1 + random.Random(seed).random())  # noqa: S311
    began = time.perf_counter()
    served.process.send_signal(signal.SIGTERM)
    code = served.process.wait(timeout=60)
    took = time.perf_counter() - began
    for thread in threads:
        thread.join()
    assert served.process.stdout is not None
    told = TOLD.search(served.process.stdout.read())
    answered, lost = (int(told[2]), int(told[3])) if told else (-1, -1)
    return {
        "seconds": took,
        "code": code,
        "answered_while_draining": answered,
        "lost": lost,
        "requests": sum(tally.statuses.values()),
        "failed": tally.failed,
        "wrong": tally.wrong,
        "notes": tally.notes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--lame-duck-s", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0, help="front ends of the server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "line.onnx"
        write_model(model, 3, 7)
        for turn in range(options.times):
            drained = ("--lame-duck-s", str(options.lame_duck_s), "--workers", str(options.workers))
            with serving(model, *drained) as served:
                runs.append(ended_once(served, options.connections, 1000 * turn))
            run = runs[-1]
            print(
                f"{turn + 1}: exit {run['code']} after {run['seconds']:.2f} s; {run['answered_while_draining']} "
                f"answered while draining, {run['lost']} lost; of {run['requests']} requests {run['failed']} failed, "
                f"{run['wrong']} wrong  {'; '.join(run['notes'])}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))
    seconds = [run["seconds"] for run in runs]
    bad = sum(run["failed"] + run["wrong"] + abs(run["lost"]) + (run["code"] != 0) for run in runs)
    print(
        f"\n{len(runs)} times SIGTERM under {options.connections} connections: "
        f"{sum(run['requests'] for run in runs)} requests, {sum(run['failed'] for run in runs)} failed, "
        f"{sum(run['wrong'] for run in runs)} wrong, {sum(run['lost'] for run in runs)} lost; "
        f"ended in {statistics.median(seconds):.2f} s (median; {min(seconds):.2f} to {max(seconds):.2f})"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

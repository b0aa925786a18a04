"""Slots after a million requests: `python slot_leaks.py [--requests 1000000] [--workers 2] [--json FILE]`.

Clients ask `penstock serve --workers N`, check every answer, and leave amid it all: one request in seven is cut off
while it is sent, as soon as it is sent, or while its answer comes; some have more rows than a batch. Exits with 1 if an
answer is wrong or no 200, if a slot is taken when nobody asks any more, or if a process has grown: its memory at the
end over that after a fifth of the requests by more than 5 % and 16 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.traffic import Served, request, serving, write_model

CLIENTS, SCALE, SHIFT = 32, 3, 7
CUT, MANY_ROWS = 1 / 7, 1 / 50
MOST_GROWTH, MOST_GROWTH_MB = 1.05, 16.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")
_TENSOR = re.compile(rb"(?i)inference-header-content-length: (\d+)")


async def client(port: int, rng: np.random.Generator, left: list[int], seen: Counter[str]) -> None:
    """Ask until none of the requests is left."""
    streams: Any = None
    while left[0] > 0:
        left[0] -= 1
        rows = 100 if rng.random() < MANY_ROWS else int(rng.integers(1, 5))
        x = rng.integers(-100_000, 100_000, (rows, 8)).astype(np.float32)
        data = request("line", x, binary=True)
        streams = streams or await asyncio.open_connection("127.0.0.1", port)
        cut = int(rng.integers(3)) if rng.random() < CUT else None
        streams[1].write(data if cut != 0 else data[: int(rng.integers(1, len(data)))])
        if cut is None:
            seen[await answer(streams[0], SCALE * x + SHIFT)] += 1
            continue
        seen["cut off"] += 1
        if cut == 2:
            await streams[0].read(1)
        streams[1].transport.abort()
        streams = None
    if streams is not None:
        streams[1].close()


async def answer(reader: asyncio.StreamReader, due: Any) -> str:
    """What became of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(_LENGTH.search(head)[1]))  # type: ignore[index]
    if not head.startswith(b"HTTP/1.1 200"):
        return head[9:12].decode()
    text = int(_TENSOR.search(head)[1])  # type: ignore[index]
    return "right" if body[text:] == due.tobytes() else "wrong"


def figures(port: int) -> dict[str, float]:
    """The server's figures of slots."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as said:
        found = re.findall(r"^(penstock_slots\w+) (\S+)$", said.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}


def grown(before: dict[int, float], after: dict[int, float]) -> dict[int, tuple[float, float]]:
    """Memory in MiB of the processes that took more of it."""
    both = {pid: (before[pid], after[pid]) for pid in before if pid in after}
    return {pid: (old, new) for pid, (old, new) in both.items() if new > max(MOST_GROWTH * old, old + MOST_GROWTH_MB)}


async def ask(served: Served, requests: int, seen: Counter[str]) -> None:
    left = [requests]
    drawn = np.random.default_rng(requests).spawn(CLIENTS)
    await asyncio.gather(*(client(served.port, rng, left, seen) for rng in drawn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.onnx"
        write_model(path, SCALE, SHIFT)
        with serving(path, "--workers", str(args.workers), "--slots-mb", "64") as served:
            whole, began = figures(served.port), time.monotonic()
            asyncio.run(ask(served, args.requests // 5, seen))
            before = served.rss_by_process
            print(f"{args.requests // 5:,} requests: {dict(seen)}", flush=True)
            asyncio.run(ask(served, args.requests - args.requests // 5, seen))
            seconds = time.monotonic() - began
            until = time.monotonic() + 30
            while (left := figures(served.port)) != whole and time.monotonic() < until:
                time.sleep(0.2)
            after = served.rss_by_process
    more = grown(before, after)
    found = {"requests": dict(seen), "seconds": seconds, "slots": left, "memory_mb": [before, after], "grown": more}
    print(
        f"{args.requests:,} requests in {seconds:.0f} s: {dict(seen)}; {left}; memory before and after {before} {after}"
    )
    if args.json:
        args.json.write_text(json.dumps(found))
    bad = sum(count for what, count in seen.items() if what not in ("right", "cut off"))
    if bad or left != whole or more:
        raise SystemExit(f"{bad} answers were not right, slots {left} of {whole}, grown {more}")


if __name__ == "__main__":
    main()

"""A family's road against its ceilings: `python front_ends.py ARTIFACT --out FILE [--wire FILE] [--rival COMMAND]`.

On a GPU host, the load's generators on the same cores. Each turn begins every server anew, asks it in closed loops and
then at 70 % of the best rate, and at each --rate, as independent clients would (Poisson), and ends it; turns take the
servers in order, so that drift hits all alike. Every answer is checked. `--wire` is a model that takes the same bytes
and does nothing: the road's ceiling. `--rival` is a command that serves `/predict` at the port in PORT (see
rival_litserve.py). Prints a line for each run, and writes all of them with their raw samples.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PORT = 8140
KINDS = ("frontend", "engine", "worker")
_START_S = 240.0
_OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Cell:
    """A server, by its options, and what it is asked."""

    name: str
    options: tuple[str, ...]
    loops: str
    more: tuple[tuple[str, ...], ...] = ()
    wire: bool = False
    poisson: bool = False


def cells(workers: int, quick: bool) -> list[Cell]:
    """What is measured; `quick`: the main road alone."""
    family = ("--workers", str(workers))
    eight = ("--rows", "8", "--concurrency", "64")
    rpc = ("--form", "grpc", "--concurrency", "256")
    loops = "1,64,256,512,1024"
    found = [Cell(f"{workers} front ends", family, loops, () if quick else (eight, rpc), poisson=True)]
    if not quick:
        found.append(Cell(f"{workers} front ends, 3 instances", (*family, "--instances", "3"), "512"))
        found.append(Cell("one process", ("--workers", "0"), "1,64"))
    return [*found, Cell(f"wire, {workers} front ends", (*family, "--instances", "3"), "1,64,512,1024", wire=True)]


def told(words: str) -> Cell:
    """A cell of the command line: NAME;OPTIONS;LOOPS[;poisson]."""
    name, options, loops, *poisson = words.split(";")
    return Cell(name, tuple(shlex.split(options)), loops, wire=name.startswith("wire"), poisson=bool(poisson))


@contextmanager
def serving(command: list[str], ready: str) -> Iterator[int]:
    """A server, once it is ready; its process."""
    env = {**os.environ, "PORT": str(PORT)}
    with subprocess.Popen(command, env=env, stdout=sys.stderr, start_new_session=True) as process:  # noqa: S603
        try:
            until = time.monotonic() + _START_S
            while not _answers(ready):
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit(f"{shlex.join(command)} does not become ready")
                time.sleep(0.2)
            yield process.pid
        finally:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answers(path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def seconds_of(head: int) -> dict[str, float]:
    """Processor seconds so far of a server's processes, by what they run; of the engine its event loop apart."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[str, float] = {}
    for pid in (pid for pid in parents if _below(pid, head, parents)):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            kind = next((kind for kind in KINDS if f"serve.{kind}".encode() in line), "head")
            found[kind] = found.get(kind, 0.0) + _seconds(Path(f"/proc/{pid}/stat"))
            if kind == "engine":
                found["of it the event loop"] = _seconds(Path(f"/proc/{pid}/task/{pid}/stat"))
    return found


def _below(pid: int, head: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != head:
        pid = parents[pid]
    return pid == head


def _seconds(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asked(model: str, options: tuple[str, ...], seconds: float, processes: int, out: Path) -> list[dict[str, Any]]:
    """The runs of one `penstock bench` of the server."""
    command = [sys.executable, "-m", "penstock", "bench", f"http://127.0.0.1:{PORT}", model, *options]
    command += ["--seconds", str(seconds), "--warmup", "1", "--processes", str(processes), "--json", str(out)]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603
    if not out.exists():
        print(ended.stderr[-2000:], flush=True)
        return []
    runs: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    out.unlink()
    return runs


def shown(name: str, run: dict[str, Any], rows: int, used: dict[str, float], wall_s: float) -> None:
    """A run in a line."""
    requests = max(1.0, run["throughput_per_s"] * wall_s)
    cost = ", ".join(f"{kind} {1e6 * taken / requests:.0f}" for kind, taken in sorted(used.items()))
    median, worst = ("-" if run[key] is None else f"{1e3 * run[key]:.2f}" for key in ("median_s", "p99_s"))
    stages = ", ".join(f"{stage} {1e3 * taken:.1f}" for stage, taken in (run.get("stages_s") or {}).items() if taken)
    load = run["mode"] if run["rate_per_s"] is None else f"{run['mode']} {run['rate_per_s']:.0f}/s"
    print(
        f"{name:28} {load:16} {run['concurrency']:5} {rows * run['throughput_per_s']:9.0f} rows/s  p50 {median:>7} p99 "
        f"{worst:>7} ms  failed {sum(run['failures'].values())}  generators {run['generator']['cores']:.1f} cores  "
        f"{'VOID ' if run['void'] else ''}us/request: {cost}  mean ms: {stages}",
        flush=True,
    )


def gpu_memory() -> str:
    """What nvidia-smi says of it."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    with suppress(OSError):
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()  # noqa: S603
    return "nothing"


def measured(cell: Cell, model: str, path: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs of a cell, each beside what the server's processes took meanwhile."""
    found: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "penstock", "serve", path, "--port", str(PORT), "--grpc-port", str(PORT + 1)]
    command += [*cell.options, "--max-queue-rows", "4096"]

    def ask(options: tuple[str, ...], rows: int = 1) -> list[float]:
        before, began = seconds_of(head), time.monotonic()
        runs = asked(model, options, args.seconds, args.processes, args.out.with_suffix(".run"))
        wall_s, after = time.monotonic() - began, seconds_of(head)
        used = {kind: after.get(kind, 0.0) - before.get(kind, 0.0) for kind in after}
        for run in runs:
            shown(cell.name, run, rows, used if len(runs) == 1 else {}, args.seconds + 1)
            found.append({"cell": cell.name, "rows": rows, "used_s": used, "wall_s": wall_s, **run})
        return [run["throughput_per_s"] for run in runs]

    with serving(command, "/v2/health/ready") as head:
        print(f"{cell.name}: {gpu_memory()} of the GPU in use", flush=True)
        best = max((rate for each in cell.loops.split(",") for rate in ask(("--concurrency", each))), default=0.0)
        for options in cell.more:
            ask(options, 8 if "--rows" in options else 1)
        for rate in [0.7 * best, *args.rate] if cell.poisson and best else []:
            ask(("--rate", f"{rate:.0f}", "--poisson", "--connections", "4096"))
            show_slowest(5)
    return found


def show_slowest(count: int) -> None:
    """Where the time of the slowest requests went."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/debug/slow", timeout=30) as answer:
        for held in json.load(answer)["requests"][:count]:
            print("    ", ", ".join(f"{key} {held[key]}" for key in held if key.endswith("_ms") or key == "when"))


def rival(command: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Closed loops at another server, which is sent a picture's bytes, and answers in the protocol's binary form."""
    from penstock.bench.answers import Expected
    from penstock.bench.fleet import Fleet, Goal
    from penstock.bench.generator import Order
    from penstock.bench.runs import described

    found: list[dict[str, Any]] = []
    with serving(shlex.split(command), "/health"):
        body = bytes(range(256)) * (150_528 // 256)
        head = f"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Type: {_OCTETS}\r\nContent-Length: {len(body)}\r\n"
        asked = urllib.request.Request(f"http://127.0.0.1:{PORT}/predict", body, {"Content-Type": _OCTETS})
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
            due = Expected(answer.read(), int(answer.headers["Inference-Header-Content-Length"]))
        request = f"{head}\r\n".encode() + body
        with Fleet(Goal("127.0.0.1", PORT), [request], [due], args.processes, 30.0, 0.05) as fleet:
            for slots in (1, 64, 128, 256):
                order = Order(0.0, 1.0, args.seconds, 30.0, slots, slots)
                run = described(fleet.run(order)[0], order, args.processes, None)
                shown(f"rival: {os.environ.get('RIVAL', '')}", run, 1, {}, args.seconds + 1)
                found.append({"cell": "rival", "rival": os.environ.get("RIVAL", ""), "rows": 1, **run})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wire", type=Path)
    parser.add_argument("--rival", action="append", default=[], metavar="SETTINGS;COMMAND")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--cell",
        action="append",
        metavar="NAME;OPTIONS;LOOPS[;poisson]",
        help="these in place of the usual: NAME, options of serve, and connections: 'alone;--isolate;512,1024'",
    )
    parser.add_argument("--rate", type=float, action="append", default=[], help="of open loops, beside 70 %%")
    parser.add_argument("--processes", type=int, default=4, help="of the generator")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    version = max((path for path in args.artifact.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    name = json.loads((version / "penstock.json").read_text())["name"]
    found: list[dict[str, Any]] = []
    try:
        for _ in range(args.turns):
            for cell in [told(each) for each in args.cell or ()] or cells(args.workers, args.quick):
                if not cell.wire:
                    found += measured(cell, name, str(args.artifact), args)
                elif args.wire is not None:
                    found += measured(cell, args.wire.stem, str(args.wire), args)
            for each in args.rival:
                os.environ["RIVAL"], _, command = each.partition(";")
                found += rival(command, args)
    finally:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()

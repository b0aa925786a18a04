"""What an open page costs a server, which it asks once a second: `python page_cost.py [MODELS]`, on any machine.

Prints the processor milliseconds of one question, all processes of the server together, and beside it those of the
cheapest question that there is, whether the server lives; both in turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from penstock.bench.studies.traffic import Client, Served, drawn, request, serving, write_model
from penstock.serve import page

ROUNDS, ASKED = 10, 100
PATHS = ("/v2/health/live", page.FIGURES)


def main() -> None:
    """Measure both topologies."""
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    print(f"{models} models; milliseconds of processor time a question, median of {ROUNDS} rounds of {ASKED} in turns")
    for workers in (0, 2):
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"line{number}.onnx" for number in range(models)]
            for file in files:
                write_model(file, 2, 1)
            with serving(*files, "--workers", str(workers)) as server:
                shown = [f"{path} {cost:.2f}" for path, cost in zip(PATHS, costs(server, files), strict=True)]
        print(f"--workers {workers}: {', '.join(shown)}")


def costs(server: Served, files: list[Path]) -> list[float]:
    """Milliseconds of each path's question, once every model has been asked something."""
    client, rng = Client(server.port), np.random.default_rng(0)
    for file in files:
        for _ in range(ASKED):
            assert client.ask(request(file.stem, drawn(rng), binary=True)).status == 200
    rounds = [[cost(server, client, path) for path in PATHS] for _ in range(ROUNDS)]
    return [statistics.median(figures) for figures in zip(*rounds, strict=True)]


def cost(server: Served, client: Client, path: str) -> float:
    before = processor_s(server)
    for _ in range(ASKED):
        assert client.ask(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()).status == 200
    return 1000 * (processor_s(server) - before) / ASKED


def processor_s(server: Served) -> float:
    """Seconds of processor time that all of a server's processes have had."""
    ticks = 0
    for pid in server.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

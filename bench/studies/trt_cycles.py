"""Memory of a GPU over many loads and closes of an engine: `python trt_cycles.py ARTIFACT [CYCLES]`, on a GPU host."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from penstock import artifact, cuda

WARM = 20


def main(folder: Path, cycles: int) -> None:
    found = artifact.read(folder)
    inputs, _ = found.golden()
    used = []
    started = time.perf_counter()
    for cycle in range(cycles):
        runner: Any = found.load(device="cuda:0")
        runner.run({name: array[:1] for name, array in inputs.items()})
        if cycle % 2:
            runner.settled()  # closed with all captures made, and in the middle of them
        runner.close()
        used.append(cuda.memory_used())
    warm = used[WARM:]
    first, early, last, least, most = (
        f"{size / 2**20:.0f}" for size in (used[0], warm[0], warm[-1], min(warm), max(warm))
    )
    print(
        f"{found.receipt.name}: {cycles} loads and closes in {time.perf_counter() - started:.0f} s; GPU memory in use "
        f"after the first {first} MiB, after {WARM} {early}, last {last}, least {least}, most {most}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 500)

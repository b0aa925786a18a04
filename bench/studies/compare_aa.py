"""How `penstock bench --compare` decides: `python bench/studies/compare_aa.py ARTIFACT… [--times 20] [--json FILE]`.

Each time three measurements, each a process of its own: one of the artifacts, one of the same again, and one of the
same with every run of the engine made 10 % longer by spinning. The first is compared with the second, where no
difference is to be found, and with the third, where every cell is slower. Prints the counts, and how far the same
program is from itself when it is started anew, which `contrast.LOADING` and `contrast.CLOCK` are to cover.

`--pairs FILE…` compares each file with each other one, all of the same program, and counts what is found.
`--simulate` decides on drawn rounds instead, under noise of several kinds, and prints how often it is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench import compare, recorded
from penstock.bench.compare import FAMILY_ERROR, Comparison
from penstock.bench.contrast import between

SLOWER, THRESHOLD = 1.10, 0.05


def slowed(run: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """`run`, and spinning after it until it has taken `factor` times as long."""

    def longer(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        answer = run(*args, **kwargs)
        end = started + (time.perf_counter() - started) * factor
        while time.perf_counter() < end:
            pass
        return answer

    return longer


def measure(words: list[str], factor: float) -> None:
    """`penstock bench` in this process, its runners slowed."""
    from penstock import cli
    from penstock.runtimes import onnxruntime

    if factor > 1:
        onnxruntime.OnnxRunner.run = slowed(onnxruntime.OnnxRunner.run, factor)  # type: ignore[method-assign]
    sys.argv = ["penstock", "bench", *words]
    cli.main()


def result(words: list[str], folder: Path, name: str, factor: float) -> recorded.Result:
    path = folder / f"{name}.json"
    if path.exists():
        return recorded.read(path, "--keep")
    command = [sys.executable, __file__, "--measure", str(factor), *words, "--json", str(path)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return recorded.read(path, "--from")


def told(found: Comparison) -> str:
    return " ".join("-" if one.contrast is None else f"{one.contrast.value:.3f}" for one in found.compared)


def judged(words: list[str], folder: Path, number: int) -> tuple[Comparison, Comparison]:
    """The same again, and 10 % slower; measured anew where others were at work, of which --compare gives no verdict."""
    while True:
        once, again, slow = (
            result(words, folder, f"{number}-{name}", factor)
            for name, factor in (("once", 1.0), ("again", 1.0), ("slow", SLOWER))
        )
        alike, planted = (compare.compare(once, other, THRESHOLD) for other in (again, slow))
        if not alike.untold and not planted.untold:
            return alike, planted
        print(f"{number:3}  measured again: {[*alike.untold, *planted.untold][0].unable}", flush=True)
        for path in folder.glob(f"{number}-*.json"):
            path.unlink()


def study(words: list[str], times: int, keep: Path | None) -> bool:
    folder = keep or Path(tempfile.mkdtemp())
    same, found, cells, apart, together = 0, 0, 0, list[float](), list[float]()
    for number in range(1, times + 1):
        alike, planted = judged(words, folder, number)
        same += not alike.regressions and not any(one.verdict == "faster" for one in alike.compared)
        found += bool(planted.regressions)
        cells += len([one for one in planted.regressions if one.what != planted.compared[-1].what])
        apart += [math.log(one.contrast.value) for one in alike.compared[:-1] if one.contrast]
        together += [math.log(one.contrast.value) for one in alike.compared[-1:] if one.contrast]
        print(f"{number:3}  same again: {told(alike)}   10 % slower: {told(planted)}", flush=True)
    print("(times as long, of each cell, then of all together; - where others were at work)")
    print(f"the same again: no difference found in {same} of {times}")
    print(f"10 % slower: found in {found} of {times}; in {cells} of {len(apart)} cells")
    print(
        f"the same program started anew: {np.std(apart) / math.sqrt(2):.2%} (standard deviation of a cell's time), "
        f"{np.std(together) / math.sqrt(2):.2%} of all cells together"
    )
    return same == times and found == times


def pairs(paths: list[Path]) -> bool:
    """Each with each, in both directions: whatever is found in files of one program is wrong."""
    held = [recorded.read(path, "--pairs") for path in paths]
    wrong, untold, told = 0, 0, 0
    for old, new in permutations(held, 2):
        found = compare.compare(old, new, THRESHOLD)
        wrong += any(one.verdict in ("slower", "faster") for one in found.compared)
        untold += len(found.untold)
        told += len(found.compared) - len(found.untold)
    count = len(held) * (len(held) - 1)
    print(f"of the same program: a difference found in {wrong} of {count} pairs; {told} figures told, {untold} not")
    return not wrong


def drawn(rng: np.random.Generator, cells: int, rounds: int, noise: tuple[float, float, float, float]) -> Any:
    """Rounds without the clock: what is left drifts, is offset in each process, and is hit by neighbours."""
    lasting, spread, offset, hits = noise
    steps = rng.normal(0, spread, (cells, rounds))
    for index in range(1, rounds):
        steps[:, index] = lasting * steps[:, index - 1] + math.sqrt(1 - lasting**2) * steps[:, index]
    hit = (rng.random((cells, rounds)) < hits) * rng.uniform(0.1, 0.5, (cells, rounds))
    return np.exp(steps + hit + rng.normal(0, offset, (cells, 1)))


def simulate(times: int) -> None:
    rng = np.random.default_rng(0)
    kinds = (
        ("independent", (0.0, 0.01, 0.0, 0.0)),
        ("usual", (0.5, 0.015, 0.01, 0.05)),
        ("bad", (0.7, 0.02, 0.015, 0.1)),
    )
    for kind, noise in kinds:
        for cells in (1, 4, 24):
            wrong, found = 0, 0.0
            for _ in range(times):
                old, same, slow = (drawn(rng, cells, 10, noise) for _ in range(3))
                sure = 1 - FAMILY_ERROR / cells
                wrong += any(between(o, s, sure).slower(THRESHOLD) for o, s in zip(old, same, strict=True))
                slower = [between(o, s * SLOWER, sure).slower(THRESHOLD) for o, s in zip(old, slow, strict=True)]
                found += float(np.mean(slower))
            print(
                f"{kind:12} {cells:2} cells, 10 rounds: a regression where there is none in {wrong / times:.1%} of "
                f"comparisons; 10 % slower found in {found / times:.0%} of cells"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--pairs", type=Path, nargs="+")
    parser.add_argument(
        "--keep", type=Path, help="A folder for the results; those that are there are not measured again."
    )
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=float, help=argparse.SUPPRESS)
    known, words = parser.parse_known_args()
    if known.measure is not None:
        measure([*words, "--json", str(known.json)], known.measure)
    elif known.pairs:
        sys.exit(0 if pairs(known.pairs) else 1)
    elif known.simulate:
        simulate(known.times)
    else:
        print(json.dumps({"words": words, "times": known.times}))
        sys.exit(0 if study(words, known.times, known.keep) else 1)


if __name__ == "__main__":
    main()

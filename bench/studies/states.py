"""Two states of penstock in turns: `python states.py MODEL BEFORE AFTER [--options "--workers 0"] [--turns 5]`.

BEFORE and AFTER are checkouts. Each turn serves MODEL, a file or an artifact's folder, from one and then the other,
and asks both in the same closed loop, with the generator of this script's own state; every answer is checked. Prints a
line for each run, and the median of the turns' ratios, which a machine that is faster at one time than at another moves
less than it moves the rates.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from pathlib import Path

from penstock.bench.studies.front_ends import PORT, asked, serving


def rate(state: Path, given: argparse.Namespace) -> float:
    """Answers a second from a server of one state; prints them."""
    command = [sys.executable, "-m", "penstock", "serve", str(given.model), "--port", str(PORT), *given.options]
    own, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", ""), str(state.resolve())
    with serving([*command, "--grpc-port", "-1"], "/v2/health/ready"):
        os.environ["PYTHONPATH"] = own
        (run,) = asked(given.name, ("--concurrency", str(given.connections)), given.seconds, 1, Path("states.run"))
    median, worst = (1e3 * (run[key] or 0.0) for key in ("median_s", "p99_s"))
    failed = sum(run["failures"].values())
    print(
        f"{state}: {run['throughput_per_s']:,.0f}/s  p50 {median:.2f} p99 {worst:.2f} ms  failed {failed}", flush=True
    )
    return float(run["throughput_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("states", type=Path, nargs=2, metavar="STATE")
    parser.add_argument("--options", type=shlex.split, default=[], help="of penstock serve, in one word")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    receipts = sorted(given.model.glob("*/penstock.json"))
    given.name = json.loads(receipts[-1].read_text())["name"] if receipts else given.model.stem
    ratios = []
    for turn in range(given.turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)  # whoever comes second may find the machine warm, or slowed down
        found = {number: rate(given.states[number], given) for number in order}
        ratios.append(found[1] / found[0])
    print(
        f"after / before: {statistics.median(ratios):.3f}, of {', '.join(f'{ratio:.3f}' for ratio in sorted(ratios))}"
    )


if __name__ == "__main__":
    main()

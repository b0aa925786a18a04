"""Results as penstock bench --json writes them, drawn, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 10


def cell(batch: int, seconds: float, seed: int = 0, noise: float = 0.01, rounds: int = ROUNDS) -> dict[str, Any]:
    rng = np.random.default_rng((seed, batch))
    held = [(seconds * np.exp(rng.normal(0, noise) + rng.normal(0, noise, 30))).tolist() for _ in range(rounds)]
    every = [value for part in held for value in part]
    median = float(np.median(every))
    return {
        "batch": batch,
        "threads": 1,
        "streams": None,
        "samples": len(every),
        "median_s": median,
        "median_ci_s": [median * 0.99, median * 1.01],
        "p90_s": float(np.quantile(every, 0.9)),
        "p99_s": None,
        "rows_per_second": batch / median,
        "transfer_s": {"in": 1e-5, "out": None},
        "ceiling_s": seconds / 4,
        "share_of_ceiling": 0.25,
        "ratio": {"value": 1.5, "lo": 1.4, "hi": 1.6},
        "rounds_s": held,
    }


def row(name: str, cells: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "version": 1,
        "format": "onnx",
        "precision": "fp32",
        "model_bytes": 1_000_000,
        "unavailable": None,
        "accuracy": {"value": 0.99, "samples": 360},
        "agreement": {"logits": 0.995},
        "load_s": 0.02,
        "first_call_s": 0.004,
        "memory": {"host_bytes": 2_000_000, "device_bytes": None},
        "cells": cells,
        **more,
    }


def engines(rows: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    if rows is None:
        rows = [
            row("net-fp32", [cell(1, 1e-3, 1), cell(8, 4e-3, 1)]),
            row("net-int8", [cell(1, 5e-4, 2), cell(8, 2e-3, 2)], precision="int8"),
        ]
    return {
        "penstock_bench": 1,
        "kind": "engines",
        "environment": {"cpu": "A Processor", "cores": 2, "versions": {"onnxruntime": "1.32.0"}, "load_1min": 0.1},
        "notes": [],
        "warnings": [],
        "interrupted": False,
        "clock": {"unit": "s", "rounds_s": [1e-3] * ROUNDS},
        "reference": "net-fp32",
        "ceiling": {"flops_per_s": 1e11, "bytes_per_s": 2e10},
        "verdict": {"fastest": "net-int8", "batch": 8, "budget": 0.01, "text": "net-int8 is the fastest."},
        "rows": rows,
        **more,
    }


def run(mode: str, load: float, median: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng((seed, int(load)))
    latencies = median * np.exp(np.abs(rng.normal(0, 0.2, 2000)))
    made: dict[str, Any] = {"mode": mode, "concurrency": int(load) if mode == "closed" else 8}
    made["rate_per_s"] = None if mode == "closed" else load
    made |= {
        f"{name}_s": float(np.quantile(latencies, q)) for name, q in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    made |= {f"{name}_ci_s": [made[f"{name}_s"] * 0.99, made[f"{name}_s"] * 1.01] for name in ("median", "p90", "p99")}
    windows = [median * float(np.exp(rng.normal(0, 0.01))) for _ in range(8)]
    return {
        **made,
        "seconds": 8.0,
        "requests": 2000,
        "failures": {},
        "throughput_per_s": (load if mode == "closed" else 1) / median,
        "latencies_s": latencies.tolist(),
        "windows": [
            {"requests": 250, "throughput_per_s": 1 / value, "median_s": value, "p99_s": value * 2} for value in windows
        ],
        "stages_s": {"client": median * 0.1, "network": median * 0.2, "queue": median * 0.3, "compute": median * 0.4},
        "generator": {"processes": 2, "cores": 0.5, "late_p99_s": 1e-4},
        "void": None,
        **more,
    }


def server(runs: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    if runs is None:
        runs = [run("closed", 1, 1e-3), run("closed", 8, 3e-3), run("poisson", 200, 2e-3)]
    return {
        "penstock_bench": 1,
        "kind": "server",
        "environment": {"cpu": "A Processor", "cores": 2},
        "notes": [],
        "warnings": [],
        "interrupted": False,
        "clock": {"rounds_s": []},
        "server": {"url": "http://127.0.0.1:8000", "name": "penstock", "version": "0.1.0", "model": "net"},
        "payload": {"form": "v2-binary", "bytes": 512, "rows": 1, "source": "golden.npz"},
        "runs": runs,
        "capacity": {"rate_per_s": 2600.0, "concurrency": 8},
        "slo": {"slo_ms": 10, "rate_per_s": 200.0, "p99_s": 0.005},
        **more,
    }

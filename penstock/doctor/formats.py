"""Formats: what can be exported on this machine, and what of it runs here, by what was tried."""

from __future__ import annotations

from penstock import engines
from penstock.doctor import packages
from penstock.doctor.attempts import Outcome
from penstock.doctor.findings import Finding

_BY_TORCH = ("torchscript", "pt2")
# Where nothing can be exported, the names of what can still be run.
_NAMES = ("onnx", *_BY_TORCH, "trt")


def formats(made: dict[str, list[str]], tried: dict[str, Outcome]) -> list[Finding]:
    """Each format: its precisions, where they run here, and what is to be installed for those that do not.

    Args:
        made: the precisions that each format can be exported in here; empty where nothing can.
        tried: what became of the trials.
    """
    return [_format(name, made.get(name, []), tried) for name in (*made,) or _NAMES]


def _format(name: str, made: list[str], tried: dict[str, Outcome]) -> Finding:
    runs, why, fix = _engine(made, tried) if name == "trt" else _model(name, made, tried)
    parts = [f"exports {', '.join(made)}"] if made else []
    parts += [f"runs {', '.join(precisions)} on {device}" for device, precisions in runs.items() if precisions]
    if not made and not fix:
        why, fix = "nothing can be exported here", packages.install("export")
    return Finding("formats", name, True if parts else None, "; ".join(parts), why, fix)


def _model(name: str, made: list[str], tried: dict[str, Outcome]) -> tuple[dict[str, list[str]], str, str]:
    """Where an ONNX file or a program of torch's runs, in which precisions; why not elsewhere, and what helps."""
    runtime, extra = ("torch", "export") if name in _BY_TORCH else ("onnxruntime", "serve")
    runs = {}
    for device in ("the CPU", "CUDA"):
        outcome = tried.get(f"{runtime} on {device}")
        ran = outcome.facts.get("ran", []) if outcome is not None else []
        runs[device] = [each for each in ran if each in made] if made else ran
    if not any(runs.values()):
        return runs, f"{runtime} does not run here", packages.install(extra)
    left = [precision for precision in made if not any(precision in ran for ran in runs.values())]
    return runs, f"{', '.join(left)} {'needs' if len(left) == 1 else 'need'} a GPU" if left else "", ""


def _engine(made: list[str], tried: dict[str, Outcome]) -> tuple[dict[str, list[str]], str, str]:
    held = {flavor: tried.get(f"TensorRT, {flavor}") for flavor in engines.FLAVORS}
    built = {flavor: outcome.facts for flavor, outcome in held.items() if outcome is not None and not outcome.error}
    if not built:
        why = "no TensorRT that builds here; an export with --defer is built by penstock build on the GPU machine"
        return {}, why, packages.install("trt-rtx")
    if any(facts["ran"] for facts in built.values()):
        return {"CUDA": made or ["engines"]}, "", ""
    return {}, f"built here by {' and '.join(built)}; a machine with an NVIDIA GPU runs them", ""

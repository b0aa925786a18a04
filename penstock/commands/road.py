"""The road: what `penstock` alone prints, the four steps from a recipe to figures."""

from __future__ import annotations

import penstock

_STEPS = (
    ("train", "penstock train digits", "a recipe becomes a checkpoint; skip it if you have one"),
    (
        "export",
        "penstock export --format onnx --fp16 runs/digits/best.pth",
        "every variant is proven against its source before it is published",
    ),
    ("serve", "penstock serve models/", "over HTTP and gRPC, with batching, metrics and a page at /"),
    ("bench", "penstock bench models/*", "latency, throughput, memory and accuracy, side by side"),
)
_ON = (
    ("a checkpoint of yours", "penstock inspect ckpt.pth"),
    ("what works on this machine", "penstock doctor"),
    ("all commands; one of them", "penstock --help; penstock export --help"),
    ("completion by the tab key", "penstock --install-completion"),
)


def road() -> str:
    """The four steps, each with a command and a sentence, and where to go on; fits any screen."""
    lines = [f"penstock {penstock.__version__}: from a PyTorch checkpoint to a served, measured model", ""]
    for number, (name, command, what) in enumerate(_STEPS, 1):
        lines += [f"  {number}  {name:<7} {command}", f"{'':13}{what}"]
    width = max(len(what) for what, _ in _ON)
    return "\n".join([*lines, "", *(f"{what:<{width}}  {command}" for what, command in _ON)])

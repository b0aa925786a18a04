"""Inspecting: inspect, diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.commands import completion


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint, TorchScript, .pt2, .safetensors or ONNX file, an engine, samples (.npz), an artifact, "
            "a repository, or a transformers folder."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a file is, what it needs, what it promises, and the command to go on with. Nothing in it is run.

    Examples: `penstock inspect ckpt.pth` · `penstock inspect models/digits-onnx-fp16` · `penstock inspect some.onnx`
    """
    from penstock import inspection

    inspection.show(inspection.inspect(file), as_json=json)


def diff(
    first: Annotated[Path, typer.Argument(help="An artifact's folder, or an ONNX file.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Rows in a timed run; default: the usual number.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Measured time for each.")] = 1.0,
    device: Annotated[str, typer.Option(autocompletion=completion.devices, help="cpu, or cuda:0.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="As JSON, all nodes.")] = False,
) -> None:
    """Two models side by side: operators, shapes, precision of each node, size, error, and latency, interleaved.

    Example: `penstock diff models/digits-onnx-fp32 models/digits-onnx-int8`
    """
    from penstock.inspection import diff as differences

    differences.show(differences.diff(first, second, batch=batch, seconds=seconds, device=device), as_json=json)

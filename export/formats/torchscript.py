"""TorchScript, traced or scripted."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.jit._trace import TracerWarning

from penstock.errors import PenstockError
from penstock.export import capture
from penstock.export.formats import Built, Options, Source

PRECISIONS = ("fp32", "fp16")
MODEL_FILE = "model.pt"


class _HalfInside(nn.Module):
    """float32 at the inputs and outputs, float16 between."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> Any:
        halves = [x.half() if x.is_floating_point() else x for x in inputs]
        return _to_float(self.inner(*halves))


def _to_float(answer: Any) -> Any:
    if isinstance(answer, torch.Tensor):
        return answer.float() if answer.is_floating_point() else answer
    if isinstance(answer, dict):
        return {name: _to_float(value) for name, value in answer.items()}
    return tuple(_to_float(value) for value in answer)


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.pt.

    Raises:
        PenstockError: the module can be neither traced nor scripted as asked.
    """
    road = "script" if options.script else "trace"
    half = options.precision == "fp16"
    module = copy.deepcopy(source.module).half() if half else source.module
    inputs = capture.examples(source.signature)
    try:
        with warnings.catch_warnings(record=True) as caught:
            # torch.jit is deprecated; the command line says so once, in its own words.
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", TracerWarning)
            scripted: Any = torch.jit.script(module) if options.script else module
            if half:
                # A script cannot take any number of inputs, but a trace may call one.
                scripted = _HalfInside(scripted)
            if half or not options.script:
                dicts = isinstance(_answer(scripted, inputs), dict)
                # The gate compares at more sizes than torch's own check would.
                scripted = torch.jit.trace(  # type: ignore[no-untyped-call]
                    scripted, inputs, strict=not dicts, check_trace=False
                )
            buffer = io.BytesIO()
            torch.jit.save(scripted, buffer)
        _refuse_fixed_values(caught)
    except PenstockError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        other = "--trace" if options.script else "--script"
        if half:
            other = "--format onnx, whose float16 keeps what the module computes in float32"
        raise PenstockError(
            f"the model cannot be written as TorchScript by --{road}: {lines[0][:200] if lines else error!r}; "
            f"try {other}"
        ) from None
    (folder / MODEL_FILE).write_bytes(buffer.getvalue())
    return Built(
        runtime="torch",
        model_file=MODEL_FILE,
        hardware=f"any machine with PyTorch {torch.__version__.split('+')[0]} or later",
        build={"tool": f"torch {torch.__version__}", "road": road},
    )


def _refuse_fixed_values(caught: list[warnings.WarningMessage]) -> None:
    """What tracing warns of is a value of the example that the trace would keep for every input."""
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            what = str(warning.message).partition(".")[0].partition(" might ")[0]
            where = f"{Path(warning.filename).name}:{warning.lineno}"
            raise PenstockError(
                f"--trace would fix a value that may depend on the input ({where}: {what}); "
                "try --script or --format onnx"
            )


def _answer(module: Any, inputs: tuple[torch.Tensor, ...]) -> Any:
    with torch.inference_mode():
        return module(*inputs)

"""TorchScript: traced, scripted, or with scripted parts inside a trace.

A trace keeps what one run did, a branch taken included. Where PyTorch warns of that while tracing, the trace stands
only if torch.export, which takes no branch on values, captures the model without reading a value; what depends on sizes
alone the gate tries at the ends of every range.
"""

from __future__ import annotations

import copy
import inspect
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.jit._trace import TracerWarning

from penstock.adapter import Call
from penstock.decoding import before
from penstock.errors import PenstockError
from penstock.export import capture
from penstock.export.diagnosis import diagnose
from penstock.export.formats import Built, Options, Source
from penstock.parity import compare
from penstock.runtimes.torch import TorchRunner, forbid_tf32_in
from penstock.signature import Signature
from penstock.synthetic import synthesize

PRECISIONS = ("fp32", "fp16")
MODEL_FILE = "model.pt"
# A second input tells a trace that is wrong for other values apart from one that only rounds otherwise.
_ALIKE = 1e-3
_FAR = 30


@dataclass(frozen=True)
class _Program:
    """A TorchScript program, and the road that it was made by."""

    module: Any
    road: str


class _Refused(Exception):
    """Why one road does not lead there."""


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.pt.

    Raises:
        PenstockError: the module can be neither traced nor scripted as asked; it says what was tried.
    """
    if options.precision == "fp16":
        source = _halved(source)
    roads = {"trace": (_traced,), "script": (_scripted,), "auto": (_traced, _scripted, _mixed)}[options.road]
    refusals = []
    for road in roads:
        try:
            program = road(source)
            break
        except _Refused as error:
            refusals.append(f"{road.__name__.strip('_')}: {error}")
    else:
        raise PenstockError(f"the model cannot be written as TorchScript; tried {'; '.join(refusals)}") from None
    module = program.module
    if source.image is not None:
        # What decodes pixels fixes nothing in a trace, and calls the program as it is.
        decoding = before(module, source.signature, source.image)
        with _silent(), torch.no_grad():
            taken = capture.examples(source.contract, traced=True)
            module = torch.jit.trace(decoding, taken, check_trace=False)  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    with _silent():
        torch.jit.save(module, buffer)
    (folder / MODEL_FILE).write_bytes(buffer.getvalue())
    return Built(
        runtime="torch",
        model_file=MODEL_FILE,
        hardware=f"any machine with PyTorch {torch.__version__.split('+')[0]} or later",
        build={"tool": f"torch {torch.__version__}", "road": program.road},
    )


class _HalfInside(nn.Module):
    """float16 between inputs and outputs of the signature's dtypes."""

    def __init__(self, inner: nn.Module, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.inner, self.dtypes = inner, dtypes

    def forward(self, *inputs: torch.Tensor) -> Any:
        answer = self.inner(*(x.half() if x.is_floating_point() else x for x in inputs))
        if isinstance(answer, torch.Tensor):
            return answer.to(self.dtypes[0])
        return tuple(value.to(dtype) for value, dtype in zip(answer, self.dtypes, strict=True))


@dataclass(frozen=True)
class _HalfCall(Call):
    """A call of a module whose weights are float16, and the dtypes that its outputs are to have."""

    dtypes: tuple[torch.dtype, ...] = ()

    def on(self, module: nn.Module) -> nn.Module:
        return _HalfInside(super().on(module), self.dtypes).train(module.training)


def _halved(source: Source) -> Source:
    dtypes = tuple(getattr(torch, tensor.dtype) for tensor in source.signature.outputs)
    call = _HalfCall(source.call.keywords, source.call.outputs, dtypes)
    return replace(source, inner=copy.deepcopy(source.inner).half(), call=call)


def _traced(source: Source) -> _Program:
    if source.kind == "torchscript" and source.module is source.inner:
        return _Program(source.inner, "as it was")
    program, warned = _trace(source.module, source)
    _settle(warned, source)
    _agree(program, source)
    return _Program(program, "trace")


def _scripted(source: Source) -> _Program:
    if isinstance(source.inner, torch.jit.ScriptModule):
        raise _Refused("it is a TorchScript program already")
    inner = _script(source.inner)
    program = source.call.on(inner)
    by_name = [argument.name for argument in inner.forward.schema.arguments if argument.kwarg_only]
    if by_name:
        raise _Refused(
            f"its keyword-only parameters ({', '.join(by_name)}) cannot be given to a script from the trace around it"
        )
    if program is not inner:
        # A script cannot take any number of inputs, but a trace may call one.
        program, warned = _trace(program, source)
        _settle(warned, source)
    _agree(program, source)
    return _Program(program, "script")


def _mixed(source: Source) -> _Program:
    """A trace in which those modules are scripted whose forward tracing warned of."""
    _, warned = _trace(source.module, source)
    names = _owners(source.inner, warned)
    if not names:
        raise _Refused("no submodule of its own holds what tracing warns of")
    inner = copy.deepcopy(source.inner)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(inner.get_submodule(parent), child, _script(inner.get_submodule(name)))
    program, left = _trace(source.call.on(inner), source)
    _settle(left, source)
    _agree(program, source)
    return _Program(program, f"trace, with {', '.join(names)} scripted")


def _trace(module: nn.Module, source: Source) -> tuple[Any, list[warnings.WarningMessage]]:
    try:
        with _silent() as caught, torch.no_grad():
            # The gate compares at more sizes than torch's own check would.
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                module, capture.examples(source.signature, traced=True), check_trace=False
            )
    except Exception as error:  # the module's own code runs here
        raise _Refused(str(diagnose(error, module, scripting=True))) from None
    forbid_tf32_in(traced)
    return traced, [item for item in caught if issubclass(item.category, TracerWarning)]


def _script(module: nn.Module) -> Any:
    try:
        with _silent():
            return torch.jit.script(module)
    except Exception as error:  # the compiler raises errors of many kinds
        raise _Refused(_compiler_says(error, module)) from None


def _compiler_says(error: Exception, module: nn.Module) -> str:
    """The compiler's complaint and the line of the user's code that it points at."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    pointed = next((lines[place - 1].strip() for place, line in enumerate(lines) if "<--- HERE" in line and place), "")
    return f"{diagnose(error, module, scripting=True)}{f' (at `{pointed[:100]}`)' if pointed else ''}"


def _settle(warned: list[warnings.WarningMessage], source: Source) -> None:
    """See that what tracing warns of depends on no value: torch.export captured the model and read none.

    Raises:
        _Refused: it may.
    """
    if not warned:
        return
    try:
        doubtful = capture.reads_values(source.program)
    except PenstockError:
        doubtful = True
    if doubtful:
        first = warned[0]
        what = str(first.message).partition(".")[0].partition(" might ")[0]
        raise _Refused(
            f"a trace would fix a value that may depend on the input ({Path(first.filename).name}:{first.lineno}: "
            f"{what}); --script keeps it"
        )


def _agree(program: Any, source: Source) -> None:
    """Run the program and its source on other inputs than it was made from, of another batch.

    Raises:
        _Refused: they do not answer alike, or the program fails.
    """
    signature = source.signature
    sizes = {name: dim.min if dim.min > 1 else min(dim.max, dim.opt + 1) for name, dim in signature.dims.items()}
    for seed, factor in ((1, 1), (2, 1), (3, _FAR)):
        feeds = _scaled(synthesize(signature, sizes, seed).inputs, signature, factor)
        try:
            expected = TorchRunner(source.module, signature).run(feeds)
        except Exception as error:  # the module's own code runs here
            raise PenstockError(
                f"the source model itself fails at sizes {sizes}: {error}; narrow the range with --batch or --dim"
            ) from None
        try:
            found = compare(expected, TorchRunner(program, signature).run(feeds))
        except (PenstockError, ValueError, RuntimeError) as error:
            raise _Refused(f"on a second input, of sizes {sizes}, it fails: {error}") from None
        if factor != 1 and not all(np.isfinite(array).all() for array in expected.values()):
            continue
        worst = max(found, key=lambda item: item.rel_l2)
        if not worst.rel_l2 <= _ALIKE:
            raise _Refused(
                f"on a second input, of sizes {sizes}, output {worst.output!r} is {worst.rel_l2:.2g} off; other roads "
                "may keep what this one fixes"
            )


def _scaled(feeds: dict[str, Any], signature: Signature, factor: int) -> dict[str, Any]:
    """The feeds with floats of no stated range as many times as large, where a branch may turn."""
    return {
        name: array * array.dtype.type(factor) if array.dtype.kind == "f" and name not in signature.ranges else array
        for name, array in feeds.items()
    }


def _owners(module: nn.Module, warned: list[warnings.WarningMessage]) -> list[str]:
    """The submodules in whose forward tracing warned, the outermost of nested ones; none if it is the module itself."""
    found = []
    for name, item in module.named_modules():
        try:
            lines, start = inspect.getsourcelines(type(item).forward)
            file = inspect.getsourcefile(type(item).forward)
        except (OSError, TypeError):
            continue
        if any(w.filename == file and start <= w.lineno < start + len(lines) for w in warned):
            found.append(name)
    if "" in found:
        return []
    return [name for name in found if not any(name.startswith(f"{other}.") for other in found)]


@contextmanager
def _silent() -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings; torch.jit is deprecated, which the command line says once, in its own words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TracerWarning)
        yield caught

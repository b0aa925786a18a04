"""Runs TorchScript files, torch.export's programs and modules in memory, through PyTorch."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from penstock import programs
from penstock.errors import PenstockError
from penstock.runtimes import BaseRunner, InstanceDead, RejectedInput
from penstock.signature import Arrays, Signature


def unavailable(build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """None: this module imports, so PyTorch is here."""
    return None


class TorchRunner(BaseRunner):
    """A module called with the signature's inputs, by position, under inference mode."""

    def __init__(
        self,
        module: Callable[..., Any],
        signature: Signature,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        super().__init__(signature)
        self._module: Callable[..., Any] | None = module
        self._device = torch.device(device)
        self._threads = threads

    def run(self, feeds: Arrays) -> dict[str, Any]:
        if self._module is None:
            raise RuntimeError("the runner is closed")
        if self._threads is not None and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        # Always a copy: a module may work in place, or answer with its own input.
        arguments = [torch.from_numpy(np.array(feeds[tensor.name], order="C")) for tensor in self.inputs]
        try:
            with torch.inference_mode():
                answer = self._module(*(argument.to(self._device) for argument in arguments))
        except torch.OutOfMemoryError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if "can't allocate memory" in str(error):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1][:300]
            if "CUDA error" in str(error):
                raise InstanceDead(reason) from None
            raise RejectedInput(f"the model rejects these inputs: {reason}") from None
        return name_outputs(answer, [tensor.name for tensor in self.outputs])

    def close(self) -> None:
        self._module = None


def name_outputs(answer: Any, names: list[str]) -> dict[str, Any]:
    """A tensor, or a tuple of them in the order of `names`, as named arrays."""
    tensors = list(answer) if isinstance(answer, tuple | list) else [answer]
    if len(tensors) != len(names):
        raise PenstockError(f"the model answers {len(tensors)} tensors; its signature names {len(names)}: {names}")
    return {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}


def load(
    path: Path, signature: Signature, *, device: str = "cpu", threads: int | None = None, careful: bool = False
) -> TorchRunner:
    """Load a TorchScript file, or a program of torch.export's."""
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise PenstockError(f"--device {device}: PyTorch {torch.__version__} finds no CUDA device here")
        forbid_tf32()
    if path.suffix == ".pt2":
        program = programs.open_exported(path)
        if device != "cpu":
            _free_layouts(program)
            program = move_to_device_pass(program, device)
        return TorchRunner(program.module(), signature, device, threads)
    try:
        programs.refuse_reaching(path)
        with warnings.catch_warnings():
            # torch.jit is deprecated; whoever exports TorchScript is told so, once, by the command line.
            warnings.simplefilter("ignore")
            module = torch.jit.load(  # type: ignore[no-untyped-call]
                str(path), map_location=device
            ).eval()
    except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise PenstockError(f"{path}: not a TorchScript file: {str(error).splitlines()[0]}") from None
    if device.startswith("cuda"):
        _send_constants(module, device)
        forbid_tf32_in(module)
    return TorchRunner(module, signature, device, threads)


def forbid_tf32() -> None:
    """fp32 means fp32, here as in the other runtimes."""
    _set_float32("ieee")


def allow_tf32() -> None:
    """fp32 is rounded to TF32's 10 bits of mantissa on its way into convolutions and products of matrices."""
    _set_float32("tf32")


def _set_float32(precision: str) -> None:
    if hasattr(torch.backends.cudnn, "conv"):  # newer PyTorch has a setting of its own for convolutions
        torch.backends.cudnn.conv.fp32_precision = precision
        torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = precision
    else:
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _free_layouts(program: Any) -> None:
    """Have a captured program copy where its views do not fit: another device's kernels lay out answers otherwise.

    Attention on CUDA answers in other strides than on the CPU, where torch.export saw that a view was enough.
    """
    views = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if node.target in views:
                node.target = torch.ops.aten.reshape.default
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()


def _send_constants(module: Any, device: str) -> None:
    """Have a trace make its own tensors on `device`: it holds the device that it was traced on as a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = torch.jit.trace(lambda: torch.ones([]).to(torch.device(device)), ())  # type: ignore[no-untyped-call]
    wanted = next(
        n for n in example.graph.findAllNodes("prim::Constant") if f'Device = prim::Constant[value="{device}' in repr(n)
    )
    for graph in _graphs(module):
        for node in graph.findAllNodes("prim::Constant"):
            if 'Device = prim::Constant[value="cpu"]' in repr(node):
                node.copyAttributes(wanted)


def forbid_tf32_in(module: Any) -> None:
    """Take back what a trace records of the process that it was made in: that convolutions on CUDA may use TF32."""
    for graph in _graphs(module):
        for node in graph.findAllNodes("aten::_convolution"):
            graph.setInsertPoint(node)
            node.replaceInput(len(list(node.inputs())) - 1, graph.insertConstant(False))


def _graphs(module: Any) -> Iterator[Any]:
    """The graphs of a TorchScript module's forward and of its parts', to be changed in place."""
    return (part.graph for part in module.modules() if part._c._has_method("forward"))

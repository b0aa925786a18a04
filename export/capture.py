"""Capture: a module as a program of torch.export's, and that as a float32 ONNX model."""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from penstock.errors import PenstockError, require
from penstock.export import graph as graphs
from penstock.export import recurrent
from penstock.export.diagnosis import diagnose
from penstock.export.opsets import at_opset
from penstock.export.quiet import quiet
from penstock.signature import Signature
from penstock.synthetic import synthesize

# What torch.export writes natively.
OPSET = 18
# The last that its older exporter, which TorchScript archives need, writes.
_OLD_OPSET = 17


def examples(signature: Signature, *, traced: bool = False) -> tuple[torch.Tensor, ...]:
    """Example inputs for capturing: never of size 1, which torch.export would take as a fixed size.

    A trace may be given a size of 1 where there is no other.
    """
    sizes = {
        name: dim.opt if traced and dim.min == dim.max else max(2, dim.opt) for name, dim in signature.dims.items()
    }
    rows = synthesize(signature, sizes)
    return tuple(torch.from_numpy(rows.inputs[tensor.name]) for tensor in signature.inputs)


def program(module: nn.Module, signature: Signature) -> Any:
    """A `torch.export.ExportedProgram` of the module, with the signature's dynamic dimensions and their ranges.

    Args:
        module: takes the signature's tensors by position.
        signature: the contract.

    Raises:
        PenstockError: torch.export cannot capture the module; it says where, why, and what may help.
    """
    inputs, shapes = examples(signature), _shapes(module, signature)
    errors: list[Exception] = []
    for strict in (False, True):
        try:
            with quiet(), torch.no_grad(), recurrent.whole():
                captured = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict)
            break
        except Exception as error:  # the module's own code and two tracers run here
            errors.append(error)
    else:
        raise PenstockError(
            f"torch.export cannot capture the model: {diagnose(errors[0], module)} (tried without and with bytecode "
            "tracing)"
        ) from None
    return captured


def _shapes(module: nn.Module, signature: Signature) -> tuple[Any, ...]:
    """Which axis of which input is which dimension, as torch.export takes it."""
    # torch.export wants a range to have two sizes at least; the signature keeps the real one.
    dims = {
        name: torch.export.Dim(name, min=dim.min, max=max(dim.max, dim.min + 1)) for name, dim in signature.dims.items()
    }
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in signature.inputs
    )
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    variable = inspect.Parameter.VAR_POSITIONAL
    named = kinds.index(variable) if variable in kinds else len(shapes)
    return (*shapes[:named], shapes[named:]) if shapes[named:] else shapes  # *args are one argument to torch.export


def reads_values(captured: Any) -> bool:
    """Whether a program makes a number or a size of the values in its tensors, as `.item()` and `nonzero` do."""
    return any(
        free_unbacked_symbols(node.meta["val"])
        for node in captured.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
    )


def onnx_graph(captured: Any, module: nn.Module, signature: Signature) -> tuple[Any, str | None]:
    """A program as an `onnx.ModelProto` with the signature's names and its dynamic dimensions, by name.

    Args:
        captured: from `program`.
        module: what it was captured from.
        signature: the contract.

    Returns:
        The model, and why it was not slimmed, if so.

    Raises:
        PenstockError: an operator has no translation, or a dimension did not stay dynamic.
    """
    require("onnx", "export", "writing ONNX")
    require("onnxscript", "export", "writing ONNX")
    recurrent.check(captured)
    try:
        with quiet(), recurrent.whole():
            written = torch.onnx.export(
                captured,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=_shapes(module, signature),
                input_names=[tensor.name for tensor in signature.inputs],
                output_names=[tensor.name for tensor in signature.outputs],
                optimize=False,  # see `_folded`
                custom_translation_table=recurrent.translations(),
                verbose=False,
            )
            assert written is not None
            _folded(written.model, signature)
        model = written.model_proto
    except Exception as error:
        raise PenstockError(f"the captured model cannot be written as ONNX: {diagnose(error, module)}") from None
    return _finished(model, signature)


def _folded(model: Any, signature: Signature) -> None:
    """Fold constants and drop what computes nothing, in place.

    onnxscript's own optimizer also rewrites patterns, and takes numbers under 1e-8 for 0 where it matches them: an
    epsilon would vanish from a division or a logarithm.
    """
    optimizer = require("onnxscript.optimizer", "export", "writing ONNX")
    common = require("onnx_ir.passes.common", "export", "writing ONNX")
    common.InlinePass()(model)
    optimizer.fold_constants(model)
    arranged = recurrent.arranging(model.graph)
    optimizer.fold_constants(model, should_fold=lambda node: node in arranged or None)
    for step in (
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.OutputFixPass(),
    ):
        step(model)
    # An input that is passed through was renamed with the output.
    for values, tensors in ((model.graph.inputs, signature.inputs), (model.graph.outputs, signature.outputs)):
        for value, tensor in zip(values, tensors, strict=False):
            value.name = tensor.name
    common.NameFixPass()(model)


def onnx_of_script(module: nn.Module, signature: Signature) -> tuple[Any, str | None]:
    """A TorchScript program as an `onnx.ModelProto`, by PyTorch's older exporter, the only one that takes it.

    Returns, raises: as `onnx_graph`.
    """
    onnx = require("onnx", "export", "writing ONNX")
    axes = {
        tensor.name: {axis: size for axis, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in (*signature.inputs, *signature.outputs)
    }
    try:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.onnx"
            torch.onnx.export(
                module,
                examples(signature),
                path,
                dynamo=False,
                opset_version=_OLD_OPSET,
                input_names=[tensor.name for tensor in signature.inputs],
                output_names=[tensor.name for tensor in signature.outputs],
                dynamic_axes=axes,
            )
            model = at_opset(onnx.load(path), OPSET)
    except PenstockError:
        raise
    except Exception as error:
        raise PenstockError(f"the TorchScript program cannot be written as ONNX: {diagnose(error, module)}") from None
    return _finished(model, signature)


def _finished(model: Any, signature: Signature) -> tuple[Any, str | None]:
    graphs.strip(model)
    graphs.rename_dims(model, signature)
    graphs.check(model, signature)
    return graphs.slim(model)

"""Capture: a module as a float32 ONNX model, through torch.export."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from penstock.errors import PenstockError, require
from penstock.export.quiet import quiet
from penstock.signature import Signature, Tensor
from penstock.synthetic import synthesize

# What torch.export writes natively; it answers a lower one with 18 as well.
OPSET = 18


def examples(signature: Signature) -> tuple[torch.Tensor, ...]:
    """Example inputs for capturing: never of size 1, which torch.export would take as a fixed size."""
    sizes = {name: max(2, dim.opt) for name, dim in signature.dims.items()}
    rows = synthesize(signature, sizes)
    return tuple(torch.from_numpy(rows.inputs[tensor.name]) for tensor in signature.inputs)


def onnx_graph(module: nn.Module, signature: Signature) -> Any:
    """An `onnx.ModelProto` with the signature's names and its dynamic dimensions, by name.

    Raises:
        PenstockError: torch.export cannot capture the module, or a dimension did not stay dynamic.
    """
    onnx = require("onnx", "export", "writing ONNX")
    require("onnxscript", "export", "writing ONNX")
    # torch.export wants a range to have two sizes at least; the signature keeps the real one.
    dims = {
        name: torch.export.Dim(name, min=dim.min, max=max(dim.max, dim.min + 1)) for name, dim in signature.dims.items()
    }
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in signature.inputs
    )
    try:
        with quiet():
            program = torch.onnx.export(
                module,
                examples(signature),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=[tensor.name for tensor in signature.inputs],
                output_names=[tensor.name for tensor in signature.outputs],
                verbose=False,
            )
        assert program is not None
        model = program.model_proto
    except Exception as error:
        raise PenstockError(
            f"torch.export cannot capture the model: {_reason(error)}; --format torchscript may take it"
        ) from None
    _strip(model)
    onnx.checker.check_model(model)
    _check(model, signature)
    return model


def _reason(error: BaseException) -> str:
    """The innermost cause of an exporter's error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def _strip(model: Any) -> None:
    """Take out what the exporter notes about the machine it ran on: source paths and stack traces."""
    graph = model.graph
    for item in (
        model,
        graph,
        *graph.node,
        *graph.value_info,
        *graph.input,
        *graph.output,
        *graph.initializer,
    ):
        del item.metadata_props[:]
    for node in graph.node:
        node.ClearField("doc_string")


def _name_computed(dims: Any, tensor: Tensor, signature: Signature) -> None:
    """Give an output's axis whose size is computed, as in (seq + 1)//2, the name that the signature has for it."""
    for held, declared in zip(dims, tensor.shape, strict=False):
        if isinstance(declared, str) and declared not in signature.dims and held.dim_param:
            held.dim_param = declared


def _check(model: Any, signature: Signature) -> None:
    for group, tensors in ((model.graph.input, signature.inputs), (model.graph.output, signature.outputs)):
        names = [value.name for value in group]
        if names != [tensor.name for tensor in tensors]:
            raise PenstockError(f"the captured graph has {names}; the signature has {[t.name for t in tensors]}")
        for value, tensor in zip(group, tensors, strict=True):
            _name_computed(value.type.tensor_type.shape.dim, tensor, signature)
            held = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if held != list(tensor.shape):
                raise PenstockError(
                    f"the captured graph has {tensor.name}{held}; the signature has {tensor}: a dynamic dimension "
                    "was fixed on the way"
                )
    versions = [item.version for item in model.opset_import if item.domain == ""]
    if versions != [OPSET]:
        raise PenstockError(f"the exporter wrote opset {versions}; {OPSET} was asked for")

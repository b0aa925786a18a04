"""ONNX graphs: finished, slimmed, and written to disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError, first_line, require
from penstock.export import protos
from penstock.export.quiet import quiet
from penstock.signature import Signature, Tensor

# protobuf serializes less than 2 GiB; the slack is for what `size` does not count to the byte.
LIMIT = 2**31 - 1 - 2**20
_PAGE = 4096
# The last opset that an onnxruntime loads, and the first that loads it: found by loading.
_RUNTIMES = ((21, "1.20"), (22, "1.21"), (23, "1.23"), (25, "1.24"), (26, "1.25"), (28, "1.32"))
# onnxslim may drop nodes, and fold those whose result is up to 64 KiB; no more. Its shape inference takes dimensions
# that meet in one operator for the same, and fixed a batch that way; its fusion of Conv with Mul scaled channels by
# what scales columns. In what torch.export writes, all the rest together found next to nothing more to drop.
_SLIM = {
    "no_shape_infer": True,
    "skip_optimizations": ["graph_fusion", "subexpression_elimination", "weight_tying"],
    "size_threshold": 1 << 16,
    "model_check": False,
}


def opset(model: Any) -> int:
    """The version of the default operator set that a model asks for."""
    return int(next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx")))


def size(model: Any) -> int:
    """The bytes of a model's file, to within a few for each weight; where protobuf itself gives up, at 2 GiB, too."""
    light, weights = protos.unloaded(model)
    return int(light.ByteSize()) + sum(len(tensor.raw_data) for tensor in weights)


def strip(model: Any) -> None:
    """Take out what tells of the machine and not of the model: source paths, stack traces, notes, torch's build.

    The shapes noted of values inside go too: where torch.export captured a loop, they hold the example's sizes, which
    simplifiers believe.
    """
    protos.clear(model, ("metadata_props", "doc_string", "value_info"))
    model.ClearField("producer_version")


def rename_dims(model: Any, signature: Signature) -> None:
    """Give an output's axis whose size is computed, as in (seq + 1)//2, the name that the signature has for it."""
    for value, tensor in zip(model.graph.output, signature.outputs, strict=False):
        for held, declared in zip(value.type.tensor_type.shape.dim, tensor.shape, strict=False):
            if isinstance(declared, str) and declared not in signature.dims and held.dim_param:
                held.dim_param = declared


def check(model: Any, signature: Signature) -> None:
    """See that a model's inputs and outputs are the signature's, and that no dynamic axis was fixed inside.

    Raises:
        PenstockError: names, order, a dtype or a dimension differ; it says which.
    """
    for kind, values, tensors in (
        ("inputs", model.graph.input, signature.inputs),
        ("outputs", model.graph.output, signature.outputs),
    ):
        names, wanted = [value.name for value in values], [tensor.name for tensor in tensors]
        if names != wanted:
            raise PenstockError(
                f"the graph's {kind} are {', '.join(names)}; the signature says {', '.join(wanted)}, in this order"
            )
        for value, tensor in zip(values, tensors, strict=True):
            _check_value(value, tensor)
    if (fixed := _fixed(model)) is not None:
        raise PenstockError(f"the graph computes {fixed}: a dynamic dimension was fixed on the way")


def slim(model: Any) -> tuple[Any, str | None]:
    """Drop what computes nothing and fold what is constant, with onnxslim, which never sees the weights.

    Inputs and outputs stay as they are, an unused input too.

    Args:
        model: `onnx.ModelProto`, left as it is.

    Returns:
        The slimmed model and None, or the model itself and a sentence on why it was not slimmed.
    """
    onnx = protos.onnx_package()
    onnxslim = require("onnxslim", "export", "slimming ONNX")
    light, weights = protos.unloaded(model)
    before = protos.copied(light)
    try:
        with quiet():
            slimmed = onnxslim.slim(light, **_SLIM)
        if (changed := _changed(before.graph, slimmed.graph)) is not None:
            return model, f"not slimmed: onnxslim would change {changed}"
        _restore_ends(slimmed.graph, before.graph, {value.name for value in model.graph.input})
        if (fixed := _fixed(slimmed)) is not None and fixed != _fixed(before):
            return model, f"not slimmed: onnxslim would leave {fixed}"
        onnx.checker.check_model(slimmed)
    except Exception as error:  # a rewriter of graphs, and the model is one that its authors did not have
        return model, f"not slimmed: onnxslim fails on the graph: {first_line(error)}"
    return protos.loaded(slimmed, weights), None


def ir_version(model: Any) -> str | None:
    """Set the file format's version to the lowest that the model's opset needs, so that old runtimes load it.

    Returns:
        None, or a sentence on which onnxruntime the opset needs, where that is not the oldest that penstock runs.
    """
    helper = protos.onnx_package().helper
    needed = helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True)
    model.ir_version = max(needed, 8 if model.functions else 4)  # 4: weights need not be inputs; 8: functions
    version = opset(model)
    if version <= _RUNTIMES[0][0]:
        return None
    runtime = next((name for last, name in _RUNTIMES if version <= last), f"later than {_RUNTIMES[-1][1]}")
    return f"opset {version} needs onnxruntime {runtime}{'' if 'later' in runtime else ' or later'}"


def save(model: Any, folder: Path, name: str = "model.onnx", limit: int = LIMIT) -> list[Path]:
    """Write a model as `write` does, and have ONNX's checker read it.

    Raises:
        PenstockError: the checker refuses what was written.
    """
    checker = protos.onnx_package().checker
    written = write(model, folder, name, limit)
    try:
        checker.check_model(str(written[0]))
    except checker.ValidationError as error:
        raise PenstockError(f"{name}: ONNX's checker refuses the graph: {first_line(error)}") from None
    return written


def write(model: Any, folder: Path, name: str = "model.onnx", limit: int = LIMIT) -> list[Path]:
    """Write a model as one file; from `limit` bytes on its weights go into one more, `name`.data, beside it.

    Args:
        model: `onnx.ModelProto`, left as it is.
        folder: where to; it must be there.
        name: of the file.
        limit: the bytes that one file may have.

    Returns:
        The files written, the model first.
    """
    path, beside = folder / name, folder / f"{name}.data"
    beside.unlink(missing_ok=True)
    written = [path]
    if size(model) < limit:
        path.write_bytes(model.SerializeToString(deterministic=True))
    else:
        path.write_bytes(_moved_out(model, beside).SerializeToString(deterministic=True))
        written.append(beside)
    return written


def _check_value(value: Any, tensor: Tensor) -> None:
    onnx = protos.onnx_package()
    dtype, held = protos.form(value)
    if dtype != onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)):
        shown = onnx.TensorProto.DataType.Name(dtype).lower()
        raise PenstockError(f"the graph has {tensor.name} of {shown}; the signature has {tensor}")
    if held == list(tensor.shape):
        return
    fixed = [
        f"{declared!r} (axis {axis}) is {found}"
        for axis, (found, declared) in enumerate(zip(held, tensor.shape, strict=False))
        if isinstance(declared, str) and isinstance(found, int) and len(held) == len(tensor.shape)
    ]
    why = f": a dynamic dimension was fixed on the way: {', '.join(fixed)}" if fixed else ""
    raise PenstockError(f"the graph has {tensor.name}{held}; the signature has {tensor}{why}")


def _fixed(model: Any) -> str | None:
    """The first axis of an output that is declared dynamic and computed with one size, in words."""
    onnx = protos.onnx_package()
    light, _ = protos.unloaded(model)
    del light.graph.value_info[:]
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(light)
    for value, found in zip(model.graph.output, inferred.graph.output, strict=True):
        for axis, (declared, size) in enumerate(zip(protos.form(value)[1], protos.form(found)[1], strict=False)):
            if isinstance(declared, str) and isinstance(size, int) and size > 0:
                return f"{value.name} with {size} for {declared!r} (axis {axis})"
    return None


def _changed(before: Any, after: Any) -> str | None:
    """The first input or output that is not what it was, in words; a missing input can be put back, and is none."""
    forms = {value.name: protos.form(value) for value in (*before.input, *before.output)}
    for value in (*after.input, *after.output):
        if forms.get(value.name) != protos.form(value):
            return f"{value.name} from {forms.get(value.name)} to {protos.form(value)}"
    names = [[value.name for value in graph.output] for graph in (before, after)]
    return None if names[0] == names[1] else f"the outputs from {', '.join(names[0])} to {', '.join(names[1])}"


def _restore_ends(graph: Any, before: Any, inputs: set[str]) -> None:
    """Put back inputs and outputs to the letter, an unused input too; a weight that nothing takes stays away."""
    held = inputs | {value.name for value in graph.input}
    del graph.input[:], graph.output[:]
    graph.input.extend(value for value in before.input if value.name in held)
    graph.output.extend(before.output)


def _moved_out(model: Any, path: Path) -> Any:
    """A copy of the model whose weights lie in a file, which this writes."""
    light, weights = protos.unloaded(model)
    with path.open("wb") as file:
        light = protos.loaded(light, [_external(tensor, file) for tensor in weights])
        for graph in protos.graphs_in(light.graph):
            for tensor in graph.initializer:
                if protos.is_weight(tensor):
                    tensor.CopyFrom(_external(tensor, file))
    return light


def _external(tensor: Any, file: Any) -> Any:
    """Write a weight's bytes where a page begins, so that runtimes may map them; its name, shape and place are left."""
    onnx = protos.onnx_package()
    offset = file.seek(-(-file.tell() // _PAGE) * _PAGE)
    length = file.write(tensor.raw_data)
    place = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    place.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", Path(file.name).name), ("offset", offset), ("length", length)):
        place.external_data.add(key=key, value=str(value))
    return place

"""Opsets: an ONNX model written in exactly the version that was asked for."""

from __future__ import annotations

import inspect
from typing import Any

from penstock.errors import PenstockError, require
from penstock.export import protos
from penstock.export.graph import opset

# The oldest opset that conversions were compared at.
OLDEST = 13
# Operators that mean the same in every opset from OLDEST on, but for attributes and inputs that came later: onnx's
# converter refuses to take these down.
_ALIKE = (
    *("Add", "BatchNormalization", "ConstantOfShape", "CumSum", "Div", "Identity", "If", "Loop", "Mul", "Pad", "Pow"),
    *("Relu", "Reshape", "Shape", "Split", "Sub"),
)
# An operator that no opset has changed: what goes under its name, the converter passes by.
_DISGUISE, _WORN = "TfIdfVectorizer", "penstock_operator"


def at_opset(model: Any, wanted: int) -> Any:
    """The model in exactly the wanted version of the default operator set.

    An operator that the version lacks is written out as its definition, where ONNX gives one.

    Args:
        model: `onnx.ModelProto`, left as it is; returned itself where it has that version.
        wanted: the version.

    Raises:
        PenstockError: an operator cannot be written in that version; it says which, and which versions work.
    """
    if opset(model) == wanted:
        return model
    light, weights = protos.unloaded(model)
    try:
        return protos.loaded(_converted(light, wanted), weights)
    except Exception as error:  # the converter's, the inliner's and the checker's
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = line.rpartition("failed: ")[2].rstrip(".")[:200]  # before it stand the converter's own source lines
    newest = int(protos.onnx_package().defs.onnx_opset_version())
    works = [version for version in range(OLDEST, newest + 1) if _converts(light, version)]
    raise PenstockError(f"--opset {wanted}: the model cannot be written so: {reason}; {_ranges(works)} work for it")


def _converts(light: Any, version: int) -> bool:
    try:
        _converted(light, version)
    except Exception:  # as in `at_opset`
        return False
    return True


def _converted(light: Any, wanted: int) -> Any:
    """A model without weights, converted by onnx's converter, with what that lacks done before."""
    onnx = protos.onnx_package()
    now = opset(light)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= wanted <= newest:
        raise PenstockError(f"with onnx {onnx.__version__} it must be from {OLDEST} to {newest}")
    model = _written_out(protos.copied(light), wanted)
    if wanted < now:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)  # an old Split names its sizes
        for graph in protos.graphs_in(model.graph):
            if wanted < 15:
                _slice_shapes(graph, model.graph)
            for node in graph.node:
                _prepare(node, now, wanted, model.graph)
    converted = onnx.version_converter.convert_version(model, wanted)
    for graph in protos.graphs_in(converted.graph):
        del graph.value_info[:]  # the converter infers types anew, and those of what is disguised wrongly
        for node in graph.node:
            for item in [item for item in node.attribute if item.name == _WORN]:
                node.op_type = item.s.decode()
                node.attribute.remove(item)
    made = {name for node in converted.graph.node for name in node.output}
    converted.graph.value_info.extend(value for value in model.graph.value_info if value.name in made)
    if opset(converted) != wanted:
        raise PenstockError(f"the converter wrote opset {opset(converted)}")
    onnx.checker.check_model(converted, full_check=_passes(light))
    return converted


def _passes(model: Any) -> bool:
    """Whether a model bears onnx's full check, with types and shapes; for one that does not, less is asked."""
    onnx = protos.onnx_package()
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _written_out(model: Any, wanted: int) -> Any:
    """The model with its own functions, and the operators that the wanted version lacks, as what they are made of."""
    onnx, inliner = protos.onnx_package(), require("onnx.inliner", "export", "writing ONNX")
    if model.functions:
        model = inliner.inline_local_functions(model, convert_version=True)
    operators = {
        node.op_type for graph in protos.graphs_in(model.graph) for node in graph.node if node.domain in ("", "ai.onnx")
    }
    lacking = sorted(name for name in operators if not onnx.defs.has(name, wanted))
    inline = inliner.inline_selected_functions
    if lacking and "inline_schema_functions" in inspect.signature(inline).parameters:
        typed = onnx.shape_inference.infer_shapes(model)  # some definitions depend on types
        typed.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in typed.graph.initializer
        )
        model = inline(typed, [("", name) for name in lacking], inline_schema_functions=True)
    return model


def _prepare(node: Any, now: int, wanted: int, root: Any) -> None:
    """Make a node ready for its way to an older opset: what onnx's converter refuses though it means the same there."""
    onnx = protos.onnx_package()
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, wanted):
        return
    old, new = (onnx.defs.get_schema(node.op_type, version) for version in (wanted, now))
    if node.op_type == "Split" and "num_outputs" not in old.attributes:
        _size_split(node, root)
    kept = [item for item in node.attribute if item.name in old.attributes or not _is_moot(node, item, new, root)]
    del node.attribute[:]
    node.attribute.extend(kept)
    same = all(item.name in old.attributes for item in kept) and len(node.input) <= old.max_input
    if same and node.op_type in _ALIKE:
        node.attribute.append(onnx.helper.make_attribute(_WORN, node.op_type))
        node.op_type = _DISGUISE


def _is_moot(node: Any, attribute: Any, schema: Any, root: Any) -> bool:
    """Whether an attribute says only what holds without it."""
    onnx = protos.onnx_package()
    value = onnx.helper.get_attribute_value
    default = schema.attributes[attribute.name].default_value
    if default.type and value(default) == value(attribute):
        return True
    if node.op_type != "Reshape":  # whose allowzero is about shapes that hold a zero
        return False
    shapes = (tensor for tensor in root.initializer if tensor.name == node.input[1])
    return not any(0 in onnx.numpy_helper.to_array(tensor) for tensor in shapes)


def _size_split(node: Any, root: Any) -> None:
    """Say by its sizes what a Split says by the number of its outputs, where the sizes are known."""
    onnx = protos.onnx_package()
    set_ = {item.name: item.i for item in node.attribute}
    forms = {value.name: protos.form(value)[1] for value in (*root.value_info, *root.output)}
    axis = set_.get("axis", 0)
    shapes = [forms.get(name, []) for name in node.output]
    sizes = [shape[axis] for shape in shapes if -len(shape) <= axis < len(shape)]
    known = len(sizes) == len(shapes) and all(isinstance(size, int) and size for size in sizes)
    if "num_outputs" not in set_ or not known:
        return
    del node.input[1:]
    name = protos.fresh(root, f"{node.output[0]}_sizes")
    root.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(sizes)], sizes))
    node.input.append(name)
    del node.attribute[[item.name for item in node.attribute].index("num_outputs")]


def _slice_shapes(graph: Any, root: Any) -> None:
    """Write a Shape of some axes, which came with opset 15, as a Slice of the whole."""
    onnx = protos.onnx_package()
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if node.op_type != "Shape" or not node.attribute:
            continue
        ends = {"start": 0, "end": 2**63 - 1} | {item.name: item.i for item in node.attribute}
        names = [protos.fresh(root, f"{node.output[0]}_{part}") for part in ("start", "end", "whole")]
        for name, value in zip(names, (ends["start"], ends["end"]), strict=False):
            root.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
        cut = onnx.helper.make_node("Slice", [names[2], *names[:2]], list(node.output), name=f"{node.output[0]}_cut")
        del node.attribute[:]
        node.output[0] = names[2]
        graph.node.insert(index + 1, cut)


def _ranges(versions: list[int]) -> str:
    """`17 to 28`; where some within do not work, each by itself."""
    if versions and versions == list(range(versions[0], versions[-1] + 1)):
        return f"{versions[0]} to {versions[-1]}"
    return ", ".join(map(str, versions)) or "none"

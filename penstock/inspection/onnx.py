"""Inspection of ONNX models: the graph is read, and weights outside the file are only looked for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock import artifact, onnxfile
from penstock.errors import PenstockError, require
from penstock.inspection import precisions
from penstock.inspection.findings import Inspection, command, first_line, millions_of_each, settings, some, stated
from penstock.signature import NAME, V2_DTYPES

# The last opset that an onnxruntime loads, and the first release that loads it (penstock.export.graph, by loading).
_RUNTIMES = ((21, "1.20"), (22, "1.21"), (23, "1.23"), (25, "1.24"), (26, "1.25"), (28, "1.32"))

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")

_CONTRIBUTED = "com.microsoft"


def of_onnx(path: Path) -> Inspection:
    """An ONNX model: the graph is read, and weights outside the file are only looked for."""
    onnx = require("onnx", "export", f"inspecting {path.name}")
    model = read_model(onnx, path)
    try:
        return _onnx_told(onnx, path, model)
    except TypeError:  # protobuf gives bytes for a text that is not UTF-8
        raise PenstockError(f"{path}: damaged: names in it are no text") from None


def _onnx_told(onnx: Any, path: Path, model: Any) -> Inspection:
    graphs = [graph for root in (model.graph, *model.functions) for graph in _graphs(root)]
    nodes = [node for graph in graphs for node in graph.node]
    weights = [tensor for graph in graphs for tensor in _held(graph)]
    outside = _outside(onnx, path, [*weights, *_constants(nodes)])
    sizes: Counter[str] = Counter()
    for tensor in weights:
        sizes[_onnx_dtype(onnx, tensor.data_type)] += math.prod(tensor.dims)
    operators = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes)
    largest = sorted(weights, key=lambda tensor: -math.prod(tensor.dims))[:3]
    ends = {"inputs": _ends(onnx, model, model.graph.input), "outputs": _ends(onnx, model, model.graph.output)}
    opsets = {item.domain or "ai.onnx": int(item.version) for item in model.opset_import}
    runtime, takes = _onnx_runtime(onnx, model)
    wrong = [*_strange(model, nodes), *takes, *_unserved([*ends["inputs"], *ends["outputs"]])]
    wrong += [f"{name}, which {trouble}" for name, trouble in outside.items() if trouble]
    serves = not wrong and path.suffix == ".onnx" and artifact.MODEL_NAME.fullmatch(path.stem)
    return Inspection(
        path=path,
        kind="ONNX model",
        bytes=path.stat().st_size,
        facts=stated(
            {
                "producer": f"{model.producer_name} {model.producer_version}".strip(),
                "IR version": str(model.ir_version),
                "opset": settings(opsets),
                **{name: "\n".join(texts) for name, texts in ends.items()},
                "nodes": f"{len(nodes)}: {some([f'{count} {name}' for name, count in operators.most_common()], 10)}",
                "parameters": millions_of_each(sizes),
                "precision": _onnx_precision(operators, sizes),
                "precision map": precisions.summary(model.graph),
                "largest": ", ".join(f"{item.name} {list(item.dims)}" for item in largest),
                "external data": "\n".join(f"{name}: {trouble or 'present'}" for name, trouble in outside.items()),
            }
        ),
        needs=(runtime, *wrong),
        promises=() if wrong else ("nothing: it has no receipt, and is served as unverified",),
        next=(command("serve", path),) if serves else (),
        details={
            "opsets": opsets,
            **ends,
            "operators": dict(operators),
            "parameters": dict(sizes),
            "outside": outside,
            "precision_map": precisions.of_graph(model.graph),
        },
    )


def read_model(onnx: Any, path: Path) -> Any:
    """A model, its weights outside the file left there.

    Raises:
        PenstockError: it is damaged, or no ONNX model.
    """
    if path.stat().st_size >= 1 << 31:
        raise PenstockError(f"{path}: protobuf reads no file of 2 GiB or more; the weights must lie in one beside it")
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # protobuf's own, of one class in Python and of another in C
        raise PenstockError(f"{path}: truncated, damaged, or not an ONNX model: {first_line(error)}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise PenstockError(f"{path}: truncated, damaged, or not an ONNX model: it holds no graph, or names no opset")
    return model


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph or function, and the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                yield from _graphs(inner)


def _held(graph: Any) -> list[Any]:
    """The weights of a graph; a function has none."""
    if not hasattr(graph, "initializer"):
        return []
    return [*graph.initializer, *(item.values for item in graph.sparse_initializer)]


def _constants(nodes: Iterable[Any]) -> list[Any]:
    held = [item for node in nodes for item in node.attribute]
    return [tensor for item in held for tensor in ([item.t] if item.HasField("t") else item.tensors)]


def _onnx_dtype(onnx: Any, number: int) -> str:
    names = {1: "float32", 11: "float64"}
    known = number in onnx.TensorProto.DataType.values()
    return names.get(number) or (onnx.TensorProto.DataType.Name(number).lower() if known else f"dtype {number}")


def _ends(onnx: Any, model: Any, values: Iterable[Any]) -> list[str]:
    """Inputs or outputs in the form of `Tensor`'s, with ? for a size that is not named."""
    weights = {tensor.name for tensor in model.graph.initializer}  # before IR version 4 they were inputs too
    texts = []
    for value in values:
        held = value.type.tensor_type
        sizes = [
            str(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or "?"
            for dim in held.shape.dim
        ]
        kind = value.type.WhichOneof("value")
        dtype = _onnx_dtype(onnx, held.elem_type) if kind == "tensor_type" else str(kind).removesuffix("_type")
        if value.name not in weights:
            texts.append(f"{value.name}:{dtype}[{','.join(sizes) if held.HasField('shape') else '…'}]")
    return texts


def _outside(onnx: Any, path: Path, tensors: Iterable[Any]) -> dict[str, str]:
    """The files that hold weights beside the model, each with what is wrong with it; none is opened."""
    homes, found, ends = (path.parent.resolve(), path.resolve().parent), {}, Counter[str]()
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        said = {item.key: item.value for item in tensor.external_data}
        place = said.get("location", "")
        numbers = [said.get(key) or "0" for key in ("offset", "length")]
        ends[place] = max(ends[place], sum(int(text) if text.isdecimal() else 0 for text in numbers))
    for place, end in ends.items():
        found[place] = onnxfile.outside(homes, place) or ""
        if not found[place] and (size := (homes[0] / place).stat().st_size) < end:
            found[place] = f"is truncated: {size} bytes, and the model wants {end}"
    return found


def _strange(model: Any, nodes: Iterable[Any]) -> list[str]:
    """Operators that come with no onnxruntime."""
    own = {*_STANDARD, _CONTRIBUTED, *(function.domain for function in model.functions)}
    names = dict.fromkeys(f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in own)
    return [f"a library with its own operators {some(list(names), 8)}, which penstock does not load"] if names else []


def _unserved(ends: Iterable[str]) -> list[str]:
    """Inputs and outputs that a server of penstock's does not take."""
    for text in ends:
        match = re.fullmatch(r"(.*):([^:]*)\[.*\]", text)
        if match is None or match[2] not in V2_DTYPES or not NAME.fullmatch(match[1]):
            return [f"another server: penstock serve does not take {text}"]
    return []


def _onnx_precision(operators: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """What the arithmetic is in, as far as operators and weights tell."""
    pairs = [(name, operators.get(name, 0)) for name in ("QuantizeLinear", "DequantizeLinear")]
    whole = [(name, count) for name, count in operators.items() if re.search("Integer$|QLinear|^DynamicQuant", name)]
    if pairs[1][1] or whole:
        small = [kind for kind in sizes if re.match(r"u?int[48]$|float[48]e", kind)] or ["int8"]
        listed = ", ".join(f"{count} {name}" for name, count in (*pairs, *whole) if count)
        return f"{' and '.join(small)}: {listed}"
    floats = {kind: count for kind, count in sizes.items() if "float" in kind}
    names = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
    most = max(floats, key=lambda kind: floats[kind]) if floats else ""
    return f"{names.get(most, most)}: {floats[most] / sum(floats.values()):.0%} of the weights" if most else ""


def _onnx_runtime(onnx: Any, model: Any) -> tuple[str, list[str]]:
    """The onnxruntime that a model's versions need, and why the one that is here does not take them, if so.

    The one that is here is asked with a graph of a single Identity under the same versions.
    """
    opset = next((int(item.version) for item in model.opset_import if item.domain in _STANDARD[:2]), 1)
    by_ir = min((row[2] for row in onnx.helper.VERSION_TABLE if row[1] >= model.ir_version), default=1 << 16)
    wanted = max(opset, by_ir)
    release = next((f"{name} or later" for last, name in _RUNTIMES if wanted <= last), f"after {_RUNTIMES[-1][1]}")
    need = f"onnxruntime {release}, for opset {opset} and IR version {model.ir_version}"
    try:
        runtime = require("onnxruntime", "serve", "running it")
    except PenstockError as error:
        return f"{need}; {error}", []
    value = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "versions", value[:1], value[1:])
    versions = [onnx.helper.make_opsetid("", opset)]
    probe = onnx.helper.make_model(graph, opset_imports=versions, ir_version=model.ir_version)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        runtime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime raises a class of its own for each status code
        return need, [f"another onnxruntime: {runtime.__version__} is here, and does not take these versions"]
    return f"{need}; {runtime.__version__} is here", []

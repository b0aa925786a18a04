"""Remedies: what TensorRT's parser and builder refuse, with the node, its operator and what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import require
from penstock.signature import Signature

ELSEWHERE = "--format onnx runs the model on the same GPU through onnxruntime"
_MOST = 3


def of_errors(errors: Sequence[Mapping[str, Any]], graph: Path) -> str:
    """The parser's errors in a sentence: each with its node and operator, and what helps against the first.

    Args:
        errors: of each its `code`, `desc`, the `node`'s index, and `node_name` and `node_operator` where it says.
        graph: the file, from which names come that it does not say.
    """
    if not errors:
        return f"it gives no reason; {ELSEWHERE}"
    said = "; ".join(_one(error, graph) for error in errors[:_MOST])
    more = f" (and {len(errors) - _MOST} more)" if len(errors) > _MOST else ""
    return f"{said}{more}; {_help(errors[0])}"


def _one(error: Mapping[str, Any], graph: Path) -> str:
    name, operator = error.get("node_name") or "", error.get("node_operator") or ""
    if not operator:
        name, operator = _node(graph, int(error.get("node", -1)))
    node = f"node {name!r} ({operator}): " if operator else ""
    desc = re.sub(r"\s+", " ", str(error.get("desc") or error.get("code"))).strip()
    return f"{node}{desc[:300]}"


def _node(graph: Path, index: int) -> tuple[str, str]:
    """A node's name and operator by its index, where the file and the onnx package are there to tell."""
    with suppress(Exception):
        node = (
            require("onnx", "export", "reading the graph").load(str(graph), load_external_data=False).graph.node[index]
        )
        return (node.name, node.op_type) if index >= 0 else ("", "")
    return "", ""


def _help(error: Mapping[str, Any]) -> str:
    code, desc = str(error.get("code")), str(error.get("desc")).lower()
    if "opset" in desc:
        return "try another --opset"
    if "UNSUPPORTED_NODE" in code or "plugin" in desc or "no importer" in desc:
        return f"TensorRT has no such operator: write that part of the model otherwise, or {ELSEWHERE}"
    if "dynamic" in desc or "shape" in desc:
        return f"narrow its dimensions with --batch and --dim, or {ELSEWHERE}"
    return ELSEWHERE


def of_message(message: str) -> str:
    """What the builder logged last, and what helps."""
    if message.startswith("--"):
        return message
    low = message.lower()
    if "workspace" in low and "out of memory" not in low:
        return f"{message}; give it more room: --workspace MIB, or none of that for all that there is"
    if "out of memory" in low or "outofmemory" in low:
        return f"{message}; give it less to hold (--batch), or a GPU with more memory"
    if "no implementation" in low or "could not find any implementation" in low:
        return f"{message}; try --builder-level 5, a larger --workspace, or another precision; {ELSEWHERE}"
    return f"{message}; {ELSEWHERE}"


# TensorRT's names of dtypes, and numpy's; 8 reads integers of 64 bits as 32, which the runner looks after.
_DTYPES = {"float": "float32", "half": "float16", "bf16": "bfloat16"}
_TAKEN = {"int64": ("int64", "int32")}


def of_contract(tensors: Sequence[tuple[str, str, Sequence[int]]], signature: Signature) -> str | None:
    """How a network's inputs and outputs differ from a signature's, in words, or None.

    Args:
        tensors: name, dtype and shape of each input and then each output; -1 is a size not known before the run.
        signature: what the receipt is to promise.
    """
    promised = (*signature.inputs, *signature.outputs)
    has, wants = sorted(name for name, _, _ in tensors), sorted(tensor.name for tensor in promised)
    if has != wants:
        return f"its tensors are {', '.join(has)}, and by its signature {', '.join(wants)}"
    found = {name: (_DTYPES.get(dtype, dtype), list(shape)) for name, dtype, shape in tensors}
    for tensor in promised:
        dtype, shape = found[tensor.name]
        if dtype == "float32" and tensor.dtype == "float64":
            return f"{tensor} is computed in float32 there; export a float32 model (net.float())"
        if dtype not in _TAKEN.get(tensor.dtype, (tensor.dtype,)):
            return f"{tensor} is {dtype} there"
        alike = len(shape) == len(tensor.shape) and all(
            size in (-1, wanted) or isinstance(wanted, str) for size, wanted in zip(shape, tensor.shape, strict=True)
        )
        if not alike:
            return f"{tensor} has shape {shape} there"
    return None

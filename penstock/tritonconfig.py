"""Triton's config.pbtxt for an artifact, so that `tritonserver --model-repository` serves the same folder."""

from __future__ import annotations

from typing import Any

from penstock.signature import SERVED_DTYPES, Signature, Tensor

# Triton's platform of each runtime.
PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "torch": "pytorch_libtorch", "tensorrt": "tensorrt_plan"}
BACKENDS = {"onnxruntime": "onnxruntime", "torch": "pytorch", "tensorrt": "tensorrt"}


def as_dict(name: str, runtime: str, model_file: str, signature: Signature, instances: int = 1) -> dict[str, Any]:
    """The model's configuration as the protocol's extension has it: what Triton answers of the same folder."""
    batching = signature.batch is not None
    kind = "KIND_GPU" if runtime == "tensorrt" else "KIND_CPU"
    return {
        "name": name,
        "platform": PLATFORMS.get(runtime, ""),
        "backend": BACKENDS.get(runtime, runtime),
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": signature.max_batch if batching else 0,
        "input": [_entry(tensor, batching) for tensor in signature.inputs],
        "output": [_entry(tensor, batching) for tensor in signature.outputs],
        "instance_group": [{"name": name, "kind": kind, "count": instances, "gpus": [], "profile": []}],
        "default_model_filename": model_file,
        "parameters": {},
        **({"dynamic_batching": {}} if batching else {}),
    }


def _entry(tensor: Tensor, batching: bool) -> dict[str, Any]:
    dims = _dims(tensor, batching)
    return {
        "name": tensor.name,
        "data_type": f"TYPE_{_type(tensor)}",
        "dims": dims or [1],
        **({} if dims else {"reshape": {"shape": []}}),
    }


def _type(tensor: Tensor) -> str:
    """Triton's name of a dtype in a configuration, where text is STRING."""
    return {"BYTES": "STRING"}.get(v2 := SERVED_DTYPES[tensor.dtype], v2)


def _dims(tensor: Tensor, batching: bool) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batching else 0 :]]


def render(name: str, runtime: str, model_file: str, signature: Signature) -> str:
    """The text of config.pbtxt. With a batch dimension, Triton wants shapes without it and `max_batch_size`."""
    batching = signature.batch is not None
    lines = [f'name: "{name}"']
    if runtime in PLATFORMS:
        lines.append(f'platform: "{PLATFORMS[runtime]}"')
    lines.append(f'default_model_filename: "{model_file}"')
    lines.append(f"max_batch_size: {signature.max_batch if batching else 0}")
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        lines.extend(_tensor(kind, tensor, batching) for tensor in tensors)
    if batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, tensor: Tensor, batching: bool) -> str:
    dims = _dims(tensor, batching)
    v2 = _type(tensor)
    # A batched vector of numbers leaves no dimension, which Triton writes as [ 1 ] with an empty reshape.
    reshape = "" if dims else " reshape { shape: [ ] }"
    return f'{kind} {{ name: "{tensor.name}" data_type: TYPE_{v2} dims: {dims or [1]}{reshape} }}'

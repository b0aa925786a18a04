"""Triton's config.pbtxt for an artifact, so that `tritonserver --model-repository` serves the same folder."""

from __future__ import annotations

from penstock.signature import V2_DTYPES, Signature, Tensor

# Triton's platform of each runtime.
PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "torch": "pytorch_libtorch", "tensorrt": "tensorrt_plan"}


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
    dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batching else 0 :]]
    v2 = V2_DTYPES[tensor.dtype]
    # A batched vector of numbers leaves no dimension, which Triton writes as [ 1 ] with an empty reshape.
    reshape = "" if dims else " reshape { shape: [ ] }"
    return f'{kind} {{ name: "{tensor.name}" data_type: TYPE_{v2} dims: {dims or [1]}{reshape} }}'

"""Text and bfloat16 for onnxruntime, whose Python has no arrays of the one and wants str objects for the other."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.runtimes import RejectedInput
from penstock.signature import Arrays, Signature

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


def needed(signature: Signature) -> bool:
    """Whether a model's inputs or outputs are of a dtype that a session's `run` does not take as it comes.

    Raises:
        PenstockError: they are of both, which no way of running takes.
    """
    held = {tensor.dtype for tensor in (*signature.inputs, *signature.outputs)} & {"object", "bfloat16"}
    if len(held) == 2:
        raise PenstockError("a model of both text and bfloat16 is not served: onnxruntime's Python cannot run it")
    return bool(held)


def run(session: Any, names: list[str], feeds: Arrays) -> list[Any]:
    """What `session.run` does, with bytes objects for text and ml_dtypes' bfloat16.

    Raises:
        RejectedInput: an input's bytes are no UTF-8.
    """
    if any(item.type == "tensor(bfloat16)" for item in (*session.get_inputs(), *session.get_outputs())):
        values = {name: _value(np.ascontiguousarray(array)) for name, array in feeds.items()}
        return [_array(value) for value in session.run_with_ort_values(names, values)]
    texts = {name: _decoded(name, array) if array.dtype == object else array for name, array in feeds.items()}
    return [_encoded(array) if array.dtype == object else array for array in session.run(names, texts)]


def _value(array: Any) -> Any:
    from onnxruntime import OrtValue

    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)


def _array(value: Any) -> Any:
    import ml_dtypes

    if value.element_type() != _BFLOAT16:
        return value.numpy()
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())  # a copy: the value is soon gone
    return np.frombuffer(content, ml_dtypes.bfloat16).reshape(value.shape())


def _decoded(name: str, array: Any) -> Any:
    try:
        return _each(array, bytes.decode)
    except UnicodeDecodeError as error:
        raise RejectedInput(f"input {name!r} holds {error.object[:40]!r}, and the model takes text as UTF-8") from None


def _encoded(array: Any) -> Any:
    return _each(array, str.encode)


def _each(array: Any, change: Any) -> Any:
    return np.asarray(np.frompyfunc(change, 1, 1)(array), object)

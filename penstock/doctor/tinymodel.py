"""A tiny ONNX model, written byte by byte: there may be no onnx package on the machine that is to run it.

The fields are those of onnx.proto.
"""

from __future__ import annotations

import struct

WIDTH = 4
_FLOAT, _INT8 = 1, 3
# TensorProto's number of each precision's dtype, and 1 in it.
_ONES = {
    "fp32": (_FLOAT, struct.pack("<f", 1)),
    "fp16": (10, struct.pack("<e", 1)),
    "bf16": (16, struct.pack("<f", 1)[2:]),
    "int8": (_INT8, b"\1"),
}
# Of opset and IR version: every onnxruntime and TensorRT that penstock takes reads them.
_OPSET, _IR = 19, 9


def identity(precision: str) -> bytes:
    """A model `x [batch, 4] -> y [batch, 4]` in float32 whose one product, in `precision`, gives back what it is given.

    Args:
        precision: fp32, fp16, bf16 or int8; int8 is exact for whole numbers from -128 to 127.
    """
    number, one = _ONES[precision]
    diagonal = b"".join(one if row == column else bytes(len(one)) for row in range(WIDTH) for column in range(WIDTH))
    weights = [_tensor("w", number, (WIDTH, WIDTH), diagonal)]
    if precision == "fp32":
        nodes = [_node("MatMul", ("x", "w"), "y")]
    elif precision == "int8":
        weights += [_tensor("s", _FLOAT, (), struct.pack("<f", 1)), _tensor("z", _INT8, (), b"\0")]
        nodes = [
            _node("QuantizeLinear", ("x", "s", "z"), "q"),
            _node("DequantizeLinear", ("q", "s", "z"), "d"),
            _node("DequantizeLinear", ("w", "s", "z"), "v"),
            _node("MatMul", ("d", "v"), "y"),
        ]
    else:
        nodes = [_cast("x", "c", number), _node("MatMul", ("c", "w"), "m"), _cast("m", "y", _FLOAT)]
    graph = b"".join(
        [
            *(_held(1, node) for node in nodes),
            _held(2, b"identity"),
            *(_held(5, weight) for weight in weights),
            _held(11, _value("x")),
            _held(12, _value("y")),
        ]
    )
    return _whole(1, _IR) + _held(7, graph) + _held(8, _held(1, b"") + _whole(2, _OPSET))


def _node(kind: str, inputs: tuple[str, ...], output: str, *attributes: bytes) -> bytes:
    named = b"".join(_held(1, name.encode()) for name in inputs)
    return named + _held(2, output.encode()) + _held(4, kind.encode()) + b"".join(_held(5, each) for each in attributes)


def _cast(given: str, made: str, to: int) -> bytes:
    whole_number = 2  # AttributeProto.INT
    return _node("Cast", (given,), made, _held(1, b"to") + _whole(3, to) + _whole(20, whole_number))


def _tensor(name: str, dtype: int, shape: tuple[int, ...], raw: bytes) -> bytes:
    return b"".join(_whole(1, size) for size in shape) + _whole(2, dtype) + _held(8, name.encode()) + _held(9, raw)


def _value(name: str) -> bytes:
    shape = _held(1, _held(2, b"batch")) + _held(1, _whole(1, WIDTH))
    return _held(1, name.encode()) + _held(2, _held(1, _whole(1, _FLOAT) + _held(2, shape)))


def _held(field: int, content: bytes) -> bytes:
    """A field that has a length."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _whole(field: int, value: int) -> bytes:
    """A field of a whole number."""
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    made = b""
    while value > 127:
        made, value = made + bytes([value & 127 | 128]), value >> 7
    return made + bytes([value])

"""Operations: the multiply-adds of real graphs, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.bench import operations
from penstock.bench.operations import counted, multiply_adds
from penstock.errors import PenstockError


def saved(path: Path, nodes: list[Any], weights: dict[str, Any], shape: tuple[int | str, ...]) -> Path:
    """An ONNX file of these nodes, from `x` to `y`."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    held = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def node(kind: str, *inputs: str, **attributes: Any) -> Any:
    return pytest.importorskip("onnx").helper.make_node(kind, list(inputs), ["y"], **attributes)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("made", "weights", "fed", "expected"),
    [
        # 2 rows, 8 channels out of 6 x 6, each over 4 channels of 3 x 3
        (("Conv", "x", "w"), {"w": ones(8, 4, 3, 3)}, ones(2, 4, 8, 8), 2 * 8 * 36 * 4 * 9),
        (("Conv", "x", "w", {"group": 4}), {"w": ones(8, 1, 3, 3)}, ones(2, 4, 8, 8), 2 * 8 * 36 * 1 * 9),
        (("ConvTranspose", "x", "w"), {"w": ones(4, 8, 3, 3)}, ones(2, 4, 5, 5), 2 * 4 * 25 * 8 * 9),
        (("MatMul", "x", "w"), {"w": ones(16, 32)}, ones(3, 5, 16), 3 * 5 * 16 * 32),
        (("MatMul", "w", "x"), {"w": ones(7, 16)}, ones(3, 16, 5), 3 * 7 * 16 * 5),
        (("Gemm", "x", "w"), {"w": ones(16, 32)}, ones(3, 16), 3 * 16 * 32),
        (("Gemm", "x", "w", {"transA": 1, "transB": 1}), {"w": ones(32, 16)}, ones(16, 3), 3 * 16 * 32),
        (("Relu", "x"), {}, ones(3, 16), 0),
        # 5 steps of 3 rows, 4 gates of 8 from 16 inputs and 8 states
        (
            ("LSTM", "x", "w", "r", {"hidden_size": 8}),
            {"w": ones(1, 32, 16), "r": ones(1, 32, 8)},
            ones(5, 3, 16),
            5 * 3 * 32 * (16 + 8),
        ),
    ],
    ids=["convolution", "depthwise", "transposed", "product", "weight first", "gemm", "turned", "none", "lstm"],
)
def test_multiply_adds_are_those_counted_by_hand(
    tmp_path: Path, made: tuple[Any, ...], weights: dict[str, Any], fed: Any, expected: int
) -> None:
    attributes = made[-1] if isinstance(made[-1], dict) else {}
    built = node(*(part for part in made if isinstance(part, str)), **attributes)
    path = saved(tmp_path / "net.onnx", [built], weights, fed.shape)
    assert multiply_adds(path, {"x": fed}) == expected


def test_the_digits_net_takes_as_many_in_every_precision(repository: Path) -> None:
    image = np.zeros((2, 1, 8, 8), np.float32)
    found = {
        precision: multiply_adds(repository / f"digits-onnx-{precision}/1/model.onnx", {"image": image})
        for precision in ("fp32", "fp16", "int8")
    }
    assert len(set(found.values())) == 1
    assert found["fp32"] > 1e6


def event(kind: str, inputs: list[Any], output: Any) -> dict[str, Any]:
    facts = {"op_name": kind, "input_type_shape": inputs, "output_type_shape": [{"float": output}]}
    return {"cat": "Node", "name": f"n_{kind}_kernel_time", "args": facts}


def test_onnxruntime_s_own_quantized_operators_have_their_weight_behind_the_scale() -> None:
    scale: dict[str, list[int]] = {"float": []}
    point: dict[str, list[int]] = {"uint8": []}
    inputs = [{"uint8": [2, 4, 8, 8]}, scale, point, {"int8": [8, 4, 3, 3]}, scale, point]
    assert counted([event("QLinearConv", inputs, [2, 8, 6, 6])]) == 2 * 8 * 36 * 36


@pytest.mark.parametrize("kind", sorted(operations._UNCOUNTED))
def test_a_model_with_an_operator_that_is_not_counted_has_no_figure(kind: str) -> None:
    with pytest.raises(PenstockError, match=f"operations of {kind} are not counted"):
        counted([event("MatMul", [{"float": [2, 2]}], [2, 2]), event(kind, [], [1])])


def test_a_shape_that_is_not_told_is_no_zero() -> None:
    with pytest.raises(PenstockError, match="does not tell the shapes of a Conv"):
        counted([event("Conv", [{"float": [2, 4, 8, 8]}], [2, 8, 6, 6])])

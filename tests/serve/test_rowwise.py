"""Bare ONNX files whose rows hang on one another are not batched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.runtimes import onnxruntime
from penstock.serve import rowwise
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load

onnx = pytest.importorskip("onnx")
F, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def write(
    path: Path, nodes: list[Any], ins: dict[str, Any], outs: dict[str, Any], weights: dict[str, Any] | None = None
) -> Path:
    values = [
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in held.items()]
        for held in (ins, outs)
    ]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = onnx.helper.make_graph(nodes, "g", *values, held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def lstm(path: Path) -> Path:
    """PyTorch's usual layout: the sequence first."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"w": draw((1, 16, 3)).astype(np.float32), "r": draw((1, 16, 4)).astype(np.float32)}
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=4)
    squeeze = onnx.helper.make_node("Squeeze", ["h", "axis"], ["y"])
    weights["axis"] = np.array([1], np.int64)
    return write(path, [node, squeeze], {"x": (F, ["seq", "batch", 3])}, {"y": (F, ["seq", "batch", 4])}, weights)


def cumsum(path: Path) -> Path:
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])
    return write(path, [node], {"x": (F, ["n", 2])}, {"y": (F, ["n", 2])}, {"axis": np.array(0, np.int64)})


def normalised(path: Path) -> Path:
    """Every row less the mean of all."""
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        onnx.helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return write(path, nodes, {"x": (F, ["n", 2])}, {"y": (F, ["n", 2])})


def linear(path: Path) -> Path:
    weights = {"w": np.ones((3, 2), np.float32)}
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    return write(path, [node], {"x": (F, ["n", 3])}, {"y": (F, ["n", 2])}, weights)


def pictures(path: Path) -> Path:
    """Takes pictures of 100 pixels a side at least."""
    weights = {"w": np.ones((1, 3, 100, 100), np.float32)}
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"])
    return write(path, [node], {"x": (F, ["n", 3, "h", "w_"])}, {"y": (F, ["n", 1, "a", "b"])}, weights)


def embedded(path: Path) -> Path:
    weights = {"table": np.arange(20, dtype=np.float32).reshape(10, 2)}
    node = onnx.helper.make_node("Gather", ["table", "ids"], ["y"])
    return write(path, [node], {"ids": (INT, ["n", "t"])}, {"y": (F, ["n", "t", 2])}, weights)


@pytest.mark.parametrize("made", [linear, pictures, embedded])
def test_independent_rows_are_batched(made: Any, tmp_path: Path) -> None:
    assert load(made(tmp_path / "m.onnx"), Limits(), Metrics()).signature.batch == "n"


@pytest.mark.parametrize("made", [lstm, cumsum, normalised])
def test_rows_that_hang_on_one_another_are_not(made: Any, tmp_path: Path) -> None:
    model = load(made(tmp_path / "m.onnx"), Limits(), Metrics())
    assert model.signature.batch is None
    assert model.signature.max_batch == 1


@pytest.mark.parametrize("made", [lstm, cumsum, normalised])
def test_each_client_of_such_a_model_gets_what_it_would_get_alone(made: Any, tmp_path: Path) -> None:
    path = made(tmp_path / "m.onnx")
    model = load(path, Limits(), Metrics())
    (tensor,) = model.signature.inputs
    draw = np.random.default_rng(1).standard_normal
    asked = [
        draw([length if size in ("seq", "n") else 2 if size == "batch" else size for size in tensor.shape])
        for length in (1, 5, 100, 70)
    ]
    plain = onnxruntime.load(path, model.signature)

    async def scenario(model: Model) -> list[Any]:
        feeds = [{tensor.name: array.astype(np.float32)} for array in asked]
        return await asyncio.gather(*(model.infer(item) for item in feeds))

    for array, answer in zip(asked, asyncio.run(scenario(model)), strict=True):
        expected = plain.run({tensor.name: array.astype(np.float32)})
        np.testing.assert_allclose(answer["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_a_model_that_takes_no_rows_of_ours_is_not_batched(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])]
    path = write(
        tmp_path / "m.onnx", nodes, {"x": (F, ["n", "k"])}, {"y": (F, ["n", 7])}, {"shape": np.array([5, 7], np.int64)}
    )
    signature = onnxruntime.read_signature(path)
    with onnxruntime.load(path, signature) as runner:
        assert not rowwise.independent(runner, signature)


def test_a_dimension_that_is_none_of_rows_is_not_bounded(tmp_path: Path) -> None:
    model = load(cumsum(tmp_path / "m.onnx"), Limits(), Metrics())
    rows = np.ones((200_000, 2), np.float32)
    assert asyncio.run(model.infer({"x": rows}))["y"][-1].tolist() == [200_000.0, 200_000.0]

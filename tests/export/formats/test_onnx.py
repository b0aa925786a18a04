"""ONNX: int8 written the way that onnxruntime's kernels want it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from penstock import artifact


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-onnx-fp16", "digits-onnx-int8"])
def test_the_file_is_valid_and_its_opset_is_the_recorded_one(repository: Path, name: str) -> None:
    held = artifact.read(repository / name)
    model = onnx.load(str(held.model_path))
    onnx.checker.check_model(model, full_check=True)
    (version,) = [item.version for item in model.opset_import if item.domain == ""]
    assert held.receipt.build["opset"] == version


def test_int8_weights_are_symmetric_and_scaled_for_each_channel(repository: Path) -> None:
    graph = onnx.load(str(repository / "digits-onnx-int8" / "1" / "model.onnx")).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    scaled = [
        (arrays[node.input[0]], arrays[node.input[1]], arrays[node.input[2]])
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in arrays and arrays[node.input[0]].ndim == 4
    ]
    assert len(scaled) == 9
    for weight, scale, zero in scaled:
        assert weight.dtype.name == "int8"
        assert scale.shape == (weight.shape[0],)
        assert not zero.any()
        assert abs(weight.astype(int)).max() == 127


def test_int8_activations_are_of_eight_bits_without_a_sign(repository: Path) -> None:
    graph = onnx.load(str(repository / "digits-onnx-int8" / "1" / "model.onnx")).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    zeros = [arrays[node.input[2]].dtype.name for node in graph.node if node.op_type == "QuantizeLinear"]
    assert len(zeros) > 9
    assert set(zeros) == {"uint8"}


def test_a_smaller_precision_makes_a_smaller_file(repository: Path) -> None:
    sizes = [(repository / f"digits-onnx-{p}" / "1" / "model.onnx").stat().st_size for p in ("fp32", "fp16", "int8")]
    assert sizes[0] > 1.8 * sizes[1] > 1.8 * sizes[2]

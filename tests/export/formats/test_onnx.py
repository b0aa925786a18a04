"""ONNX: the opset that was asked for, names and ranges as promised, int8 the way that onnxruntime's kernels want it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor as T
from torch import nn

from penstock import artifact
from penstock.errors import PenstockError
from penstock.export.formats import Source
from penstock.signature import Dim

Write = Callable[..., Any]


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
        assert abs(weight.astype(int)).max() == 64  # two products with 255 stay under 2**15: see int8.for_onnxruntime


def test_int8_kernels_of_this_cpu_answer_as_the_graph_does_node_by_node(repository: Path) -> None:
    held = artifact.read(repository / "digits-onnx-int8")
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(held.model_path), plain, providers=["CPUExecutionProvider"])
    inputs, _ = held.golden()
    with held.load() as runner:
        answer = runner.run(inputs)["logits"]
    expected = session.run(None, inputs)[0]
    assert np.linalg.norm(answer - expected) < 5e-3 * np.linalg.norm(expected)


def test_int8_activations_are_of_eight_bits_without_a_sign(repository: Path) -> None:
    graph = onnx.load(str(repository / "digits-onnx-int8" / "1" / "model.onnx")).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    zeros = [arrays[node.input[2]].dtype.name for node in graph.node if node.op_type == "QuantizeLinear"]
    assert len(zeros) > 9
    assert set(zeros) == {"uint8"}


def test_a_smaller_precision_makes_a_smaller_file(repository: Path) -> None:
    sizes = [(repository / f"digits-onnx-{p}" / "1" / "model.onnx").stat().st_size for p in ("fp32", "fp16", "int8")]
    assert sizes[0] > 1.8 * sizes[1] > 1.8 * sizes[2]


# --- Opsets -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """What changed between opsets 13 and 21: reductions, splits, padding, clipping, norms, and resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.group = nn.GroupNorm(2, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, image: T, lengths: T) -> dict[str, T]:
        x = nn.functional.relu6(self.group(self.stem(nn.functional.pad(image, (1, 0, 1, 0)))))
        x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        tokens = self.norm(x.flatten(2).transpose(1, 2)[:, :16])
        found, _ = self.attention(tokens, tokens, tokens)
        left, right = found.mean(1).split(4, dim=1)
        return {"scores": nn.functional.gelu(left) - right.amax(1, keepdim=True), "doubled": lengths * 2}


@pytest.fixture(scope="module")
def block(source_of: Callable[..., Source]) -> Source:
    torch.manual_seed(0)
    return source_of(Block(), "image:float32[batch,3,side,side]", "lengths:int64[batch]", side=Dim(min=4, opt=6, max=9))


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_the_opset_is_exactly_the_one_asked_for_and_the_answers_stay(block: Source, write: Write, opset: int) -> None:
    written = write(block, "onnx", opset=opset)
    model = onnx.load(str(written.path))
    assert [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")] == [opset]
    assert written.built.build["opset"] == opset
    assert written.built.build["ir_version"] == model.ir_version <= 10
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    onnx.checker.check_model(model, full_check=True)
    for side in (4, 7, 9):
        written.check(1, 3, side=side)


def test_the_opset_is_18_where_none_is_asked_for(block: Source, write: Write) -> None:
    assert write(block, "onnx").built.build["opset"] == 18


def test_an_opset_that_cannot_be_had_is_refused_with_those_that_can(block: Source, write: Write) -> None:
    with pytest.raises(PenstockError, match=r"--opset 9: .*work for it"):
        write(block, "onnx", opset=9)


def test_half_precision_keeps_the_opset_that_was_asked_for(block: Source, write: Write) -> None:
    written = write(block, "onnx", precision="fp16", opset=17)
    model = onnx.load(str(written.path))
    assert [item.version for item in model.opset_import if item.domain == ""] == [17]
    assert any(item.data_type == onnx.TensorProto.FLOAT16 for item in model.graph.initializer)


def test_another_opset_and_precision_leave_the_captured_graph_as_it_was(block: Source, write: Write) -> None:
    first = write(block, "onnx").path.read_bytes()
    for precision, opset in (("fp32", 17), ("fp16", None), ("fp32", 21)):
        write(block, "onnx", precision=precision, opset=opset)
    assert write(block, "onnx").path.read_bytes() == first


def test_the_file_names_inputs_outputs_and_ranges_as_promised_and_no_path_of_this_machine(
    block: Source, write: Write
) -> None:
    path = write(block, "onnx").path
    graph = onnx.load(str(path)).graph
    assert [
        (value.name, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.output)
    ] == [
        ("image", ["batch", 3, "side", "side"]),
        ("lengths", ["batch"]),
        ("scores", ["batch", 4]),
        ("doubled", ["batch"]),
    ]
    content = path.read_bytes()
    for trace in (b"site-packages", b".py", b"/tmp", b"stack_trace", b"forward"):
        assert trace not in content

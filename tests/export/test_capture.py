"""Capture: the ONNX graph keeps the signature's names and dynamic dimensions, or it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor as T
from torch import nn

from penstock.errors import PenstockError
from penstock.export import capture
from penstock.signature import Dim, Signature, Tensor


def signature(inputs: tuple[str, ...], outputs: tuple[str, ...], **dims: Dim) -> Signature:
    return Signature(inputs=tuple(map(Tensor.parse, inputs)), outputs=tuple(map(Tensor.parse, outputs)), dims=dims)


BATCH = Dim(opt=8, max=64)
DENSE = signature(("x:float32[batch,3]",), ("y:float32[batch,2]",), batch=BATCH)


class Pair(nn.Module):
    """Two inputs, two outputs, two dynamic dimensions."""

    def forward(self, ids: T, scale: T) -> tuple[T, T]:
        return ids.float() * scale, scale + 1


def test_names_order_and_dynamic_dimensions_are_the_signatures() -> None:
    wanted = signature(
        ("ids:int64[batch,length]", "scale:float32[batch,1]"),
        ("product:float32[batch,length]", "next:float32[batch,1]"),
        batch=BATCH,
        length=Dim(opt=16, max=128),
    )
    graph = capture.onnx_graph(Pair(), wanted).graph
    shown = [
        [
            (
                value.name,
                value.type.tensor_type.elem_type,
                [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
            )
            for value in group
        ]
        for group in (graph.input, graph.output)
    ]
    floats, longs = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    assert shown == [
        [("ids", longs, ["batch", "length"]), ("scale", floats, ["batch", 1])],
        [("product", floats, ["batch", "length"]), ("next", floats, ["batch", 1])],
    ]


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2).eval()


@pytest.fixture(scope="module")
def graph(module: nn.Module) -> Any:
    return capture.onnx_graph(module, DENSE)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_the_graph_computes_what_the_module_does_by_onnxs_own_evaluator(
    module: nn.Module, graph: Any, rows: int
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    (found,) = ReferenceEvaluator(graph).run(None, {"x": x})
    with torch.inference_mode():
        expected = module(torch.from_numpy(x)).numpy()
    assert np.allclose(found, expected, rtol=0, atol=1e-6)


# A single size, as of one row or of eight, is exported whole by test_pipeline.
@pytest.mark.parametrize("batch", [Dim(opt=1, max=2), Dim(min=4, opt=8, max=16)])
def test_any_range_of_batches_can_be_captured(batch: Dim) -> None:
    graph = capture.onnx_graph(nn.Linear(3, 2).eval(), DENSE.with_batch(batch))
    assert [value.name for value in graph.graph.output] == ["y"]


def test_the_graph_says_nothing_of_the_machine_it_was_made_on(graph: Any) -> None:
    content = graph.SerializeToString()
    for trace in (b"site-packages", b".py", b"/tmp", b"Traceback", b"stack_trace"):
        assert trace not in content


def test_the_opset_is_the_one_asked_for(graph: Any) -> None:
    assert [(item.domain, item.version) for item in graph.opset_import if item.domain == ""] == [("", capture.OPSET)]


class Branching(nn.Module):
    def forward(self, x: T) -> T:
        return x[:, :2] if x.sum() > 0 else -x[:, :2]


def test_a_module_that_cannot_be_captured_is_told_why_and_what_else_may_take_it() -> None:
    with pytest.raises(PenstockError) as caught:
        capture.onnx_graph(Branching(), DENSE)
    assert "torch.export cannot capture the model" in str(caught.value)
    assert "--format torchscript" in str(caught.value)
    assert "\n" not in str(caught.value)


class Fixing(nn.Module):
    """Uses its batch as a plain number, which fixes it."""

    def forward(self, x: T) -> T:
        return x[:, :2] + torch.zeros(int(x.shape[0]) if x.shape[0] == 8 else 8, 2)


def test_a_dynamic_dimension_that_the_module_fixes_is_refused() -> None:
    with pytest.raises(PenstockError):
        capture.onnx_graph(Fixing(), DENSE)


def test_a_signature_that_is_not_the_modules_is_refused() -> None:
    wrong = signature(("x:float32[batch,3]",), ("y:float32[batch,7]",), batch=BATCH)
    with pytest.raises(PenstockError, match=r"y\['batch', 2\].*y:float32\[batch,7\]"):
        capture.onnx_graph(nn.Linear(3, 2).eval(), wrong)


def test_examples_fit_the_signature_and_have_no_size_of_one_that_is_dynamic() -> None:
    wanted = signature(("x:float32[batch,n]",), ("y:float32[batch]",), batch=Dim(opt=1, max=9), n=Dim(opt=5, max=9))
    (example,) = capture.examples(wanted)
    assert tuple(example.shape) == (2, 5)
    arrays: dict[str, Any] = {"x": example.numpy()}
    wanted.check(arrays)

"""ONNX graphs behind pictures: they make of pixels what the recorded preprocessing does, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.parser import parse_model

from penstock.errors import PenstockError
from penstock.export import pictures
from penstock.preprocess import ImagePreprocess
from penstock.signature import BATCH, Signature, Tensor

GREY = ImagePreprocess(input="image", mode="L", height=4, width=6, mean=(0.3,), std=(0.37,), dtype="uint8")
COLOUR = GREY.model_copy(update={"mode": "RGB", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})
BRANCHES = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[batch,3,4,6] image, bool[batch,1] doubled) => (float[batch,3,4,6] out)
{
  taken = Identity (doubled)
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64[1] {0}> ()
  first = Gather (taken, zero)
  flag = Squeeze (first, one)
  out = If (flag) <then_branch = g1 () => (float[batch,3,4,6] a) { a = Add (image, image) },
                   else_branch = g2 () => (float[batch,3,4,6] b) { b = Identity (image) }>
}
"""


def identity(image: ImagePreprocess) -> tuple[Any, Signature]:
    shape = f"float[batch,{image.channels},{image.height},{image.width}]"
    graph = (
        f'<ir_version: 8, opset_import: ["" : 18]> net ({shape} image) => ({shape} out) {{ out = Identity (image) }}'
    )
    return parse_model(graph), contract(image)


def contract(image: ImagePreprocess, *others: str) -> Signature:
    planes = (image.channels, image.height, image.width)
    inputs = (Tensor(name="image", shape=("batch", *planes)), *map(Tensor.parse, others))
    outputs = (Tensor(name="out", shape=("batch", *planes)),)
    return image.contract(Signature(inputs=inputs, outputs=outputs, dims={"batch": BATCH}))


def run(model: Any, **feeds: Any) -> Any:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("image", [GREY, COLOUR])
@given(scale=st.sampled_from([1 / 255, 1.0, 2 / 255, 1 / 256]), rows=st.integers(1, 5))
def test_pixels_become_the_numbers_of_the_preprocessing(image: ImagePreprocess, scale: float, rows: int) -> None:
    image = image.model_copy(update={"scale": scale})
    pixels = np.random.default_rng(rows).integers(0, 256, (rows, *image.shape), np.uint8)
    model, signature = identity(image)
    before = model.SerializeToString()
    found = run(pictures.decoded(model, signature, image), image=pixels)
    assert found.tobytes() == image.normalize(pixels).tobytes()
    assert model.SerializeToString() == before


def test_the_cast_comes_first_since_tensorrt_takes_uint8_into_nothing_else() -> None:
    model, signature = identity(COLOUR)
    nodes = pictures.decoded(model, signature, COLOUR).graph.node
    assert [(node.op_type, "image" in node.input) for node in nodes[:2]] == [("Cast", True), ("Div", False)]


@pytest.mark.parametrize("doubled", [False, True])
def test_branches_inside_see_the_numbers_too_and_names_that_are_taken_stay(doubled: bool) -> None:
    before = parse_model(BRANCHES)
    before.graph.node[0].output[0] = before.graph.node[3].input[0] = "image.numbers"
    model = pictures.decoded(before, contract(COLOUR, "doubled:bool[batch,1]"), COLOUR)
    pixels = np.random.default_rng(0).integers(0, 256, (2, *COLOUR.shape), np.uint8)
    found = run(model, image=pixels, doubled=np.full((2, 1), doubled))
    np.testing.assert_array_equal(found, COLOUR.normalize(pixels) * np.float32(1 + doubled))


def test_a_graph_of_another_contract_is_refused() -> None:
    model, _ = identity(COLOUR)
    with pytest.raises(PenstockError, match=r"the graph's inputs are image; the signature says image, more"):
        pictures.decoded(model, contract(COLOUR, "more:float32[batch,3]"), COLOUR)

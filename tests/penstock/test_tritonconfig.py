"""config.pbtxt: exactly what Triton's ModelConfig wants for each kind of signature."""

from __future__ import annotations

import pytest

from penstock.signature import V2_DTYPES, Dim, Signature, Tensor
from penstock.tritonconfig import render


def test_a_batching_model_leaves_its_batch_out_of_the_shapes() -> None:
    signature = Signature(
        inputs=(
            Tensor(name="image", shape=("batch", 1, 8, 8)),
            Tensor(name="mask", dtype="bool", shape=("batch", "n")),
        ),
        outputs=(Tensor(name="logits", shape=("batch", 10)),),
        dims={"batch": Dim(opt=8, max=64), "n": Dim(opt=4, max=16)},
    )
    assert render("digits-onnx-fp16", "onnxruntime", "model.onnx", signature) == (
        'name: "digits-onnx-fp16"\n'
        'platform: "onnxruntime_onnx"\n'
        'default_model_filename: "model.onnx"\n'
        "max_batch_size: 64\n"
        'input { name: "image" data_type: TYPE_FP32 dims: [1, 8, 8] }\n'
        'input { name: "mask" data_type: TYPE_BOOL dims: [-1] }\n'
        'output { name: "logits" data_type: TYPE_FP32 dims: [10] }\n'
        "dynamic_batching { }\n"
    )


def test_a_model_that_cannot_batch_keeps_its_whole_shapes() -> None:
    signature = Signature(
        inputs=(Tensor(name="x", dtype="int64", shape=(1, "length")),),
        outputs=(Tensor(name="y", shape=(7,)),),
        dims={"length": Dim(opt=4, max=16)},
    )
    text = render("m", "torch", "model.pt", signature)
    assert "max_batch_size: 0\n" in text
    assert 'input { name: "x" data_type: TYPE_INT64 dims: [1, -1] }\n' in text
    assert 'output { name: "y" data_type: TYPE_FP32 dims: [7] }\n' in text
    assert "dynamic_batching" not in text


def test_a_batched_vector_is_reshaped_to_nothing() -> None:
    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch",)),),
        outputs=(Tensor(name="y", shape=("batch",)),),
        dims={"batch": Dim(opt=1, max=4)},
    )
    text = render("m", "onnxruntime", "model.onnx", signature)
    assert 'input { name: "x" data_type: TYPE_FP32 dims: [1] reshape { shape: [ ] } }' in text


@pytest.mark.parametrize(
    ("runtime", "platform"),
    [("onnxruntime", "onnxruntime_onnx"), ("torch", "pytorch_libtorch"), ("tensorrt", "tensorrt_plan")],
)
def test_each_runtime_has_its_platform(runtime: str, platform: str) -> None:
    signature = Signature(inputs=(Tensor(name="x", shape=(1,)),), outputs=(Tensor(name="y", shape=(1,)),))
    assert f'platform: "{platform}"\n' in render("m", runtime, "f", signature)


@pytest.mark.parametrize("dtype", sorted(V2_DTYPES))
def test_every_dtype_is_named_in_tritons_words(dtype: str) -> None:
    signature = Signature(inputs=(Tensor(name="x", dtype=dtype, shape=(1,)),), outputs=(Tensor(name="y", shape=(1,)),))
    word = {"bool": "BOOL"}.get(dtype, dtype.upper().replace("FLOAT", "FP"))
    assert f"data_type: TYPE_{word} dims" in render("m", "onnxruntime", "f", signature)

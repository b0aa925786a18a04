"""The ONNX runtime: signatures that bare files declare, and files that are not what their signature says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock import artifact, runtimes
from penstock.errors import PenstockError
from penstock.runtimes import RejectedInput, onnxruntime
from penstock.signature import Dim, Signature, Tensor


def write(
    path: Path, shape: list[int | str | None], dtype: int = TensorProto.FLOAT, names: tuple[str, str] = ("x", "y")
) -> Path:
    values = [helper.make_tensor_value_info(name, dtype, shape) for name in names]
    graph = helper.make_graph([helper.make_node("Identity", [names[0]], [names[1]])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path))
    return path


def test_the_signature_of_an_exported_file_is_read_back_from_it(repository: Path) -> None:
    held = artifact.read(repository / "digits-onnx-fp32")
    found = onnxruntime.read_signature(held.model_path)
    assert (found.inputs, found.outputs) == (held.receipt.signature.inputs, held.receipt.signature.outputs)
    assert found.batch == "batch"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["batch", 3], ("batch", 3)),
        (["N", "length"], ("N", "length")),
        ([None, 3], ("batch", 3)),
        (["batch", None], ("batch", "x_1")),
        (["2*n", 3], ("batch", 3)),
        ([2, 3], (2, 3)),
        ([], ()),
    ],
)
def test_dimensions_keep_their_names_or_get_one(
    tmp_path: Path, shape: list[int | str | None], expected: tuple[int | str, ...]
) -> None:
    found = onnxruntime.read_signature(write(tmp_path / "m.onnx", shape))
    assert found.inputs == (Tensor(name="x", shape=expected),)
    assert set(found.dims) == {size for size in expected if isinstance(size, str)}


def test_an_unnamed_dimension_of_an_awkwardly_named_input_gets_a_name(tmp_path: Path) -> None:
    file = write(tmp_path / "m.onnx", ["batch", None], names=("in.put/0:a", "y"))
    (tensor,) = onnxruntime.read_signature(file).inputs
    assert tensor.shape == ("batch", "in_put_0_a_1")


def test_a_type_that_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "m.onnx", ["batch"], TensorProto.STRING)
    with pytest.raises(PenstockError, match=rf"{file}: 'x' is of type tensor\(string\)"):
        onnxruntime.read_signature(file)


def test_a_file_with_other_names_than_its_signature_is_refused_with_both(tmp_path: Path) -> None:
    file = write(tmp_path / "m.onnx", ["batch", 3])
    signature = Signature(
        inputs=(Tensor(name="image", shape=("batch", 3)),),
        outputs=(Tensor(name="y", shape=("batch", 3)),),
        dims={"batch": Dim(opt=2, max=4)},
    )
    with pytest.raises(PenstockError) as caught:
        runtimes.load("onnxruntime", file, signature)
    for part in (str(file), "['x']", "['image']"):
        assert part in str(caught.value)


def test_cuda_without_its_provider_is_refused_with_the_way_to_get_it(repository: Path) -> None:
    import onnxruntime as ort

    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    held = artifact.read(repository / "digits-onnx-fp32")
    with pytest.raises(PenstockError, match=r"--device cuda:0: .*pip install onnxruntime-gpu"):
        runtimes.load("onnxruntime", held.model_path, held.receipt.signature, device="cuda:0")


def test_the_number_of_threads_changes_no_answer(repository: Path) -> None:
    held = artifact.read(repository / "digits-onnx-fp32")
    inputs, _ = held.golden()
    answers = []
    for threads in (1, 2):
        with held.load(threads=threads) as runner:
            answers.append(runner.run(inputs)["logits"])
    assert np.allclose(*answers, rtol=0, atol=1e-5)


def test_inputs_that_do_not_suit_the_model_are_rejected_in_a_sentence(tmp_path: Path) -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [3, 1], [0.0, 1.0, 2.0])
    values = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", 1]),
    ]
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], initializer=[table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(tmp_path / "m.onnx"))
    with runtimes.load("onnxruntime", tmp_path / "m.onnx", onnxruntime.read_signature(tmp_path / "m.onnx")) as runner:
        assert runner.run({"ids": np.array([2, 0])})["rows"].tolist() == [[2.0], [0.0]]
        with pytest.raises(RejectedInput, match=r"the model rejects these inputs: .*(bounds|indices)") as caught:
            runner.run({"ids": np.array([7])})
        assert "\n" not in str(caught.value)
        assert ".cc" not in str(caught.value)
        assert runner.run({"ids": np.array([1])})["rows"].tolist() == [[1.0]]

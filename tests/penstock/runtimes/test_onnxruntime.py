"""The ONNX runtime: signatures that bare files declare, and files that are not what their signature says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock import artifact, runtimes
from penstock.errors import PenstockError
from penstock.runtimes import RejectedInput, onnxruntime
from penstock.runtimes.onnxruntime import OnnxRunner
from penstock.signature import Dim, Signature, Tensor


def write(
    path: Path, shape: list[int | str | None], dtype: int = TensorProto.FLOAT, names: tuple[str, str] = ("x", "y")
) -> Path:
    values = [helper.make_tensor_value_info(name, dtype, shape) for name in names]
    graph = helper.make_graph([helper.make_node("Identity", [names[0]], [names[1]])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
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
    file = write(tmp_path / "m.onnx", ["batch"], TensorProto.FLOAT8E4M3FN)
    with pytest.raises(PenstockError, match=rf"{file}: 'x' is of type tensor\(float8e4m3fn\)"):
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    onnx.save(model, str(tmp_path / "m.onnx"))
    with runtimes.load("onnxruntime", tmp_path / "m.onnx", onnxruntime.read_signature(tmp_path / "m.onnx")) as runner:
        assert runner.run({"ids": np.array([2, 0])})["rows"].tolist() == [[2.0], [0.0]]
        with pytest.raises(RejectedInput, match=r"the model rejects these inputs: .*(bounds|indices)") as caught:
            runner.run({"ids": np.array([7])})
        assert "\n" not in str(caught.value)
        assert ".cc" not in str(caught.value)
        assert runner.run({"ids": np.array([1])})["rows"].tolist() == [[1.0]]


SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch",)),),
    outputs=(Tensor(name="y", shape=("batch",)),),
    dims={"batch": Dim(opt=2, max=4)},
)


def raising(error: Exception) -> OnnxRunner:
    """A runner whose session fails at every run, as onnxruntime's own does: with classes of many names."""

    class Session:
        def run(self, names: list[str], feeds: Any) -> Any:
            raise error

    return OnnxRunner(Session(), SIGNATURE)


class Fail(Exception):
    """One of onnxruntime's classes, by its name."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Fail("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Loop node."), "Non-zero"),
        (
            Fail(
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code. Name:'n' "
                "Status Message: /a/b.cc:41 sizes differ\nmore"
            ),
            "/a/b.cc:41 sizes differ",
        ),
        (RuntimeError("the reason"), "the reason"),
        (NotImplementedError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel"), "no kernel"),
        (Fail(""), ""),
    ],
)
def test_whatever_else_fails_at_run_time_is_laid_to_the_inputs(error: Exception, reason: str) -> None:
    with pytest.raises(RejectedInput) as caught:
        raising(error).run({})
    assert str(caught.value).startswith(f"the model rejects these inputs: {reason}")
    assert "\n" not in str(caught.value)
    assert "ONNXRuntimeError" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        Fail("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9"),
        MemoryError("std::bad_alloc"),
        Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was encountered"),
    ],
)
def test_a_machine_that_fails_is_no_fault_of_the_inputs(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        raising(error).run({})
    assert caught.value is error


def test_a_real_failure_inside_a_model_is_rejected_and_the_runner_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A reshape that no size fits: onnxruntime raises, and prints nothing of its own."""
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 2])
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "g", values[:1], values[1:], initializer=[shape]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10), str(tmp_path / "m.onnx")
    )
    with runtimes.load("onnxruntime", tmp_path / "m.onnx", onnxruntime.read_signature(tmp_path / "m.onnx")) as runner:
        for _ in range(2):
            with pytest.raises(RejectedInput, match="the model rejects these inputs: ") as caught:
                runner.run({"x": np.ones(3, np.float32)})
            assert "\n" not in str(caught.value)
            assert "ONNXRuntimeError" not in str(caught.value)
            assert runner.run({"x": np.ones(4, np.float32)})["y"].shape == (2, 2)
    assert capfd.readouterr() == ("", "")


def branching(path: Path) -> Path:
    """A model with an If."""
    true = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["out"])],
        "a",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["out"])],
        "b",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["told"], to=TensorProto.BOOL),
        helper.make_node("If", ["told"], ["y"], then_branch=true, else_branch=other),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10), str(path))
    return path


def steady(path: Path, device: str = "cpu") -> bool:
    with onnxruntime.load(path, onnxruntime.read_signature(path), device=device) as runner:
        return runner.steady


def test_a_model_whose_shapes_tell_how_long_it_takes_is_steady(tmp_path: Path) -> None:
    assert steady(write(tmp_path / "m.onnx", ["batch", 3]))


def test_a_model_that_branches_is_not(tmp_path: Path) -> None:
    assert not steady(branching(tmp_path / "m.onnx"))


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.INT32, TensorProto.STRING])
def test_nor_is_one_whose_inputs_may_be_sizes(tmp_path: Path, dtype: int) -> None:
    assert not steady(write(tmp_path / "m.onnx", ["batch", 3], dtype))


def test_a_session_that_would_leave_all_to_the_cpu_is_refused_where_cuda_was_asked_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime itself goes on without a provider that does not start, as where a container was given no GPU."""
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    found = artifact.read(repository / "digits-onnx-fp32")
    with pytest.raises(PenstockError, match="--device cuda:0: onnxruntime's CUDA provider does not start here"):
        found.load(device="cuda:0")

"""ONNX files that were made to do harm are refused before a runtime opens them, and those that were not are taken."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import artifact, machine, onnxfile, runtimes
from penstock.errors import PenstockError
from penstock.signature import Dim, Signature, Tensor

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 4)),),
    outputs=(Tensor(name="y", shape=("batch", 4)),),
    dims={"batch": Dim(min=1, opt=1, max=4)},
)
SECRET = b"not for a model!"
ADD = [helper.make_node("Add", ["x", "w"], ["y"])]
# Any weight suits these: no inference of shapes refuses it before it is read.
ADD_SUM = [helper.make_node("ReduceSum", ["w"], ["sum"], keepdims=0), helper.make_node("Add", ["x", "sum"], ["y"])]
MINE = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]


def ends(names: str = "xy") -> list[Any]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in names]


def model(nodes: list[Any], weights: list[Any], functions: list[Any] | None = None) -> Any:
    graph = helper.make_graph(nodes, "g", ends()[:1], ends()[1:], weights)
    return helper.make_model(graph, opset_imports=MINE, ir_version=8, functions=functions or [])


def declared(dims: list[int], raw: bytes | None = None, dtype: int = TensorProto.FLOAT, **typed: Any) -> Any:
    """A weight of these sizes, whatever it holds."""
    tensor = TensorProto(name="w", dims=dims, data_type=dtype, **typed)
    if raw is not None:
        tensor.raw_data = raw
    return tensor


def outside(location: str, dims: list[int] | None = None, **facts: Any) -> Any:
    """A weight in a file beside the model."""
    tensor = declared(dims or [4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def function(name: str, calls: list[str]) -> Any:
    nodes = [helper.make_node(call, ["x"], ["y"], domain="mine") for call in calls]
    return helper.make_function("mine", name, ["x"], ["y"], nodes, MINE)


def write(folder: Path, content: Any) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def constant(weight: Any) -> Any:
    return helper.make_node("Constant", [], ["w"], value=weight)


def branch(weight: Any) -> Any:
    """A choice between the weight added, inside its branch, and nothing done."""
    value = ends("b")
    sides = [
        helper.make_graph([helper.make_node("Add", ["x", "w"], ["b"])], "then", [], value, [weight]),
        helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "else", [], value),
    ]
    return helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])


def in_function(weight: Any) -> Any:
    body = helper.make_function("mine", "F", ["x"], ["y"], [constant(weight), *ADD], MINE)
    return model([helper.make_node("F", ["x"], ["y"], domain="mine")], [], [body])


def in_training(weight: Any) -> Any:
    made = model(ADD, [declared([4], bytes(16))])
    made.training_info.add().initialization.CopyFrom(model(ADD, [weight]).graph)
    return made


WHERE: dict[str, Callable[[Any], Any]] = {
    "among the weights": lambda weight: model(ADD, [weight]),
    "in a constant": lambda weight: model([constant(weight), *ADD], []),
    "in a branch": lambda weight: model([branch(weight)], [helper.make_tensor("c", TensorProto.BOOL, [], [True])]),
    "in a function": in_function,
    "in what is for training": in_training,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, a secret outside it, and links that lead there."""
    home = tmp_path / "model"
    home.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    (home / "link").symlink_to("../secret")
    (home / "up").symlink_to("..")
    os.mkfifo(home / "pipe")
    (home / "zero").symlink_to("/dev/zero")
    return home


@pytest.mark.parametrize("place", WHERE)
@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "/etc/passwd",
        "link",
        "up/secret",
        "zero",
        "",
        ".",
        "*/_ORT_MEM_ADDR_/*",
        "a\0b",
    ],
)
def test_weights_are_not_read_from_outside_the_models_folder(folder: Path, location: str, place: str) -> None:
    path = write(folder, WHERE[place](outside(location)))
    with pytest.raises(PenstockError, match=r"its weight 'w' lies in .*, which leads out of the model's folder"):
        runtimes.load("onnxruntime", path, SIGNATURE)


def test_a_secret_is_not_served_by_any_command(folder: Path, tmp_path: Path) -> None:
    path = write(folder, model(ADD, [outside("../secret")]))
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, 4), np.float32))
    sent = (["serve", "--port", "0", str(path)], ["diff", str(path), str(path)], ["bench", str(path)])
    for words in (*sent, ["inspect", str(path)], ["predict", str(path), str(tmp_path / "rows.npz")]):
        ran = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, timeout=120, check=False)
        assert ran.returncode == (0 if words[0] == "inspect" else 2), (words, ran)
        assert b"leads out of the model's folder" in ran.stdout + ran.stderr or words[0] in ("bench", "predict"), ran
        assert SECRET not in ran.stdout + ran.stderr


@pytest.mark.parametrize("location", ["pipe", "nothing"])
def test_weights_that_are_no_file_are_not_waited_for(folder: Path, location: str) -> None:
    with pytest.raises(PenstockError, match="is missing: it holds weights, and must lie beside the model"):
        onnxfile.examine(write(folder, model(ADD, [outside(location)])))


def test_a_place_is_found_however_it_is_said(folder: Path) -> None:
    """Keys twice, in any order, and a tensor that does not say that it lies elsewhere."""
    twice = outside("weights")
    twice.external_data.add(key="location", value="../secret")
    unsaid = outside("../secret")
    unsaid.ClearField("data_location")
    (folder / "weights").write_bytes(bytes(16))
    for weight in (twice, unsaid):
        with pytest.raises(PenstockError, match="leads out of"):
            onnxfile.examine(write(folder, model(ADD, [weight])))


def test_a_message_in_two_halves_is_refused(folder: Path) -> None:
    """protobuf joins them: a weight whose size is in one, and whose place is in the other."""
    whole = model(ADD, [declared([4], bytes(16))]).SerializeToString()
    half = model([], [outside("../secret")]).SerializeToString()
    with pytest.raises(PenstockError, match="is there twice"):
        onnxfile.examine(write(folder, whole + half))


def test_weights_beside_the_model_are_taken(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "weights").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    path = write(folder, model(ADD, [outside("sub/weights", offset=8, length=16)]))
    with runtimes.load("onnxruntime", path, SIGNATURE) as runner:
        answer = runner.run({"x": np.zeros((1, 4), np.float32)})
    assert answer["y"].tolist() == [[2, 3, 4, 5]]


def test_a_cache_of_links_to_blobs_is_taken(tmp_path: Path) -> None:
    """As huggingface_hub lays its downloads out: the model and its weights are links into one folder."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    made = write(tmp_path / "blobs", model(ADD, [outside("m.onnx_data")]))
    (tmp_path / "blobs" / "data").write_bytes(bytes(16))
    (tmp_path / "snapshot" / "m.onnx").symlink_to(f"../blobs/{made.name}")
    (tmp_path / "snapshot" / "m.onnx_data").symlink_to("../blobs/data")
    onnxfile.examine(tmp_path / "snapshot" / "m.onnx")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"offset": -16}, "the offset of its weight 'w' is no whole number: '-16'"),
        ({"length": "1e9"}, "the length of its weight 'w' is no whole number"),
        ({"offset": 1 << 62, "length": 16}, "which has 16 of"),
        ({"length": 17}, "which has 16 of 17 bytes"),
        ({"dims": [1 << 40]}, "which has 16 of"),
    ],
)
def test_weights_that_are_not_there_as_a_whole_are_not_asked_memory_for(
    folder: Path, facts: dict[str, Any], why: str
) -> None:
    (folder / "weights").write_bytes(bytes(16))
    with pytest.raises(PenstockError, match=why):
        onnxfile.examine(write(folder, model(ADD_SUM, [outside("weights", **facts)])))


HUGE = {
    "a terabyte in 16 bytes": declared([1 << 40], bytes(16)),
    "more numbers than 64 bits count": declared([1 << 32, 1 << 32], bytes(16)),
    "one number that is many": declared([1 << 31], float_data=[1.0]),
    "nothing at all": declared([1 << 34]),
    "texts": declared([1 << 31], dtype=TensorProto.STRING, string_data=[b"x"]),
    "numbers of four bits": declared([33], bytes(16), TensorProto.INT4),
    "one more than there are": declared([5], bytes(16)),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_weight_that_declares_more_than_it_holds_costs_no_memory(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, model(ADD_SUM, [HUGE[name]]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PenstockError, match=r"declares [\d,]+ numbers, and the file has [\d,]+ at most for it"):
        runtimes.load("onnxruntime", path, SIGNATURE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_a_size_below_nothing_and_sizes_without_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="a size below 0"):
        onnxfile.examine(write(tmp_path, model(ADD, [declared([-4], bytes(16))])))
    with pytest.raises(PenstockError, match="too many dimensions"):
        onnxfile.examine(write(tmp_path, model(ADD, [declared([1 << 62] * 1000, bytes(16))])))


def test_a_sparse_weight_counts_as_the_dense_one_that_it_becomes(tmp_path: Path) -> None:
    made = model(ADD_SUM, [])
    sparse = made.graph.sparse_initializer.add(dims=[machine.memory_bytes()])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    with pytest.raises(PenstockError, match=r"its weights take [\d,.]+ GB, and this machine has [\d,.]+ GB of memory"):
        onnxfile.examine(write(tmp_path, made))


def test_many_weights_in_one_place_count_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "weights").write_bytes(bytes(1 << 20))
    weights = [outside("weights", [1 << 18]) for _ in range(100)]
    path = write(folder, model([], weights))
    onnxfile.examine(path)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 99 << 20)
    with pytest.raises(PenstockError, match=r"its weights take 0\.1 GB"):
        onnxfile.examine(path)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    """onnxruntime 1.20 dies of it."""
    call = helper.make_node("F", ["x"], ["y"], domain="mine")
    for functions in ([function("F", ["F"])], [function("F", ["G"]), function("G", ["F"])]):
        with pytest.raises(PenstockError, match="calls itself"):
            onnxfile.examine(write(tmp_path, model([call], [], functions)))


def test_functions_that_double_at_each_step_are_refused(tmp_path: Path) -> None:
    """onnxruntime writes them out: 2 ** 30 nodes of a file of 3 kB."""
    call = helper.make_node("F0", ["x"], ["y"], domain="mine")
    steps = [function(f"F{step}", [f"F{step + 1}"] * 2) for step in range(30)]
    with pytest.raises(PenstockError, match="written out where they are called, come to more than 1,000,000 nodes"):
        onnxfile.examine(write(tmp_path, model([call], [], steps)))
    many = [function(f"F{step}", [f"F{step + 1}"]) for step in range(40)]
    with pytest.raises(PenstockError, match="call each other more than 32 deep"):
        onnxfile.examine(write(tmp_path, model([call], [], many)))
    onnxfile.examine(write(tmp_path, model([call], [], steps[:5])))


def test_functions_of_one_name_for_several_types_are_taken_and_all_looked_through(tmp_path: Path) -> None:
    calls = [helper.make_node("F", ["x"], ["y"], domain="mine") for _ in "ab"]
    calls[1].overload = "of texts"
    functions = [function("F", []), function("F", [])]
    functions[1].overload = "of texts"
    onnxfile.examine(write(tmp_path, model(calls, [], functions)))
    functions[1].node.append(calls[0])
    with pytest.raises(PenstockError, match="calls itself"):
        onnxfile.examine(write(tmp_path, model(calls, [], functions)))


def field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_weights_whose_numbers_are_each_a_field_are_taken(tmp_path: Path) -> None:
    """Readers of protocol buffers take repeated numbers one by one, too, whatever their schema says."""
    head = declared([3]).SerializeToString()
    for numbers in (b"\x25\0\0\x80\x3f" * 3, b"\x28\x05" * 3):
        onnxfile.examine(write(tmp_path, field(7, field(5, head + numbers))))
    with pytest.raises(PenstockError, match="declares 3 numbers"):
        onnxfile.examine(write(tmp_path, field(7, field(5, head))))


def test_a_forest_of_trees_is_looked_through_within_little_memory(tmp_path: Path) -> None:
    """A million numbers and texts, each a field of its own; what comes after them is seen."""
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    node.attribute.append(helper.make_attribute("nodes_values", [1.5] * 400_000))
    node.attribute.append(helper.make_attribute("nodes_nodeids", range(400_000)))
    node.attribute.append(helper.make_attribute("nodes_modes", ["BRANCH_LEQ"] * 200_000))
    path = write(tmp_path, model([node], []))
    tracemalloc.start()
    try:
        onnxfile.examine(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    node.attribute[0].t.CopyFrom(declared([1 << 40], b""))
    with pytest.raises(PenstockError, match="its weight 'w' declares"):
        onnxfile.examine(write(tmp_path, model([node], [])))


def test_graphs_that_are_nested_without_end_are_refused(tmp_path: Path) -> None:
    body = b""
    for _ in range(20_000):
        body = field(1, field(5, field(6, body)))
    with pytest.raises(PenstockError, match="nested more than 32 deep"):
        onnxfile.examine(write(tmp_path, field(7, body)))


def test_weights_of_every_dtype_are_taken(tmp_path: Path) -> None:
    weights = [
        numpy_helper.from_array(np.zeros(7, dtype), f"raw-{dtype}")
        for dtype in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")
    ]
    for dtype in TensorProto.DataType.values():
        if dtype not in (TensorProto.UNDEFINED, TensorProto.STRING):
            weights.append(helper.make_tensor(f"typed-{dtype}", dtype, [2, 3], [0] * 6))
            weights.append(helper.make_tensor(f"single-{dtype}", dtype, [], [1]))
    weights += [helper.make_tensor("texts", TensorProto.STRING, [2], [b"", b"a"])]
    weights += [numpy_helper.from_array(np.zeros((0, 3), np.float32), "none")]
    onnxfile.examine(write(tmp_path, model([], weights)))


def test_what_penstock_exports_is_taken(repository: Path) -> None:
    for name in ("digits-onnx-fp32", "digits-onnx-fp16", "digits-onnx-int8"):
        onnxfile.examine(artifact.read(repository / name).model_path)


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_model_are_told_in_a_sentence_or_hold_nothing(tmp_path: Path, content: bytes) -> None:
    with contextlib.suppress(PenstockError):
        onnxfile.examine(write(tmp_path, content))

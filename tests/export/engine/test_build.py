"""Building engines: by a process of its own, truly, with TensorRT for RTX; and what ends it early."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from penstock import engines
from penstock.errors import PenstockError
from penstock.export.engine import recipe
from penstock.export.engine.build import build, hardware, refuse_new
from penstock.export.engine.recipe import Recipe, Wishes
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 8)),),
    outputs=(Tensor(name="y", shape=("batch", 4)),),
    dims={"batch": Dim(min=1, opt=4, max=16)},
)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return saved(tmp_path / "model.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")])


def saved(path: Path, nodes: list[Any]) -> Path:
    weights = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, 1, ["batch", size]) for name, size in (("x", 8), ("y", 4))]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def asked(**wishes: Any) -> Recipe:
    return Recipe.of(Wishes(flavor="tensorrt_rtx", **wishes), "fp32", recipe.profiles(SIGNATURE))


def test_an_engine_is_built_and_the_facts_tell_of_it(graph: Path, tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    facts = build(graph, asked(level=1), plan, tmp_path, SIGNATURE)
    assert plan.read_bytes()[:4] == b"vtrt"
    assert facts["flavor"] == "tensorrt_rtx"
    assert facts["seconds"] > 0
    assert facts["layers"] >= 1
    assert Recipe.model_validate(facts["recipe"]) == asked(level=1)
    assert "compute_capability" not in facts  # it is tied to no GPU
    assert facts["version"] in hardware(facts)
    json.dumps(facts)


def test_a_file_that_is_no_graph_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "model.onnx"
    bad.write_bytes(b"no graph")
    with pytest.raises(PenstockError, match="truncated, damaged, or not an ONNX model"):
        build(bad, asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)
    assert not (tmp_path / "model.plan").exists()


@pytest.mark.parametrize("name", ["model.onnx", recipe.LATER_FILE])
def test_a_graph_whose_weights_lie_elsewhere_is_not_given_to_tensorrt(graph: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(np.ones((8, 4), np.float32).tobytes())
    folder = tmp_path / "draft"
    folder.mkdir()
    made = onnx.load(graph)
    onnx.save(made, str(folder / "model.onnx"))
    (weight,) = made.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../secret")
    (folder / name).write_bytes(made.SerializeToString())
    with pytest.raises(PenstockError, match=rf"{name}: its weight 'w' lies in '../secret', which leads out of"):
        build(folder / "model.onnx", asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)
    assert not (tmp_path / "model.plan").exists()


def test_an_operator_that_tensorrt_lacks_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("BitShift", ["h", "h"], ["y"], name="odd one", direction="LEFT"),
    ]
    path = saved(tmp_path / "model.onnx", nodes)
    with pytest.raises(PenstockError, match=r"cannot read the graph: node 'odd one' \(BitShift\): "):
        build(path, asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)


def test_a_builder_that_takes_too_long_is_ended(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"within --build-limit 0.05 s"):
        build(graph, asked(limit_s=0.05), tmp_path / "model.plan", tmp_path, SIGNATURE)
    assert not (tmp_path / "model.plan").exists()


def test_what_rtx_has_no_use_for_is_refused_in_words(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(
        PenstockError, match=r"^--hardware-compat ampere\+: engines of TensorRT for RTX run on .*; leave it out"
    ):
        build(graph, asked(hardware_compat="ampere+"), tmp_path / "model.plan", tmp_path, SIGNATURE)


def test_a_flavor_that_is_not_installed_is_named(graph: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is installed here")
    with pytest.raises(PenstockError, match="needs tensorrt, which is not installed"):
        build(graph, asked().model_copy(update={"flavor": "tensorrt"}), tmp_path / "model.plan", tmp_path, SIGNATURE)


START = "import os, signal, sys, time\nfrom penstock.export.engine import builder\nbuilder._alone()\n"
# What a library might print: a line as the builder tells them, bytes that are no text, and by way of another process.
NOISE = "print('{\"done\": 0}', flush=True)\nos.write(1, b'\\xff noise\\n')\nos.system('echo more noise')\n"


def run_as(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have the builder's process run other code, after what it begins with."""
    monkeypatch.setattr(
        "penstock.export.engine.build.python_command",
        lambda module, *words: [sys.executable, "-c", START + code, *words],
    )


def test_what_libraries_print_is_not_among_the_lines_that_the_builder_tells() -> None:
    code = f"{START}{NOISE}builder.tell(phase='a', steps=2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b'{"phase": "a", "steps": 2}\n'
    assert done.stderr.splitlines() == [b'{"done": 0}', b"\xff noise", b"more noise"]


def test_an_engine_is_built_though_libraries_print_bytes_that_are_no_text(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = "[('x', 'float', [-1, 8]), ('y', 'float', [-1, 4])]"
    told = f"builder.tell(done={{'tensors': {tensors}, 'flags': [], 'layers': 3, 'seconds': 0.5}})"
    run_as(monkeypatch, f"{NOISE}os.write(builder._told, b'\\xff\\n')\n{told}")
    assert build(graph, asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)["layers"] == 3


def test_a_builder_that_fails_is_told_by_its_last_words_though_they_are_no_text(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(monkeypatch, f"{NOISE}os.write(2, b'out of \\xff\\n')\nsys.exit(3)")
    with pytest.raises(PenstockError, match="cannot build the engine: out of \N{REPLACEMENT CHARACTER}"):
        build(graph, asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("SIGKILL", "'s process was killed, as it is where memory runs out; --batch gives it less to hold"),
        ("SIGSEGV", r" dies of the graph \(SIGSEGV: last words\); "),
        ("SIGTERM", "'s process was ended by SIGTERM from outside"),
    ],
)
def test_a_builder_that_is_killed_is_told_as_such(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, words: str
) -> None:
    run_as(monkeypatch, f"print('last words', flush=True)\nos.kill(os.getpid(), signal.{number})")
    with pytest.raises(PenstockError, match=rf"^TensorRT for RTX \S+{words}"):
        build(graph, asked(), tmp_path / "model.plan", tmp_path, SIGNATURE)


def test_a_builder_ends_with_whoever_asked_for_it(graph: Path, tmp_path: Path) -> None:
    """Killed, a process can do nothing more for its children. The engine is to go into a pipe, which is full."""
    plan = tmp_path / "model.plan"
    os.mkfifo(plan)
    pipe = os.open(plan, os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    code = (
        "import sys\nfrom pathlib import Path\nfrom penstock.export.engine import build, recipe\n"
        "from penstock.signature import Signature\ngraph, plan = map(Path, sys.argv[1:3])\n"
        "wanted = recipe.Recipe.model_validate_json(sys.argv[3])\n"
        "build.build(graph, wanted, plan, graph.parent, Signature.model_validate_json(sys.argv[4]))"
    )
    words = (str(graph), str(plan), asked(level=0).model_dump_json(), SIGNATURE.model_dump_json())
    command = [sys.executable, "-c", code, *words]
    try:
        with subprocess.Popen(command) as process:
            try:
                until(lambda: len(having_open(plan)) == 1, 60)
            finally:
                process.kill()
        until(lambda: not having_open(plan), 10)
    finally:
        os.close(pipe)


def having_open(path: Path) -> set[str]:
    """The numbers of other processes that have a file open."""
    found = set()
    for process in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if any(handle.readlink() == path for handle in (process / "fd").iterdir()):
                found.add(process.name)
    return found - {str(os.getpid())}


def until(true: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_what_tensorrt_8_does_not_have_is_refused_before_anything_is_built(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(engines, "strongly_typed", lambda _: False)
    recipe = asked().model_copy(update={"precision": precision})
    run_as(monkeypatch, "sys.exit('it was started')")
    with pytest.raises(PenstockError, match=rf"--precision {precision}: TensorRT \S+ has none; 10.12 and later do"):
        build(graph, recipe, tmp_path / "model.plan", tmp_path, SIGNATURE)


@pytest.mark.parametrize(
    ("precision", "old", "taken"),
    [
        *((precision, True, True) for precision in ("fp32", "tf32", "fp16", "int8", "int8-fp16")),
        *((precision, True, False) for precision in ("bf16", "fp8")),
        *((precision, False, True) for precision in ("fp16", "bf16", "fp8")),
    ],
)
def test_a_precision_is_refused_where_tensorrt_is_too_old_for_it(
    monkeypatch: pytest.MonkeyPatch, precision: str, old: bool, taken: bool
) -> None:
    monkeypatch.setattr(engines, "strongly_typed", lambda _: not old)
    module = SimpleNamespace(__version__="8.6.1")
    if taken:
        refuse_new(module, precision)
    else:
        with pytest.raises(PenstockError, match=rf"--precision {precision}: TensorRT 8\.6\.1 has none"):
            refuse_new(module, precision)


def test_building_and_deferring_need_neither_torch_nor_onnx() -> None:
    modules = "penstock.export.deferred, penstock.export.engine.builder"
    code = f"import sys, {modules}\nprint({{'torch', 'onnx'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_graph_of_another_model_than_the_signature_s_is_refused(graph: Path, tmp_path: Path) -> None:
    other = SIGNATURE.model_copy(update={"outputs": (Tensor(name="y", shape=("batch", 5)),)})
    with pytest.raises(PenstockError, match=r"reads model.onnx as another model: y:float32\[batch,5\] has shape"):
        build(graph, asked(), tmp_path / "model.plan", tmp_path, other)


def test_a_disk_that_is_full_is_not_laid_to_tensorrt(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "none" / "model.plan"
    with pytest.raises(PenstockError, match=r"model.plan cannot be written: No such file"):
        build(graph, asked(), plan, tmp_path, SIGNATURE)

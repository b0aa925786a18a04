"""Building engines: by a process of its own, truly, with TensorRT for RTX; and what ends it early."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from penstock.errors import PenstockError
from penstock.export.engine import recipe
from penstock.export.engine.build import build, hardware
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
    facts = build(graph, asked(level=1), plan, tmp_path)
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
    with pytest.raises(PenstockError, match=r"TensorRT for RTX \S+ cannot read the graph: .*--format onnx"):
        build(bad, asked(), tmp_path / "model.plan", tmp_path)
    assert not (tmp_path / "model.plan").exists()


def test_an_operator_that_tensorrt_lacks_is_named_with_its_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("BitShift", ["h", "h"], ["y"], name="odd one", direction="LEFT"),
    ]
    path = saved(tmp_path / "model.onnx", nodes)
    with pytest.raises(PenstockError, match=r"cannot read the graph: node 'odd one' \(BitShift\): "):
        build(path, asked(), tmp_path / "model.plan", tmp_path)


def test_a_builder_that_takes_too_long_is_ended(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"within --build-limit 0.05 s"):
        build(graph, asked(limit_s=0.05), tmp_path / "model.plan", tmp_path)
    assert not (tmp_path / "model.plan").exists()


def test_what_rtx_has_no_use_for_is_refused_in_words(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="--hardware-compat: "):
        build(graph, asked(hardware_compat="ampere+"), tmp_path / "model.plan", tmp_path)


def test_a_flavor_that_is_not_installed_is_named(graph: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is installed here")
    with pytest.raises(PenstockError, match="needs tensorrt, which is not installed"):
        build(graph, asked().model_copy(update={"flavor": "tensorrt"}), tmp_path / "model.plan", tmp_path)


def test_building_and_deferring_need_neither_torch_nor_onnx() -> None:
    modules = "penstock.export.deferred, penstock.export.engine.builder"
    code = f"import sys, {modules}\nprint({{'torch', 'onnx'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

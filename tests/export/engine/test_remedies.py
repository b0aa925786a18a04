"""Remedies: what TensorRT refuses is said with its node, its operator and what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from penstock.export.engine import remedies
from penstock.signature import Dim, Signature, Tensor


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [make("Relu", ["x"], ["h"], name="first"), make("Det", ["h"], ["y"], name="second")]
    ends = [value("x", 1, [2, 2])], [value("y", 1, [])]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", *ends)), str(tmp_path / "g.onnx"))
    return tmp_path / "g.onnx"


def error(**facts: Any) -> dict[str, Any]:
    return {"code": "INTERNAL_ERROR", "desc": "Assertion failed", "node": -1, **facts}


def test_a_node_is_named_by_the_parser_or_looked_up_by_its_index(graph: Path) -> None:
    named = remedies.of_errors([error(node_name="a", node_operator="Det")], graph)
    assert named.startswith("node 'a' (Det): Assertion failed; ")
    assert remedies.of_errors([error(node=1)], graph).startswith("node 'second' (Det): Assertion failed; ")


def test_a_node_that_cannot_be_found_is_left_out(graph: Path, tmp_path: Path) -> None:
    for found in (remedies.of_errors([error()], graph), remedies.of_errors([error(node=1)], tmp_path / "none.onnx")):
        assert found.startswith("Assertion failed; ")


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        ({"code": "UNSUPPORTED_NODE"}, "has no such operator"),
        ({"desc": "No importer registered for op: Det"}, "has no such operator"),
        ({"desc": "opset version 99"}, "another --opset"),
        ({"desc": "dynamic shape"}, "--batch and --dim"),
        ({}, "--format onnx"),
    ],
)
def test_each_kind_of_error_has_its_remedy(facts: dict[str, Any], remedy: str, graph: Path) -> None:
    assert remedy in remedies.of_errors([error(**facts)], graph).rpartition("; ")[2]


def test_of_many_errors_three_are_told(graph: Path) -> None:
    found = remedies.of_errors([error(desc=f"number {place}") for place in range(5)], graph)
    assert "number 2 (and 2 more); " in found
    assert "number 3" not in found


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("OutOfMemory: requested 4 GB", "--batch"),
        ("no tactics within workspace limit 1 MiB", "--workspace"),
        ("Could not find any implementation for node x", "--builder-level 5"),
        ("something else", "--format onnx"),
    ],
)
def test_the_builders_last_words_have_theirs(message: str, remedy: str) -> None:
    found = remedies.of_message(message)
    assert found.startswith(message)
    assert remedy in found


def test_what_an_option_is_refused_for_needs_none() -> None:
    assert remedies.of_message("--version-compat: none here") == "--version-compat: none here"


SIGNATURE = Signature(
    inputs=(Tensor(name="ids", dtype="int64", shape=("batch", 4)), Tensor(name="x", shape=("batch", 3))),
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(min=1, opt=8, max=64)},
)
NETWORK = [("ids", "int32", [-1, 4]), ("x", "float", [-1, 3]), ("y", "float", [-1, 2])]


def changed(number: int, *tensor: Any) -> list[Any]:
    return [*NETWORK[:number], tensor, *NETWORK[number + 1 :]]


@pytest.mark.parametrize("network", [NETWORK, changed(0, "ids", "int64", [-1, 4]), changed(2, "y", "float", [-1, -1])])
def test_a_network_that_takes_and_gives_what_the_signature_says_is_that_model(network: Any) -> None:
    assert remedies.of_contract(network, SIGNATURE) is None


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (NETWORK[:2], "its tensors are ids, x, and by its signature ids, x, y"),
        (changed(1, "z", "float", [-1, 3]), "its tensors are ids, y, z"),
        (changed(1, "x", "half", [-1, 3]), "x:float32[batch,3] is float16 there"),
        (changed(1, "x", "float", [-1, 4]), "x:float32[batch,3] has shape [-1, 4] there"),
        (changed(1, "x", "float", [-1, 3, 1]), "has shape [-1, 3, 1] there"),
    ],
)
def test_a_network_of_another_model_is_told_by_what_differs(network: Any, words: str) -> None:
    assert words in (remedies.of_contract(network, SIGNATURE) or "")


def test_a_float64_model_is_told_that_it_would_be_computed_in_less() -> None:
    double = SIGNATURE.model_copy(update={"outputs": (Tensor(name="y", dtype="float64", shape=("batch", 2)),)})
    assert "is computed in float32 there; export a float32 model" in (remedies.of_contract(NETWORK, double) or "")

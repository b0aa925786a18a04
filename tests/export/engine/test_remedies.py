"""Remedies: what TensorRT refuses is said with its node, its operator and what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from penstock.export.engine import remedies


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

"""Operators read off a file's bytes: those that the onnx package finds, and no crash over bytes that are no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.operators import operators

pytest.importorskip("onnx")
import onnx
from onnx import TensorProto, helper


def graph(nodes: list[Any], name: str = "g") -> Any:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    return helper.make_graph(nodes, name, [value], [value])


def write(path: Path, nodes: list[Any], functions: list[Any] | None = None) -> Path:
    model = helper.make_model(graph(nodes), functions=functions or [])
    path.write_bytes(model.SerializeToString())
    return path


def test_every_nodes_operator_is_found(tmp_path: Path) -> None:
    nodes = [helper.make_node(kind, ["x"], ["y"], domain=domain) for kind, domain in (("Relu", ""), ("Odd", "mine"))]
    assert operators(write(tmp_path / "m.onnx", nodes)) == {"Relu", "Odd"}


def test_those_of_branches_and_loops_within_loops_are_found(tmp_path: Path) -> None:
    inner = helper.make_node("Loop", ["n", "c"], ["y"], body=graph([helper.make_node("NonZero", ["x"], ["y"])]))
    outer = helper.make_node("If", ["c"], ["y"], then_branch=graph([inner]), else_branch=graph([]))
    assert operators(write(tmp_path / "m.onnx", [outer])) == {"If", "Loop", "NonZero"}


def test_those_of_functions_are_found(tmp_path: Path) -> None:
    function = helper.make_function(
        "mine", "F", ["x"], ["y"], [helper.make_node("Tanh", ["x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    assert "Tanh" in operators(
        write(tmp_path / "m.onnx", [helper.make_node("F", ["x"], ["y"], domain="mine")], [function])
    )


def test_a_weight_that_reads_like_an_operator_is_none(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(graph([node]))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.UINT8, [6], b'"\x04Loop', raw=True))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert operators(tmp_path / "m.onnx") == {"Relu"}


def test_it_finds_what_onnx_finds_in_an_exported_model(repository: Path) -> None:
    path = repository / "digits-onnx-int8" / "1" / "model.onnx"
    assert operators(path) == {node.op_type for node in onnx.load(path).graph.node}


@given(st.binary(min_size=1, max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_are_no_model_are_a_value_error_or_hold_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.onnx"
    path.write_bytes(content)
    try:
        found = operators(path)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)


def test_a_file_that_was_cut_off_is_a_value_error(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])]).read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="beyond its end"):
        operators(tmp_path / "m.onnx")


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as protocol buffers encode it."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_graphs_that_are_nested_without_end_are_a_value_error(tmp_path: Path) -> None:
    body = b""
    for _ in range(40):  # deeper than the onnx package would write: a graph's node's attribute's graph
        body = field(1, field(5, field(6, body)))
    (tmp_path / "m.onnx").write_bytes(field(7, body))
    with pytest.raises(ValueError, match="deep"):
        operators(tmp_path / "m.onnx")

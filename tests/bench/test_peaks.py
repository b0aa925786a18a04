"""Peaks: plausible on any machine, and no lower than what a plain product reaches."""

from __future__ import annotations

import pytest

from penstock.bench import peaks
from penstock.errors import PenstockError


def test_peaks_are_measured_by_the_number_of_cores() -> None:
    pytest.importorskip("onnxruntime")
    found = peaks.measure([1])
    assert list(found) == ["1"]
    assert set(found["1"].operations) == {"float32", "int8"}
    assert all(1e8 < rate < 1e14 for rate in found["1"].operations.values())
    assert all(1e7 < rate < 1e13 for rate in found["1"].bytes.values())
    assert found["1"].bytes_per_s(2**30) is not None


def test_a_process_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks.trial, "python_command", lambda *words: ["true"])
    with pytest.raises(PenstockError, match="peaks could not be measured"):
        peaks.measure([1])


@pytest.mark.parametrize(("kind", "operator"), [("float32", "MatMul"), ("int8", "MatMulInteger")])
def test_the_graph_written_here_is_onnx_s_own_encoding(kind: str, operator: str) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(peaks._graph(kind, 300))
    onnx.checker.check_model(model, full_check=True)
    (only,) = model.graph.node
    assert (only.op_type, list(only.input), list(only.output)) == (operator, ["a", "b"], ["c"])
    assert tuple(model.graph.initializer[0].dims) == (300, 300)

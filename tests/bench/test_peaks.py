"""Peaks: plausible on any machine, and no lower than what a plain product reaches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock import cuda
from penstock.bench import peaks
from penstock.bench.peaks import Peaks
from penstock.errors import PenstockError


def test_peaks_are_measured_by_the_number_of_cores() -> None:
    pytest.importorskip("onnxruntime")
    found = peaks.measure([1])
    assert list(found) == ["1"]
    assert set(found["1"].operations) == {"float32", "int8"}
    assert all(1e8 < rate < 1e14 for rate in found["1"].operations.values())
    assert all(1e7 < rate < 1e13 for rate in found["1"].bytes.values())
    assert found["1"].bytes_per_s(2**30) is not None


def test_more_cores_do_no_less_than_fewer() -> None:
    fewer, more = Peaks({"float32": 2.0}, {1: 5.0, 2: 4.0}), Peaks({"float32": 1.0, "int8": 3.0}, {1: 4.0, 2: 6.0})
    assert peaks.at_least(fewer, more) == Peaks({"float32": 2.0, "int8": 3.0}, {1: 5.0, 2: 6.0})


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


def test_a_gpu_s_memory_is_what_a_copy_reads_and_writes_past_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def call(name: str, *arguments: Any) -> Any:
        asked.append(name)
        return SimpleNamespace(l2CacheSize=50 * 2**20) if name == "cudaGetDeviceProperties" else len(asked)

    kinds = SimpleNamespace(cudaMemcpyKind=SimpleNamespace(cudaMemcpyDeviceToDevice=3))
    monkeypatch.setattr(cuda, "call", call)
    monkeypatch.setattr(cuda, "runtime", lambda: kinds)
    monkeypatch.setattr(peaks.events, "seconds", lambda work: work() and 2**29 / 1e12)
    assert dict(peaks._gpu_copies("cuda:0")) == {100 * 2**20: 2e12}
    assert asked.count("cudaMalloc") == asked.count("cudaFree") == 2


def test_a_gpu_that_fails_has_no_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(name: str, *arguments: Any) -> Any:
        raise cuda.CudaError(name)

    monkeypatch.setattr(cuda, "call", call)
    assert dict(peaks._gpu_copies("cuda:0")) == {}

"""TensorRT: the engine is built from the graph that lies beside it, within the signature's ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from penstock import artifact
from penstock.errors import PenstockError
from penstock.export.formats import Options, trt
from penstock.runtimes import tensorrt
from penstock.signature import Signature, Tensor


def test_the_receipt_says_which_tensorrt_built_the_engine_and_for_what(repository: Path) -> None:
    receipt = artifact.read(repository / "digits-trt-fp16").receipt
    flavor, module = tensorrt.flavor()
    assert (receipt.build["flavor"], receipt.build["version"]) == (flavor, module.__version__)
    assert module.__version__ in receipt.hardware
    assert receipt.build["seconds"] > 0
    assert receipt.files.keys() >= {"model.plan", "model.onnx"}


def test_a_graph_that_tensorrt_cannot_read_is_refused_with_its_version() -> None:
    _, module = tensorrt.flavor()
    signature = Signature(inputs=(Tensor(name="x", shape=(1,)),), outputs=(Tensor(name="y", shape=(1,)),))
    with pytest.raises(PenstockError, match=f"TensorRT {module.__version__} cannot read the graph"):
        trt.build_engine(module, b"no graph", signature, "fp32")


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-trt-fp16"])
def test_a_graph_for_the_old_parser_is_of_opset_17_and_answers_the_same(repository: Path, name: str) -> None:
    held = artifact.read(repository / name)
    graph = onnx.load(str(held.folder / "model.onnx"))
    before = graph.SerializeToString()
    old = trt.for_old_parser(graph)
    assert [item.version for item in old.opset_import if item.domain == ""] == [17]
    assert graph.SerializeToString() == before
    inputs, _ = held.golden()
    answers: list[Any] = [
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(inputs))[0] for model in (graph, old)
    ]
    assert np.allclose(*answers, rtol=0, atol=1e-5)


def test_the_old_parser_takes_no_other_opset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trt, "strongly_typed", lambda _: False)
    source: Any = None  # which is not looked at
    with pytest.raises(PenstockError, match=r"--opset 18: TensorRT \S+ reads opset 17 alone"):
        trt.export(source, Options("fp32", opset=18), tmp_path, tmp_path)


def test_the_config_of_an_engine_that_triton_cannot_run_says_so(repository: Path) -> None:
    flavor = artifact.read(repository / "digits-trt-fp16").receipt.build["flavor"]
    lines = (repository / "digits-trt-fp16/config.pbtxt").read_text().splitlines()
    assert lines[0].startswith("# Triton has no backend") == (flavor == "tensorrt_rtx")
    assert 'name: "digits-trt-fp16"' in lines
    assert (repository / "digits-onnx-fp32/config.pbtxt").read_text().startswith("name: ")

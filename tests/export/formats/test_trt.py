"""TensorRT: the engine is built from the graph that lies beside it, within the signature's ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from torch import nn

from penstock import artifact, engines
from penstock.errors import PenstockError
from penstock.export.formats import Options, Source, trt

if TYPE_CHECKING:
    from tests.export.conftest import Written


def test_the_receipt_says_which_tensorrt_built_the_engine_and_for_what(repository: Path) -> None:
    receipt = artifact.read(repository / "digits-trt-fp16").receipt
    flavor, module = engines.flavor_of(build=True)
    assert (receipt.build["flavor"], receipt.build["version"]) == (flavor, module.__version__)
    assert module.__version__ in receipt.hardware
    assert receipt.build["seconds"] > 0
    assert receipt.files.keys() >= {"model.plan", "model.onnx"}


def test_the_old_parser_takes_no_other_opset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "strongly_typed", lambda _: False)
    source: Any = None  # which is not looked at
    with pytest.raises(PenstockError, match=r"--opset 18: TensorRT \S+ reads opset 17 alone"):
        trt.export(source, Options("fp32", opset=18), tmp_path, tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "int8", "int8-fp16"])
def test_what_is_left_for_any_tensorrt_is_of_the_old_parsers_opset(tmp_path: Path, precision: str) -> None:
    source: Any = None  # which is not looked at
    with pytest.raises(
        PenstockError, match=r"^--opset 20: what --defer leaves may meet TensorRT 8, which reads opset 17"
    ):
        trt.export(source, Options(precision, opset=20, defer=True), tmp_path, tmp_path)


def test_what_tensorrt_8_cannot_build_anyway_may_be_left_in_another_opset(
    source_of: Callable[..., Source], write: Callable[..., Written]
) -> None:
    source = source_of(nn.Linear(8, 4), "x:float32[batch,8]")
    written = write(source, "trt", precision="bf16", opset=20, defer=True)
    assert written.built.build["opset"] == 20
    assert written.built.build["deferred"]
    (opset,) = [item.version for item in onnx.load(str(written.path)).opset_import if item.domain == ""]
    assert opset == 20


def test_the_config_of_an_engine_that_triton_cannot_run_says_so(repository: Path) -> None:
    flavor = artifact.read(repository / "digits-trt-fp16").receipt.build["flavor"]
    lines = (repository / "digits-trt-fp16/config.pbtxt").read_text().splitlines()
    assert lines[0].startswith("# Triton has no backend") == (flavor == "tensorrt_rtx")
    assert 'name: "digits-trt-fp16"' in lines
    assert (repository / "digits-onnx-fp32/config.pbtxt").read_text().startswith("name: ")

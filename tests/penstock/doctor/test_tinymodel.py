"""The tiny model: ONNX's own checker takes what was written byte by byte, and it gives back what it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import onnxfile
from penstock.doctor import tinymodel

pytest.importorskip("onnx")
import onnx
from onnx.reference import ReferenceEvaluator


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_it_is_onnx_and_an_identity(tmp_path: Path, precision: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tinymodel.identity(precision))
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    onnxfile.examine(path)
    rows = np.arange(3 * tinymodel.WIDTH, dtype=np.float32).reshape(3, tinymodel.WIDTH)
    if precision != "bf16":  # numpy has none, and ReferenceEvaluator computes with it
        assert ReferenceEvaluator(model).run(None, {"x": rows})[0].tolist() == rows.tolist()

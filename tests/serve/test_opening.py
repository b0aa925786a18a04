"""What is to be opened: the same in another process as in this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.serve.opening import Opening
from penstock.signature import Dim, ServedTensor, Signature, Tensor


def test_it_is_the_same_after_json() -> None:
    text = Signature(
        inputs=(ServedTensor(name="text", dtype="object", shape=("batch", 1)), Tensor(name="x", shape=("batch",))),
        outputs=(ServedTensor(name="half", dtype="bfloat16", shape=("batch",)),),
        dims={"batch": Dim(opt=2, max=8)},
    )
    opening = Opening(path=Path("some.onnx"), threads=2, careful=True, signature=text)
    assert Opening.model_validate_json(opening.model_dump_json()) == opening


def test_an_artifact_opens_with_its_receipts_signature(
    fake_artifact: Callable[..., Artifact], tmp_path: Path, pair_signature: Signature
) -> None:
    runner, signature = Opening(path=fake_artifact(tmp_path, "pair").folder).open()
    assert signature == pair_signature
    runner.close()


def test_an_artifact_that_answers_otherwise_than_its_receipt_says_does_not_open(
    fake_artifact: Callable[..., Artifact], tmp_path: Path
) -> None:
    import numpy as np

    folder = fake_artifact(tmp_path, "pair", expected={"total": np.full(5, 99.0)}).folder
    with pytest.raises(PenstockError, match="golden"):
        Opening(path=folder).open()


def test_a_bare_file_opens_with_the_signature_that_was_read_of_it_before(slow_onnx: Path) -> None:
    runner, signature = Opening(path=slow_onnx).open()
    runner.close()
    again, held = Opening(path=slow_onnx, signature=signature).open()
    assert held is signature
    again.close()

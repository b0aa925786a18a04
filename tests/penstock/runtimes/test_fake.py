"""The fake runtime: answers that tell whose they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock import runtimes
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="a", shape=("batch", 2)), Tensor(name="b", dtype="int64", shape=("batch", "n"))),
    outputs=(Tensor(name="x", shape=("batch", 3)), Tensor(name="y", dtype="int32", shape=("batch",))),
    dims={"batch": Dim(opt=2, max=4), "n": Dim(opt=2, max=4)},
)


def test_each_row_is_the_sum_of_its_inputs_and_the_outputs_number() -> None:
    runner = runtimes.load("fake", Path("nowhere"), SIGNATURE)
    answer = runner.run({"a": np.array([[0.5, 1], [2, 3]], np.float32), "b": np.array([[1, 2, 3], [4, 5, 6]])})
    assert answer["x"].tolist() == [[7.5] * 3, [20.0] * 3]
    assert answer["y"].tolist() == [8, 21]
    assert (answer["x"].dtype, answer["y"].dtype) == (np.float32, np.int32)

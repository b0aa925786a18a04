"""References: which samples exports are compared on, and what the source answers for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor as T
from torch import nn

from penstock import probe
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export import reference
from penstock.export.reference import Reference, refer
from penstock.proof import Proof
from penstock.signature import BATCH, Dim, Range, Signature, Tensor


def checkpoint(
    module: nn.Module, inputs: Sequence[str], ranges: dict[str, Range] | None = None, **held: Any
) -> Checkpoint:
    dims: dict[str, Dim] = {key: value for key, value in held.items() if isinstance(value, Dim)}
    samples = {key: value for key, value in held.items() if key not in dims}
    tensors = tuple(map(Tensor.parse, inputs))
    sizes = {size: BATCH for tensor in tensors for size in tensor.shape if isinstance(size, str)}
    wanted = Signature(inputs=tensors, outputs=(), dims={**sizes, **dims}, ranges=ranges or {})
    signature, call = probe.complete(module.eval(), wanted)
    card = Card(name="net", architecture=Architecture(target="./net.py:Net"), signature=signature)
    return Checkpoint(module, call, card, Proof(loaded=0, expected=0), "0" * 64, Path("net.pth"), "weights", **samples)


class Twice(nn.Module):
    """Doubles its rows, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, x: T) -> T:
        self.batches.append(len(x))
        return x * 2


def numbered(count: int, start: int = 0) -> Rows:
    return Rows({"x": np.arange(start, start + count, dtype=np.float32)[:, None] * np.ones(3, np.float32)}, None)


def twice(batch: Dim = BATCH, **held: Any) -> Checkpoint:
    return checkpoint(Twice(), ["x:float32[batch,3]"], batch=batch, **held)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 40), st.integers(1, 17))
def test_samples_are_run_over_again_until_they_fill_whole_batches(count: int, batch: int) -> None:
    found = refer(twice(Dim(opt=1, max=batch)), numbered(count))
    assert found.samples == count
    assert found.real
    rows = len(found.rows)
    assert rows % batch == 0
    assert count <= rows < count + batch
    assert np.array_equal(found.rows.inputs["x"][:, 0], np.arange(rows) % count)
    assert np.array_equal(found.outputs["output"], 2 * found.rows.inputs["x"])


def test_the_source_is_run_in_its_largest_batches_for_its_answers() -> None:
    origin = twice(Dim(opt=4, max=16))
    refer(origin, numbered(40))
    assert isinstance(origin.module, Twice)
    assert [size for size in origin.module.batches if size == 16] == [16] * 3


def test_real_samples_are_those_given_or_else_those_of_the_checkpoint_golden_ones_first() -> None:
    held = {"golden": numbered(3, 100), "calibration": numbered(5, 200)}
    own = refer(twice(**held), None)
    assert own.real
    assert own.samples == 8
    assert own.rows.inputs["x"][:8, 0].tolist() == [100, 101, 102, 200, 201, 202, 203, 204]
    given = refer(twice(**held), numbered(4))
    assert given.samples == 4
    assert given.rows.inputs["x"][:4, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("largest", "drawn"), [(64, 64), (8, 32), (1, 32), (100, 100)])
def test_without_real_samples_a_whole_batch_is_drawn_and_a_few_rows_at_least(largest: int, drawn: int) -> None:
    found = refer(twice(Dim(opt=1, max=largest)), None)
    assert not found.real
    assert found.samples == drawn
    assert len(np.unique(found.rows.inputs["x"], axis=0)) == drawn
    again = refer(twice(Dim(opt=1, max=largest)), None)
    assert np.array_equal(found.rows.inputs["x"], again.rows.inputs["x"])


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, ids: T) -> T:
        return self.table(ids).sum(1)


def test_drawn_indices_are_of_the_whole_table_and_no_others() -> None:
    found = refer(checkpoint(Table(), ["ids:int64[batch,seq]"]), None)
    assert set(np.unique(found.rows.inputs["ids"])) == set(range(7))
    assert found.noise.by == "float64"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a frame\nsizes differ"),
        ValueError("a frame\nsizes differ"),
        IndexError("sizes differ"),
        AssertionError("sizes differ"),
    ],
)
def test_a_source_that_fails_on_the_samples_is_told_with_the_batch_and_what_helps(error: Exception) -> None:
    class Fussy(Twice):
        def forward(self, x: T) -> T:
            if float(x.max()) > 50:
                raise error
            return super().forward(x)

    with pytest.raises(PenstockError) as caught:
        refer(checkpoint(Fussy(), ["x:float32[batch,3]"]), numbered(60))
    message = str(caught.value)
    for part in (
        "the source model itself fails at batch 64: ",
        "sizes differ",
        "--batch or --dim",
        "--range NAME=LOW,HIGH",
    ):
        assert part in message
    assert "a frame" not in message
    assert "\n" not in message


def test_a_source_that_answers_fewer_rows_than_it_was_given_fails() -> None:
    class Drops(Twice):
        def forward(self, x: T) -> T:
            return x[: min(len(x), 40)] * 2

    with pytest.raises(PenstockError, match=r"fails at batch 64: output 'output' has shape \[40, 3\] for 64 rows"):
        refer(checkpoint(Drops(), ["x:float32[batch,3]"]), None)


# --- Other sizes of other dimensions ------------------------------------------------------------------------------


class Masked(nn.Module):
    """The mean over each row's own length."""

    def forward(self, x: T, lengths: T, scale: T) -> T:
        where = torch.arange(x.shape[1]) < lengths[:, None]
        return (x * where[..., None]).sum((1, 2), keepdim=False)[:, None] / lengths[:, None] * scale


LENGTHS = {"lengths": Range(low=1, high="seq"), "scale": Range(low=2, high=5)}


@pytest.fixture(scope="module")
def masked() -> Reference:
    inputs = ["x:float32[batch,seq,2]", "lengths:int64[batch]", "scale:float32[batch,1]"]
    return refer(checkpoint(Masked(), inputs, LENGTHS, seq=Dim(min=2, opt=8, max=32)), None)


@pytest.mark.parametrize("size", [2, 8, 17, 32])
def test_an_axis_is_cut_or_repeated_and_what_names_the_dimension_is_drawn_within_it(
    masked: Reference, size: int
) -> None:
    found = masked.resized(slice(6), {"seq": size})
    masked.signature.check(found)
    held = masked.rows.inputs
    assert found["x"].shape == (6, size, 2)
    assert np.array_equal(found["x"], held["x"][:6][:, np.arange(size) % 8])
    assert np.array_equal(found["scale"], held["scale"][:6])
    assert found["lengths"].shape == (6,)
    assert found["lengths"].min() >= 1
    assert found["lengths"].max() <= size


def test_what_is_drawn_anew_reaches_the_new_size(masked: Reference) -> None:
    drawn = np.concatenate([masked.resized(slice(start, start + 8), {"seq": 32})["lengths"] for start in (0, 8)])
    assert drawn.max() > 8  # which no sample at the usual size is


def test_an_input_whose_values_name_another_dimension_is_left_as_it_is(masked: Reference) -> None:
    other = Signature(
        inputs=masked.signature.inputs,
        outputs=masked.signature.outputs,
        dims={**masked.signature.dims, "other": Dim(opt=4, max=8)},
        ranges={**LENGTHS, "lengths": Range(low=1, high="other")},
    )
    reference = Reference(**{**masked.__dict__, "signature": other})
    assert np.array_equal(reference.resized(slice(6), {"seq": 32})["lengths"], masked.rows.inputs["lengths"][:6])


@pytest.mark.parametrize(
    ("count", "said"), [(1, "one row proves nothing"), (5, "rows that are all alike prove nothing")]
)
def test_samples_that_an_export_of_one_answer_would_pass_are_refused(count: int, said: str) -> None:
    rows = Rows({"x": np.ones((count, 3), np.float32)}, None)
    with pytest.raises(PenstockError, match=f"--data: {said}.*give more"):
        refer(twice(), rows)


def test_a_copy_that_has_not_run_is_kept_beside_the_source() -> None:
    origin = twice(Dim(opt=1, max=4))
    found = refer(origin, numbered(9))
    assert found.fresh is not None
    assert found.fresh is not found.module
    assert isinstance(found.fresh, Twice)
    assert found.fresh.batches == origin.module.batches[:2]  # those of the probe, which made the signature


def test_inputs_beyond_the_samples_are_zeros_and_many_times_as_large_unless_their_range_is_stated() -> None:
    found = refer(
        checkpoint(
            Masked(),
            ["x:float32[batch,seq,2]", "lengths:int64[batch]", "scale:float32[batch,1]"],
            LENGTHS,
            seq=Dim(min=2, opt=8, max=32),
        ),
        None,
    )
    usual = found.rows.inputs
    for extreme, factor in zip(found.extremes, (0, 10, 100), strict=True):
        held = extreme.rows.inputs
        assert np.allclose(held["x"], usual["x"][: len(extreme.rows)] * factor)
        for name in ("lengths", "scale"):
            assert np.array_equal(held[name], usual[name][: len(extreme.rows)])


def test_where_the_source_itself_has_no_answer_nothing_is_tried() -> None:
    class Fussy(Twice):
        def forward(self, x: T) -> T:
            if float(x.abs().max()) > 50:
                raise ValueError("too large")
            return super().forward(x) / x.abs().max()

    found = refer(checkpoint(Fussy(), ["x:float32[batch,3]"], batch=Dim(opt=1, max=1)), None)
    assert [extreme.what for extreme in found.extremes] == ["inputs 10 times the samples"]


def test_every_size_of_a_short_dimension_is_tried() -> None:
    assert reference._tried(Dim(min=4, opt=5, max=9)) == [4, 5, 6, 7, 8, 9]
    assert len(reference._tried(Dim(min=1, opt=5, max=4096))) > 8

"""Probing: synthetic inputs fit their signature, and outputs are found with their dynamic dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock import probe, synthetic
from penstock.errors import PenstockError
from penstock.signature import V2_DTYPES, Dim, Signature, Tensor

TEXT = Signature(
    inputs=(
        Tensor(name="ids", dtype="int64", shape=("batch", "length")),
        Tensor(name="image", shape=("batch", 3)),
    ),
    outputs=(),
    dims={"batch": Dim(opt=4, max=8), "length": Dim(opt=4, max=32)},
)


class Answer(nn.Module):
    """A module that answers what a function makes of its inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> Any:
        return self.function(ids, image)


@given(
    dtype=st.sampled_from(sorted(V2_DTYPES)),
    batch=st.integers(1, 6),
    inner=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_synthetic_inputs_fit_their_signature_and_depend_on_the_seed_alone(
    dtype: str, batch: int, inner: int, seed: int
) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", dtype=dtype, shape=("batch", inner)),),
        outputs=(),
        dims={"batch": Dim(opt=1, max=6)},
    )
    rows = synthetic.synthesize(signature, {"batch": batch}, seed)
    signature.check(rows.inputs)
    again = synthetic.synthesize(signature, {"batch": batch}, seed)
    assert rows.inputs["x"].tobytes() == again.inputs["x"].tobytes()
    if not np.issubdtype(np.dtype(dtype), np.floating):
        assert set(np.unique(rows.inputs["x"])) <= {0, 1}


def test_another_seed_gives_other_floats() -> None:
    sizes = {"batch": 4, "length": 5}
    first, second = (synthetic.synthesize(TEXT, sizes, seed).inputs["image"] for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("function", "outputs"),
    [
        (lambda ids, image: image.sum(1), ["output:float32[batch]"]),
        (lambda ids, image: ids, ["output:int64[batch,length]"]),
        (
            lambda ids, image: (image, ids.float()),
            ["output_0:float32[batch,3]", "output_1:float32[batch,length]"],
        ),
        (lambda ids, image: [image.half()], ["output_0:float16[batch,3]"]),
        (
            lambda ids, image: {"mask": ids.bool(), "wide": image.double()},
            ["mask:bool[batch,length]", "wide:float64[batch,3]"],
        ),
        (lambda ids, image: image.sum(), ["output:float32[]"]),
        (lambda ids, image: image[:1].expand(7, 3), ["output:float32[7,3]"]),
        (lambda ids, image: ids.T, ["output:int64[length,batch]"]),
        (lambda ids, image: image.repeat(2, 1), ["output:float32[output_0,3]"]),
        (lambda ids, image: torch.cat([ids, ids], 1), ["output:int64[batch,output_1]"]),
        (lambda ids, image: ids[:, 1:], ["output:int64[batch,output_1]"]),
        (lambda ids, image: ids.flatten(), ["output:int64[output_0]"]),
        (lambda ids, image: (ids, ids[:-1]), ["output_0:int64[batch,length]", "output_1:int64[output_1_0,length]"]),
    ],
)
def test_outputs_are_found_with_their_names_dtypes_and_moving_axes(function: Any, outputs: list[str]) -> None:
    found = probe.complete(Answer(function), TEXT)
    assert [str(tensor) for tensor in found.outputs] == outputs
    assert (found.inputs, found.dims) == (TEXT.inputs, TEXT.dims)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda ids, image: None, "NoneType"),
        (lambda ids, image: (image, None), "tuple"),
        (lambda ids, image: {"a": 3}, "dict"),
        (lambda ids, image: 1.5, "float"),
        (lambda ids, image: (), "tuple"),
        (lambda ids, image: {}, "dict"),
    ],
)
def test_an_answer_that_is_no_tensors_is_refused_with_its_type(function: Any, kind: str) -> None:
    with pytest.raises(
        PenstockError, match=f"answers a {kind}; it must be a tensor, or a tuple or dict of at least one"
    ):
        probe.complete(Answer(function), TEXT)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda ids, image: image.bfloat16(), "bfloat16"),
        (lambda ids, image: image.to(torch.complex64), "complex64"),
        (lambda ids, image: {"two words": image}, "two words"),
    ],
)
def test_an_output_that_no_signature_holds_is_refused_in_one_sentence(function: Any, named: str) -> None:
    with pytest.raises(PenstockError, match=named):
        probe.complete(Answer(function), TEXT)


@pytest.mark.parametrize("name", ["a.b", "a-b", "a/b:0", "0"])
def test_a_computed_axis_gets_a_name_whatever_the_output_is_called(name: str) -> None:
    (found,) = probe.complete(Answer(lambda ids, image: {name: torch.cat([ids, ids], 1)}), TEXT).outputs
    assert (found.name, found.shape[0]) == (name, "batch")
    assert isinstance(found.shape[1], str)
    assert found.shape[1] not in TEXT.dims


def test_a_model_whose_rows_are_not_the_batchs_shares_no_batch_with_it() -> None:
    for function in (lambda ids, image: image.repeat(2, 1), lambda ids, image: ids[1:]):
        assert probe.complete(Answer(function), TEXT).batch is None
    assert probe.complete(Answer(lambda ids, image: image), TEXT).batch == "batch"


def test_a_model_that_ends_the_program_is_told_as_one_that_fails() -> None:
    def leave(ids: torch.Tensor, image: torch.Tensor) -> None:
        raise SystemExit(3)

    with pytest.raises(PenstockError, match=r"the model fails on inputs .*SystemExit: 3; correct --input"):
        probe.complete(Answer(leave), TEXT)


def test_a_model_that_fails_is_told_with_the_inputs_and_the_reason() -> None:
    def fail(ids: torch.Tensor, image: torch.Tensor) -> None:
        raise IndexError("token 7 is out of range")

    with pytest.raises(PenstockError) as caught:
        probe.complete(Answer(fail), TEXT)
    for part in (
        "ids:int64[batch,length]",
        "image:float32[batch,3]",
        "IndexError: token 7",
        "correct --input",
    ):
        assert part in str(caught.value)

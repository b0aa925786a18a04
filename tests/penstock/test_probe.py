"""Probing: a module's outputs are found with their names and dynamic dimensions, and its inputs with their ranges."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock import probe
from penstock.errors import PenstockError
from penstock.signature import Dim, Range, Signature, Tensor

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


class Box(NamedTuple):
    """An answer with names."""

    corners: Any
    score: Any = None


def outputs(function: Any, *keep: str) -> list[str]:
    found, _ = probe.complete(Answer(function), TEXT, keep)
    return [str(tensor) for tensor in found.outputs]


@pytest.mark.parametrize(
    ("function", "expected"),
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
        (lambda ids, image: (image, None), ["output_0:float32[batch,3]"]),
        (lambda ids, image: {"a": None, "b": image}, ["b:float32[batch,3]"]),
        (lambda ids, image: Box(image, (ids, None)), ["corners:float32[batch,3]", "score_0:int64[batch,length]"]),
        (
            lambda ids, image: {"out": image, "aux": [ids, {"x": image}]},
            ["out:float32[batch,3]", "aux_0:int64[batch,length]", "aux_1.x:float32[batch,3]"],
        ),
        (lambda ids, image: {"two words": image}, ["two_words:float32[batch,3]"]),
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
def test_outputs_are_found_with_their_names_dtypes_and_moving_axes(function: Any, expected: list[str]) -> None:
    found, call = probe.complete(Answer(function), TEXT)
    assert [str(tensor) for tensor in found.outputs] == expected
    assert (found.inputs, found.dims, found.ranges) == (TEXT.inputs, TEXT.dims, {})
    assert call.keywords == (None, None)
    assert len(call.outputs) == len(expected)


def test_outputs_that_a_signature_has_already_are_passed_over() -> None:
    declared = TEXT.model_copy(update={"outputs": (Tensor(name="old", shape=(1,)),)})
    found, _ = probe.complete(Answer(lambda ids, image: image), declared)
    assert [tensor.name for tensor in found.outputs] == ["output"]


def test_the_call_gives_what_was_found_in_that_order() -> None:
    net = Answer(lambda ids, image: {"b": (image, ids), "a": -image})
    found, call = probe.complete(net, TEXT)
    assert [tensor.name for tensor in found.outputs] == ["b_0", "b_1", "a"]
    ids, image = torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 3)
    first, second, third = call.on(net)(ids, image)
    assert (first is image, second is ids, third.sum().item()) == (True, True, -6)


def test_inputs_go_to_the_parameters_that_they_are_named_after() -> None:
    class Other(nn.Module):
        def forward(self, *, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return image[:, :1] - ids

    found, call = probe.complete(Other(), TEXT)
    assert call.keywords == ("ids", "image")
    assert [str(tensor) for tensor in found.outputs] == ["output:float32[batch,length]"]


def test_a_dictionary_is_read_by_key_when_its_order_changes() -> None:
    orders = [("a", "b"), ("b", "a"), ("b", "a"), ("a", "b")]

    def answer(ids: torch.Tensor, image: torch.Tensor) -> dict[str, torch.Tensor]:
        held = {"a": ids, "b": image}
        return {name: held[name] for name in orders.pop(0)}

    assert outputs(answer) == ["a:int64[batch,length]", "b:float32[batch,3]"]


def test_only_the_outputs_to_keep_are_kept_in_the_models_order() -> None:
    def answer(ids: torch.Tensor, image: torch.Tensor) -> Any:
        return {"a": image, "b": ids, "c": 3, "d": [image, "text"]}

    assert outputs(answer, "b", "a") == ["a:float32[batch,3]", "b:int64[batch,length]"]
    assert outputs(answer, "d_0") == ["d_0:float32[batch,3]"]
    with pytest.raises(PenstockError, match="--keep 'e': the model's outputs are a, b, c, d_0, d_1"):
        outputs(answer, "a", "e")
    with pytest.raises(PenstockError, match="the model answers a int as 'c'; outputs must be tensors; --keep a leaves"):
        outputs(answer, "c", "a")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (3, "the model answers a int as 'output'; outputs must be tensors"),
        ((1.5,), "the model answers a float as 'output_0'"),
        ({"a": "text"}, "the model answers a str as 'a'"),
        ({"a": {"b": object()}}, "the model answers a object as 'a.b'"),
        (None, "the model answers nothing; it must answer one tensor at least"),
        ((), "the model answers nothing"),
        ({"a": None}, "the model answers nothing"),
    ],
)
def test_an_answer_that_is_no_tensors_is_refused_with_its_type(answer: Any, said: str) -> None:
    with pytest.raises(PenstockError, match=said) as caught:
        outputs(lambda ids, image: answer)
    assert "--keep" not in str(caught.value)


def test_an_answer_beside_the_tensors_is_refused_with_what_leaves_it_out() -> None:
    with pytest.raises(PenstockError, match=r"answers a int as 'n'; outputs must be tensors; --keep x leaves it out$"):
        outputs(lambda ids, image: {"n": 3, "x": image})


def test_two_outputs_of_one_name_are_refused() -> None:
    with pytest.raises(PenstockError, match=r"two of the model's outputs would be named 'a_0'"):
        outputs(lambda ids, image: {"a": (image,), "a_0": image})


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda ids, image: image.bfloat16(), "bfloat16"),
        (lambda ids, image: image.to(torch.complex64), "complex64"),
        (lambda ids, image: {"": image}, "tensor name ''"),
    ],
)
def test_an_output_that_no_signature_holds_is_refused_in_one_sentence(function: Any, named: str) -> None:
    with pytest.raises(PenstockError, match=f"the model's outputs cannot be served: .*{named}"):
        outputs(function)


@pytest.mark.parametrize("name", ["a_b", "a-b", "a/b:0", "0"])
def test_a_computed_axis_gets_a_name_whatever_the_output_is_called(name: str) -> None:
    found, _ = probe.complete(Answer(lambda ids, image: {name: torch.cat([ids, ids], 1)}), TEXT)
    (output,) = found.outputs
    assert (output.name, output.shape[0]) == (name, "batch")
    assert isinstance(output.shape[1], str)
    assert output.shape[1] not in TEXT.dims


def test_a_model_whose_rows_are_not_the_batchs_shares_no_batch_with_it() -> None:
    for function in (lambda ids, image: image.repeat(2, 1), lambda ids, image: ids[1:]):
        assert probe.complete(Answer(function), TEXT)[0].batch is None
    assert probe.complete(Answer(lambda ids, image: image), TEXT)[0].batch == "batch"


def test_a_model_that_changes_its_rank_or_its_outputs_with_a_size_is_refused() -> None:
    with pytest.raises(PenstockError, match="the rank of the model's output 'output' changes with the size of 'batch'"):
        outputs(lambda ids, image: image if len(image) == 3 else image[0])
    with pytest.raises(PenstockError, match="answers with other outputs when the size of 'length' changes"):
        outputs(lambda ids, image: {"a": image} if ids.shape[1] == 4 else {"b": image})


@given(st.tuples(*[st.integers(1, 70)] * 3).map(sorted), st.tuples(*[st.integers(1, 70)] * 3).map(sorted))
def test_a_model_is_tried_with_two_sizes_inside_each_range(batch: list[int], length: list[int]) -> None:
    tried: dict[str, set[int]] = {"batch": set(), "length": set()}

    def see(ids: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        tried["batch"].add(ids.shape[0])
        tried["length"].add(ids.shape[1])
        return ids

    ranges = {
        name: Dim(min=low, opt=usual, max=high) for name, (low, usual, high) in (("batch", batch), ("length", length))
    }
    found, _ = probe.complete(Answer(see), TEXT.model_copy(update={"dims": ranges}))
    assert found.outputs[0].shape == ("batch", "length")
    for name, dim in ranges.items():
        assert len(tried[name]) == 2
        if dim.max > dim.min:
            assert dim.min <= min(tried[name])
            assert max(tried[name]) <= dim.max
    assert 1 not in tried["batch"] or ranges["batch"].max == 2  # a model may take 1 for no batch at all


class Tables(nn.Module):
    """Two tables, one of them behind an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds, self.places = nn.Embedding(70, 4), nn.Embedding(5, 4), nn.Embedding(9, 4)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(ids.shape[1]) % 9)
        return (self.words(ids) + self.kinds(kinds.long()) + places) * mask[..., None]


INTEGERS = Signature(
    inputs=tuple(Tensor(name=name, dtype="int64", shape=("batch", "seq")) for name in ("ids", "kinds", "mask")),
    outputs=(),
    dims={"batch": Dim(opt=4, max=8), "seq": Dim(opt=6, max=20)},
)


def test_the_indices_of_a_table_have_its_range_and_other_integers_none() -> None:
    found, _ = probe.complete(Tables(), INTEGERS)
    assert found.ranges == {"ids": Range(low=0, high=69), "kinds": Range(low=0, high=4)}


def test_a_range_that_was_given_is_kept() -> None:
    given_one = INTEGERS.model_copy(update={"ranges": {"ids": Range(low=5, high=9)}})
    found, _ = probe.complete(Tables(), given_one)
    assert found.ranges == {"ids": Range(low=5, high=9), "kinds": Range(low=0, high=4)}


def test_indices_that_go_into_two_tables_fit_the_smaller() -> None:
    class Both(Tables):
        def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.words(ids) + self.kinds(ids) + self.kinds(kinds) + self.words(kinds) + mask[..., None]

    assert probe.complete(Both(), INTEGERS)[0].ranges == {"ids": Range(low=0, high=4), "kinds": Range(low=0, high=4)}


def test_watching_the_tables_leaves_nothing_behind() -> None:
    net = Tables()
    probe.complete(net, INTEGERS)
    assert not any(part._forward_pre_hooks for part in net.modules())

    class Failing(Tables):
        def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            raise RuntimeError

    net = Failing()
    with pytest.raises(PenstockError):
        probe.complete(net, INTEGERS)
    assert not any(part._forward_pre_hooks for part in net.modules())


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_module_is_probed_like_any_other() -> None:
    class Net(nn.Module):
        def forward(self, ids: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return ids, image.sum(1)

    found, call = probe.complete(torch.jit.script(Net()), TEXT)
    assert [str(tensor) for tensor in found.outputs] == ["output_0:int64[batch,length]", "output_1:float32[batch]"]
    assert call.outputs == ((0,), (1,))


def test_no_gradients_are_kept_and_the_mode_is_left() -> None:
    seen: list[bool] = []
    net = Answer(lambda ids, image: seen.append(torch.is_inference_mode_enabled()) or image).eval()
    probe.complete(net, TEXT)
    assert set(seen) == {True}
    assert not net.training


def test_a_model_that_ends_the_program_is_told_as_one_that_fails() -> None:
    def leave(ids: torch.Tensor, image: torch.Tensor) -> None:
        raise SystemExit(3)

    with pytest.raises(PenstockError, match=r"the model fails on inputs .*SystemExit: 3; correct --input"):
        outputs(leave)


def test_a_model_that_fails_is_told_with_the_inputs_the_sizes_and_the_reason() -> None:
    def fail(ids: torch.Tensor, image: torch.Tensor) -> None:
        raise IndexError("token 7 is out of range")

    with pytest.raises(PenstockError) as caught:
        outputs(fail)
    for part in (
        "ids:int64[batch,length]",
        "image:float32[batch,3]",
        "(tried ids [3, 4], image [3, 3])",
        "IndexError: token 7",
        "correct --input",
    ):
        assert part in str(caught.value)

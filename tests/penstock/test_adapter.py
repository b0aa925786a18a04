"""Adapters: inputs go to the parameters that they are named after, and outputs come by the names of where they lie."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock import adapter
from penstock.adapter import Call
from penstock.errors import PenstockError


def module(function: Any) -> nn.Module:
    return type("Net", (nn.Module,), {"forward": function})()


def called(function: Any, *names: str) -> tuple[str | None, ...]:
    return adapter.keywords(function if isinstance(function, nn.Module) else module(function), names)


def two(self: Any, a: Any, b: Any, c: Any = None) -> Any: ...
def named(self: Any, a: Any, *, b: Any, c: Any = None) -> Any: ...
def only(self: Any, *, a: Any, b: Any = None) -> Any: ...
def placed(self: Any, a: Any, /, b: Any, c: Any = None) -> Any: ...
def many(self: Any, *inputs: Any) -> Any: ...
def any_name(self: Any, **inputs: Any) -> Any: ...
def open_ended(self: Any, a: Any, **rest: Any) -> Any: ...
def mixed(self: Any, a: Any, *rest: Any, b: Any) -> Any: ...


@pytest.mark.parametrize(
    ("function", "names", "keywords"),
    [
        (two, ("a", "b"), (None, None)),
        (two, ("a", "b", "c"), (None, None, None)),
        (two, ("b", "a"), ("b", "a")),
        (two, ("b", "c", "a"), ("b", "c", "a")),
        (two, ("image", "mask"), (None, None)),
        (two, ("a", "mask"), (None, None)),
        (two, ("image", "b"), (None, None)),
        (named, ("a", "b"), (None, "b")),
        (named, ("b", "a"), ("b", None)),
        (named, ("image", "b"), (None, "b")),
        (named, ("c", "image", "b"), ("c", None, "b")),
        (only, ("a",), ("a",)),
        (only, ("b", "a"), ("b", "a")),
        (placed, ("a", "b"), (None, None)),
        (placed, ("image", "b"), (None, None)),
        (many, ("x", "y", "z"), (None, None, None)),
        (any_name, ("x", "y"), ("x", "y")),
        (open_ended, ("a", "x"), ("a", "x")),
        (open_ended, ("x", "a"), ("x", "a")),
        (open_ended, ("image",), (None,)),
        (mixed, ("a", "b"), (None, "b")),
        (mixed, ("x", "y", "b"), (None, None, "b")),
    ],
)
def test_inputs_go_by_name_where_they_must_and_by_position_where_they_can(
    function: Any, names: tuple[str, ...], keywords: tuple[str | None, ...]
) -> None:
    assert called(function, *names) == keywords


@pytest.mark.parametrize(
    ("function", "names", "parts"),
    [
        (two, ("x", "a"), ["--input 'x': not a parameter, as 'a' is, of forward(a, b, c)", "name every input after"]),
        (two, ("c", "ab", "a"), ["--input 'ab': not a parameter, as 'c' is", "in the order of the parameters"]),
        (two, ("b",), ["the model's forward needs 'a' by that name", "--input a:float32[", "the inputs given are b"]),
        (two, ("a", "c"), ["the model's forward needs 'b' by that name"]),
        (two, ("a", "b", "c", "d"), ["4 inputs are given (a, b, c, d); the model's forward takes (a, b, c)"]),
        (two, ("w", "x", "y", "z"), ["4 inputs are given (w, x, y, z)"]),
        (named, ("a",), ["needs 'b' by that name, as in --input b:float32[batch,3,224,224]", "are a"]),
        (named, ("a", "bb"), ["needs 'b' by that name", "the inputs given are a, bb"]),
        (named, ("a", "x", "b"), ["3 inputs are given"]),
        (only, ("b",), ["needs 'a' by that name"]),
        (placed, ("b", "a"), ["--input 'b': out of place in forward(a, b, c)", "in the order of the parameters"]),
        (open_ended, ("image", "mask"), ["2 inputs are given (image, mask); the model's forward takes (a, rest)"]),
    ],
)
def test_inputs_that_fit_no_parameters_are_refused_with_both(
    function: Any, names: tuple[str, ...], parts: list[str]
) -> None:
    with pytest.raises(PenstockError) as caught:
        called(function, *names)
    for part in parts:
        assert part in str(caught.value)


class Scripted(nn.Module):
    """A difference, in which the order of the inputs is told by the answer."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, times: int = 2) -> torch.Tensor:
        return (x - y) * times


class Swapped(nn.Module):
    """Keyword-only parameters."""

    def forward(self, *, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"difference": x - y}


X, Y = torch.full((2,), 5.0), torch.full((2,), 3.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_torchscript_module_tells_its_parameters_too(how: str) -> None:
    program = torch.jit.script(Scripted()) if how == "script" else torch.jit.trace(Scripted(), (X, Y))
    assert called(program, "x", "y") == called(program, "a", "b") == (None, None)
    assert called(program, "y", "x") == ("y", "x")
    assert Call(("y", "x"), ((),)).on(program)(Y, X).tolist() == [4.0, 4.0]
    with pytest.raises(PenstockError, match="the model's forward needs 'x' by that name"):
        called(program, "y")
    with pytest.raises(PenstockError, match="4 inputs are given"):
        called(program, "a", "b", "c", "d")


def test_a_program_captured_with_keywords_takes_them_again() -> None:
    program = torch.export.export(Swapped(), (), {"y": Y, "x": X}).module()
    assert called(program, "x", "y") == ("x", "y")
    assert Call(("x", "y"), (("difference",),)).on(program)(X, Y).tolist() == [2.0, 2.0]
    program = torch.export.export(Scripted(), (X,), {"y": Y}).module()
    assert called(program, "x", "y") == (None, "y")
    assert Call((None, "y"), ((),)).on(program)(X, Y).tolist() == [4.0, 4.0]


def test_a_wrapped_forward_has_the_parameters_of_what_it_wraps() -> None:
    @functools.wraps(Scripted.forward)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any: ...

    assert called(module(forward), "y", "x") == ("y", "x")


def test_a_forward_without_a_signature_goes_by_position() -> None:
    net = nn.Identity()
    net.forward = type  # type: ignore[assignment]
    assert called(net, "a", "b") == (None, None)


class Boxes(NamedTuple):
    """An answer with names."""

    corners: Any
    scores: Any = None


@dataclasses.dataclass
class Output:
    """An answer as transformers give it."""

    logits: Any
    hidden: Any = None
    loss: Any = None


LEAVES = [
    (X, {(): X}),
    ((X, Y), {(0,): X, (1,): Y}),
    ([X], {(0,): X}),
    ({"a": X, "b": Y}, {("a",): X, ("b",): Y}),
    (OrderedDict(b=X, a=Y), {("b",): X, ("a",): Y}),
    ({3: X}, {(3,): X}),
    (Boxes(X, Y), {("corners",): X, ("scores",): Y}),
    (Boxes(X), {("corners",): X}),
    (Output(X), {("logits",): X}),
    (Output(X, (Y, {"z": X})), {("logits",): X, ("hidden", 0): Y, ("hidden", 1, "z"): X}),
    ([{"boxes": X}, None, ({"boxes": Y},)], {(0, "boxes"): X, (2, 0, "boxes"): Y}),
    (None, {}),
    ((), {}),
    ({"a": None, "n": 3, "text": "a b"}, {("n",): 3, ("text",): "a b"}),
    ((Output, X), {(0,): Output, (1,): X}),
    (torch.stack([X, Y]).max(0), {(0,): X, (1,): torch.tensor([0, 0])}),
]


@pytest.mark.parametrize(("answer", "expected"), LEAVES)
def test_an_answer_is_taken_apart_down_to_its_tensors(answer: Any, expected: dict[Any, Any]) -> None:
    found = adapter.leaves(answer)
    assert list(found) == list(expected)
    for path, leaf in expected.items():
        assert torch.equal(found[path], leaf) if isinstance(leaf, torch.Tensor) else found[path] == leaf


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "output"),
        ((0,), "output_0"),
        ((1, 2), "output_1_2"),
        ((0, "boxes"), "output_0.boxes"),
        (("logits",), "logits"),
        (("aux", "scores"), "aux.scores"),
        (("aux", 0), "aux_0"),
        (("aux", 0, "a", 1), "aux_0.a_1"),
        (("two words",), "two_words"),
        (("a.b",), "a_b"),
        (("a/b:0-c",), "a/b:0-c"),
        (("größe",), "gr__e"),
        ((3, (1, 2)), "output_3__1__2_"),
    ],
)
def test_an_output_is_named_by_where_it_lies(path: Any, name: str) -> None:
    assert adapter.name(path) == name


PLAIN = st.integers(0, 9).map(float).map(lambda value: torch.tensor([value]))
ANSWERS = st.recursive(
    PLAIN | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "c", 0, 1]), inner, max_size=3)
        | st.builds(Output, inner, inner)
        | st.builds(Boxes, inner, inner)
    ),
    max_leaves=8,
)


@given(ANSWERS)
def test_every_leaf_is_picked_again_from_where_it_lay(answer: Any) -> None:
    found = {path: leaf for path, leaf in adapter.leaves(answer).items() if isinstance(leaf, torch.Tensor)}
    if not found:
        return
    call = Call((None,), tuple(found))
    picked = call.on(module(lambda self, x: answer))(X)
    picked = picked if isinstance(picked, tuple) else (picked,)
    assert all(got is leaf for got, leaf in zip(picked, found.values(), strict=True))


def test_outputs_come_in_the_order_of_the_call_whatever_that_of_the_answer() -> None:
    answers = [{"a": X, "b": Y}, {"b": Y, "a": X}]
    net = Call((None,), (("b",), ("a",))).on(module(lambda self, x: answers.pop()))
    for _ in range(2):
        first, second = net(X)
        assert (first is Y, second is X) == (True, True)


def test_one_output_is_a_tensor_and_no_tuple() -> None:
    assert Call((None,), ((1,),)).on(module(lambda self, x: (X, Y)))(X) is Y


def test_a_module_that_needs_no_adapter_gets_none() -> None:
    net = nn.Identity()
    assert Call((None,), ((),)).on(net) is net
    assert Call(("input",), ((),)).on(net) is not net
    assert Call((None,), ((0,),)).on(net) is not net


@pytest.mark.parametrize("training", [True, False])
def test_an_adapter_changes_nothing_of_its_module(training: bool) -> None:
    net = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)).train(training)
    net[0].train(not training)
    adapted = Call((None,), ((0,),)).on(net)
    assert (adapted.training, net.training, net[0].training) == (training, training, not training)
    assert set(adapted.state_dict()) == {"inner.1.weight", "inner.1.bias"}


def test_a_program_of_torch_export_may_be_adapted() -> None:
    program = torch.export.export(module(lambda self, x: {"b": x, "a": -x}), (X,)).module()
    second, first = Call((None,), (("a",), ("b",))).on(program)(X)
    assert (first.tolist(), second.tolist()) == ([5.0, 5.0], [-5.0, -5.0])


def test_a_dictionary_with_fields_is_a_dictionary() -> None:
    @dataclasses.dataclass
    class Tagged(dict[str, Any]):
        tag: int = 0

    answer = Tagged()
    answer["a"] = X
    assert list(adapter.leaves(answer)) == [("a",)]
    assert Call((None,), (("a",),)).on(module(lambda self, x: answer))(X) is X


def test_a_tuple_type_made_at_run_time_has_its_names_too() -> None:
    kind = namedtuple("kind", ["x"])
    assert list(adapter.leaves(kind(X))) == [("x",)]

"""States: the tensors are found under whatever a file wraps them in, with the reason, or the file's keys are named."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock.errors import PenstockError
from penstock.state import EMA, WRAPPERS, Choice, find, is_state, some

AROUND = {"epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "args": None, "best_acc1": 0.7}
PLAIN_INSTEAD = "; --no-ema takes the plain ones"


def state(value: float = 0.0) -> dict[str, torch.Tensor]:
    """A state that is told from others by its values."""
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}


def value(found: Any) -> float:
    return float(found.value["bias"][0])


ANY = Choice()


def refusal(content: Any, choice: Choice = ANY) -> str:
    with pytest.raises(PenstockError) as caught:
        find(content, choice)
    return str(caught.value)


def test_a_bare_state_is_found_without_a_wrapper() -> None:
    found = find(OrderedDict(state(1)))
    assert (value(found), found.wrapper, found.why) == (1, "", "")


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_state_is_found_under_every_usual_key(wrapper: str) -> None:
    found = find({**AROUND, wrapper: state(1)})
    assert (value(found), found.wrapper, found.why) == (1, wrapper, "")


@pytest.mark.parametrize("wrapper", [*WRAPPERS, "checkpoint"])
@pytest.mark.parametrize("inner", ["state_dict", "model"])
def test_a_state_is_found_one_wrapper_deeper(wrapper: str, inner: str) -> None:
    found = find({**AROUND, wrapper: {inner: state(1), "epoch": 3}})
    assert (value(found), found.wrapper, found.why) == (1, f"{wrapper}.{inner}", "the only state_dict in the file")


def test_the_only_state_is_found_under_any_key_and_the_reason_is_given() -> None:
    found = find({**AROUND, "weights": state(1)})
    assert (value(found), found.wrapper, found.why) == (1, "weights", "the only state_dict in the file")


def test_a_usual_key_goes_before_others() -> None:
    found = find({"discriminator": state(2), "state_dict": state(1), "queue": {"keys": torch.zeros(3)}})
    assert (value(found), found.wrapper) == (1, "state_dict")


@pytest.mark.parametrize("key", ["optimizer", "optimizer_state_dict", "optim", "model_optim"])
def test_the_tensors_of_an_optimizer_are_no_model(key: str) -> None:
    assert find({key: state(2), "weights": state(1)}).wrapper == "weights"
    assert "holds no state_dict" in refusal({key: state(2)})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"generator": state(1), "discriminator": state(2)}, "generator, discriminator"),
        ({"model": state(1), "state_dict": state(2)}, "model, state_dict"),
        ({"model": {"net": state(1), "module": state(2)}}, "model.net, model.module"),
    ],
)
def test_several_states_are_named_and_one_is_asked_for(content: Any, names: str) -> None:
    first = names.split(",")[0]
    assert refusal({**AROUND, **content}) == f"the file holds several states, {names}; choose one, as in --key {first}"
    for number, name in enumerate(names.split(", "), 1):
        found = find({**AROUND, **content}, Choice(key=name))
        assert (value(found), found.wrapper) == (number, name)


@pytest.mark.parametrize("average", EMA)
@pytest.mark.parametrize("plain", ["state_dict", "model"])
def test_averaged_weights_are_taken_unless_the_plain_ones_are_asked_for(plain: str, average: str) -> None:
    content = {**AROUND, plain: state(1), average: state(2)}
    unasked, asked = find(content), find(content, Choice(ema=True))
    assert (value(unasked), unasked.wrapper) == (2, average)
    assert unasked.why == f"averaged weights are what is evaluated{PLAIN_INSTEAD}"
    assert (value(asked), asked.wrapper, asked.why) == (2, average, "--ema")
    refused = find(content, Choice(ema=False))
    assert (value(refused), refused.wrapper, refused.why) == (1, plain, "")


def test_averaged_weights_alone_are_taken_and_no_plain_ones_are_promised() -> None:
    assert find({"model_ema": state(2)}).why == "averaged weights are what is evaluated"
    assert "its keys are model_ema" in refusal({"model_ema": state(2)}, Choice(ema=False))


@pytest.mark.parametrize("wrapper", ["checkpoint", "model"])
def test_averaged_weights_are_found_one_wrapper_deeper(wrapper: str) -> None:
    content = {wrapper: {"model": state(1), "model_ema": state(2)}}
    assert find(content).wrapper == f"{wrapper}.model_ema"
    assert find(content, Choice(ema=False)).wrapper == f"{wrapper}.model"


def test_several_averages_are_named_and_one_is_asked_for() -> None:
    content = {"model": state(1), "model_ema": state(2), "params_ema": state(3)}
    for choice in (Choice(), Choice(ema=True)):
        assert "several states, model_ema, params_ema; choose one" in refusal(content, choice)
    assert value(find(content, Choice(ema=False))) == 1
    assert value(find(content, Choice(key="params_ema"))) == 3


@pytest.mark.parametrize("content", [state(), {"state_dict": state(), "ema": 0.999}, {"state_dict": state()}])
def test_averaged_weights_that_are_not_there_are_refused_with_the_keys(content: Any) -> None:
    message = refusal(content, Choice(ema=True))
    assert f"--ema: the file holds no averaged weights; its keys are {', '.join(content)}" in message
    assert "state_dict_ema" in message
    assert "--key" in message


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"a": {"b": {"c": state(1)}}, "state_dict": state(2)}, "a.b.c"),
        ({"a.b": state(1), "a": {"b": state(2)}}, "a.b"),
        ({"optimizer": state(1)}, "optimizer"),
        ({"ema": {"shadow": state(1)}, "model": state(2)}, "ema.shadow"),
    ],
)
def test_a_key_is_taken_at_its_word_however_deep(content: Any, key: str) -> None:
    found = find(content, Choice(key=key))
    assert (value(found), found.wrapper) == (1, key)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("nets", "--key nets: there is no 'nets'; what is there: model, epoch"),
        ("model.net", "--key model.net: there is no 'net'; what is there: weight, bias"),
        ("epoch.net", "--key epoch.net: there is no 'net'; what is there: a int"),
        ("epoch", "--key epoch: is a int, no mapping from names to tensors"),
        ("model.weight", "--key model.weight: is a Tensor, no mapping from names to tensors"),
        ("", "--key : there is no ''; what is there: model, epoch"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused_with_what_is_there(key: str, said: str) -> None:
    assert refusal({"model": state(), "epoch": 3}, Choice(key=key)) == said


@pytest.mark.parametrize(("ema", "option"), [(True, "--ema"), (False, "--no-ema")])
def test_a_key_and_a_word_on_averages_are_not_given_together(ema: bool, option: str) -> None:
    content = {"model": state(), "ema": state()}
    assert refusal(content, Choice(key="model", ema=ema)) == f"--key model and {option}: give one or the other"


def test_a_pickled_module_is_found_like_a_state() -> None:
    net, average = nn.Linear(3, 2), nn.Linear(3, 2)
    assert find({"model": net, "epoch": 3}).value is net
    assert find({"model": net, "ema": average}).value is average
    assert find({"model": net, "ema": average}, Choice(key="model")).value is net
    assert find({"anything": net}).wrapper == "anything"


@pytest.mark.parametrize(
    "content",
    [{}, AROUND, {"state_dict": {}}, {"model": {"a": 1}}, {"model": {"a": torch.zeros(1), "b": 1}}, {0: state()}],
)
def test_a_file_without_a_state_is_refused_with_its_keys(content: dict[Any, Any]) -> None:
    message = refusal(content)
    assert "the file holds no state_dict: its keys are " in message
    assert all(str(key) in message for key in content)
    assert "--key NAME takes another" in message


def test_keys_that_are_no_text_and_cycles_are_passed_over() -> None:
    content: dict[Any, Any] = {0: torch.zeros(1), ("a", 1): state(), "weights": state(1)}
    content["model"] = content
    assert find(content).wrapper == "weights"


@pytest.mark.parametrize(
    "content", [{}, {"a": 1}, {0: torch.zeros(1)}, [torch.zeros(1)], None, {"a": [torch.zeros(1)]}]
)
def test_a_state_maps_names_to_tensors_and_to_nothing_else(content: Any) -> None:
    assert not is_state(content)
    assert is_state(state())


@given(st.lists(st.text(max_size=5), max_size=30))
def test_a_list_of_names_is_cut_with_the_number_left(names: list[str]) -> None:
    shown = some(names)
    assert shown.startswith(", ".join(names[:8]))
    assert shown.endswith(f" and {len(names) - 8} more") == (len(names) > 8)


AVERAGED = {"model": state(1.0), "ema": {"state_dict": state(2.0), "decay": 0.9}}


@pytest.mark.parametrize(("ema", "expected"), [(None, 2.0), (True, 2.0), (False, 1.0)])
def test_averaged_weights_that_are_wrapped_themselves_are_averaged_ones(ema: bool | None, expected: float) -> None:
    found = find(AVERAGED, Choice(ema=ema))
    assert value(found) == expected
    assert bool(found.why) == (ema is not False)


def test_plain_weights_are_not_to_be_had_of_a_file_of_averaged_ones_alone() -> None:
    assert "state_dict" in refusal({"ema": {"state_dict": state(2.0)}}, Choice(ema=False))


def test_what_modules_keep_as_extra_state_may_be_anything() -> None:
    assert is_state({**state(), "head._extra_state": {"v": 1}})
    assert not is_state({"head._extra_state": {"v": 1}})

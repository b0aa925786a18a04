"""What a sweep tries: ranges and choices, grids, and values put into a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.signature import first_message
from penstock.train import overrides, recipe, toml
from penstock.train.space import Parameter, Sweep, put

LR = {"low": 1e-4, "high": 1e-1, "log": True}


@pytest.mark.parametrize(
    ("given", "points"),
    [
        ({"low": 16, "high": 64, "step": 16}, (16, 32, 48, 64)),
        ({"low": 1, "high": 4}, (1, 2, 3, 4)),
        ({"low": 16, "high": 60, "step": 16}, (16, 32, 48)),
        ({"low": 0.1, "high": 0.4, "step": 0.1}, (0.1, 0.2, 0.3, 0.4)),
        ({"low": 0.0, "high": 1, "step": 0.25}, (0.0, 0.25, 0.5, 0.75, 1.0)),
        ({"choices": ["adam", "sgd"]}, ("adam", "sgd")),
        ({"choices": [[8, 16], [16, 32]]}, ("[8, 16]", "[16, 32]")),
        ({"choices": [True, False]}, (True, False)),
    ],
)
def test_the_points_of_a_parameter(given: dict[str, Any], points: tuple[Any, ...]) -> None:
    parameter = Parameter.model_validate(given)
    assert parameter.points() == points
    assert [type(point) for point in parameter.points()] == [type(point) for point in points]
    if parameter.choices is None:
        assert parameter.last == points[-1]


def test_a_range_of_numbers_with_a_fraction_has_no_end_of_values() -> None:
    assert not Parameter.model_validate(LR).countable


@given(
    low=st.integers(-50, 50), count=st.integers(1, 200), step=st.sampled_from([0.1, 0.01, 0.25, 1e-3, 0.3, 1e-5, 7.0])
)
def test_a_grid_holds_both_ends_and_every_step_between(low: int, count: int, step: float) -> None:
    parameter = Parameter(low=float(low), high=low + step * count, step=step)
    points = parameter.points()
    assert len(points) == count + 1
    assert points[0] == low
    assert points[-1] == parameter.last == pytest.approx(low + step * count, rel=1e-9)
    assert list(points) == sorted(set(points))


def test_a_choice_comes_back_from_its_label_as_it_was_given() -> None:
    choices = ([8, 16], {"name": "adam"}, "8", 8, 0.5, False)
    parameter = Parameter(choices=choices)
    assert [parameter.value(label) for label in parameter.labels] == list(choices)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "has neither choices nor low and high; give choices = [..], or low = .. and high = .."),
        ({"low": 1}, "has neither choices nor low and high; give choices = [..], or low = .. and high = .."),
        ({"low": 2, "high": 1}, "low is 2 and high is 1; low must be under high"),
        ({"low": 0, "high": 1.0, "log": True}, "low is 0; with log it must be over 0"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "has log and step; give one or the other"),
        ({"low": 1, "high": 9, "step": 10}, "step is 10; from 1 to 9 it must be 8 at most"),
        ({"choices": [1, 2], "low": 1}, "has choices and a range; give one or the other"),
        ({"choices": [[8], [8]]}, "choices ['[8]', '[8]'] holds a value twice"),
        ({"choices": [1, True]}, "choices [1, True] holds a value twice"),
        ({"choices": [1, None]}, "choices holds none; give a value, since neither TOML nor --set can say none"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Parameter.model_validate(given)
    assert first_message(caught.value) == complaint


def test_dotted_and_nested_paths_are_the_same_space() -> None:
    dotted = toml.loads(
        '[space]\n"optim.lr" = {low = 1, high = 2}\n"model.kwargs.widths" = {choices = [[8]]}\n'
        "epochs.low = 1\nepochs.high = 3\n"
    )
    nested = toml.loads(
        "[space]\noptim.lr = {low = 1, high = 2}\nmodel.kwargs.widths = {choices = [[8]]}\n"
        "epochs = {low = 1, high = 3}\n"
    )
    one, other = Sweep.model_validate(dotted), Sweep.model_validate(nested)
    assert one == other
    assert list(one.space) == ["optim.lr", "model.kwargs.widths", "epochs"]


def test_a_recipe_with_a_sweep_comes_back_from_what_its_checkpoints_record_and_from_toml() -> None:
    told = {"space": {"optim.lr": LR, "optim.name": {"choices": ["adam", "sgd"]}, "epochs": {"low": 1, "high": 3}}}
    content = {**toml.loads((recipe.SHIPPED / "digits.toml").read_text()), "sweep": told}
    job = recipe.Recipe.model_validate(content)
    assert recipe.Recipe.model_validate_json(job.model_dump_json()) == job
    assert recipe.Recipe.model_validate(toml.loads(toml.dumps(job.model_dump(mode="json")))) == job


def test_a_bound_that_is_set_by_itself_changes_that_alone() -> None:
    content = overrides.apply({"space": {"optim.lr": LR}}, [overrides.parse("space.optim.lr.low=1e-3")])
    assert Sweep.model_validate(content).space == {"optim.lr": Parameter(low=1e-3, high=1e-1, log=True)}


@pytest.mark.parametrize(
    ("metric", "towards"),
    [("val_accuracy", "maximize"), ("val_loss", "minimize"), ("val_macro_f1", "maximize"), ("rmse", "minimize")],
)
def test_the_metric_s_name_tells_the_direction(metric: str, towards: str) -> None:
    assert Sweep.model_validate({"metric": metric, "space": {"optim.lr": LR}}).towards == towards


def test_a_direction_that_is_given_counts_and_one_that_nothing_tells_must_be() -> None:
    assert Sweep.model_validate({"direction": "minimize", "space": {"optim.lr": LR}}).towards == "minimize"
    with pytest.raises(ValidationError, match="direction must be given for lossless"):
        Sweep.model_validate({"metric": "lossless", "space": {"optim.lr": LR}})


def test_a_grid_needs_an_end_of_values() -> None:
    with pytest.raises(ValidationError, match=r"space\.optim\.lr has no end of values; for a grid give it a step"):
        Sweep.model_validate({"sampler": "grid", "space": {"optim.lr": LR}})


def test_how_many_trials_there_are_to_be() -> None:
    grid = {"optim.lr": {"choices": [0.1, 0.2, 0.3]}, "epochs": {"low": 1, "high": 4}}
    assert Sweep.model_validate({"space": grid}).total == 20
    assert Sweep.model_validate({"space": grid, "trials": 7}).total == 7
    assert Sweep.model_validate({"space": grid, "sampler": "grid"}).total == 12
    assert Sweep.model_validate({"space": grid, "sampler": "grid", "trials": 5}).total == 5
    assert Sweep.model_validate({"space": grid, "sampler": "grid", "trials": 50}).total == 12


def test_values_are_put_at_their_paths_and_nothing_else_is_changed() -> None:
    content = {"epochs": 3, "optim": {"lr": 0.1, "clip": 1.0}}
    changed = put(content, {"optim.lr": 0.5, "schedule.name": "cosine", "epochs": 7})
    assert changed == {"epochs": 7, "optim": {"lr": 0.5, "clip": 1.0}, "schedule": {"name": "cosine"}}
    assert content == {"epochs": 3, "optim": {"lr": 0.1, "clip": 1.0}}


def test_a_path_through_a_value_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"sweep\.space\.epochs\.most: epochs is 3, which has no most"):
        put({"epochs": 3}, {"epochs.most": 7})


@pytest.mark.parametrize(
    ("name", "metric", "towards"),
    [("regression", "val_rmse", "minimize"), ("digits", "val_accuracy", "maximize")],
)
def test_a_sweep_without_a_metric_compares_by_the_task_s(name: str, metric: str, towards: str) -> None:
    table = ["dataset.train=t.csv", "dataset.target=y"] if name == "regression" else []
    space = 'sweep.space={"optim.lr"={low=1e-3,high=1e-1}}'
    found = recipe.load(name, [*table, space]).sweep
    assert found is not None
    assert (found.metric, found.towards) == (metric, towards)
    own = recipe.load(name, [*table, space, "sweep.metric=val_loss"]).sweep
    assert own is not None
    assert own.metric == "val_loss"

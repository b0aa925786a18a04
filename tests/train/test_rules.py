"""Rules between fields: what does not go together is refused with the field, its value and what it goes with."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.train import recipe

TABLE = ("dataset.train=t.csv", "dataset.target=y")
TEXT = ("dataset.train=t.csv",)
NUMPY = ("dataset={name='numpy', path='a.npz'}", "preprocess=", "augment=")


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("digits", ["preprocess="], "preprocess is missing; dataset.name digits takes one of kind image"),
        ("digits", ["preprocess={kind='text'}"], "preprocess.kind is text; dataset.name digits takes image"),
        (
            "csv-text",
            [*TEXT, "preprocess={kind='table'}"],
            "preprocess.kind is table; dataset.name csv-text takes text",
        ),
        ("digits", ["preprocess.kind=text"], "preprocess.kind is text; dataset.name digits takes image"),
        ("digits", [NUMPY[0]], "preprocess.kind is image; dataset.name numpy takes no preprocess"),
        ("digits", ["task=regression"], "task is regression; dataset.name digits takes classification"),
        (
            "regression",
            [*TABLE, "task=classification"],
            "task is classification; dataset.kind numbers takes regression",
        ),
        ("csv-table", [*TABLE, "task=regression"], "task is regression; dataset.kind classes takes classification"),
        ("digits", ["loss.name=mse"], "loss.name is mse; task classification takes cross-entropy or focal"),
        ("regression", [*TABLE, "loss.name=bce"], "loss.name is bce; task regression takes mse, l1 or huber"),
        ("digits", ["loss.gamma=3"], "loss.gamma is 3.0; loss.name cross-entropy does not read it, focal does"),
        (
            "digits",
            ["optim.label_smoothing=0.1"],
            "loss.label_smoothing is 0.05 and optim.label_smoothing, its older name, 0.1; give the first alone",
        ),
        (
            "regression",
            [*TABLE, "loss.label_smoothing=0.1"],
            "loss.label_smoothing is 0.1; task regression has no labels to smooth",
        ),
        (
            "digits",
            ["schedule={name='plateau', warmup=0.1}"],
            "schedule.warmup is 0.1; schedule.name plateau counts epochs, and takes none",
        ),
        (
            "regression",
            [*TABLE, "loss.class_weights=true"],
            "loss.class_weights is True; task regression has no classes",
        ),
        (
            "digits",
            ["loss.class_weights=[1, 0]"],
            "loss.class_weights is [1.0, 0.0]; it must be true, or a number above 0",
        ),
        ("csv-text", [*TEXT, "augment.flip=true"], "augment.flip is true; dataset.name csv-text holds no pictures"),
        (
            "csv-table",
            [*TABLE, "augment.policy=rand"],
            "augment.policy is rand; dataset.name csv-table holds no pictures",
        ),
        ("regression", [*TABLE, "augment.mixup=0.2"], "augment.mixup is 0.2; task regression has no classes to mix"),
        ("csv-text", [*TEXT, "augment.mixup=0.2"], "augment.mixup is 0.2; texts cannot be mixed, only numbers can"),
        (
            "digits",
            ["schedule.milestones=[5]"],
            "schedule.milestones is [5]; schedule.name onecycle does not read it, multi",
        ),
        (
            "digits",
            ["schedule.every=3"],
            "schedule.every is 3; schedule.name onecycle does not read it, step does",
        ),
        (
            "digits",
            ["schedule.name=multistep"],
            "schedule.milestones is empty; schedule.name multistep takes the epochs",
        ),
        (
            "digits",
            ["schedule={name='multistep', milestones=[5, 20]}"],
            "schedule.milestones is [5, 20]; they must rise, from 1 to under the 20 of epochs",
        ),
        (
            "digits",
            ["schedule={name='multistep', milestones=[5, 5]}"],
            "schedule.milestones is [5, 5]; they must rise, from 1 to under the 20 of epochs",
        ),
        ("digits", ["optim.nesterov=true"], "optim.nesterov is true; optim.name adamw does not read it, sgd does"),
        (
            "digits",
            ["optim.name=sgd", "optim.momentum=0", "optim.nesterov=true"],
            "optim.nesterov is true and optim.momentum 0; Nesterov's momentum needs one above 0",
        ),
        ("digits", ["optim.betas=[0.9, 1]"], "optim.betas is [0.9, 1.0]; both must be from 0 to under 1"),
        ("digits", ["optim.freeze=['']"], "optim.freeze has ''; a pattern is of parameters' names"),
        (
            "digits",
            ["optim.freeze=['stem.*', '*']"],
            "optim.freeze has '*', which is all parameters; something must be left",
        ),
        ("regression", [*TABLE, "loader.weighted=true"], "loader.weighted is true; task regression has no one class"),
        ("digits", ["machine.devices=0"], 'machine.devices is 0; it must be at least 1, or "auto" for all there are'),
        (
            "digits",
            ["machine.device=cpu", "machine.precision=fp16"],
            "machine.precision is fp16; machine.device cpu trains in fp32 or bf16",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, overrides: list[str], said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recipe.load(name, overrides)
    assert str(caught.value).startswith(f"recipe {name}: {said}")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("digits", ["loss.name=focal", "loss.gamma=3", "loss.alpha=0.3"]),
        ("digits", ["schedule={name='multistep', milestones=[5, 10]}", "schedule.gamma=0.3"]),
        ("digits", ["schedule.name=plateau", "schedule.patience=1"]),
        ("digits", ["optim.name=sgd", "optim.nesterov=true", "optim.momentum=0.8"]),
        ("digits", ["augment.mixup=0.2", "loader.weighted=true", "machine.devices=auto", "optim.freeze=['stem.*']"]),
        ("digits", [*NUMPY, "task=regression", "loss.label_smoothing=0"]),
        ("digits", [*NUMPY, "task=multilabel", "loss.name=bce"]),
        ("regression", [*TABLE, "loss.name=mse"]),
        ("csv-table", [*TABLE, "augment.mixup=0.2", "loss.class_weights=[1, 2]"]),
    ],
)
def test_what_goes_together_is_taken_and_comes_back_from_its_dump(name: str, overrides: list[str]) -> None:
    found = recipe.load(name, overrides)
    assert recipe.Recipe.model_validate(found.model_dump(mode="json")) == found

"""Complaints: unknown fields with the nearest known one, missing ones, and sections that are none."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.train import recipe
from penstock.train.complaints import nearest


def said(name: str, *overrides: str) -> str:
    with pytest.raises(PenstockError) as caught:
        recipe.load(name, overrides)
    return str(caught.value)


OPTIM = ", ".join(name for name in recipe.Optim.model_fields if name != "label_smoothing")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.learning_rate=1", f"optim.learning_rate is unknown; did you mean lr? optim has: {OPTIM}"),
        ("optim.weight-decay=1", f"optim.weight-decay is unknown; did you mean weight_decay? optim has: {OPTIM}"),
        ("optim.zzz=1", f"optim.zzz is unknown; optim has: {OPTIM}"),
        (
            "optim.epochs=2",
            f"optim.epochs is unknown; epochs is a field of the recipe itself: --set epochs=…; optim has: {OPTIM}",
        ),
        ("preprocess.hight=9", "preprocess.hight is unknown; did you mean height? preprocess has: kind, input, mode, "),
        ("dataset.sed=1", "dataset.sed is unknown; did you mean seed? dataset has: seed, val, test, name"),
        ("model.kwarg.x=1", "model.kwarg is unknown; did you mean kwargs? model has: target, kwargs"),
        ("batch.least=1", "batch.least is unknown; did you mean schedule.least? batch has: min, opt, max"),
        ("epoch=3", "epoch is unknown; did you mean epochs? a recipe has: name, task, seed, epochs, "),
        ("lr=0.1", "lr is unknown; did you mean optim.lr? a recipe has: name, task, "),
        ("learning_rate=0.1", "learning_rate is unknown; did you mean optim.lr? a recipe has: name, task, "),
        ("gamma=0.1", "gamma is unknown; a recipe has: name, task, "),
        ("scheduler.name=step", "scheduler is unknown; did you mean schedule? a recipe has: name, "),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest_and_all_of_its_section(override: str, message: str) -> None:
    assert said("digits", override).startswith(f"--set {override}: {message}")


def test_an_unknown_field_where_one_is_missing_is_told_beside_it() -> None:
    message = said("digits", "optim.lr=", "optim.learning_rate=0.1")
    assert message == (
        "--set optim.learning_rate=0.1: optim.lr is missing, and optim.learning_rate is unknown; did you mean lr? "
        f"optim has: {OPTIM}"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo=", "foo is unknown; a recipe has: name, task, "),
        ("optim.lrr=", f"optim.lrr is unknown; did you mean lr? optim has: {OPTIM}"),
        ("dataset.path=", "dataset.path is unknown; dataset has: seed, val, test, name"),
    ],
)
def test_an_unknown_field_is_refused_also_where_it_is_to_take_its_default(override: str, message: str) -> None:
    assert said("digits", override).startswith(f"--set {override}: {message}")
    assert recipe.load("digits", ["optim.clip=", "keep="]).optim.clip == 1.0


def test_a_data_set_s_name_that_is_misspelt_is_told_the_nearest() -> None:
    assert said("digits", "dataset.name=digitz").endswith("'recordio'; did you mean digits?")


def test_a_value_that_a_later_change_takes_out_is_not_to_blame() -> None:
    assert said("digits", "epochs=1", "epochs=") == (
        "recipe digits: epochs is missing; give it, as in penstock train digits --set epochs=EPOCHS"
    )


def test_a_section_that_is_missing_is_given_as_one() -> None:
    assert said("digits", "batch=") == (
        "recipe digits: batch is missing; give it, as in penstock train digits --set 'batch={min=1,opt=8,max=32}'"
    )


def test_all_missing_values_are_in_one_command_after_what_was_typed() -> None:
    assert said("digits", "epochs=", "optim.lr=", "dataset={name='csv-text'}", "preprocess=") == (
        "recipe digits: epochs, dataset.train and optim.lr are missing; give them, as in penstock train digits --set "
        """'dataset={name='"'"'csv-text'"'"'}' --set epochs=EPOCHS --set dataset.train=train.csv --set optim.lr=LR"""
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optim=3",
            f"optim is 3; it must be a section, [optim], which has: {OPTIM}; give --set 'optim={{lr=1e-3}}', or one "
            "field, as in --set optim.name=…",
        ),
        (
            "dataset=fashion-mnist",
            "dataset is 'fashion-mnist'; it must be a section, [dataset]; give --set 'dataset={name=\"digits\"}'",
        ),
        (
            "batch=32",
            "batch is 32; it must be a section, [batch], which has: min, opt, max; give --set "
            "'batch={min=1,opt=8,max=32}', or one field, as in --set batch.min=…",
        ),
        ('epochs="3"', "epochs is '3'; it must be a whole number"),
        ('optim.lr="1e-3"', "optim.lr is '1e-3'; it must be a number"),
        ('batch.min="1"', "batch.min is '1'; it must be a whole number"),
        ('machine.devices="2"', "machine.devices is '2'; it must be a whole number or 'auto'"),
        ('preprocess.mean=["0.3"]', "preprocess.mean.0 is '0.3'; it must be a number"),
        ("loss.class_weights=1", "loss.class_weights is 1; it must be true or false or a list"),
        ("augment.flip=1", "augment.flip is 1; it must be true or false"),
        ('augment.flip="0"', "augment.flip is '0'; it must be true or false"),
        ("dataset.name=mnist", "dataset.name: 'mnist': must be one of 'digits', 'fashion-mnist', 'image-folder', "),
        ("preprocess.kind=video", "preprocess.kind: 'video': must be one of 'image', 'text', 'table'"),
        ("name=7", 'name is 7, a number; it must be text: in quotes, "7"'),
        ("machine.devices=some", "machine.devices is 'some'; it must be a whole number or 'auto'"),
        ("preprocess.mean=[x]", "preprocess.mean is '[x]'; it must be a list, as in preprocess.mean=["),
        ("preprocess.mean=0.3", "preprocess.mean is 0.3; it must be a list, as in preprocess.mean=[0.3]"),
        ("optim.freeze=stem.*", "optim.freeze is 'stem.*'; it must be a list, as in optim.freeze=[\"stem.*\"]"),
        ('preprocess.mean=["x"]', "preprocess.mean.0 is 'x'; it must be a number"),
        ("optim.name=lion", "optim.name is 'lion'; it must be 'sgd', 'adam' or 'adamw'"),
        (
            "schedule.name=cosin",
            "schedule.name is 'cosin'; it must be 'constant', 'step', 'multistep', ",
        ),
        ("epochs=0", "epochs is 0; it must be at least 1"),
        ("epochs=1.5", "epochs is 1.5; it must be a whole number"),
        ("optim.momentum=1", "optim.momentum is 1; it must be under 1"),
        ("loader.workers=300", "loader.workers is 300; it must be at most 256"),
        ("optim.lr=nan", "optim.lr is nan; it must be a finite number"),
        ("optim.lr=0", "optim.lr is 0; it must be above 0"),
        ("machine.tf32=perhaps", "machine.tf32 is 'perhaps'; it must be true or false"),
        ("optim.betas=[0.9]", "optim.betas is [0.9]; it must have 2 values"),
        ("optim.betas=[0.9, 0.9, 0.9]", "optim.betas is [0.9, 0.9, 0.9]; it must have 2 values"),
        ("loss.class_weights=maybe", "loss.class_weights is 'maybe'; it must be true or false or a list"),
        ("preprocess.height=100000", "preprocess.height is 100000; it must be at most 10000"),
        (
            "preprocess={mode='L', input='x', height=9999, width=9999, mean=[0], std=[1]}",
            "preprocess: height x width is 9,",
        ),
        ("name='a b'", "name: 'a b' names the run's folder and the model; it must be of letters, digits, _ and -, "),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_what_it_must_be(override: str, message: str) -> None:
    assert said("digits", override).startswith(f"--set {override}: {message}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rate", "lr"),
        ("Weight-Decay", "weight_decay"),
        ("betta", "betas"),
        ("lr", "lr"),
        ("rl", "lr"),
        ("qqq", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_by_initials_or_letters(name: str, meant: str | None) -> None:
    assert nearest(name, ["lr", "weight_decay", "betas"]) == meant

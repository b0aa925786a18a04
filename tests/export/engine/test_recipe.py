"""Recipes: profiles of the ranges asked for, and a form that survives a receipt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.export.engine import recipe
from penstock.export.engine.recipe import Recipe, Wishes
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="ids", dtype="int64", shape=("batch", "seq")), Tensor(name="x", shape=("batch", 3))),
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(min=1, opt=8, max=64), "seq": Dim(min=2, opt=16, max=128)},
)
WHOLE = {"ids": ((1, 2), (8, 16), (64, 128)), "x": ((1, 3), (8, 3), (64, 3))}


def test_without_a_wish_there_is_one_profile_of_the_whole_range() -> None:
    assert recipe.profiles(SIGNATURE) == (WHOLE,)


def test_narrower_profiles_come_first_and_the_whole_range_stays() -> None:
    found = recipe.profiles(SIGNATURE, [{"batch": Dim(min=1, opt=1, max=1)}])
    assert found == ({"ids": ((1, 2), (1, 16), (1, 128)), "x": ((1, 3), (1, 3), (1, 3))}, WHOLE)


@pytest.mark.parametrize(
    ("name", "dim", "words"),
    [
        ("length", Dim(min=1, opt=1, max=1), "--profile length: is no dimension; there are batch, seq"),
        ("batch", Dim(min=1, opt=8, max=65), r"--profile batch=1,8,65: leaves the range of batch, 1 to 64"),
        ("seq", Dim(min=1, opt=2, max=3), r"--profile seq=1,2,3: leaves the range of seq, 2 to 128"),
    ],
)
def test_a_profile_of_what_the_model_does_not_take_is_refused(name: str, dim: Dim, words: str) -> None:
    with pytest.raises(PenstockError, match=words):
        recipe.profiles(SIGNATURE, [{name: dim}])


def test_a_recipe_comes_back_from_a_receipt_as_it_went_in() -> None:
    made = Recipe.of(Wishes(workspace_mb=512, level=5, hardware_compat="ampere+"), "fp16", recipe.profiles(SIGNATURE))
    kept: Any = json.loads(json.dumps(made.model_dump(mode="json", exclude_defaults=True)))
    assert recipe.of_build({"recipe": kept}) == made
    assert recipe.of_build({}) is None


@pytest.mark.parametrize("damage", [{"level": 9}, {"profiles": []}, {"surprise": 1}, {"flavor": "rtx"}])
def test_a_damaged_recipe_is_refused(damage: dict[str, Any]) -> None:
    held = Recipe.of(Wishes(), "fp16", recipe.profiles(SIGNATURE)).model_dump(mode="json")
    with pytest.raises(PenstockError, match="recipe is damaged"):
        recipe.of_build({"recipe": {**held, **damage}})


@pytest.mark.parametrize(
    ("option", "given"),
    [("--trt-flavor 'rtx'", {"flavor": "rtx"}), ("--hardware-compat 'all'", {"hardware_compat": "all"})],
)
def test_a_wish_that_is_no_choice_is_refused_with_the_choices(option: str, given: dict[str, str]) -> None:
    with pytest.raises(PenstockError, match=f"{option}: must be one of"):
        recipe.wishes(**{"flavor": None, "hardware_compat": "none", **given})


def test_a_profile_of_the_whole_range_is_refused_as_it_is_there_already() -> None:
    dim = next(iter(SIGNATURE.dims))
    with pytest.raises(PenstockError, match="is the whole range, which every engine is tuned for"):
        recipe.profiles(SIGNATURE, [{dim: SIGNATURE.dims[dim]}])


def test_profiles_are_bounded() -> None:
    dim, whole = next(iter(SIGNATURE.dims.items()))
    many = [{dim: Dim(min=1, opt=1, max=1)}] * 33
    assert whole.max > 1
    with pytest.raises(PenstockError, match="33 times; an engine has 32 profiles at most"):
        recipe.profiles(SIGNATURE, many)


def test_what_tensorrt_for_rtx_has_no_use_for_is_refused_before_anything_is_done() -> None:
    asked = recipe.wishes(flavor="tensorrt-rtx", hardware_compat="same-cc")
    with pytest.raises(PenstockError, match=r"--hardware-compat same-cc: .*leave it out"):
        recipe.check(asked, "tensorrt_rtx")
    recipe.check(asked, "tensorrt")

"""Repeating: a checkpoint's own recipe trains the same weights again, and is held to what may be run unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import card as cards
from penstock import checkpoint
from penstock.errors import PenstockError
from penstock.train import loop, recipe, repeating


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = recipe.load("digits", ["model.kwargs.widths=[8, 16]", "optim.clip=0"], epochs=1, seed=5)
    return loop.train(job, tmp_path_factory.mktemp("first") / "digits", progress=False).best


def changed(path: Path, folder: Path, **fields: Any) -> Path:
    content = torch.load(path, weights_only=True)
    other = folder / "changed.pth"
    torch.save({**content, **fields}, other)
    return other


def test_a_checkpoint_s_recipe_is_the_one_that_trained_it(best: Path) -> None:
    found = repeating.earlier(best)
    assert found.recipe == recipe.load("digits", ["model.kwargs.widths=[8, 16]", "optim.clip=0"], epochs=1, seed=5)
    assert (found.facts["name"], found.facts["seed"]) == ("digits", 5)


def test_a_repeated_run_has_the_same_weights(best: Path, tmp_path: Path) -> None:
    again = loop.train(repeating.earlier(best).recipe, tmp_path, progress=False)
    first, second = (torch.load(path, weights_only=True)["state_dict"] for path in (best, again.best))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_overrides_and_fields_go_over_the_recorded_recipe(best: Path) -> None:
    found = repeating.earlier(best, ["optim.lr=0.5"], epochs=7).recipe
    assert (found.optim.lr, found.epochs, found.seed) == (0.5, 7, 5)
    with pytest.raises(PenstockError, match=r"^--set optim\.rl=1: optim\.rl is unknown; did you mean lr"):
        repeating.earlier(best, ["optim.rl=1"])


def test_a_recipe_that_is_damaged_is_named_with_its_file(best: Path, tmp_path: Path) -> None:
    content = torch.load(best, weights_only=True)["recipe"]
    path = changed(best, tmp_path, recipe={**content, "epochs": 0})
    with pytest.raises(PenstockError, match=rf"^the recipe in {path}: epochs is 0; "):
        repeating.earlier(path)


def test_a_checkpoint_without_a_recipe_is_read_and_cannot_be_repeated(best: Path, tmp_path: Path) -> None:
    content = torch.load(best, weights_only=True)
    old = tmp_path / "old.pth"
    torch.save({name: value for name, value in content.items() if name not in ("recipe", "facts")}, old)
    loaded = checkpoint.load(old)
    assert (loaded.card.recipe, loaded.card.facts) == (None, None)
    with pytest.raises(PenstockError, match=rf"^--from {old}: records no recipe"):
        repeating.earlier(old)


@pytest.mark.parametrize("target", ["os:system", "penstock.train.loop:train", "./net.py:Net", "transformers:bert"])
def test_a_network_that_the_checkpoint_alone_names_is_not_imported(best: Path, tmp_path: Path, target: str) -> None:
    content = torch.load(best, weights_only=True)["recipe"]
    path = changed(best, tmp_path, recipe={**content, "model": {"target": target, "kwargs": {}}})
    assert not cards.trusted(target)
    with pytest.raises(PenstockError, match=f"if you trust it, name it yourself: --set model.target={target}"):
        repeating.earlier(path, ["model.kwargs.classes=3"])
    found = repeating.earlier(path, [f"model.target={target}"]).recipe
    assert found.model.target == target


def test_a_network_inside_another_is_held_to_the_same(best: Path, tmp_path: Path) -> None:
    content = torch.load(best, weights_only=True)["recipe"]
    inner = {"target": "os:system", "kwargs": {"command": "true"}}
    model = {"target": "penstock.train.nets:Rescaled", "kwargs": {"net": inner}}
    path = changed(best, tmp_path, recipe={**content, "model": model})
    with pytest.raises(PenstockError, match=r"names the network 'os:system'.* --set model.kwargs.….target=os:system"):
        repeating.earlier(path, ["model.target=penstock.train.nets:Rescaled"])
    with pytest.raises(PenstockError, match="names the network 'os:system'"):
        repeating.earlier(path, ["model.kwargs.note=not os:system"])
    assert repeating.earlier(path, ["model.kwargs.net={target='os:system', kwargs={command='true'}}"]).recipe
    assert repeating.earlier(path, ["model.kwargs.net.target=os:system"]).recipe.model.kwargs["net"] == inner


def test_a_run_never_takes_the_folder_of_the_checkpoint_that_it_repeats(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    path = runs / "digits" / "best.pth"
    path.parent.mkdir(parents=True)
    assert repeating.free_folder(runs / "digits", path) == runs / "digits-2"
    (runs / "digits-2").mkdir()
    assert repeating.free_folder(runs / "digits", path) == runs / "digits-3"
    assert repeating.free_folder(runs / "other", path) == runs / "other"

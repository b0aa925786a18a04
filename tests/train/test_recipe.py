"""Recipes: shipped ones and the user's, each field held to its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.train import jobs, recipe

DIGITS = (recipe.SHIPPED / "digits.toml").read_text()
# What only the user knows, for the recipes that need it.
GIVEN = {
    "image-folder": ["dataset.path=photos/"],
    "csv-text": ["dataset.train=train.csv"],
    "csv-table": ["dataset.train=table.csv", "dataset.target=kind"],
    "regression": ["dataset.train=table.csv", "dataset.target=price"],
}


def written(folder: Path, old: str, new: str) -> Path:
    assert old in DIGITS
    path = folder / "mine.toml"
    path.write_text(DIGITS.replace(old, new))
    return path


@pytest.mark.parametrize("name", sorted(path.stem for path in recipe.SHIPPED.glob("*.toml")))
def test_every_shipped_recipe_is_read_by_its_name(name: str) -> None:
    assert recipe.load(name, GIVEN.get(name, [])).name == name


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_a_shipped_recipe_that_lacks_what_only_the_user_knows_says_by_which_command_it_is_given(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recipe.load(name)
    said, _, command = str(caught.value).partition(", as in ")
    fields = " and ".join(each.partition("=")[0] for each in GIVEN[name])
    is_or_are, it = ("are", "them") if len(GIVEN[name]) > 1 else ("is", "it")
    assert said == f"recipe {name}: {fields} {is_or_are} missing; give {it}"
    words = command.split()
    assert words[:4] == ["penstock", "train", name, "--set"]
    assert recipe.load(words[2], words[4::2]).name == name


def test_an_override_goes_into_its_section_and_over_a_field_that_is_given_by_itself() -> None:
    found = recipe.load("digits", ["optim.lr=3e-4", "model.kwargs.widths=[8, 16]", "epochs=2"], epochs=5)
    assert (found.optim.lr, found.model.kwargs["widths"], found.epochs) == (3e-4, [8, 16], 2)
    assert found.optim.weight_decay == recipe.load("digits").optim.weight_decay


def test_an_error_in_an_override_names_the_override_and_one_in_the_file_the_file() -> None:
    with pytest.raises(PenstockError, match=r"^--set optim\.lr=0: optim\.lr is 0; it must be above 0$"):
        recipe.load("digits", ["optim.lr=0", "epochs=3"])
    with pytest.raises(PenstockError, match=r"^recipe digits: epochs is 0; "):
        recipe.load("digits", ["optim.lr=1"], epochs=0)


def test_no_clipping_is_0_in_files_and_none_here() -> None:
    found = recipe.load("digits", ["optim.clip=0"])
    assert found.optim.clip is None
    assert found.model_dump(mode="json")["optim"]["clip"] == 0
    assert recipe.Recipe.model_validate(found.model_dump(mode="json")) == found
    assert recipe.load("digits").optim.clip == 1.0


def test_label_smoothing_is_the_loss_s_wherever_it_is_written() -> None:
    assert recipe.load("digits").loss.label_smoothing == 0.05
    found = recipe.load("digits", ["loss.label_smoothing=", "optim.label_smoothing=0.1"])
    assert (found.loss.label_smoothing, found.optim.label_smoothing) == (0.1, 0.0)
    assert "label_smoothing" not in found.model_dump()["optim"]


def test_texts_and_tables_need_no_section_of_preprocessing() -> None:
    found = recipe.load("csv-text", ["dataset.train=train.csv", "preprocess="])
    assert found.preprocess == recipe.Text(kind="text")
    found = recipe.load("csv-table", [*GIVEN["csv-table"], "preprocess={most_categories=10}"])
    assert found.preprocess == recipe.Table(kind="table", most_categories=10)


def test_a_recipe_of_the_users_is_read_by_path(tmp_path: Path) -> None:
    path = written(tmp_path, 'name = "digits"\ntask', 'name = "mine"\ntask')
    found = recipe.load(str(path))
    assert found.name == "mine"
    assert found.model_copy(update={"name": "digits"}) == recipe.load("digits")


def test_a_field_that_is_given_replaces_the_recipes_own() -> None:
    found = recipe.load("digits", epochs=3, seed=7, batch_size=None)
    assert (found.epochs, found.seed, found.batch_size) == (3, 7, recipe.load("digits").batch_size)
    assert recipe.load("digits", name="mine").name == "mine"


def test_an_unknown_recipe_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(
        PenstockError, match=r"recipe 'digit': neither a file nor .* recipes: csv-.*; did you mean digits"
    ):
        recipe.load("digit")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("epochs", 0, "at least 1"),
        ("batch_size", 1, "at least 2"),
        ("seed", -1, "at least 0"),
        ("seed", 2**32, "at most 4294967295"),
        ("epochs", "many", "a whole number"),
        ("epochs", 10**20, "at most 4294967295"),
        ("batch_size", 10**20, "at most 4294967295"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_with_its_value_and_rule(field: str, value: Any, rule: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recipe.load("digits", **{field: value})
    message = str(caught.value)
    assert message.startswith(f"recipe digits: {field} is ")
    assert rule in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("epochs=true", "epochs is 'true'; it must be a whole number"),
        ("optim.betas=[0.9, false]", "optim.betas.1 is 'false'; it must be a number"),
        ("loader.workers=true", "loader.workers is 'true'; it must be a whole number"),
        ("dataset.seed=true", "dataset.seed is 'true'; it must be a whole number"),
        ("preprocess.height=true", "preprocess.height is 'true'; it must be a whole number"),
    ],
)
def test_true_and_false_are_no_numbers(change: str, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recipe.load("digits", [change])
    assert str(caught.value) == f"--set {change}: {said}"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("lr = 0.01 ", "lr = 0.0 ", "optim.lr"),
        ("lr = 0.01 ", "learning_rate = 0.01 ", "optim.lr"),
        ("shift = 1 ", "shift = -1 ", "augment.shift"),
        ("shift = 1 ", "tilt = true ", "augment.tilt"),
        ("max = 64", "max = 4", "batch"),
        ("std = [0.37]", "std = [0.0]", "preprocess"),
        ("mean = [0.3]", "mean = [0.3, 0.3]", "preprocess"),
        ("lr = 0.01 ", "lr = nan ", "optim.lr"),
        ("lr = 0.01 ", "lr = inf ", "optim.lr"),
        ("weight_decay = 0.01", "weight_decay = inf", "optim.weight_decay"),
        ("label_smoothing = 0.05", "label_smoothing = nan", "loss.label_smoothing"),
        ("weight_decay = 0.01", "clip = inf", "optim.clip"),
        ("mean = [0.3]", "mean = [nan]", "preprocess.mean.0"),
        ("std = [0.37]", "std = [inf]", "preprocess.std.0"),
        ("std = [0.37]", "std = [0.37]\nscale = nan", "preprocess.scale"),
        ("seed = 0\nval", "seed = 4294967296\nval", "dataset.seed"),
        ("val = 0.1", "val = nan", "dataset.val"),
        ('[dataset]\nname = "digits"', '[dataset]\nname = "mnist"', "dataset.name"),
        ("epochs = 20\n", "", "epochs"),
        ('name = "digits"\ntask', 'name = "a/b"\ntask', "name"),
        ("val = 0.1\ntest = 0.2", "val = 0.9\ntest = 0.2", "dataset"),
    ],
)
def test_a_nested_field_that_breaks_its_rule_is_named_with_its_path(
    tmp_path: Path, old: str, new: str, field: str
) -> None:
    path = written(tmp_path, old, new)
    with pytest.raises(PenstockError) as caught:
        recipe.load(str(path))
    assert str(caught.value).startswith(f"recipe {path}: {field}")


@pytest.mark.parametrize("shift", [8, 9, 1000])
def test_a_shift_that_leaves_nothing_of_the_picture_is_refused(tmp_path: Path, shift: int) -> None:
    with pytest.raises(PenstockError, match=rf"augment\.shift is {shift}; it must be under the picture's side, 8"):
        recipe.load(str(written(tmp_path, "shift = 1 ", f"shift = {shift} ")))
    assert recipe.load(str(written(tmp_path, "shift = 1 ", "shift = 7 "))).augment.shift == 7


def test_the_shorter_side_is_the_one_that_a_shift_is_held_to(tmp_path: Path) -> None:
    path = written(tmp_path, "width = 8", "width = 5")
    path.write_text(path.read_text().replace("shift = 1 ", "shift = 6 "))
    with pytest.raises(PenstockError, match=r"augment\.shift is 6; it must be under the picture's side, 5"):
        recipe.load(str(path))


def test_the_largest_seed_is_taken() -> None:
    assert recipe.load("digits", seed=2**32 - 1).seed == 2**32 - 1


@pytest.mark.parametrize("content", [b"epochs = ", b"\xff\xfe", b"[[["])
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(PenstockError, match=f"recipe {path}: cannot be read as TOML"):
        recipe.load(str(path))


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="neither a file"):
        recipe.load(str(tmp_path))


def test_a_recipe_that_leaves_the_number_of_classes_to_the_network_is_described(tmp_path: Path) -> None:
    path = written(tmp_path, ", classes = 10", "")
    card = jobs.prepare(recipe.load(str(path))).card
    assert [str(tensor) for tensor in card.signature.outputs] == ["logits:float32[batch,10]"]
    assert card.labels == tuple("0123456789")


def test_a_recipe_trains_on_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, 'resample = "box"', 'resample = "box"\ndtype = "uint8"')
    with pytest.raises(PenstockError, match=r"preprocess.dtype is uint8; training takes float32"):
        recipe.load(str(path))

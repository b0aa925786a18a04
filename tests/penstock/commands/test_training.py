"""`penstock train` as it is typed: recipes listed and shown, fields set, runs repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import PenstockError
from penstock.train import facts, recipe, recipefiles

QUICK = ("--epochs", "1", "--set", "model.kwargs.widths=[4, 8]", "--no-progress")


def ran(*words: str) -> tuple[str, str]:
    """Standard output and error of `penstock train`; its error is raised."""
    result = CliRunner().invoke(app, ["train", *words])
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def test_the_shipped_recipes_are_listed_a_line_each() -> None:
    lines = ran("--list")[0].splitlines()
    assert [line.split()[0] for line in lines] == sorted(recipefiles.shipped())
    assert any(line.startswith("digits ") and "Handwritten digits" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", ["--set", "optim.lr=3e-4", "--seed", "7"]),
        ("fashion-mnist", []),
        ("image-folder", ["--set", "dataset.path=photos/"]),
        ("csv-text", ["--set", "dataset.train=train.csv"]),
        ("csv-table", ["--set", "dataset.train=table.csv", "--set", "dataset.target=kind", "--set", "optim.clip=0"]),
        ("regression", ["--set", "dataset.train=table.csv", "--set", "dataset.target=price", "--name", "prices"]),
    ],
)
def test_a_recipe_that_is_shown_is_whole_and_is_read_back_the_same(tmp_path: Path, name: str, words: list[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ran(name, *words, "--show")[0])
    overrides = [word for word in words if "=" in word]
    seed = 7 if "--seed" in words else None
    expected = recipe.load(name, overrides, seed=seed, name="prices" if "--name" in words else None)
    assert recipe.load(path) == expected
    assert recipefiles.read(path)["machine"] == expected.machine.model_dump(mode="json")


def test_a_run_records_its_recipe_and_its_facts_and_is_repeated_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "drawn_seed", lambda: 4_000_000_000)
    out, _ = ran("digits", *QUICK, "--seed", "random", "--set", "batch_size=256")
    assert "seed 4000000000" in out
    first = torch.load("runs/digits/best.pth", weights_only=True)
    assert (first["recipe"]["seed"], first["recipe"]["batch_size"]) == (4_000_000_000, 256)
    assert (first["facts"]["seed"], first["facts"]["seed_drawn"], first["facts"]["name"]) == (
        4_000_000_000,
        True,
        "digits",
    )
    versions = {**facts.versions(), "torch": "1.0"}
    monkeypatch.setattr(facts, "versions", lambda: versions)
    out, err = ran("--from", "runs/digits/best.pth", "--no-progress")
    assert f"warning: the version of torch was {torch.__version__}, and is 1.0" in err
    second = torch.load("runs/digits-2/best.pth", weights_only=True)
    assert second["recipe"] == first["recipe"]
    assert (second["facts"]["name"], second["facts"]["seed_drawn"]) == ("digits-2", False)
    assert all(torch.equal(first["state_dict"][name], second["state_dict"][name]) for name in first["state_dict"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a recipe (csv-table, csv-text, digits, "),
        (["digits", "--from", "best.pth"], "digits and --from best.pth: give the one or the other"),
        (["digits", "--seed", "many"], "--seed 'many': must be a whole number from 0 to 4294967295, or random"),
        (["digits", "--seed", "-1"], "--seed '-1': must be a whole number from 0 to 4294967295, or random"),
        (["digits", "--seed", "4294967296"], "recipe digits: seed is 4294967296; it must be at most"),
        (["digits", "--set", "optim.rl=1"], "--set optim.rl=1: optim.rl is unknown; did you mean lr?"),
        (["digits", "--set", "optim.lr"], "--set 'optim.lr': must read NAME=VALUE, as in --set optim.lr=3e-4"),
        (["digits", "--name", "a/b"], "recipe digits: name: 'a/b' names the run's folder"),
        (
            ["image-folder"],
            "recipe image-folder: dataset.path is missing; give it, as in penstock train image-folder --set",
        ),
        (["--from", "none.pth"], "none.pth: no such file"),
    ],
)
def test_what_is_typed_wrongly_is_refused_in_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        ran(*words)
    assert str(caught.value).startswith(said)


def test_the_help_has_examples() -> None:
    out, _ = ran("--help")
    assert "penstock train --from runs/digits/best.pth" in out
    assert "--set dataset.path=photos/" in " ".join(out.replace("│", " ").split())

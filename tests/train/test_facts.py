"""Facts: what is found when a run begins, and what of it is not as it was."""

from __future__ import annotations

import getpass
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock import data
from penstock.errors import PenstockError
from penstock.train import facts, recipe
from penstock.train.facts import Facts
from penstock.train.recipe import Machine


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


@pytest.fixture(scope="module")
def found() -> Facts:
    return facts.find(recipe.load("digits"), "digits-2")


def test_git_tells_the_revision_and_whether_followed_files_were_changed(repository: Path) -> None:
    revision = git(repository, "rev-parse", "HEAD")
    (repository / "runs").mkdir()
    (repository / "runs" / "new.txt").write_text("output")
    assert facts.git(repository) == facts.Git(revision=revision, changed=False)
    (repository / "train.py").write_text("a = 2\n")
    assert facts.git(repository / "runs") == facts.Git(revision=revision, changed=True)


def test_where_git_knows_nothing_nothing_is_told(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_GIT_S", 1e-6)
    assert facts.git(repository) is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts.git(repository) is None
    monkeypatch.undo()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    (tmp_path / ".git").rename(tmp_path / "gone")
    assert facts.git(tmp_path / "plain") is None


def test_a_run_s_facts_are_plain_data_that_is_read_back(found: Facts) -> None:
    assert Facts.model_validate(found.model_dump(mode="json")) == found
    assert (found.name, found.seed, found.seed_drawn) == ("digits-2", 0, False)
    assert found.versions["torch"] == torch.__version__
    assert found.versions["python"] == platform.python_version()
    assert (found.device, found.devices, found.precision) == (
        ("cuda" if torch.cuda.is_available() else "cpu"),
        1,
        "fp32",
    )


def test_neither_the_machine_nor_its_user_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "erika"
    monkeypatch.setenv("HOME", str(home))
    words = [f"{home}/bin/penstock", "train", f"--output={home}/runs", "digits"]
    monkeypatch.setattr(sys, "argv", words)
    found = facts.find(recipe.load("digits"), "digits")
    assert found.command == ("penstock", "train", "--output=~/runs", "digits")
    told = found.model_dump_json()
    assert platform.node() not in told
    assert "erika" not in told
    assert getpass.getuser() not in found.host.model_dump_json()


def test_the_data_s_digest_is_the_data_set_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "digest", lambda spec: f"of {spec.name}", raising=False)
    assert facts.find(recipe.load("digits"), "digits").data == "of digits"


def test_a_drawn_seed_is_one_that_a_recipe_takes() -> None:
    seeds = {facts.drawn_seed() for _ in range(20)}
    assert len(seeds) > 1
    assert all(recipe.load("digits", seed=seed).seed == seed for seed in seeds)


def test_processes_that_lightning_starts_inherit_what_the_first_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("PENSTOCK_RUN_SEED", "of an earlier run")
    seed = facts.drawn_seed()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [facts.drawn_seed() for _ in range(3)] == [seed] * 3


def test_processes_of_torchrun_cannot_agree_and_say_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("PENSTOCK_RUN_SEED", raising=False)
    with pytest.raises(PenstockError, match=r"^--seed random: each of torchrun's processes would find its own; give"):
        facts.drawn_seed()


def test_the_first_process_alone_asks_git_and_digests(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr(data, "digest", lambda _: "123", raising=False)
    for rank, told in (("0", "123"), ("1", None)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        found = facts.find(recipe.load("digits"), "digits")
        assert found.data == told
        assert (found.git is None) == (told is None)


def resolved(there: int, monkeypatch: pytest.MonkeyPatch, **asked: object) -> tuple[str, int, str]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "GPU")
    found = facts.resolve(Machine.model_validate(asked))
    return found.device, found.devices, found.precision


@pytest.mark.parametrize(
    ("there", "asked", "come_to"),
    [
        (0, {}, ("cpu", 1, "fp32")),
        (0, {"devices": "auto"}, ("cpu", 1, "fp32")),
        (0, {"devices": 2}, ("cpu", 2, "fp32")),
        (0, {"precision": "bf16", "tf32": True}, ("cpu", 1, "bf16")),
        (0, {"tf32": True}, ("cpu", 1, "fp32")),
        (4, {}, ("cuda", 1, "fp32")),
        (4, {"devices": "auto", "precision": "fp16"}, ("cuda", 4, "fp16")),
        (4, {"tf32": True}, ("cuda", 1, "tf32")),
        (4, {"device": "cpu", "devices": "auto"}, ("cpu", 1, "fp32")),
    ],
)
def test_what_is_asked_for_comes_to_the_devices_that_are_there(
    monkeypatch: pytest.MonkeyPatch, there: int, asked: dict[str, object], come_to: tuple[str, int, str]
) -> None:
    assert resolved(there, monkeypatch, **asked) == come_to


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        (0, {"device": "cuda"}, "machine.device is cuda; torch finds no GPU here: set machine.device to auto or cpu"),
        (2, {"devices": 3}, "machine.devices is 3; this machine has 2: set it to 2 or auto"),
        (
            0,
            {"precision": "fp16"},
            "machine.precision is fp16, which needs a GPU; on the CPU take bf16 or fp32",
        ),
    ],
)
def test_what_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, there: int, asked: dict[str, object], said: str
) -> None:
    with pytest.raises(PenstockError) as caught:
        resolved(there, monkeypatch, **asked)
    assert str(caught.value).startswith(said)


def test_what_differs_from_an_earlier_run_is_told_a_sentence_each(found: Facts) -> None:
    before = found.model_copy(
        update={
            "name": "other",
            "started": "long ago",
            "host": found.host.model_copy(update={"cores": 999}),
            "git": facts.Git(revision="abc", changed=True),
            "data": "123",
            "device": "cuda",
            "versions": {**found.versions, "torch": "1.0", "gone": "3"},
        }
    )
    now = found.model_copy(update={"git": facts.Git(revision="def", changed=False), "data": "456", "device": "cpu"})
    assert facts.differences(before.model_dump(mode="json"), now) == [
        "the git revision of the working folder was abc, and is def",
        "the data's sha256 was 123, and is 456",
        "the device was cuda, and is cpu",
        f"the version of torch was 1.0, and is {torch.__version__}",
        "the version of gone was 3, and is not there",
        "files under git had been changed since that revision, in ways that are not recorded",
    ]


def test_the_same_facts_differ_in_nothing_and_what_was_not_recorded_is_not_compared(found: Facts) -> None:
    clean = found.model_copy(update={"git": facts.Git(revision="abc", changed=False)})
    assert facts.differences(clean.model_dump(mode="json"), clean) == []
    assert facts.differences({}, clean) == []

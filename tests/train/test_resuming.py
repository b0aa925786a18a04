"""Runs that go on: as if they had never ended, or refused in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from penstock import checkpoint, files, locks
from penstock.errors import PenstockError
from penstock.train import keeper, loop, recipe, resuming
from penstock.train.recipe import Recipe

WAYS = {
    "as shipped": [],
    "averaged": ["keep.ema=0.9", "optim.accumulate=2"],
    "plateau": ['schedule.name="plateau"', "schedule.patience=0", 'optim.name="sgd"'],
    "cosine": ['schedule.name="cosine"', "schedule.warmup=0.2", "loader.weighted=true"],
}


def job(*changes: str) -> Recipe:
    return recipe.load("digits", ["epochs=4", "model.kwargs.widths=[8, 8]", *changes])


def weights(path: Path) -> Any:
    return torch.load(path, weights_only=True)["state_dict"]


def losses(folder: Path) -> list[Any]:
    names = ("train_loss", "val_loss", "val_accuracy", "lr", "epoch")
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{name: json.loads(line)[name] for name in names} for line in lines]


def test_seconds_and_epochs_of_a_run_that_goes_on_are_those_of_the_whole(half: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    state = torch.load(folder / resuming.STATE, weights_only=True)
    state["history"][0]["seconds"] = 1000.0
    torch.save(state, folder / resuming.STATE)
    trained = loop.train(job("epochs=2", 'schedule.name="constant"'), folder, progress=False, resume=True)
    assert 1000 < trained.seconds < 1500
    assert [line["epoch"] for line in losses(folder)] == [1, 2]
    assert all(type(line["epoch"]) is int for line in losses(folder))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_is_what_it_would_have_been(way: str, tmp_path: Path) -> None:
    class Stop(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.current_epoch == 2 and batch_idx == 5:
                raise Interrupted

    whole = loop.train(job(*WAYS[way]), tmp_path / "whole", progress=False)
    with pytest.raises(Interrupted):
        loop.train(job(*WAYS[way]), tmp_path / "cut", progress=False, callbacks=[Stop()])
    assert len(losses(tmp_path / "cut")) == 2
    torch.manual_seed(12345)  # what another process would have drawn
    loop.train(job(*WAYS[way]), tmp_path / "cut", progress=False, resume=True)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    for name in ("last.pth", "best.pth"):
        found, wanted = weights(tmp_path / "cut" / name), weights(whole.best.with_name(name))
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "run"
    loop.train(job("epochs=1", 'schedule.name="constant"'), folder, progress=False)
    return folder


def test_a_constant_rate_may_go_on_for_longer(half: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(half, tmp_path / "run"))
    loop.train(job("epochs=2", 'schedule.name="constant"'), folder, progress=False, resume=True)
    assert [row["epoch"] for row in losses(folder)] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["epochs=1", 'schedule.name="constant"'], "has all its 1 epochs; more of them: --epochs"),
        (['schedule.name="constant"', "optim.lr=0.5"], "is of another recipe: its optim.lr is 0.01, and not 0.5"),
        (['schedule.name="constant"', "seed=3"], "is of another recipe: its seed is 0, and not 3"),
    ],
)
def test_another_recipe_is_refused(half: Path, changes: list[str], told: str) -> None:
    with pytest.raises(PenstockError, match=told):
        loop.train(job(*changes), half, progress=False, resume=True)


def test_a_schedule_that_has_ended_says_how_to_go_on_all_the_same(tmp_path: Path) -> None:
    loop.train(job("epochs=1"), tmp_path, progress=False)
    with pytest.raises(PenstockError, match=rf"schedule.name onecycle ends with .*--set weights={tmp_path}/best.pth"):
        resuming.read(tmp_path, job("epochs=1"))


def test_a_run_that_is_not_there_or_damaged_is_refused(half: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="is not there; leave --resume out"):
        resuming.read(tmp_path, job())
    content = (half / resuming.STATE).read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"nothing"):
        (tmp_path / resuming.STATE).write_bytes(damaged)
        with pytest.raises(PenstockError, match="is damaged"):
            resuming.read(tmp_path, job())


def test_an_epoch_that_is_interrupted_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    class Interrupt(Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.current_epoch == at and batch_idx == 3:
                os.kill(os.getpid(), signal.SIGINT)

    said: list[str] = []
    for at in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            loop.train(job(), tmp_path, progress=False, callbacks=[Interrupt()], say=said.append)
        assert said[-1].startswith(("nothing is kept of this run yet", "epoch 1 and those before are kept")[at])
    assert [row["epoch"] for row in losses(tmp_path)] == [1]
    assert resuming.read(tmp_path, job()).epoch == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Code:
    def __reduce__(self) -> tuple[Any, Any]:
        return (print, ("run",))


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": "two"},
        {"epoch": -1},
        {"epoch": 3},
        {"history": [{"val_loss": "small"}]},
        {"net": {}},
        {"optimizer": {}},
        {"schedules": []},
        {"recipe": {"name": "x"}},
        {"best": Code()},
    ],
    ids=lambda changes: str(next(iter(changes.items())))[:40],
)
def test_a_state_that_holds_something_else_is_refused(
    changes: dict[str, Any], half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({**torch.load(half / resuming.STATE, weights_only=True), **changes}, tmp_path / resuming.STATE)
    with pytest.raises(PenstockError, match=r"is damaged: .*; begin anew without --resume"):
        loop.train(job("epochs=9", 'schedule.name="constant"'), tmp_path, progress=False, resume=True)
    assert "run" not in capsys.readouterr().out


def test_weights_that_were_changed_on_the_disk_are_refused(half: Path, tmp_path: Path) -> None:
    content = bytearray((half / resuming.STATE).read_bytes())
    weights = torch.load(half / resuming.STATE, weights_only=True)["net"]["head.weight"].numpy().tobytes()
    content[content.index(weights)] ^= 0xFF
    (tmp_path / resuming.STATE).write_bytes(content)
    with pytest.raises(PenstockError, match=r"is damaged: its part .* is not as it was written"):
        resuming.read(tmp_path, job("epochs=9", 'schedule.name="constant"'))


def test_a_run_that_made_no_progress_is_not_gone_on_with_unless_asked(half: Path, tmp_path: Path) -> None:
    torch.save({**torch.load(half / resuming.STATE, weights_only=True), "stale": 2}, tmp_path / resuming.STATE)
    wanted = ("epochs=9", 'schedule.name="constant"')
    with pytest.raises(PenstockError, match=r"the last 2 without progress; .* keep.patience=4, or 0"):
        resuming.read(tmp_path, job(*wanted, "keep.patience=2"))
    assert resuming.read(tmp_path, job(*wanted, "keep.patience=3")).stale == 2


def test_a_run_that_ended_before_its_report_is_reported(half: Path, tmp_path: Path) -> None:
    for name in (resuming.STATE, "best.pth", "last.pth"):
        (tmp_path / name).write_bytes((half / name).read_bytes())
    again = job("epochs=1", 'schedule.name="constant"')
    ended = loop.train(again, tmp_path, progress=False, resume=True)
    assert ended.report is not None
    assert ended.report.is_file()
    assert len(ended.history) == 1
    assert (tmp_path / "last.pth").read_bytes() == (half / "last.pth").read_bytes()
    with pytest.raises(PenstockError, match="has all its 1 epochs; more of them: --epochs 11"):
        loop.train(again, tmp_path, progress=False, resume=True)


def test_without_the_best_of_before_the_next_is_the_best(half: Path, tmp_path: Path) -> None:
    (tmp_path / resuming.STATE).write_bytes((half / resuming.STATE).read_bytes())
    loop.train(job("epochs=2", 'schedule.name="constant"'), tmp_path, progress=False, resume=True)
    assert checkpoint.load(tmp_path / "best.pth").card.metrics["epoch"] == 2


def test_two_runs_do_not_write_into_one_folder(half: Path) -> None:
    with keeper.alone(half), pytest.raises(PenstockError, match="another run is writing there"):
        loop.train(job("epochs=1"), half, progress=False)
    with keeper.alone(half):
        pass


def test_what_a_killed_run_left_half_written_is_removed_once_its_folder_is_held(tmp_path: Path) -> None:
    left = [".last.pth.k3_9abcd", ".best.pth.abcdefgh", ".epoch-0010.pth.abcdefgh", ".state.pt.abcdefgh"]
    others = ["last.pth", ".last.pth", ".last.pth.backup", ".last.pth.ABCDEFGH", ".mine.pth.abcdefgh", ".lock"]
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".best.pth.12345678").mkdir()
    with locks.held(tmp_path), pytest.raises(PenstockError, match="another run is writing"), keeper.alone(tmp_path):
        pass
    assert all((tmp_path / name).exists() for name in left)
    with keeper.alone(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*others, ".best.pth.12345678"}


def test_a_file_whose_writing_is_killed_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process removes nothing
    monkeypatch.setattr(Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.write_whole(tmp_path / "last.pth", b"half")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    with keeper.alone(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(locks, "held", none)
    (tmp_path / ".last.pth.abcdefgh").touch()
    with keeper.alone(tmp_path):
        assert (tmp_path / ".last.pth.abcdefgh").exists()


def test_a_killed_run_goes_on_from_its_last_whole_epoch(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "train",
        "digits",
        "--output",
        "runs",
        "--set",
        "model.kwargs.widths=[8]",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--epochs", "30"], cwd=tmp_path, env=environment) as process:
        state, give_up = tmp_path / "runs" / "digits" / resuming.STATE, time.monotonic() + 60
        while not state.is_file() or len(losses(state.parent)) < 2:
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    ran = subprocess.run(
        [*command, "--epochs", "30", "--resume"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert [row["epoch"] for row in losses(state.parent)] == list(range(1, 31))

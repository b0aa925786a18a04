"""Sweeps for real: small networks trained by processes, killed, pruned and failing, and what is left of it all."""

from __future__ import annotations

import csv
import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from penstock import checkpoint
from penstock.errors import PenstockError
from penstock.files import writing
from penstock.train import crew, loop, outcome, recipe, sweep, toml, worker
from penstock.train.outcome import Outcome

DIGITS = (recipe.SHIPPED / "digits.toml").read_text()


def written(folder: Path, section: str, epochs: int = 1) -> Path:
    """The digits recipe, small, with a sweep."""
    text = DIGITS.replace("epochs = 20", f"epochs = {epochs}").replace("widths = [24, 48, 96]", "widths = [4]")
    assert "widths = [4]" in text
    path = folder / "mine.toml"
    path.write_text(text + section)
    return path


GRID = """
[sweep]
sampler = "grid"
[sweep.space]
"optim.lr" = { choices = [0.01, 1e30] }
"model.kwargs.widths" = { choices = [[4], [6]] }
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, list[str]]:
    """A grid of two rates, one of which no loss survives, and two widths, by two processes."""
    folder = tmp_path_factory.mktemp("sweep")
    said: list[str] = []
    request = sweep.request(str(written(folder, GRID)), ["batch_size=128"], None, 2, folder / "runs")
    return folder, sweep.run(request, said.append), said


def test_a_grid_is_trained_once_each_and_what_fails_ends_nothing(ran: tuple[Path, Outcome, list[str]]) -> None:
    folder, found, said = ran
    with (folder / "runs/digits-sweep/trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted((float(row["optim.lr"]), row["model.kwargs.widths"]) for row in rows) == [
        (0.01, "[4]"), (0.01, "[6]"), (1e30, "[4]"), (1e30, "[6]"),
    ]  # fmt: skip
    for row in rows:
        if float(row["optim.lr"]) == 0.01:
            assert (row["state"], row["epoch"], row["reason"]) == ("finished", "1", "")
            assert 0.1 < float(row["val_accuracy"]) < 1
        else:
            assert (row["state"], row["val_accuracy"]) == ("failed", "")
            assert "the loss is nan in epoch 1" in row["reason"]
    best = max((row for row in rows if row["state"] == "finished"), key=lambda row: float(row["val_accuracy"]))
    assert str(found.best.number) == best["trial"]
    lines = [line for line in said if line.startswith("trial ")]
    assert len(lines) == 4
    assert sum("failed: " in line for line in lines) == 2
    assert any(f"best {found.best.value:.5g} (trial {found.best.number})" in line for line in lines)


def test_the_best_checkpoint_is_kept_and_it_alone(ran: tuple[Path, Outcome, list[str]]) -> None:
    folder = ran[0] / "runs/digits-sweep"
    best = ran[1].best
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.pth"))
    assert kept == ["best.pth", f"trials/{best.number:04d}/best.pth", f"trials/{best.number:04d}/last.pth"]
    card = checkpoint.load(folder / "best.pth").card
    assert card.metrics["val_accuracy"] == best.value
    assert card.architecture.kwargs["widths"] == best.values["model.kwargs.widths"]


def test_the_command_and_the_file_train_the_best_again(ran: tuple[Path, Outcome, list[str]], tmp_path: Path) -> None:
    folder, found, _ = ran
    program, command, name, *settings = shlex.split(found.command)
    assert (program, command, name) == ("penstock", "train", str(folder / "mine.toml"))
    assert settings[::2] == ["--set"] * 3
    by_command, by_file = recipe.load(name, settings[1::2]), recipe.load(str(found.recipe))
    assert by_file.sweep is None
    assert by_command.model_copy(update={"sweep": None}) == by_file
    again = loop.train(by_file, tmp_path / "again", progress=False)
    assert checkpoint.load(again.best).card.metrics["val_accuracy"] == found.best.value


def test_the_charts_are_pictures_and_the_page_asks_nobody(ran: tuple[Path, Outcome, list[str]]) -> None:
    folder = ran[0] / "runs/digits-sweep"
    for name in ("history", "parallel", "slices", "importance"):
        with Image.open(folder / f"{name}.png") as picture:
            picture.load()
            assert picture.width > 700
            colours = picture.convert("RGB").getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > 20
        assert "<svg" in (folder / f"{name}.svg").read_text()
    page = (folder / "sweep.html").read_text()
    asked: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            asked.extend(value for name, value in attrs if value and name in ("src", "href", "srcset"))
            assert tag != "script"

    Links().feed(page)
    assert len([link for link in asked if link.startswith("data:image/svg+xml;base64,")]) == 8
    assert all(link.startswith(("data:", "#")) for link in asked)
    assert escape(ran[1].command, quote=False) in page
    assert len(page) < 2_000_000


def test_the_same_command_again_trains_nothing_more(ran: tuple[Path, Outcome, list[str]]) -> None:
    folder, found, _ = ran
    said: list[str] = []
    request = sweep.request(str(folder / "mine.toml"), ["batch_size=128"], None, 2, folder / "runs")
    assert sweep.run(request, said.append) == found
    assert said == ["4 of 4 trials are there from before; 0 to go"]


PRUNED = """
[sweep]
sampler = "grid"
pruner = "halving"
[sweep.space]
"optim.lr" = { choices = [0.01, 1e-6] }
"model.kwargs.widths" = { choices = [[4], []] }
"""


def test_trials_are_pruned_and_combinations_that_no_network_has_fail(tmp_path: Path) -> None:
    said: list[str] = []
    found = sweep.run(sweep.request(str(written(tmp_path, PRUNED, 3)), [], None, 1, tmp_path), said.append)
    folder = tmp_path / "digits-sweep"
    with (folder / "trials.csv").open(newline="") as file:
        rows = {(float(row["optim.lr"]), row["model.kwargs.widths"]): row for row in csv.DictReader(file)}
    assert rows[0.01, "[4]"]["state"] == "finished"
    assert rows[1e-6, "[4]"]["state"] == "pruned"
    assert rows[1e-6, "[]"]["state"] == rows[0.01, "[]"]["state"] == "failed"
    assert "widths is []; it must be a list" in rows[0.01, "[]"]["reason"]
    assert found.best.epoch("maximize") == max(found.best.curve, key=lambda epoch: (found.best.curve[epoch], -epoch))
    assert len(found.best.curve) == 3
    assert checkpoint.load(folder / "best.pth").card.metrics["val_accuracy"] == found.best.value
    assert checkpoint.load(folder / "best.pth").card.metrics["epoch"] == found.best.epoch("maximize")
    assert any("pruned after epoch 1" in line for line in said)
    assert (folder / "curves.png").is_file()


RANDOM = """
[sweep]
sampler = "random"
trials = 3
[sweep.space]
"optim.lr" = { low = 1e-3, high = 1e-1, log = true }
"""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(found: Any, process: subprocess.Popen[str]) -> Any:
    give_up = time.monotonic() + 120
    while not (value := found()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return value


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in Linux's /proc")
def test_a_sweep_goes_on_after_kills_of_a_worker_and_of_itself(tmp_path: Path) -> None:
    written(tmp_path, RANDOM, 2)
    command = [sys.executable, "-m", "penstock", "sweep", "mine.toml"]
    trials = tmp_path / "runs/digits-sweep/trials"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as head:
        try:
            until((trials / "0000").is_dir, head)
            (first,) = until(lambda: children(head.pid), head)
            os.kill(first, signal.SIGKILL)
            until((trials / "0002").is_dir, head)  # 0001 has taken the place of 0000
            (second,) = until(lambda: [pid for pid in children(head.pid) if pid != first], head)
            head.kill()
            out, err = head.communicate(timeout=30)
        finally:
            head.kill()
    assert err == ""
    assert out.splitlines()[0].startswith("trial 0: its process died of SIGKILL (see ")
    assert out.splitlines()[0].endswith("; it is tried again")
    assert out.splitlines()[1].startswith("trial 1: val_accuracy ")
    assert len(out.splitlines()) == 2
    give_up = time.monotonic() + 10
    while Path(f"/proc/{second}").exists():  # the worker ends with its head
        assert time.monotonic() < give_up
        time.sleep(0.02)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "1 of 3 trials are there from before; 2 to go"
    assert [line.partition(":")[0] for line in lines[1:3]] == ["trial 3", "trial 4"]
    with (tmp_path / "runs/digits-sweep/trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["1", "3", "4"]
    assert {row["state"] for row in rows} == {"finished"}
    assert len({row["optim.lr"] for row in rows}) == 3
    assert sorted(path.name for path in trials.iterdir() if path.is_dir()) == ["0001", "0003", "0004"]


def test_an_interrupt_is_answered_in_a_word_and_keeps_what_was_finished(tmp_path: Path) -> None:
    written(tmp_path, RANDOM.replace("trials = 3", "trials = 1000"))
    command = [sys.executable, "-m", "penstock", "sweep", "mine.toml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as head:
        try:
            until((tmp_path / "runs/digits-sweep/trials/0001").is_dir, head)
            os.killpg(head.pid, signal.SIGINT)  # as a terminal does: to the workers, too
            out, err = head.communicate(timeout=30)
        finally:
            head.kill()
    assert head.returncode == 130
    assert err == "interrupted\n"
    assert out.splitlines()[-1] == "finished trials are kept; the same command goes on"
    assert out.startswith("trial 0: val_accuracy ")
    assert "died" not in out


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('"optim.rate" = { low = 0.1, high = 0.2 }', r"sweep\.space\.optim\.rate: optim\.rate"),
        ('"optim.lr" = { choices = [-1.0, 0.0] }', r"sweep\.space\.optim\.lr: optim\.lr is 0\.0; it must be above 0"),
        ('"epochs.most" = { low = 1, high = 2 }', r"sweep\.space\.epochs\.most: epochs is 1, which has no most"),
    ],
)
def test_a_field_that_takes_none_of_its_values_is_refused_before_anything_is_made(
    tmp_path: Path, section: str, said: str
) -> None:
    path = written(tmp_path, f"\n[sweep]\n[sweep.space]\n{section}\n")
    with pytest.raises(PenstockError, match=said):
        sweep.request(str(path), [], None, 1, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_recipe_without_a_sweep_is_refused_with_how_to_give_it_one(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"recipe digits: has no section \[sweep\]; give it one, or its") as caught:
        sweep.request("digits", [], None, 1, tmp_path)
    *_, command = str(caught.value).partition("penstock sweep ")
    name, option, space = shlex.split(command)
    assert (name, option) == ("digits", "--set")
    wanted = sweep.request(name, [space], 2, 1, tmp_path).recipe.sweep
    assert wanted is not None
    assert (list(wanted.space), wanted.trials) == (["optim.lr"], 2)


def test_a_file_with_a_sweep_and_no_recipe_is_told_how_to_begin_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[sweep.space]\n"optim.lr" = { choices = [0.01, 0.1] }\n')
    with pytest.raises(PenstockError, match=r"nothing but \[sweep\].*: penstock train digits --show > mine\.toml$"):
        sweep.request(str(path), [], None, 1, tmp_path)


def test_a_recipe_for_several_devices_is_refused_with_what_takes_their_place(tmp_path: Path) -> None:
    path = written(tmp_path, "[machine]\ndevices = 2\n" + RANDOM)
    with pytest.raises(PenstockError, match=r"machine\.devices is 2 .* give --workers the number of devices"):
        sweep.request(str(path), [], None, 1, tmp_path / "runs")


def test_a_metric_that_the_loop_does_not_log_is_refused_with_those_it_does(tmp_path: Path) -> None:
    order = {
        "recipe": toml.loads(written(tmp_path, "").read_text()),
        "facts": None,
        "folder": str(tmp_path / "trial"),
        "metric": "val_acc",
    }
    answer = worker.run(order, lambda *_: pytest.fail("there is nothing to tell"))
    assert answer["kind"] == "no metric"
    assert {"val_accuracy", "val_loss", "train_loss"} <= set(answer["there"])


def ordered(folder: Path) -> dict[str, Any]:
    """What a worker is told of a trial."""
    return {
        "recipe": toml.loads(written(folder, "").read_text()),
        "facts": None,
        "folder": str(folder / "trial"),
        "metric": "val_accuracy",
    }


def test_an_error_of_another_library_s_is_the_trial_s_reason_and_its_traceback_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(loop, "train", fail)
    answer = worker.run(ordered(tmp_path), lambda *_: False)
    assert (answer["kind"], answer["reason"]) == ("failed", "RuntimeError: CUDA out of memory.")
    assert 0 <= answer["seconds"] < 60
    assert "in fail\n" in (tmp_path / "trial" / "error.txt").read_text()


def test_a_full_disk_is_no_fault_of_the_trial_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        with writing("--output", tmp_path, "checkpoints written before are whole"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(loop, "train", fail)
    answer = worker.run(ordered(tmp_path), lambda *_: False)
    assert (answer["kind"], answer["reason"]) == ("no room", f"{tmp_path / 'trial'}: No space left on device")


def test_the_best_by_another_metric_is_the_epoch_that_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, RANDOM)
    by_loss = sweep.request(str(path), ["sweep.metric=val_loss"], 5, 1, tmp_path)
    assert by_loss.words == (str(path), "--set", "keep.monitor=val_loss")
    assert by_loss.content["keep"] == {"monitor": "val_loss"}
    assert (by_loss.sweep.total, by_loss.sweep.towards) == (5, "minimize")
    told = sweep.request(str(path), ["sweep.metric=val_loss", "keep.monitor=val_accuracy"], None, 1, tmp_path)
    assert told.words == (str(path), "--set", "keep.monitor=val_accuracy")


def test_another_task_s_metric_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        sweep.request(str(written(tmp_path, RANDOM)), ["sweep.metric=val_rmse"], None, 1, tmp_path)
    words = "sweep.metric is 'val_rmse'; task classification has val_accuracy, val_loss, train_loss"
    assert str(caught.value).endswith(words)


def test_cores_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.setattr(crew.torch.cuda, "device_count", lambda: 1)
    assert crew.environment(0, 5, "auto") == {"OMP_NUM_THREADS": "2"}
    assert crew.environment(0, 50, "auto") == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert crew.environment(0, 2, "auto") == {"OMP_NUM_THREADS": "3"}
    monkeypatch.setattr(crew.torch.cuda, "device_count", lambda: 2)
    assert [crew.environment(place, 3, "auto")["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc")
    assert [crew.environment(place, 2, "cuda")["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["4", "GPU-abc"]
    assert "CUDA_VISIBLE_DEVICES" not in crew.environment(0, 2, "cpu")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("adam", "adam"),
        ("true", '"true"'),
        ("7", '"7"'),
        (True, "true"),
        (0.001, "0.001"),
        (1e-05, "1e-05"),
        ([8, 16], "[8, 16]"),
        ("./net.py:Net", "./net.py:Net"),
        ({"a": 1}, "{ a = 1 }"),
    ],
)
def test_a_setting_says_the_value_back(value: Any, text: str) -> None:
    from penstock.train import overrides

    assert outcome.setting(value) == text
    assert overrides.value(text) == value
    assert type(overrides.value(text)) is type(value)
    assert toml.loads(f"x = {text}" if text[0] not in "a." else f'x = "{text}"')["x"] == value

"""Two processes that learn together, and real signals: they stop together, and none waits for ever for another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.train import resuming

JOB = (
    *("-m", "penstock", "train", "digits", "--epochs", "40", "--output", "runs", "--no-progress"),
    *("--set", "model.kwargs.widths=[8]", "--set", "batch_size=512", "--set", "keep.ema=0.9"),
    *("--set", "machine.devices=2", "--set", "machine.device=cpu", "--set", "track={csv=false, tensorboard=false}"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
GIVE_UP_S = 240


@contextmanager
def begun(folder: Path, *words: str, epochs: int = 2) -> Iterator[subprocess.Popen[str]]:
    """A run that has come to the end of some epochs, whose processes are a group of their own."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        waited(lambda: len(history(folder)) >= epochs or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        for each in members(process.pid):
            os.kill(each, signal.SIGKILL)
        process.wait()


def waited(there: Any) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not there():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def history(folder: Path) -> list[Any]:
    path = folder / "runs/digits/history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(each.name))
    return found


def ended(process: subprocess.Popen[str]) -> str:
    """What a run has said, once none of its processes is left."""
    said, _ = process.communicate(timeout=GIVE_UP_S)
    waited(lambda: not members(process.pid))
    return said


def test_all_ranks_that_are_told_to_end_do_and_go_on_as_if_they_had_not(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    job = [word if word != "40" else "6" for word in JOB]
    with begun(whole, *job) as process:
        said = ended(process)
    assert process.returncode == 0, said
    with begun(cut, *job) as process:
        os.killpg(process.pid, signal.SIGTERM)
        said = ended(process)
    assert (process.returncode, "terminated" in said) == (143, True), said
    done = len(history(cut))
    assert 2 <= done < 6
    assert torch.load(cut / "runs/digits" / resuming.STATE, weights_only=True)["epoch"] == done
    with begun(cut, *job, "--resume", epochs=done) as process:
        said = ended(process)
    assert process.returncode == 0, said
    told = ("epoch", "train_loss", "val_loss", "val_accuracy", "lr")
    assert [[row[name] for name in told] for row in history(cut)] == [
        [row[name] for name in told] for row in history(whole)
    ]
    for name in ("last.pth", "best.pth"):
        found, wanted = (
            torch.load(folder / "runs/digits" / name, weights_only=True)["state_dict"] for folder in (cut, whole)
        )
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.models
def test_ranks_of_torchrun_s_end_with_it(tmp_path: Path) -> None:
    with begun(tmp_path, *TORCHRUN, *JOB) as process:
        os.killpg(process.pid, signal.SIGTERM)  # and torchrun tells them again
        said = ended(process)
    assert process.returncode != 0
    assert said.count("terminated") == 2, said  # which the two may write onto one line
    assert "SIGKILL" not in said
    state = torch.load(tmp_path / "runs/digits" / resuming.STATE, weights_only=True)
    assert state["epoch"] == len(history(tmp_path))


def test_a_signal_to_one_rank_is_all_the_others_too(tmp_path: Path) -> None:
    with begun(tmp_path, *JOB) as process:
        process.send_signal(signal.SIGINT)
        said = ended(process)
    assert process.returncode == 130
    assert said.splitlines().count("interrupted") == 2, said


def test_a_rank_that_is_killed_is_named_and_ends_the_run(tmp_path: Path) -> None:
    with begun(tmp_path, *JOB) as process:
        (other,) = set(members(process.pid)) - {process.pid}
        os.kill(other, signal.SIGKILL)
        said = ended(process)
    assert process.returncode == 2
    assert f"error: machine.devices: rank 1, process {other}, died of SIGKILL; --resume goes on after the last" in said


@pytest.mark.models
def test_a_rank_that_is_stopped_is_named_and_ends_the_run(tmp_path: Path) -> None:
    with begun(tmp_path, *JOB, "--set", "machine.timeout_s=20") as process:
        (other,) = set(members(process.pid)) - {process.pid}
        os.kill(other, signal.SIGSTOP)
        said = ended(process)
    assert process.returncode == 2
    assert f"error: machine.timeout_s: no batch has ended for 20 s; rank 1, process {other}, is stopped" in said


def test_ranks_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    with begun(tmp_path, *JOB) as process:
        process.kill()
        ended(process)
    assert process.returncode == -signal.SIGKILL

"""Several processes: they learn together, on gloo here, and leave one run."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock import checkpoint

COMMON = ("--epochs", "2", "--output", "runs", "--no-progress", "--set", "model.kwargs.widths=[8,8]")


def ran(folder: Path, command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(folder: Path, said: str, ranks: int) -> None:
    assert said.count("trained digits for 2 epochs") == 1
    assert said.count("1,257 train, 180 val, 360 test") == 1
    rows = [json.loads(line) for line in (folder / "runs/digits/history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    held = checkpoint.load(folder / "runs/digits/last.pth")
    assert held.card.metrics["val_accuracy"] == pytest.approx(rows[-1]["val_accuracy"])
    state = torch.load(folder / "runs/digits/state.pt", weights_only=True)
    rows_each = math.ceil(1257 / ranks)
    assert state["steps"] == 2 * math.ceil(rows_each / 64)


def test_two_processes_that_penstock_begins(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "train", "digits", *COMMON]
    said = ran(tmp_path, [*command, "--set", "machine.devices=2", "--set", "machine.device=cpu"])
    check(tmp_path, said, 2)


def test_a_network_with_parameters_that_it_does_not_use_is_trained_by_two_processes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.linear, self.spare = nn.Linear(64, classes), nn.Linear(3, 3)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x.flatten(1))\n"
    )
    command = [sys.executable, "-m", "penstock", "train", "digits", *COMMON[:-2], "--set", "track.tensorboard=false"]
    command += ["--set", "machine={devices=2, device='cpu'}", "--set", "model={target='./net.py:Net'}"]
    assert "trained digits for 2 epochs" in ran(tmp_path, command)


def test_two_nodes_of_torchrun(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    job = ["-m", "penstock", "train", "digits", *COMMON, "--set", "machine.nodes=2", "--set", "machine.device=cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen([*command, "--node-rank=1", *job], cwd=tmp_path, env=environment)
    try:
        said = ran(tmp_path, [*command, "--node-rank=0", *job])
        assert other.wait(60) == 0
    finally:
        other.kill()
    check(tmp_path, said, 2)

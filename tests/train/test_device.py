"""The device: what is refused, which switches are set and put back, and that batches arrive as they were."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from penstock.errors import PenstockError
from penstock.train import device
from penstock.train.device import Ahead
from penstock.train.recipe import Machine

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch find so many GPUs, with or without bf16."""

    def found(count: int, bf16: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation)

    return found


@pytest.mark.parametrize(
    ("count", "asked", "wanted"), [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cpu", "cpu"), (1, "cuda", "cuda")]
)
def test_auto_takes_a_gpu_where_there_is_one(gpus: Any, count: int, asked: Any, wanted: str) -> None:
    gpus(count)
    assert device.resolve(Machine(device=asked)) == wanted


@pytest.mark.parametrize(
    ("count", "machine", "told"),
    [
        (0, {"device": "cpu"}, "machine.devices is 1 and machine.nodes 1"),
        (0, {"devices": "auto", "nodes": 2}, "machine.devices is 1 and machine.nodes 2"),
        (4, {"devices": 4, "nodes": 1}, "machine.devices is 4 and machine.nodes 1"),
        (4, {"devices": "auto", "nodes": 2}, ""),
        (0, {"device": "cpu", "devices": 4, "nodes": 2}, ""),
    ],
)
def test_torchrun_must_start_the_processes_of_the_recipe(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, count: int, machine: dict[str, Any], told: str
) -> None:
    gpus(count)
    started = {"TORCHELASTIC_RUN_ID": "7", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "8"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    if not told:
        assert device.resolve(Machine(**machine))
        return
    hint = "--set machine.devices=4 --set machine.nodes=2"
    with pytest.raises(PenstockError, match=f"torchrun has started 4 processes on each of 2 nodes; {told}: {hint}"):
        device.resolve(Machine(**machine))


@pytest.mark.parametrize(
    ("count", "machine", "sentence"),
    [
        (0, {"device": "cuda"}, "machine.device is cuda; torch finds no GPU here: set machine.device to auto or cpu"),
        (2, {"devices": 3}, "machine.devices is 3; this machine has 2: set it to 2 or auto"),
        (0, {"precision": "fp16"}, "machine.precision is fp16, which needs a GPU"),
        (1, {"device": "cpu", "precision": "fp16"}, "machine.precision is fp16, which needs a GPU"),
        (0, {"sync_batchnorm": True}, "machine.sync_batchnorm is true, which needs GPUs"),
        (1, {"device": "cpu", "sync_batchnorm": True}, "machine.sync_batchnorm is true, which needs GPUs"),
        (0, {"devices": 4097}, "machine.devices is 4097, which are processes on the CPU; this machine has .* cores: "),
        (1, {"precision": "bf16"}, "machine.precision is bf16; Tesla T4 has no bf16: take fp16 or fp32"),
    ],
)
def test_what_the_machine_has_not_is_refused_in_a_sentence(
    gpus: Any, count: int, machine: dict[str, Any], sentence: str
) -> None:
    gpus(count, bf16=False)
    with pytest.raises(PenstockError, match=sentence):
        device.resolve(Machine(**machine))


def test_nodes_that_nothing_has_started_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PenstockError, match=r"machine.nodes is 2, .* torchrun --nnodes=2"):
        device.resolve(Machine(device="cpu", nodes=2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert device.resolve(Machine(device="cpu", nodes=2)) == "cpu"


@pytest.mark.parametrize(
    "machine",
    [{"devices": 2}, {"devices": "auto"}, {"precision": "bf16"}, {"precision": "fp16"}, {"sync_batchnorm": True}],
)
def test_what_the_machine_has_is_taken(gpus: Any, machine: dict[str, Any]) -> None:
    gpus(2)
    assert device.resolve(Machine(**machine)) == "cuda"


def switches() -> dict[str, Any]:
    return {
        "matmul": torch.backends.cuda.matmul.allow_tf32,
        "convolutions": torch.backends.cudnn.allow_tf32,
        "repeatable": torch.backends.cudnn.deterministic,
        "searched": torch.backends.cudnn.benchmark,
        "strict": torch.are_deterministic_algorithms_enabled(),
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_switches_are_as_asked_whatever_they_were_and_are_put_back(
    monkeypatch: pytest.MonkeyPatch, before: bool, tf32: bool, deterministic: bool
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with device.prepared(Machine(tf32=before, deterministic=before)):
        outside = switches()
        with device.prepared(Machine(tf32=tf32, deterministic=deterministic)):
            found = switches()
            workspace = found.pop("workspace")
            assert found == {
                "matmul": tf32,
                "convolutions": tf32,
                "repeatable": deterministic,
                "searched": not deterministic,
                "strict": deterministic,
            }
            assert workspace == (":4096:8" if deterministic or before else None)
        assert switches() == outside


def test_switches_are_put_back_after_an_error() -> None:
    before = switches()

    def fails() -> None:
        with device.prepared(Machine(tf32=True, deterministic=True)):
            raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        fails()
    assert switches() == before


def test_a_workspace_that_was_chosen_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with device.prepared(Machine(deterministic=True)):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_channels_last_lays_out_weights_and_changes_no_number() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    device.laid_out(net, Machine())
    assert not net[0].weight.is_contiguous(memory_format=torch.channels_last)
    device.laid_out(net, Machine(channels_last=True))
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_on_the_cpu_batches_are_passed_on_as_they_are() -> None:
    batches = [({"ids": torch.arange(3)}, torch.ones(3), ["a", 1]), [torch.zeros(2, 1, 4, 4)]]
    found = list(Ahead(batches, "cpu"))
    assert found[0][0]["ids"] is batches[0][0]["ids"]
    assert found[0][1] is batches[0][1]
    assert found[0][2] == ["a", 1]
    assert isinstance(found[0], tuple)
    assert found[1][0] is batches[1][0]


def test_a_loader_is_seen_through() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)
    ahead = Ahead(loader, "cpu")
    assert len(ahead) == 3
    assert ahead.dataset is loader.dataset
    assert ahead.batch_sampler is loader.batch_sampler
    for _ in range(2):  # each iteration begins anew
        assert torch.cat([batch for (batch,) in ahead]).tolist() == list(range(10))
    with pytest.raises(AttributeError):
        _ = ahead.nothing_of_the_kind


def test_every_tensor_of_a_batch_is_moved() -> None:
    batch = ({"ids": torch.arange(3), "masks": [torch.ones(3), torch.ones(2)]}, torch.zeros(1), "text")
    ((inputs, labels, text),) = Ahead([batch], "meta")
    assert {tensor.device.type for tensor in (inputs["ids"], *inputs["masks"], labels)} == {"meta"}
    assert text == "text"
    assert len(list(device._tensors(batch))) == 4


class Stream:
    """Stands for a CUDA stream, and writes down what happens in which order."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def __enter__(self) -> None:
        self.said.append(f"to {self.name}")

    def __exit__(self, *_: object) -> None:
        self.said.append(f"from {self.name}")

    def wait_stream(self, other: Stream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")


def test_the_next_batch_is_on_its_way_before_the_one_before_is_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    copies, now = Stream("copies", said), Stream("now", said)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: said.append(f"held for {stream.name}"))

    def batches() -> Any:
        for number in range(2):
            said.append(f"read {number}")
            yield torch.tensor([number])

    given = []
    for batch in Ahead(batches(), "cpu")._ahead(copies):  # type: ignore[arg-type]
        said.append("given")
        given.append(int(batch))
    assert given == [0, 1]
    copied = ["to copies", "from copies"]
    handed = ["now waits for copies", "held for now"]
    assert said == ["read 0", *copied, *handed, "read 1", *copied, "given", *handed, "given"]


@cuda
@pytest.mark.parametrize("pinned", [True, False])
def test_batches_arrive_on_a_gpu_as_they_were(pinned: bool) -> None:
    rows = torch.randn(64, 3, 32, 32)
    loader = DataLoader(TensorDataset(rows, torch.arange(64)), batch_size=8, pin_memory=pinned)
    found, seen = [], []
    for images, labels in Ahead(loader, "cuda"):
        torch.cuda._sleep(10_000_000)  # the copy of the next overtakes what computes with this one
        found.append((images * 2).cpu())
        seen += labels.tolist()
    assert torch.equal(torch.cat(found), rows * 2)
    assert seen == list(range(64))

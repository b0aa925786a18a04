"""The torch runtime over modules in memory: naming outputs, and leaving the caller's arrays alone."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock import runtimes
from penstock.errors import PenstockError
from penstock.runtimes import RejectedInput
from penstock.runtimes.torch import TorchRunner, _free_layouts, _send_constants, forbid_tf32_in
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="a", shape=("batch", 2)), Tensor(name="b", shape=("batch", 2))),
    dims={"batch": Dim(opt=2, max=4)},
)
ONE = SIGNATURE.model_copy(update={"outputs": SIGNATURE.outputs[:1]})
FEED = np.array([[1.0, -2.0]], np.float32)


def test_a_tuple_is_named_by_position() -> None:
    answer = TorchRunner(lambda x: (x + 1, x + 2), SIGNATURE).run({"x": FEED})
    assert {name: array.tolist() for name, array in answer.items()} == {"a": [[2, -1]], "b": [[3, 0]]}


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        (lambda x: x, ["answers 1 tensors", "names 2", "['a', 'b']"]),
        (lambda x: (x, x, x), ["answers 3 tensors", "names 2"]),
    ],
)
def test_other_outputs_than_the_signatures_are_refused(module: Any, parts: list[str]) -> None:
    with pytest.raises(PenstockError) as caught:
        TorchRunner(module, SIGNATURE).run({"x": FEED})
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_tuple_or_a_list_of_one_is_one_output(kind: Any) -> None:
    assert TorchRunner(lambda x: kind([x + 1]), ONE).run({"x": FEED})["a"].tolist() == [[2, -1]]


def test_a_program_of_torch_export_is_run_from_its_file(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x + 2

    sizes = {"x": {0: torch.export.Dim("batch", max=4)}}
    torch.export.save(torch.export.export(Net(), (torch.ones(2, 2),), dynamic_shapes=sizes), tmp_path / "model.pt2")
    with runtimes.load("torch", tmp_path / "model.pt2", SIGNATURE) as runner:
        answer = runner.run({"x": FEED})
    assert {name: array.tolist() for name, array in answer.items()} == {"a": [[2, -1]], "b": [[3, 0]]}
    with zipfile.ZipFile(tmp_path / "model.pt2", "a") as archive:
        archive.writestr("model/data/weights/model.pt", b"a pickle")
    with pytest.raises(PenstockError, match=r"model\.pt2: holds the entry 'data/weights/model\.pt'"):
        runtimes.load("torch", tmp_path / "model.pt2", SIGNATURE)


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_a_file_that_is_no_program_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"hello")
    with pytest.raises(PenstockError, match=name) as caught:
        runtimes.load("torch", tmp_path / name, SIGNATURE)
    assert "\n" not in str(caught.value)


def test_inputs_are_passed_by_position_in_the_signatures_order() -> None:
    two = Signature(
        inputs=(Tensor(name="p", shape=("batch",)), Tensor(name="q", shape=("batch",))),
        outputs=(Tensor(name="a", shape=("batch",)),),
        dims={"batch": Dim(opt=2, max=4)},
    )
    feeds = {"q": np.array([1.0], np.float32), "p": np.array([5.0], np.float32)}
    assert TorchRunner(lambda p, q: p - q, two).run(feeds)["a"].tolist() == [4.0]


@pytest.mark.parametrize("change", [nn.ReLU(inplace=True), lambda x: x.add_(1.0)], ids=["relu", "add"])
def test_a_module_that_works_in_place_leaves_the_feeds_as_they_were(change: Any) -> None:
    feed = FEED.copy()
    runner = TorchRunner(change, ONE)
    first = runner.run({"x": feed})["a"].tolist()
    assert np.array_equal(feed, FEED)
    assert runner.run({"x": feed})["a"].tolist() == first


def test_an_answer_is_never_the_callers_own_feed() -> None:
    feed = FEED.copy()
    answer = TorchRunner(nn.Identity(), ONE).run({"x": feed})["a"]
    assert not np.shares_memory(answer, feed)


def test_no_gradients_are_kept() -> None:
    seen: list[bool] = []
    TorchRunner(lambda x: seen.append(torch.is_inference_mode_enabled()) or x, ONE).run({"x": FEED})
    assert seen == [True]


def test_a_closed_runner_says_so() -> None:
    runner = TorchRunner(nn.Identity(), ONE)
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run({"x": FEED})


def raising(error: Exception) -> Any:
    def fail(x: torch.Tensor) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda x: x[:, [7]], "out of bounds"),
        (lambda x: x @ x.new_zeros(3, 3), "shapes cannot be multiplied"),
        (raising(RuntimeError("a frame\nand the reason")), "and the reason"),
        (raising(RuntimeError("")), "rejects"),
    ],
    ids=["index", "shapes", "last-line", "no-words"],
)
def test_inputs_that_do_not_suit_the_model_are_rejected_in_a_sentence(module: Any, said: str) -> None:
    with pytest.raises(RejectedInput, match="the model rejects these inputs") as caught:
        TorchRunner(module, ONE).run({"x": FEED})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "module",
    [raising(torch.OutOfMemoryError("no room")), lambda x: x + torch.empty(1 << 58)],
    ids=["device", "host"],
)
def test_a_machine_without_room_is_no_fault_of_the_inputs(module: Any) -> None:
    with pytest.raises(Exception, match=r"room|memory") as caught:
        TorchRunner(module, ONE).run({"x": FEED})
    assert not isinstance(caught.value, PenstockError)


class MakesItsOwn(nn.Module):
    """A convolution, and a tensor made while it runs, within another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + torch.arange(3, device=x.device)


def traced() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(MakesItsOwn().eval(), torch.ones(2, 1, 3, 3))


def graph(module: Any) -> Any:
    """The whole graph of the file that a module is saved as."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer).inlined_graph


def allowances(module: Any) -> list[bool]:
    held = graph(module)  # which its nodes do not outlive
    return [list(node.inputs())[-1].toIValue() for node in held.findAllNodes("aten::_convolution")]


def test_a_trace_no_longer_allows_tf32_to_its_convolutions() -> None:
    module = traced()
    assert allowances(module) == [True, True]  # what PyTorch records, unasked
    forbid_tf32_in(module)
    assert allowances(module) == [False, False]


def test_a_trace_makes_its_own_tensors_on_the_device_that_it_is_sent_to() -> None:
    module = traced()
    assert 'Device = prim::Constant[value="cpu"]' in str(graph(module))
    _send_constants(module, "meta")
    text = str(graph(module))
    assert 'Device = prim::Constant[value="meta"]' in text
    assert 'Device = prim::Constant[value="cpu"]' not in text


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 6)


def test_a_captured_program_copies_where_another_devices_layout_does_not_fit_its_views() -> None:
    program = torch.export.export(Flat(), (torch.ones(4, 2, 3),))
    laid_out_otherwise = torch.arange(24.0).reshape(4, 3, 2).transpose(1, 2)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        program.module()(laid_out_otherwise)
    _free_layouts(program)
    assert torch.equal(program.module()(laid_out_otherwise), laid_out_otherwise.reshape(4, 6))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--device cuda:0: PyTorch \S+ finds no CUDA device here"):
        runtimes.load("torch", tmp_path / "model.pt", ONE, device="cuda:0")

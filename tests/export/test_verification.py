"""`penstock verify --against`: an artifact is compared anew with a checkpoint, by the words of its receipt."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock import artifact, origin
from penstock.checkpoint import Override
from penstock.errors import GateError, PenstockError
from penstock.export import gate, pipeline, speed, verification
from penstock.export.pipeline import Request
from penstock.receipt import Source
from penstock.signature import Dim, Range
from penstock.state import Choice

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(40, width), nn.LayerNorm(width), nn.Linear(width, 3)
    def forward(self, ids, lengths):
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        held = (self.norm(self.table(ids)) * mask[:, :, None]).sum(1) / lengths[:, None]
        return {"logits": self.head(held), "held": held}
"""
OVERRIDE = Override(
    model="./net.py:Net",
    model_args={"width": 8},
    inputs=("ids:int64[batch,seq]", "lengths:int64[batch]"),
    dims={"seq": Dim(min=1, opt=6, max=11)},
    batch=Dim(min=1, opt=4, max=9),
    ranges={"lengths": Range(low=1, high="seq")},
    keep=("logits",),
    choice=Choice(ema=True, key=None, prefix=None, partial=()),
)


def weights(seed: int) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "net"}
    exec(NET, space)
    torch.manual_seed(seed)
    net: nn.Module = space["Net"]()
    return dict(net.state_dict())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with ./net.py, ckpt.pth (plain and averaged weights) and its export in two formats. Read only."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "net.py").write_text(NET)
    torch.save({"state_dict": weights(0), "state_dict_ema": weights(1)}, desk / "ckpt.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        request = Request(Path("ckpt.pth"), ("onnx", "torchscript"), override=OVERRIDE)
        pipeline.export(request, lambda line: None)
    return desk


@pytest.fixture
def desk(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def verify(
    artifact: str, against: str | Path = "ckpt.pth", model: str | None = "./net.py:Net", **more: Any
) -> list[str]:
    said: list[str] = []
    verification.verify(Path("models") / artifact, Path(against), more.pop("data", None), model, said.append, **more)
    return said


@pytest.mark.parametrize("name", ["ckpt-onnx-fp32", "ckpt-torchscript-fp32"])
def test_the_checkpoint_is_loaded_by_the_receipts_words_and_compared_at_every_size_of_the_gate(
    desk: Path, name: str
) -> None:
    text = "\n".join(verify(name))
    assert "digests as in the receipt" in text
    assert "./net.py:Net, 5 of 5 tensors loaded, from 'state_dict_ema'" in text
    assert "on 32 SYNTHETIC samples, at batches 1, 2, 4, 5, 7, 9" in text
    assert "logits: relative L2 error" in text
    assert text.endswith(f"verified: {name} version 1 answers as its source does")


def test_code_of_the_users_is_imported_only_when_it_is_named_again(desk: Path) -> None:
    with pytest.raises(
        PenstockError, match=r"'\./net\.py:Net', whose import would run its code.*--model \./net\.py:Net"
    ):
        verify("ckpt-onnx-fp32", model=None)


def test_other_weights_are_stopped_with_output_and_figure(desk: Path, tmp_path: Path) -> None:
    state = weights(1)
    state["head.bias"][2] += 0.001
    torch.save({"state_dict": weights(0), "state_dict_ema": state}, tmp_path / "other.pth")
    with pytest.raises(
        GateError,
        match=r"as \S+other\.pth does, on 32 SYNTHETIC samples: output 'logits' at batch 1: .*limit of \S+$",
    ):
        verify("ckpt-onnx-fp32", tmp_path / "other.pth")


def test_the_plain_weights_of_the_same_file_are_other_weights(desk: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": weights(1), "state_dict_ema": weights(0)}, tmp_path / "swapped.pth")
    with pytest.raises(GateError, match="logits"):
        verify("ckpt-onnx-fp32", tmp_path / "swapped.pth")


def test_another_file_with_the_same_weights_passes_and_is_noted(desk: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": weights(0), "state_dict_ema": weights(1), "epoch": 3}, tmp_path / "again.pth")
    said = verify("ckpt-onnx-fp32", tmp_path / "again.pth")
    assert any(line.startswith("note: ") and "not the file that the artifact was made of" in line for line in said)


def test_code_that_has_changed_since_is_noted(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET + "\n# more\n")
    said = verify("ckpt-onnx-fp32", model=f"{tmp_path}/net.py:Net")
    assert any("has changed since" in line for line in said)


def test_samples_of_the_users_are_compared(desk: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 40, (5, 7))
    np.savez(tmp_path / "samples.npz", ids=ids, lengths=np.array([7, 1, 3, 2, 7]))
    assert any("on 5 real samples" in line for line in verify("ckpt-onnx-fp32", data=tmp_path / "samples.npz"))


def test_samples_that_do_not_fit_are_refused(desk: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", ids=np.zeros((5, 7), np.int64))
    with pytest.raises(PenstockError, match="lengths"):
        verify("ckpt-onnx-fp32", data=tmp_path / "samples.npz")


def test_a_model_of_another_contract_is_refused_with_both(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("nn.Linear(width, 3)", "nn.Linear(width, 4)"))
    state = weights(1)
    state["head.weight"], state["head.bias"] = torch.zeros(4, 8), torch.zeros(4)
    torch.save({"state_dict": state, "state_dict_ema": state}, tmp_path / "four.pth")
    with pytest.raises(PenstockError, match=r"logits:float32\[batch,4\].*logits:float32\[batch,3\].*another model"):
        verify("ckpt-onnx-fp32", tmp_path / "four.pth", f"{tmp_path}/net.py:Net")


def test_a_damaged_artifact_is_refused_before_the_checkpoint_is_read(desk: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ckpt-onnx-fp32"
    shutil.copytree(desk / "models/ckpt-onnx-fp32", copy)
    content = bytearray((copy / "1/model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "1/model.onnx").write_bytes(content)
    with pytest.raises(PenstockError, match=r"model\.onnx: its bytes are not those that the receipt vouches for"):
        verify(str(copy), "no-such-file.pth")


def test_limits_that_the_user_gave_hold_here_too(desk: Path, tmp_path: Path) -> None:
    request = Request(Path("ckpt.pth"), override=OVERRIDE, output=tmp_path, max_error=0.5, min_agreement=0.1)
    (loose,) = pipeline.export(request, lambda line: None)
    state = weights(1)
    state["head.bias"][2] += 0.001
    torch.save({"state_dict": weights(0), "state_dict_ema": state}, tmp_path / "other.pth")
    assert verify(str(loose.folder.parent), tmp_path / "other.pth")[-1].startswith("verified: ")


def test_a_pickled_module_is_run_only_when_that_is_allowed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), "whole.pth")
    override = Override(inputs=("x:float32[batch,4]",), allow_pickle=True)
    pipeline.export(Request(Path("whole.pth"), override=override), lambda line: None)
    with pytest.raises(PenstockError, match="--allow-pickle"):
        verify("whole-onnx-fp32", "whole.pth", None)
    said = verify("whole-onnx-fp32", "whole.pth", None, allow_pickle=True)
    assert said[-1].startswith("verified: ")


def test_a_program_is_compared_without_an_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
    torch.jit.save(torch.jit.trace(module, torch.ones(2, 4)), "program.pt")
    request = Request(Path("program.pt"), override=replace(Override(), inputs=("x:float32[batch,4]",)))
    pipeline.export(request, lambda line: None)
    assert verify("program-onnx-fp32", "program.pt", None)[-1].startswith("verified: ")


def test_arguments_that_the_user_gave_without_a_model_are_given_again() -> None:
    source = Source(
        checkpoint="bert",
        sha256="0" * 64,
        architecture="transformers:bert",
        loaded=1,
        expected=1,
        options=("--model-args", "hidden_act='relu'"),
    )
    assert origin.override(source, None, False).model_args == {"hidden_act": "relu"}


# --- What it was exported on -----------------------------------------------------------------------------------------

LINEAR = Override(model="./linear.py:net", inputs=("x:float32[batch,8]",))


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(8, 4)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with linear.pth, and its fp16 export on the 40 rows of rows.npz, which it answers right; other.pth."""
    desk = tmp_path_factory.mktemp("labelled")
    (desk / "linear.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(8, 4)\n")
    torch.save(linear(0).state_dict(), desk / "linear.pth")
    torch.save(linear(1).state_dict(), desk / "other.pth")
    x = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    with torch.inference_mode():
        labels = linear(0)(torch.from_numpy(x)).argmax(1).numpy()
    np.savez(desk / "rows.npz", x=x, labels=labels)
    np.savez(desk / "unlabelled.npz", x=x)
    request = Request(Path("linear.pth"), precisions=("fp16",), override=LINEAR, data=Path("rows.npz"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        patch.setattr(speed, "_SECONDS", 0.05)
        pipeline.export(replace(request, accuracy_drop=3.0), lambda line: None)
        pipeline.export(replace(request, name="plain"), lambda line: None)
    return desk


NOT_LOOKED_AT = "note: the accuracy that it was exported for was not looked at: --data with labels does"


def test_accuracy_that_it_was_exported_for_is_counted_and_said_again(
    labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(labelled)
    kept = artifact.read(Path("models/linear-onnx-fp16")).receipt.verification.accuracy
    assert kept is not None
    said = verify("linear-onnx-fp16", "linear.pth", "./linear.py:net", data=Path("rows.npz"))
    assert f"  accuracy 100.00% -> {kept.export:.2%} of 40 (may fall by 3 points)" in said
    assert NOT_LOOKED_AT not in said
    assert said[-1].startswith("verified: ")


@pytest.mark.parametrize("data", [None, Path("unlabelled.npz")])
def test_accuracy_that_cannot_be_counted_again_is_said_to_be_left_out(
    labelled: Path, monkeypatch: pytest.MonkeyPatch, data: Path | None
) -> None:
    monkeypatch.chdir(labelled)
    said = verify("linear-onnx-fp16", "linear.pth", "./linear.py:net", data=data)
    assert NOT_LOOKED_AT in said
    assert not any(line.startswith("  accuracy ") for line in said)
    assert said[-1].startswith("verified: ")


def test_labels_of_the_data_set_that_the_checkpoint_records_need_no_naming(trained: Path, tmp_path: Path) -> None:
    request = Request(trained, precisions=("int8",), output=tmp_path, accuracy_drop=1.0)
    (made,) = pipeline.export(request, lambda line: None)
    said: list[str] = []
    verification.verify(made.folder.parent, trained, None, None, said.append)
    assert NOT_LOOKED_AT not in said
    assert any(line.startswith("  accuracy ") and line.endswith("(may fall by 1 points)") for line in said)


def test_accuracy_that_falls_by_more_than_it_may_stops_it(labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels are now those of other weights, and so is the source: the artifact gets few of them right."""
    monkeypatch.chdir(labelled)
    with np.load("rows.npz") as held, torch.inference_mode():
        x = held["x"]
        labels = linear(1)(torch.from_numpy(x)).argmax(1).numpy()
        right = np.mean(linear(0)(torch.from_numpy(x)).argmax(1).numpy() == labels)
    np.savez("theirs.npz", x=x, labels=labels)
    monkeypatch.setattr(gate, "verify", lambda *_, **__: [])
    monkeypatch.setattr(gate, "verify_places", lambda *_: [])
    with pytest.raises(GateError) as caught:
        verify("linear-onnx-fp16", "other.pth", "./linear.py:net", data=Path("theirs.npz"))
    assert f"on 40 real samples: top-1 accuracy falls by {100 * (1 - right):.2f} points from 100.00%" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("data", "kind", "hint"),
    [
        (None, "64 SYNTHETIC", "; its receipt's were 40 real ones: --data rows.npz"),
        (Path("unlabelled.npz"), "40 real", ""),
    ],
)
def test_a_failure_on_synthetic_samples_names_the_real_ones_of_the_receipt(
    labelled: Path, monkeypatch: pytest.MonkeyPatch, data: Path | None, kind: str, hint: str
) -> None:
    monkeypatch.chdir(labelled)
    with pytest.raises(GateError) as caught:
        verify("plain-onnx-fp16", "other.pth", "./linear.py:net", data=data)
    assert f"/1 does not answer as other.pth does, on {kind} samples: output 'output' at batch 1: " in str(caught.value)
    assert str(caught.value).endswith(hint)
    assert ("its receipt's were" in str(caught.value)) == bool(hint)

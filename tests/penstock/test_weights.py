"""Files of weights: what runs nothing is read as data, and all else is refused by what it needs."""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import warnings
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock import weights
from penstock.errors import PenstockError
from penstock.weights import Contents

both_forms = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
STATE = nn.Linear(3, 2).state_dict()


def saved(path: Path, content: Any, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def read(path: Path, **options: Any) -> Contents:
    return weights.read(path, **options)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(PenstockError) as caught:
        weights.read(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert "\x1b" not in message
    return message


class Custom:
    """A class that somebody pickled beside their weights."""


class Evil:
    """A pickle that makes a file when it is loaded by plain pickle."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


@both_forms
@pytest.mark.parametrize("name", ["a.pth", "a.pt", "a.ckpt", "a.pth.tar", "pytorch_model.bin", "weights"])
def test_a_dictionary_is_read_whatever_the_file_is_called(tmp_path: Path, name: str, zipped: bool) -> None:
    found = read(saved(tmp_path / name, {"state_dict": STATE, "epoch": 3}, zipped))
    assert found.kind == "weights"
    assert found.value["epoch"] == 3
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in found.value["state_dict"].items())


HARMLESS = {
    "float64": np.float64(0.5),
    "float32": np.float32(0.5),
    "int64": np.int64(-3),
    "bool": np.bool_(True),
    "text": np.str_("a"),
    "array": np.arange(6.0).reshape(2, 3),
    "confusion": np.array([[1, 2], [3, 4]], np.uint16),
    "names": np.array(["cat", "dog"]),
    "random": np.random.RandomState(0).get_state(),
    "options": argparse.Namespace(lr=0.1, data=Path("data/train"), device="cuda:0", sizes=[1, 2]),
    "path": Path("runs/best.pth"),
    "counter": Counter("abba"),
    "ordered": OrderedDict(a=1),
    "set": {1, 2},
    "device": torch.device("cpu"),
    "dtype": torch.bfloat16,
    "none": None,
}


@both_forms
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_runs_nothing_is_read_beside_the_weights(tmp_path: Path, kind: str, zipped: bool) -> None:
    value = HARMLESS[kind]
    found = read(saved(tmp_path / "a.pth", {"state_dict": STATE, "best": value}, zipped)).value["best"]
    assert type(found) is type(value)
    if isinstance(value, np.ndarray):
        assert found.dtype == value.dtype
        assert np.array_equal(found, value)
    else:
        assert str(found) == str(value)


@pytest.mark.parametrize("home", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_numbers_are_read_whichever_numpy_wrote_them(tmp_path: Path, home: bytes) -> None:
    path = saved(tmp_path / "a.pth", {"best": np.float64(0.5), "all": np.arange(3)}, zipped=False)
    data = path.read_bytes()
    for other in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        data = data.replace(other, home)
    assert home in data
    path.write_bytes(data)
    assert read(path).value["best"] == 0.5
    assert read(path).value["all"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("home", [b"pathlib", b"pathlib._local"])
def test_paths_are_read_whichever_python_wrote_them(tmp_path: Path, home: bytes) -> None:
    path = saved(tmp_path / "a.pth", {"out": Path("runs")}, zipped=False)
    data = path.read_bytes().replace(b"pathlib._local\n", b"pathlib\n")
    path.write_bytes(data.replace(b"pathlib\n", home + b"\n"))
    assert read(path).value["out"] == Path("runs")


@both_forms
def test_pickled_code_is_refused_by_its_names_and_not_run(tmp_path: Path, zipped: bool) -> None:
    witness = tmp_path / "witness"
    content = {"state_dict": STATE, "best": np.float64(1), "hook": Evil(witness), "config": Custom()}
    message = refusal(saved(tmp_path / "a.pth", content, zipped))
    named = f"{os.system.__module__}.system, {Custom.__module__}.Custom"
    assert f"needs pickled code ({named}), which may run anything when loaded" in message
    assert (
        "save model.state_dict() and give the class with --model, or, if you trust the file, --allow-pickle" in message
    )
    assert not witness.exists()


@both_forms
@pytest.mark.parametrize("wrapped", [True, False], ids=["in a dictionary", "alone"])
def test_a_pickled_module_is_refused_and_loaded_where_that_is_allowed(
    tmp_path: Path, zipped: bool, wrapped: bool
) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    path = saved(tmp_path / "a.pth", {"model": module, "epoch": 3} if wrapped else module, zipped)
    assert "torch.nn.modules.container.Sequential, torch.nn.modules.linear.Linear" in refusal(path)
    said: list[str] = []
    found = read(path, allow_pickle=True, say=said.append)
    assert found.kind == ("weights" if wrapped else "module")
    loaded = found.value["model"] if wrapped else found.value
    assert torch.equal(loaded(torch.ones(1, 3)), module(torch.ones(1, 3)))
    (line,) = said
    assert line.startswith(f"{path}: --allow-pickle imports ")
    assert "torch.nn.modules.activation.ReLU" in line


def test_names_are_said_before_anything_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    path = saved(tmp_path / "a.pth", {"state_dict": STATE, "hook": Evil(witness)})

    def say(line: str) -> None:
        assert not witness.exists()
        assert f"imports 1 names: {os.system.__module__}.system" in line
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(path, allow_pickle=True, say=say)
    assert not witness.exists()
    read(path, allow_pickle=True)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_nothing_is_said_of_a_file_that_needs_no_code(tmp_path: Path) -> None:
    said: list[str] = []
    read(saved(tmp_path / "a.pth", STATE), allow_pickle=True, say=said.append)
    assert said == []


def test_code_that_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    class Failing:
        def __reduce__(self) -> Any:
            return divmod, (1, 0)

    path = saved(tmp_path / "a.pth", {"a": Failing()})
    assert "its pickled code fails: ZeroDivisionError: " in refusal(path, allow_pickle=True)


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part(3, 2)

    def forward(self, x):
        return self.part(x)

class Part(nn.Linear):
    pass
"""


@pytest.fixture
def of_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a script pickled as its own, and the script, ./net.py, beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("net.py").write_text(NET)
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(NET, main)
    for name in ("Net", "Part"):
        monkeypatch.setattr(sys.modules["__main__"], name, main[name], raising=False)
    path = saved(tmp_path / "a.pth", {"model": main["Net"](), "epoch": 1})
    for name in ("Net", "Part"):
        monkeypatch.delattr(sys.modules["__main__"], name)
    return path


def test_classes_of_a_script_are_taken_from_the_file_that_the_user_names(of_main: Path) -> None:
    found = read(of_main, allow_pickle=True, model="./net.py:Net").value["model"]
    assert type(found).__module__.startswith("_penstock_net_")
    assert tuple(found(torch.ones(1, 3)).shape) == (1, 2)


def test_classes_of_a_script_that_nobody_names_are_asked_for(of_main: Path) -> None:
    assert "__main__.Net" in refusal(of_main)
    message = refusal(of_main, allow_pickle=True)
    assert "'__main__.Net' cannot be imported" in message
    assert "give the file that defines it with --model ./FILE.py:Net" in message


def test_a_class_that_the_named_file_lacks_is_told(of_main: Path) -> None:
    Path("other.py").write_text("from torch import nn\nclass Net(nn.Module): pass\n")
    with pytest.raises(PenstockError, match=r"--model \./other\.py:Part: \./other\.py has no 'Part'"):
        read(of_main, allow_pickle=True, model="./other.py:Net")


@pytest.mark.parametrize("protocol", [4, 5])
def test_weights_of_a_newer_pickle_protocol_are_not_called_damaged(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pth"
    torch.save({"state_dict": STATE, "note": "x" * 9}, path, pickle_protocol=protocol)
    message = refusal(path)
    assert "is pickled with protocol 4 or later" in message
    assert "--allow-pickle loads it" in message
    assert torch.equal(read(path, allow_pickle=True).value["state_dict"]["bias"], STATE["bias"])


def test_a_newer_protocol_hides_no_code(tmp_path: Path) -> None:
    path, witness = tmp_path / "a.pth", tmp_path / "witness"
    torch.save({"hook": Evil(witness), "note": "x" * 9}, path, pickle_protocol=4)
    assert f"needs pickled code ({os.system.__module__}.system)" in refusal(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello, world\n", b"{}", b"\x80", b"\x80\x02", b"PK\x03\x04", b"\0" * 1000, b"\x80\x02}.", b"\x80\x04N."],
)
@pytest.mark.parametrize("allowed", [True, False])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, allowed: bool) -> None:
    path = tmp_path / "bad.pth"
    path.write_bytes(content)
    assert "truncated, damaged, or not a PyTorch checkpoint" in refusal(path, allow_pickle=allowed)


@both_forms
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, zipped: bool) -> None:
    whole = saved(tmp_path / "a.pth", {"state_dict": STATE, "epoch": 3}, zipped).read_bytes()
    path = tmp_path / "cut.pth"
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        refusal(path)
    path.write_bytes(whole[:-1])
    refusal(path)


def test_one_changed_bit_is_refused_with_the_entry_it_lies_in(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", {"w": torch.ones(1000)})
    data = bytearray(path.read_bytes())
    place = data.index(struct.pack("<f", 1.0) * 10) + 400
    data[place] ^= 1
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith("data/0"))
    assert f"damaged: the checksum of its entry {name!r} is wrong" in refusal(path)


def test_an_entry_that_cannot_be_unpacked_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", STATE)
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 10 : place + 12] = b"\x63\x00"  # a compression that nobody knows
    path.write_bytes(data)
    assert "damaged: NotImplementedError" in refusal(path)


@pytest.mark.parametrize(("content", "kind"), [([1, 2], "list"), (torch.zeros(2), "Tensor"), (None, "NoneType")])
def test_content_that_is_no_dictionary_is_refused_with_its_type(tmp_path: Path, content: Any, kind: str) -> None:
    assert f"holds a {kind}; a checkpoint holds a dictionary" in refusal(saved(tmp_path / "a.pth", content))


def test_safetensors_are_read_with_what_the_file_says_of_itself(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    library.save_file(tensors, path, metadata={"format": "pt"})
    found = read(path)
    assert found.kind == "weights"
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.value.items())
    assert found.value["b"].dtype == torch.bfloat16


def header(content: Any, size: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 64,
        b"hello, world, this is no file of tensors",
        header({}, size=1 << 60),
        header(b"{"),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        header({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 4]}}) + b"\0" * 4,
    ],
    ids=["empty", "short", "zeros", "text", "long header", "no json", "cut", "dtype", "overflow"],
)
def test_damaged_safetensors_are_refused(tmp_path: Path, data: bytes) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    assert "not a safetensors file, or a damaged one: " in refusal(path)


def test_safetensors_without_the_library_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({}))
    with pytest.raises(PenstockError, match=r"reading model\.safetensors needs safetensors, which is not installed"):
        read(path)


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "a.pth", STATE)

    def forbid(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "is_zipfile", forbid)
    assert "cannot be read: Permission denied" in refusal(path)


def test_the_file_of_weights_is_the_file_itself_or_the_folders(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.pth", STATE)
    assert weights.locate(file) == file
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(PenstockError, match=r"bert: a transformers folder without one of model\.safetensors, pytorch_"):
        weights.locate(folder)
    (folder / "pytorch_model.bin").touch()
    assert weights.locate(folder) == folder / "pytorch_model.bin"
    (folder / "model.safetensors").touch()
    assert weights.locate(folder) == folder / "model.safetensors"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.pth", "no such file"),
        ("folder", "is a folder; give a checkpoint file, as in runs/digits/best.pth"),
        ("model.onnx", "is exported already, not a checkpoint; penstock serve takes an .onnx file"),
        ("model.plan", "is exported already, not a checkpoint"),
        ("model.engine", "is exported already, not a checkpoint"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_by_its_path(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("model.onnx", "model.plan", "model.engine"):
        (tmp_path / file).touch()
    with pytest.raises(PenstockError) as caught:
        weights.locate(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {said}")


def test_what_unpacks_to_far_more_than_it_is_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(300 << 20))
    with pytest.raises(PenstockError, match="damaged: it unpacks to 314572800 bytes"):
        weights.read(path)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "a.pth", "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(archive.namelist()[0], b"")
    with pytest.raises(PenstockError, match="two entries of one name"):
        weights.read(tmp_path / "a.pth")

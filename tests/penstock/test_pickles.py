"""Pickles: the names that one would import are listed without importing any, and loading is held to the list."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock import pickles
from penstock.errors import PenstockError

FORMS = ("zip", "legacy", "protocol-2", "protocol-4")


def write(path: Path, content: Any, form: str = "zip") -> Path:
    if form.startswith("protocol"):
        path.write_bytes(pickle.dumps(content, protocol=int(form[-1])))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    return path


def raw(path: Path, opcodes: bytes) -> Path:
    path.write_bytes(b"\x80\x02" + opcodes)
    return path


def loaded(path: Path, allowed: list[str] | None = None, **stand_ins: Any) -> Any:
    return pickles.load(path, pickles.names(path) if allowed is None else allowed, stand_ins)


class Evil:
    """A pickle that makes a file when it is loaded by plain pickle."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is made by whoever imports the module `penstock_trap`."""
    witness = tmp_path / "witness"
    (tmp_path / "penstock_trap.py").write_text(f"open({str(witness)!r}, 'w').close()\nclass Net: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield witness
    sys.modules.pop("penstock_trap", None)


@pytest.mark.parametrize("form", FORMS)
def test_names_are_listed_in_order_and_nothing_is_called(tmp_path: Path, form: str) -> None:
    witness = tmp_path / "witness"
    path = write(tmp_path / "a.pth", {"net": nn.Linear(1, 1).bias, "hook": Evil(witness), "x": Path("a")}, form)
    found = pickles.names(path)
    assert found[-2:] == [f"{os.system.__module__}.system", f"{type(Path()).__module__}.PosixPath"]
    assert not witness.exists()


def test_listing_imports_nothing(tmp_path: Path, trap: Path) -> None:
    path = raw(tmp_path / "a.pth", b"cpenstock_trap\nNet\n)\x81.")
    assert pickles.names(path) == ["penstock_trap.Net"]
    assert not trap.exists()
    assert "penstock_trap" not in sys.modules
    pickle.loads(path.read_bytes())
    assert trap.exists(), "the module is harmless: this test proves nothing"


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_module_lists_its_layers_and_what_builds_them(tmp_path: Path, form: str) -> None:
    found = pickles.names(write(tmp_path / "a.pth", nn.Sequential(nn.Linear(2, 2), nn.ReLU()), form))
    assert {"torch.nn.modules.container.Sequential", "torch.nn.modules.activation.ReLU"} <= set(found)
    assert not any("Storage" in name or "_rebuild" in name for name in found)


KINDS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_tensors_need_no_name(tmp_path: Path, form: str, kind: str) -> None:
    content = {"w": nn.Parameter(torch.zeros(2)), "x": torch.zeros(2).to(getattr(torch, kind)), "s": {1}}
    content["size"] = torch.Size([1])
    assert pickles.names(write(tmp_path / "a.pth", content, form)) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_listed_or_found_to_be_no_pickle(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.pth"
    path.write_bytes(data)
    assert isinstance(pickles.names(path), list)


def test_what_was_named_before_the_damage_is_listed(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.pth", {"a": Evil(tmp_path / "w"), "b": Path("b")}, "protocol-2").read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: whole.index(b"pathlib")])
    assert pickles.names(tmp_path / "cut.pth") == [f"{os.system.__module__}.system"]


def test_every_pickle_of_an_old_file_is_listed(tmp_path: Path) -> None:
    """Files before torch 1.6 hold several, one after another."""
    path = tmp_path / "a.pth"
    path.write_bytes(pickle.dumps(1) + pickle.dumps([nn.Identity]) + pickle.dumps([nn.ReLU]))
    assert pickles.names(path) == ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"]


def global_named(module: str, name: str) -> bytes:
    """Opcodes that put `module.name` on the stack, in which dots of `name` lead through attributes (protocol 4)."""
    texts = b"".join(b"X" + struct.pack("<I", len(text)) + text.encode() for text in (module, name))
    return texts + b"\x93"


@pytest.mark.parametrize(
    ("module", "name"), [("torch.storage", "os.system"), ("torch.storage", "_load_from_bytes"), ("torch._utils", "sys")]
)
def test_no_name_hides_among_those_of_plain_tensors(tmp_path: Path, module: str, name: str) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(b"\x80\x04" + global_named(module, name) + b".")
    assert pickles.names(path) == [f"{module}.{name}"]
    with pytest.raises(PenstockError, match="hides the name"):
        loaded(path, [])


def test_a_memo_as_large_as_the_file_says_is_not_laid_out(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.pth", b"cos\nsystem\n0}r" + struct.pack("<I", 0x2000000) + b".")
    tracemalloc.start()
    assert pickles.names(path) == ["os.system"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "opcodes",
    [
        b"]" * 100_000 + b"a" * 99_999,
        b")" + b"\x85" * 100_000,
        b"(" * 100_000,
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
        b"]q\x00" + b"(h\x00h\x00lq\x00" * 1000,
    ],
    ids=["lists", "tuples", "marks", "text", "number", "doubling"],
)
def test_a_pickle_made_to_hang_does_not(tmp_path: Path, opcodes: bytes) -> None:
    assert pickles.names(raw(tmp_path / "a.pth", b"cos\nsystem\n0" + opcodes + b".")) == ["os.system"]


@pytest.mark.parametrize("form", FORMS[:2])
def test_what_was_listed_is_loaded(tmp_path: Path, form: str) -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    back = loaded(write(tmp_path / "a.pth", {"net": module, "epoch": 3}, form))
    assert back["epoch"] == 3
    assert torch.equal(back["net"](torch.ones(1, 2)), module(torch.ones(1, 2)))


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_name_that_is_not_allowed_is_refused_before_anything_runs(tmp_path: Path, form: str) -> None:
    witness = tmp_path / "witness"
    path = write(tmp_path / "a.pth", {"hook": Evil(witness)}, form)
    hidden = f"{os.system.__module__}.system"
    with pytest.raises(PenstockError, match=f"its pickle hides the name {hidden!r}, which was not on its list"):
        loaded(path, [])
    assert not witness.exists()
    loaded(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_a_name_that_is_made_while_loading_is_refused(tmp_path: Path) -> None:
    """Its module's name is put together by a call, which listing does not make."""
    witness = tmp_path / "witness"
    made = global_named("operator", "concat") + b"U\x01oU\x01s\x86RX\x06\x00\x00\x00system\x93"
    command = f"touch {witness}".encode()
    path = tmp_path / "a.pth"
    path.write_bytes(b"\x80\x04" + made + b"U" + bytes([len(command)]) + command + b"\x85R.")
    assert pickles.names(path) == ["operator.concat"]
    with pytest.raises(PenstockError, match=r"hides the name 'os\.system'"):
        loaded(path)
    assert not witness.exists()
    pickle.loads(path.read_bytes())
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_a_stand_in_is_used_instead_of_an_import(tmp_path: Path, trap: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"x": 0}, path, pickle_protocol=2)
    stand_in = {"penstock_trap.Net": nn.Identity}
    content = raw(tmp_path / "b.pth", b"cpenstock_trap\nNet\n)R.")
    # torch.load wants its own files: the pickle goes where torch puts one.
    import zipfile

    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "c.pth", "w") as new:
        for name in old.namelist():
            new.writestr(name, content.read_bytes() if name.endswith("data.pkl") else old.read(name))
    assert isinstance(pickles.load(tmp_path / "c.pth", [], stand_in), nn.Identity)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("opcodes", "said"),
    [
        (b"cno_such_module\nNet\n.", r"'no_such_module\.Net' cannot be imported \(No module named 'no_such_module'\)"),
        (b"ctorch.nn\nNo.\n.", r"'torch\.nn\.No\.' cannot be imported"),
    ],
)
def test_a_name_that_cannot_be_imported_says_how_to_give_it(tmp_path: Path, opcodes: bytes, said: str) -> None:
    with pytest.raises(PenstockError, match=said) as caught:
        loaded(raw(tmp_path / "a.pth", opcodes))
    assert "run penstock where it can, or give the file that defines it with --model ./FILE.py:" in str(caught.value)


def test_a_file_beside_the_users_work_shadows_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import colorsys

    path = write(tmp_path / "a.pth", {"function": colorsys.rgb_to_hls})
    (tmp_path / "colorsys.py").write_text("raise AssertionError('it was imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys")
    assert loaded(path)["function"].__code__ == colorsys.rgb_to_hls.__code__


def test_a_class_is_found_beside_the_users_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_layers.py").write_text("from torch import nn\nclass Layer(nn.Linear): pass\n")
    before = list(sys.path)
    sys.path.append(str(tmp_path))
    import my_layers  # type: ignore[import-not-found]

    path = write(tmp_path / "a.pth", my_layers.Layer(2, 2))
    sys.path.remove(str(tmp_path))
    del sys.modules["my_layers"]
    assert type(loaded(path)).__name__ == "Layer"
    assert sys.path == before
    sys.modules.pop("my_layers", None)

"""Programs: TorchScript and .pt2 files are opened as they are, and one that would run as Python is refused unread."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim as Size

from penstock import inspection, programs, runtimes, weights
from penstock.errors import PenstockError
from penstock.signature import Dim, Signature, Tensor

pytestmark = pytest.mark.filterwarnings("ignore")
AUTO = Size.AUTO
Change = Callable[[dict[str, Any]], Any]
MODEL = "models/model.json"


class Function(nn.Module):
    """A module that computes what a function makes of its layers and inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


class Pair(nn.Module):
    """Two inputs, one of them by keyword, and two named outputs."""

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "difference": x - y}


def export(module: nn.Module, arguments: Any, path: Path, by_name: Any = None, sizes: Any = None) -> Path:
    program = torch.export.export(module.eval(), arguments, by_name, dynamic_shapes=sizes)
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .pt2 file with weights, a buffer, a constant, a keyword, a computed size and a guard. Read only."""

    class Both(Function):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> Any:
            pooled = self.conv(x).mean((2, 3))
            return {"a": self.linear(pooled) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]), "b": torch.cat([y, y])}

    batch, high = Size("batch", min=2, max=32), Size("high", min=8, max=64)
    sizes = {"x": {0: batch, 2: high}, "y": {0: batch}}
    path = tmp_path_factory.mktemp("programs") / "clean.pt2"
    return export(Both(None), (torch.zeros(3, 3, 16, 16),), path, {"y": torch.zeros(3, 2)}, sizes)


def rewritten(clean: Path, path: Path, entries: dict[str, bytes], change: Change | None = None) -> Path:
    """The file with other or more entries, and its program changed."""
    with zipfile.ZipFile(clean) as old, zipfile.ZipFile(path, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        held = {full.partition("/")[2]: old.read(full) for full in old.namelist()}
        if change is not None:
            program = json.loads(held[MODEL])
            held[MODEL] = json.dumps(change(program) or program).encode()
        for name, data in {**held, **entries}.items():
            new.writestr(f"{root}/{name}", data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(PenstockError) as caught:
        programs.open_exported(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def beyond(path: Path) -> str:
    """What the file asks for beyond tensors."""
    message = refusal(path)
    said = ", which may run anything when loaded; penstock opens programs of tensors and operators"
    assert said in message
    assert "if you trust the file, --allow-pickle loads it" in message
    return message.removeprefix(f"{path}: ").partition(said)[0]


def run(path: Path) -> None:
    """Load a file as torch would, and call it: to see that what is refused is not harmless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.export.load(path).module()(torch.zeros(3, 3, 16, 16), y=torch.zeros(3, 2))
        except Exception:
            return


def replaced(old: str, new: str) -> Change:
    """A change of one text for another wherever the program has it."""
    return lambda program: json.loads(json.dumps(program).replace(json.dumps(old), json.dumps(new)))


class Evil:
    """A pickle that makes a file when it is loaded by plain pickle."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


def evil(witness: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": Evil(witness)}, buffer)
    return buffer.getvalue()


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once something hostile has run, as the import of the module `penstock_trap` is."""
    path = tmp_path / "witness"
    (tmp_path / "penstock_trap.py").write_text(f"open({str(path)!r}, 'w').close()\nname = dict\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    sys.modules.pop("penstock_trap", None)


def test_a_program_is_opened_and_answers_as_it_did(clean: Path) -> None:
    program = programs.open_exported(clean)
    answer = program.module()(torch.ones(5, 3, 20, 16), y=torch.ones(5, 2))
    assert {name: tuple(tensor.shape) for name, tensor in answer.items()} == {"a": (5, 4), "b": (10, 2)}


def test_a_files_kind_is_told_by_what_it_holds(clean: Path, tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "a.pth")
    torch.save({"a": 1}, tmp_path / "b.pth")
    (tmp_path / "c.pt2").write_bytes(b"hello")
    named = [clean, tmp_path / "a.pth", tmp_path / "b.pth", tmp_path / "c.pt2"]
    assert [programs.kind(path) for path in named] == ["exported", "torchscript", None, None]


FUNCTIONS: dict[str, Any] = {
    "convolution": lambda m, x: m.conv(x),
    "joined": lambda m, x: torch.cat([x, x[:, :, 1:]], 2),
    "padded": lambda m, x: F.pad(x, (0, 0, 0, (-x.shape[2]) % 4)),
    "flattened": lambda m, x: x.reshape(x.shape[0], -1),
    "scaled": lambda m, x: F.interpolate(x, scale_factor=1.5),
    "halved": lambda m, x: F.interpolate(x, size=(x.shape[2] // 2, 8)),
    "larger": lambda m, x: x.new_zeros(max(x.shape[2], 8)),
    "root": lambda m, x: x / x.shape[2] ** 0.5,
    "logic": lambda m, x: ((x > 0) & (x < 1)) | (x > 2) ^ (x > 3),
    "infinite": lambda m, x: x.masked_fill(x < 0, float("-inf")).softmax(1),
    "nested": lambda m, x: (x, [x + 1, {"two words": (x, None), 3: x}]),
    "branch": lambda m, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
}
SIZED: dict[str, Any] = {
    "windows": lambda m, x: F.pad(x, (0, 0, 0, (4 - x.shape[2] % 4) % 4)).unflatten(2, (-1, 4)),
    "smaller": lambda m, x: x[:, :, : min(x.shape[2], 8)],
    "larger": lambda m, x: x + 1 if max(x.shape[1], x.shape[2]) > 5 else x,
    "ratio": lambda m, x: x + 1 if x.shape[2] / x.shape[0] > 1.5 else x,
    "rounded": lambda m, x: x + 1 if round(x.shape[2] / 3) > 1 else x,
    "whole": lambda m, x: x.new_zeros(int(x.shape[2] ** 0.5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_of_operators_and_computed_sizes_are_opened(tmp_path: Path, name: str) -> None:
    sizes = {"x": {0: Size("batch", max=64), 2: Size("high", min=8, max=64)}}
    path = export(Function(FUNCTIONS[name]), (torch.zeros(2, 3, 16, 16),), tmp_path / "a.pt2", sizes=sizes)
    assert programs.beyond_tensors(path) is None
    programs.open_exported(path).module()(torch.zeros(2, 3, 16, 16))


@pytest.mark.parametrize("name", SIZED)
def test_programs_that_guard_their_sizes_are_opened(tmp_path: Path, name: str) -> None:
    sizes = {"x": {0: AUTO, 1: AUTO, 2: AUTO}}
    path = export(Function(SIZED[name]), (torch.zeros(2, 3, 16, 16),), tmp_path / "a.pt2", sizes=sizes)
    with zipfile.ZipFile(path) as archive:
        (entry,) = (full for full in archive.namelist() if full.endswith(MODEL))
        assert json.loads(archive.read(entry))["guards_code"], "nothing is guarded: this test proves nothing"
    assert programs.beyond_tensors(path) is None
    programs.open_exported(path).module()(torch.zeros(2, 3, 16, 16))


@pytest.mark.parametrize("part", ["weights", "constants"])
def test_a_tensor_that_is_a_pickle_is_refused_and_not_run(
    clean: Path, tmp_path: Path, witness: Path, part: str
) -> None:
    config = f"data/{part}/model_{part}_config.json"
    with zipfile.ZipFile(clean) as archive:
        root = archive.namelist()[0].partition("/")[0]
        held = json.loads(archive.read(f"{root}/{config}"))
    name, item = next(iter(held["config"].items()))
    item["use_pickle"] = True
    entries = {config: json.dumps(held).encode(), f"data/{part}/{item['path_name']}": evil(witness)}
    path = rewritten(clean, tmp_path / "evil.pt2", entries)
    assert beyond(path) == f"holds {name!r} as a pickle"
    assert not witness.exists()
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


@pytest.mark.parametrize("value", [None, 1, "", 0, "true"])
def test_only_a_plain_no_is_no_pickle(clean: Path, tmp_path: Path, value: Any) -> None:
    config = "data/weights/model_weights_config.json"
    entries = {config: json.dumps({"config": {"w": {"path_name": "weight_0", "use_pickle": value}}}).encode()}
    assert beyond(rewritten(clean, tmp_path / "a.pt2", entries)) == "holds 'w' as a pickle"


@pytest.mark.parametrize("kind", ["custom_obj_0", "opaque_obj_0", "opaque_obj_0_config.json"])
def test_a_constant_that_names_an_object_is_refused(clean: Path, tmp_path: Path, kind: str) -> None:
    config = "data/constants/model_constants_config.json"
    held = {"config": {"c": {"path_name": kind, "is_param": False, "use_pickle": False, "tensor_meta": None}}}
    assert beyond(rewritten(clean, tmp_path / "a.pt2", {config: json.dumps(held).encode()})) == "holds 'c' as a pickle"


def test_sample_inputs_that_are_a_pickle_are_refused_and_not_run(clean: Path, tmp_path: Path, witness: Path) -> None:
    path = rewritten(clean, tmp_path / "evil.pt2", {"data/sample_inputs/model.pt": evil(witness)})
    assert beyond(path) == "holds sample inputs that are more than tensors"
    assert not witness.exists()
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def deflated(path: Path, name: str, size: int) -> bytes:
    """A zip file's bytes with one more entry, of so many zeros."""
    with zipfile.ZipFile(path) as held:
        root = held.namelist()[0].partition("/")[0]
    copy = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(copy, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        entry = zipfile.ZipInfo(f"{root}/{name}")
        entry.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(entry, "w") as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
    return copy.getvalue()


def test_sample_inputs_that_unpack_to_far_more_than_they_are_are_refused_unread(clean: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    samples = {"data/sample_inputs/model.pt": deflated(tmp_path / "a.pt", "data/9", 300 << 20)}
    said = beyond(rewritten(clean, tmp_path / "bomb.pt2", samples))
    assert said.startswith("holds sample inputs that unpack to 3145")


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_a_program_that_unpacks_to_far_more_than_it_is_is_refused_unread(
    clean: Path, tmp_path: Path, kind: str
) -> None:
    path, name = tmp_path / f"bomb.{'pt2' if kind == 'pt2' else 'pt'}", "models/model2.json"
    if kind == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(nn.Linear(1, 1)), tmp_path / "a.pt")
        clean, name = tmp_path / "a.pt", "code/bomb.py"
    path.write_bytes(deflated(clean, name, 1 << 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    contract = Signature(inputs=(Tensor(name="x", shape=("batch", 1)),), outputs=(), dims={"batch": Dim(opt=1, max=1)})
    opened = (
        lambda: inspection.inspect(path),
        lambda: weights.read(path),
        lambda: runtimes.load("torch", path, contract),
    )
    for open_it in opened:
        with pytest.raises(PenstockError, match="damaged: it unpacks to 1073"):
            open_it()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.parametrize(
    "name",
    [
        "data/constants/custom_obj_0",
        "data/constants/opaque_obj_0",
        "data/constants/model.pt",
        "data/weights/model.pt",
        "data/aotinductor/model/model.so",
        "data/weights/../model.pt",
        "Models/model.json",
        "anything",
    ],
)
def test_an_entry_of_another_kind_is_refused_by_name(clean: Path, tmp_path: Path, name: str) -> None:
    path = rewritten(clean, tmp_path / "a.pt2", {name: pickle.dumps(1)})
    assert beyond(path) == f"holds the entry {name!r}"


def test_old_weights_that_are_a_pickle_are_not_run(clean: Path, tmp_path: Path, witness: Path) -> None:
    path = rewritten(clean, tmp_path / "evil.pt2", {"data/weights/model.pt": evil(witness)})
    beyond(path)
    assert not witness.exists()
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_extra_files_of_the_users_are_no_program(clean: Path, tmp_path: Path) -> None:
    path = rewritten(clean, tmp_path / "a.pt2", {"extra/labels.txt": b"cat\ndog\n", "extra/a/b.json": b"{}"})
    programs.open_exported(path)


def test_a_file_of_an_old_torch_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("serialized_state_dict.pt", pickle.dumps({}))
    assert programs.kind(path) == "exported"
    assert beyond(path) == "was written by torch 2.7 or earlier, whose files hold pickles"


def shape_of_an_output(text: str) -> Change:
    """A size, as the file writes one, that reads `text`."""

    def change(program: dict[str, Any]) -> None:
        meta = next(iter(program["graph_module"]["graph"]["tensor_values"].values()))
        meta["sizes"][0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 3}}}

    return change


def guarded(text: str) -> Change:
    return lambda program: program["guards_code"].append(text)


FULL_WIDTH = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(ord("a"), ord("z") + 1)})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "eval(chr(95))",
        "s0.__class__",
        "Symbol('s0').assumptions0",
        "Lambda(s0, s0)",
        "Symbol('s0\\x27')",
        'Symbol("s0")',
        "lambda: 0",
        "[Integer(1) for i in (1,)]",
        "s0;s1",
        "f'{s0}'",
        "ｅｖａｌ(1)",
        "Integer(１)",
        "s0 if s1 else {}",
        "print(1)",
    ],
)
@pytest.mark.parametrize("place", [shape_of_an_output, guarded])
def test_an_expression_that_is_more_than_arithmetic_is_refused(
    clean: Path, tmp_path: Path, place: Callable[[str], Change], text: str
) -> None:
    assert beyond(rewritten(clean, tmp_path / "a.pt2", {}, place(text))) == f"holds the expression {text!r}"


def test_an_expression_is_not_evaluated(clean: Path, tmp_path: Path, witness: Path) -> None:
    change = shape_of_an_output(f"__import__('os').system('touch {witness}')")
    path = rewritten(clean, tmp_path / "evil.pt2", {}, change)
    assert beyond(path).startswith("holds the expression ")
    assert not witness.exists()
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_a_guard_in_letters_that_python_takes_for_latin_is_not_run(clean: Path, tmp_path: Path, witness: Path) -> None:
    code = f"open({str(witness)!r}, 'w')".encode()
    word, other = "eval".translate(FULL_WIDTH), "bytes".translate(FULL_WIDTH)
    path = rewritten(clean, tmp_path / "evil.pt2", {}, guarded(f"{word}({other}([{','.join(map(str, code))}]))"))
    assert beyond(path).startswith("holds the expression ")
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


def called(target: str) -> Change:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = target

    return change


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.add.default.__class__",
        "torch.ops.aten.__class__",
        "torch.ops.image.write_file.default",
        "torch.ops.mine.op.default",
        "torch.ops.higher_order.cond.__class__",
        "torch.load",
        "torch.hub.load",
        "_operator.call",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "math.fsum",
        "#ext:op",
        "builtins.eval",
        "torch.ops.aten.ａdd.Tensor",
        "",
    ],
)
@pytest.mark.parametrize("place", ["target", "as_operator"])
def test_a_call_of_anything_but_operators_is_refused(clean: Path, tmp_path: Path, target: str, place: str) -> None:
    def given(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {"as_operator": target}

    path = rewritten(clean, tmp_path / "a.pt2", {}, called(target) if place == "target" else given)
    assert beyond(path) == f"calls {target!r}"


INJECTED = 'w", getattr(__import__("os"),"system")("touch {witness}")) # '


def test_a_name_of_a_weight_is_no_code(clean: Path, tmp_path: Path, witness: Path) -> None:
    """Torch writes it into the Python source of the module that it makes of the program."""
    name = f"conv.{INJECTED}".replace("{witness}", str(witness))
    config = "data/weights/model_weights_config.json"
    with zipfile.ZipFile(clean) as archive:
        root = archive.namelist()[0].partition("/")[0]
        held = archive.read(f"{root}/{config}").decode()
    entries = {config: held.replace('"conv.weight"', json.dumps(name)).encode()}
    path = rewritten(clean, tmp_path / "evil.pt2", entries, replaced("conv.weight", name))
    assert beyond(path) == f"holds the name {name[:60]!r}"
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


@pytest.mark.parametrize("name", ["x=print(1)", "x\ny", "x): pass #", "x;y", "x'", 'x"', "x\\", "ｘ", "x[0]", "{x}"])
@pytest.mark.parametrize("old", ["x", "conv2d", "linear.bias"])
def test_a_name_that_could_be_code_is_refused(clean: Path, tmp_path: Path, old: str, name: str) -> None:
    assert beyond(rewritten(clean, tmp_path / "a.pt2", {}, replaced(old, name))) == f"holds the name {name!r}"


@pytest.mark.parametrize("name", ["x=print(1)", "x, *y"])
def test_a_name_of_an_argument_that_could_be_code_is_refused(clean: Path, tmp_path: Path, name: str) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = ["x", name]

    assert beyond(rewritten(clean, tmp_path / "a.pt2", {}, change)) == f"holds the name {name!r}"


LEAF = {"type": None, "context": None, "children_spec": []}
STRUCTURES: dict[str, Any] = {
    "default": (
        "collections.defaultdict",
        {"default_factory_module": "penstock_trap", "default_factory_name": "name", "dict_context": ["a", "b"]},
    ),
    "enumeration": ("builtins.dict", json.dumps(["a", {"__enum__": True, "fqn": "penstock_trap:name", "name": "x"}])),
    "escaped": ("builtins.dict", '["a", {"__enum\\u005f_": 1, "fqn": "penstock_trap:name", "name": "x"}]'),
}


def structured(kind: str, context: Any, which: str = "out_spec") -> Change:
    def change(program: dict[str, Any]) -> None:
        spec = {"type": kind, "context": context, "children_spec": [LEAF, LEAF]}
        program["graph_module"]["module_call_graph"][0]["signature"][which] = json.dumps([1, spec])

    return change


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_that_names_a_module_is_refused_and_nothing_imported(
    clean: Path, tmp_path: Path, witness: Path, name: str
) -> None:
    path = rewritten(clean, tmp_path / "evil.pt2", {}, structured(*STRUCTURES[name]))
    assert beyond(path).startswith("holds the structure ")
    assert not witness.exists()
    run(path)
    assert witness.exists(), "the file is harmless: this test proves nothing"


@pytest.mark.parametrize("which", ["in_spec", "out_spec"])
def test_a_key_that_could_be_code_is_refused(clean: Path, tmp_path: Path, which: str) -> None:
    change = structured("builtins.dict", json.dumps(["a", "b=print(1)"]), which)
    assert beyond(rewritten(clean, tmp_path / "a.pt2", {}, change)).startswith("holds the structure ")


def test_an_entry_twice_is_refused(clean: Path, tmp_path: Path) -> None:
    """Which of the two is read depends on the reader."""
    path = rewritten(clean, tmp_path / "a.pt2", {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(next(full for full in archive.namelist() if full.endswith(MODEL)), b"{}")
    assert beyond(path) == f"holds the entry {MODEL!r} twice"


def two_archives(listed: Path, read: Path, path: Path) -> Path:
    """A zip file of two archives as long: Python's reader takes the last one, torch's that which the end points to."""
    shown, hidden = listed.read_bytes(), read.read_bytes()
    assert len(shown) == len(hidden)
    path.write_bytes(hidden[: hidden.rindex(b"PK\x05\x06")] + shown)
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(listed) as other:
        assert one.namelist() == other.namelist()
        assert all(one.read(full) == other.read(full) for full in one.namelist())
    return path


def test_what_torch_reads_is_what_is_looked_at(clean: Path, tmp_path: Path, witness: Path) -> None:
    evil_one = rewritten(clean, tmp_path / "evil.pt2", {}, guarded(f"open({str(witness)!r}, 'w')"))
    with zipfile.ZipFile(evil_one) as archive, zipfile.ZipFile(clean) as original:
        full = next(full for full in archive.namelist() if full.endswith(MODEL))
        harmless = json.dumps(json.loads(original.read(full))).encode().ljust(len(archive.read(full)))
    listed = rewritten(clean, tmp_path / "listed.pt2", {MODEL: harmless})
    assert programs.beyond_tensors(listed) is None
    path = two_archives(listed, evil_one, tmp_path / "both.pt2")
    assert beyond(path).startswith("holds the expression ")
    assert not witness.exists()
    run(path)
    assert witness.exists(), "torch reads the other archive: this test proves nothing"


def test_entries_that_only_torch_sees_are_refused(clean: Path, tmp_path: Path, witness: Path) -> None:
    data = evil(witness)
    listed = rewritten(clean, tmp_path / "listed.pt2", {"extra/" + "a" * len("weights/model.p"): data})
    hidden = rewritten(clean, tmp_path / "hidden.pt2", {"data/weights/model.pt": data})
    path = two_archives(listed, hidden, tmp_path / "both.pt2")
    assert beyond(path) == "holds other entries for torch than it lists"
    assert not witness.exists()
    run(path)
    assert witness.exists(), "torch reads the other archive: this test proves nothing"


@pytest.mark.parametrize("program", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff"])
def test_a_damaged_program_is_refused_in_one_sentence(clean: Path, tmp_path: Path, program: bytes) -> None:
    refusal(rewritten(clean, tmp_path / "a.pt2", {MODEL: program}))


def test_a_program_cut_anywhere_is_refused(clean: Path, tmp_path: Path) -> None:
    whole, path = clean.read_bytes(), tmp_path / "cut.pt2"
    for share in (0.0, 0.3, 0.7, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        refusal(path)


def test_what_the_user_trusts_is_loaded(clean: Path, tmp_path: Path) -> None:
    path = rewritten(clean, tmp_path / "a.pt2", {"anything": b"x"})
    reason, said = beyond(path), []
    assert programs.open_exported(path, trusted=True, say=said.append).module() is not None
    assert said == [f"{path}: {reason}; torch loads it because --allow-pickle says so"]


def test_what_torch_cannot_load_is_told_with_its_version(clean: Path, tmp_path: Path) -> None:
    def change(program: dict[str, Any]) -> None:
        program["schema_version"]["major"] += 1

    said = f"torch {torch.__version__} cannot load it: "
    assert said in refusal(rewritten(clean, tmp_path / "a.pt2", {}, change))


def test_the_inputs_of_a_program_are_its_own_with_their_ranges(clean: Path) -> None:
    signature = programs.signature(programs.open_exported(clean))
    assert [str(tensor) for tensor in signature.inputs] == ["x:float32[batch,3,size_1,16]", "y:float32[batch,2]"]
    assert signature.dims == {"batch": Dim(min=2, opt=8, max=32), "size_1": Dim(min=8, opt=8, max=64)}
    assert signature.outputs == ()


@pytest.mark.parametrize(
    ("sizes", "shape", "dims"),
    [
        (None, "x:float32[2,3,8,8]", {}),
        ({"x": {0: AUTO}}, "x:float32[batch,3,8,8]", {"batch": Dim(opt=8, max=64)}),
        ({"x": {0: Size("n", max=4)}}, "x:float32[batch,3,8,8]", {"batch": Dim(opt=4, max=4)}),
        ({"x": {2: Size("h", min=9, max=90)}}, "x:float32[2,3,size_0,8]", {"size_0": Dim(min=9, opt=9, max=90)}),
    ],
)
def test_a_size_is_as_dynamic_as_it_was_captured(tmp_path: Path, sizes: Any, shape: str, dims: dict[str, Dim]) -> None:
    example = torch.zeros(2, 3, 9 if sizes and 2 in sizes["x"] else 8, 8)
    path = export(Function(lambda m, x: x.relu()), (example,), tmp_path / "a.pt2", sizes=sizes)
    signature = programs.signature(programs.open_exported(path))
    assert [str(tensor) for tensor in signature.inputs] == [shape]
    if dims.get("batch"):
        assert signature.dims["batch"].max == dims["batch"].max
        assert signature.dims["batch"].opt == dims["batch"].opt
    else:
        assert signature.dims == dims


class Scripted(nn.Module):
    """A module with a branch that a trace would lose."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x + 1
        return x - 1


def test_a_torchscript_file_is_opened_in_eval_mode(tmp_path: Path) -> None:
    torch.jit.script(nn.Sequential(Scripted(), nn.Dropout(0.9)).train()).save(tmp_path / "a.pt")
    module = programs.open_torchscript(tmp_path / "a.pt")
    assert not module.training
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(module(-torch.ones(3)), torch.full((3,), -2.0))


class Reads(nn.Module):
    """A module that answers what is in a file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file("/etc/hostname", False, 1, dtype=torch.uint8)


class Saves(nn.Module):
    """A module that writes its input to a file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "written")
        return x


@pytest.mark.parametrize("kind", [Reads, Saves])
def test_torchscript_that_reads_or_writes_files_is_refused(tmp_path: Path, kind: type[nn.Module]) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(kind()).save(path)
    with pytest.raises(PenstockError, match=r"a\.pt: its code in code/__torch__\S*\.py reads or writes files"):
        programs.open_torchscript(path)


@pytest.mark.parametrize("spelled", ["torch . save", "ops.aten.save", "torch.\\\n save"])
def test_no_spelling_of_a_write_gets_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str) -> None:
    monkeypatch.chdir(tmp_path)
    torch.jit.script(Saves()).save("a.pt")
    with zipfile.ZipFile("a.pt") as old, zipfile.ZipFile("b.pt", "w") as new:
        for full in old.namelist():
            data = old.read(full)
            new.writestr(full, data.replace(b"torch.save", spelled.encode()) if full.endswith(".py") else data)
    with pytest.raises(PenstockError, match="reads or writes files"):
        programs.open_torchscript(Path("b.pt"))
    torch.jit.load("b.pt")(torch.ones(1))
    assert Path("written").exists(), "the file is harmless: this test proves nothing"


class Commented(nn.Module):
    """A module whose source speaks of what it does not do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # To save time, nothing is read: not by torch.save, nor from_file.
        return x + 1


def test_the_words_of_a_comment_are_no_code(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Commented()).save(path)
    with zipfile.ZipFile(path) as archive:
        held = b"".join(archive.read(full) for full in archive.namelist())
    assert b"torch.save" in held, "the file has no comment: this test proves nothing"
    programs.open_torchscript(path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_damaged_torchscript_file_is_refused_in_one_sentence(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(Scripted()).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(PenstockError, match=r"a\.pt: cannot be read as TorchScript: ") as caught:
        programs.open_torchscript(path)
    assert "\n" not in str(caught.value)


class Writes(torch.nn.Module):
    """Writes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path, self.training = state
        torch.save(torch.ones(1), self.path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: name[:-3] + ".PY" if name.endswith(".py") else name,
        lambda name: name.replace("/code/", "/CODE/"),
    ],
    ids=["as it was", "another suffix", "another folder"],
)
@pytest.mark.parametrize("decoy", [False, True])
def test_torchscript_that_writes_files_is_not_loaded_whatever_the_case_of_its_names(
    tmp_path: Path, rename: Callable[[str], str], decoy: bool
) -> None:
    target, path = tmp_path / "written", tmp_path / "program.pt"
    torch.jit.save(torch.jit.script(Writes(str(target))), tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(rename(name), old.read(name))
        if decoy:
            new.writestr(f"{old.namelist()[0].partition('/')[0]}/code/x", b"")
    signature = Signature(inputs=(), outputs=())
    for opened in (programs.open_torchscript, lambda path: runtimes.load("torch", path, signature)):
        with pytest.raises(PenstockError, match="reads or writes files"):
            opened(path)
    assert not target.exists()


def test_an_archive_with_two_entries_of_one_name_or_two_folders_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as old:
        held = {name: old.read(name) for name in old.namelist()}
    code = next(name for name in held if name.endswith(".py"))
    for extra in (code.upper(), f"other/{code}"):
        with zipfile.ZipFile(tmp_path / "double.pt", "w") as new:
            for name, content in {**held, extra: b""}.items():
                new.writestr(name, content)
        with pytest.raises(PenstockError, match=r"its entries are not those of one archive"):
            programs.open_torchscript(tmp_path / "double.pt")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["trace", "export"])
def test_a_program_whose_norms_take_the_batchs_statistics_is_refused(kind: str, training: bool) -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train(training), torch.randn(2, 3, 4, 4)
    program: Any = torch.jit.trace(module, x).eval() if kind == "trace" else torch.export.export(module, (x,))
    if not training:
        programs.refuse_training(program)
        return
    with pytest.raises(PenstockError, match=r"1 of its BatchNorms were captured in training mode.*\.eval\(\)"):
        programs.refuse_training(program)


def test_a_program_with_an_input_that_no_request_can_have_is_refused_with_it(tmp_path: Path) -> None:
    path = export(nn.Linear(3, 2).bfloat16(), (torch.ones(2, 3, dtype=torch.bfloat16),), tmp_path / "half.pt2")
    with pytest.raises(PenstockError, match="input input is of dtype bfloat16"):
        programs.signature(programs.open_exported(path))


def test_a_description_that_is_not_what_it_should_be_is_refused_in_one_sentence(clean: Path, tmp_path: Path) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = "[1]"

    assert "damaged" in refusal(rewritten(clean, tmp_path / "a.pt2", {}, change))

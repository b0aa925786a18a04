"""Architectures: modules are built from the name that a user gives, or the name is refused with the rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from penstock.architecture import Architecture, build, code, find, parse_arguments
from penstock.errors import PenstockError

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(KEYS, LITERALS, max_size=4))
def test_python_literals_read_back_as_they_were(arguments: dict[str, Any]) -> None:
    assert parse_arguments([f"{key}={value!r}" for key, value in arguments.items()]) == arguments


@given(st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True))
def test_a_plain_word_is_text(word: str) -> None:
    assert parse_arguments([f"act={word}"]) == {"act": word}


def test_only_the_first_equals_sign_parts_name_and_value() -> None:
    assert parse_arguments(["rule=a=b"]) == {"rule": "a=b"}


@pytest.mark.parametrize("pair", ["", "num_classes", "=10", "2nd=3", "a b=3", "num-classes=3"])
def test_a_pair_of_another_form_is_refused_with_the_form(pair: str) -> None:
    with pytest.raises(PenstockError) as caught:
        parse_arguments([pair])
    assert str(caught.value) == f"--model-args {pair!r} must read NAME=VALUE, as in num_classes=10"


@pytest.mark.parametrize("value", ["{[]: 1}", "{{}}", "-'a'", "(", "[1, x]", "__import__('os')", "1 +", ""])
def test_a_value_that_is_no_literal_is_text(value: str) -> None:
    assert parse_arguments([f"a={value}"]) == {"a": value}


@given(st.text(max_size=20))
def test_any_value_is_taken(value: str) -> None:
    assert list(parse_arguments([f"a={value}"])) == ["a"]


def test_a_class_of_an_installed_package_is_built_in_eval_mode() -> None:
    module = build(Architecture(target="torch.nn:Linear", kwargs={"in_features": 3, "out_features": 2}))
    assert isinstance(module, nn.Linear)
    assert not module.training


def test_a_torchvision_model_is_built_without_downloading_weights() -> None:
    pytest.importorskip("torchvision")
    module = build(Architecture(target="torchvision:squeezenet1_1", kwargs={"num_classes": 3}))
    assert type(module).__name__ == "SqueezeNet"


NET = """
import torch
from beside import WIDTH

class Net(torch.nn.Linear):
    def __init__(self, out=2):
        super().__init__(WIDTH, out)

def make(out=2):
    return Net(out)

class Plain:
    pass

def plain():
    return Plain()

class Called:
    def __call__(self):
        raise AssertionError("it was called")

class Callable:
    def __init__(self):
        raise AssertionError("it was called")

instance = Called()

def leave():
    raise SystemExit(3)

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a user's train.py, which imports a file beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    Path("train.py").write_text(NET)
    Path("beside.py").write_text("WIDTH = 5\n")
    return tmp_path


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_users_file_gives_its_class_or_function(folder: Path, name: str) -> None:
    module = build(Architecture(target=f"./train.py:{name}", kwargs={"out": 4}))
    assert (module.in_features, module.out_features) == (5, 4)


def test_a_users_train_py_shadows_no_module(folder: Path) -> None:
    build(Architecture(target="./train.py:Net"))
    assert "train" not in sys.modules
    assert sys.path[0] != str(folder)


@pytest.mark.parametrize(
    ("target", "kwargs", "parts"),
    [
        (
            "resnet18",
            {},
            ["'resnet18'", "torchvision:NAME, timm:NAME, transformers:FOLDER, package.module:Class or ./file.py:Class"],
        ),
        ("torch.nn:", {}, ["'torch.nn:'", "must read"]),
        (":Linear", {}, ["':Linear'", "must read"]),
        ("torch.nn:Linnear", {}, ["torch.nn has no 'Linnear'"]),
        (
            "no_such_package_here:Net",
            {},
            ["no_such_package_here", "cannot be imported", "ModuleNotFoundError"],
        ),
        ("./missing.py:Net", {}, ["missing.py", "no such file"]),
        ("./train.py:number", {}, ["./train.py:number", "a int, not a torch.nn.Module class"]),
        ("./train.py:Plain", {}, ["./train.py:Plain", "a type, not a torch.nn.Module class or a function"]),
        ("./train.py:plain", {}, ["./train.py:plain", "made a Plain, not a torch.nn.Module"]),
        ("./train.py:Callable", {}, ["./train.py:Callable", "a type, not a torch.nn.Module class"]),
        ("./train.py:instance", {}, ["./train.py:instance", "a Called, not a torch.nn.Module class"]),
        ("./train.py:leave", {}, ["./train.py:leave", "cannot be made", "SystemExit: 3"]),
        ("builtins:print", {}, ["builtins:print", "a builtin_function_or_method, not a torch.nn.Module class"]),
        ("subprocess:Popen", {"args": "true"}, ["subprocess:Popen", "a type, not a torch.nn.Module class"]),
        ("functools:partial", {}, ["functools:partial", "a type, not"]),
        ("./train.py:Net", {"width": 3}, ["./train.py:Net(width=3)", "TypeError", "--model-args NAME=VALUE"]),
        ("torchvision:resnet19", {}, ["torchvision:resnet19", "the nearest are resnet1"]),
    ],
)
def test_a_target_that_cannot_be_built_is_named_with_the_rule(
    folder: Path, target: str, kwargs: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(PenstockError) as caught:
        build(Architecture(target=target, kwargs=kwargs))
    for part in ("--model", *parts):
        assert part in str(caught.value)


def test_initial_weights_are_the_same_in_every_build_and_move_no_other_random_numbers() -> None:
    target = Architecture(target="torch.nn:Linear", kwargs={"in_features": 3, "out_features": 2})
    torch.manual_seed(1)
    first, after = build(target), torch.rand(1)
    torch.manual_seed(2)
    assert torch.equal(first.weight, build(target).weight)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("./train.py:Net", "train.py"),
        ("nets/a.b.py:Net", "nets/a.b.py"),
        ("/a/net.py:Net", "/a/net.py"),
        ("torch.nn:Linear", None),
        ("torchvision:resnet18", None),
        ("timm:convnext_tiny", None),
        ("exported", None),
    ],
)
def test_the_users_own_file_is_known_from_the_target(target: str, file: str | None) -> None:
    assert code(target) == (None if file is None else Path(file))


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_name_that_a_library_does_not_have_is_refused_by_it(library: str) -> None:
    pytest.importorskip(library)
    with pytest.raises(PenstockError, match=f"--model {library}:no_such_model"):
        find(f"{library}:no_such_model")


def test_what_a_target_names_is_found_and_not_called(folder: Path) -> None:
    assert find("torch.nn:Linear") is nn.Linear
    assert find("./train.py:make").__name__ == "make"
    assert find("./train.py:plain").__name__ == "plain"
    with pytest.raises(PenstockError, match=r"a Called, not a torch\.nn\.Module class"):
        find("./train.py:instance")


@pytest.mark.parametrize(
    "text", ["def :", "raise RuntimeError('no')", "import no_such_package_here", "import sys\nsys.exit(4)"]
)
def test_a_file_that_does_not_import_is_named_and_leaves_no_half_module(folder: Path, text: str) -> None:
    Path("bad.py").write_text(text)
    with pytest.raises(PenstockError, match=r"--model \./bad\.py: cannot be imported"):
        build(Architecture(target="./bad.py:Net"))
    assert not [name for name in sys.modules if name.startswith("_penstock_bad_")]


def test_a_module_that_ends_the_program_is_an_error(folder: Path) -> None:
    Path("leaves.py").write_text("raise SystemExit('usage: leaves')\n")
    sys.path.append(str(folder))
    with pytest.raises(PenstockError, match=r"--model leaves: cannot be imported: SystemExit: usage: leaves"):
        build(Architecture(target="leaves:Net"))


def test_a_file_of_this_folder_that_was_named_as_a_module_is_pointed_to(folder: Path) -> None:
    Path("mynet.py").write_text(NET)
    with pytest.raises(PenstockError) as caught:
        build(Architecture(target="mynet:Net"))
    assert str(caught.value).startswith("--model mynet: cannot be imported: ModuleNotFoundError")
    assert str(caught.value).endswith("for a file in this folder, write --model ./mynet.py:CLASS")
    with pytest.raises(PenstockError) as caught:
        build(Architecture(target="no_such_package_here:Net"))
    assert "for a file" not in str(caught.value)


@pytest.mark.parametrize("typed", ["./missing.py", "missing.py", "../missing.py", "./a/../missing.py", "./bad.py"])
def test_a_path_is_shown_as_it_was_typed(folder: Path, typed: str) -> None:
    Path("bad.py").write_text("def :")
    with pytest.raises(PenstockError) as caught:
        build(Architecture(target=f"{typed}:Net"))
    assert str(caught.value).startswith(f"--model {typed}: ")


def test_an_architecture_reads_back_from_json() -> None:
    architecture = Architecture(target="./net.py:Net", kwargs={"widths": [1, 2], "act": "relu"})
    assert Architecture.model_validate(json.loads(architecture.model_dump_json())) == architecture

"""Diagnoses of real errors: each names the module and the line, the cause, and the option that helps."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock.errors import PenstockError
from penstock.export import capture
from penstock.export.diagnosis import Cause, diagnose
from penstock.export.formats import Source
from penstock.signature import Dim

SourceOf = Callable[..., Source]
pytestmark = pytest.mark.filterwarnings("ignore")


class Branch(nn.Module):
    def forward(self, x: T) -> T:
        if x.mean() > 0:  # branch
            return -x
        return x


class Number(nn.Module):
    def forward(self, x: T) -> T:
        return x.repeat(1, int(x.max().item()))  # number


class Bessel(nn.Module):
    def forward(self, x: T) -> T:
        return torch.special.bessel_j0(x)  # bessel


class Eight(nn.Module):
    def forward(self, x: T) -> T:
        return x + torch.zeros(8, 8) if x.shape[0] == 8 else x  # eight


class Short(nn.Module):
    def forward(self, x: T) -> T:
        return -x if x.shape[0] > 20 else x


class Tries(nn.Module):
    def forward(self, x: T) -> T:
        try:  # tries
            return x * 2
        except ValueError:
            return x


class Generates(nn.Module):
    def forward(self, x: T) -> T:
        return sum((y for y in (x, x)), torch.zeros(1))  # generates


class Deep(nn.Module):
    """A model of the user's own: a stem, and the part at fault two levels down; a dictionary out."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.inner_blocks = nn.ModuleDict({"gate": nn.Sequential(nn.ReLU(), part)})

    def forward(self, x: T) -> dict[str, T]:
        return {"out": self.inner_blocks["gate"](self.stem(x)), "twice": x * 2}


def line(mark: str) -> str:
    """This file and the number of the line that bears a mark."""
    lines = Path(__file__).read_text().splitlines()
    return f"test_diagnosis.py:{next(place for place, text in enumerate(lines, 1) if text.endswith(f'# {mark}'))}"


def captured(module: nn.Module, source_of: SourceOf) -> str:
    source = source_of(module, "x:float32[batch,8]", batch=Dim(opt=8, max=64))
    with pytest.raises(PenstockError) as caught:
        capture.program(source.module, source.signature)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def translated(module: nn.Module, source_of: SourceOf) -> str:
    source = source_of(module, "x:float32[batch,8]", batch=Dim(opt=8, max=64))
    with pytest.raises(PenstockError) as caught:
        capture.onnx_graph(source.program, source.module, source.signature)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def raised(call: Callable[[], Any]) -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as caught:  # whatever PyTorch raises
            call()
    return caught.value


BRANCH = "a branch or a number that depends on the input's values"


@pytest.mark.parametrize(("part", "mark"), [(Branch(), "branch"), (Number(), "number")])
def test_a_branch_on_values_is_found_where_it_stands_and_told_of_scripting(
    part: nn.Module, mark: str, source_of: SourceOf
) -> None:
    for module, path in ((part, type(part).__name__), (Deep(part), "inner_blocks.gate.1")):
        if isinstance(part, Number) and module is part:
            continue  # the probe sees its width move with the values
        error = raised(partial(torch.export.export, module, (torch.randn(3, 8),)))
        found = diagnose(error, module)
        assert found.what == BRANCH
        assert found.where == f"{path} ({line(mark)})"
        assert "--format torchscript --script auto" in found.help
        assert str(found) == f"{found.what} in {found.where}: {found.detail}; {found.help}"
    if isinstance(part, Branch):
        said = captured(Deep(part), source_of)
        assert said.startswith(f"torch.export cannot capture the model: {BRANCH} in inner_blocks.gate.1 ({line(mark)}")
        assert "--script auto" in said


def test_an_operator_without_a_translation_is_named_with_the_line_that_calls_it_and_other_formats(
    source_of: SourceOf,
) -> None:
    for module, path in ((Bessel(), "Bessel"), (Deep(Bessel()), "inner_blocks.gate.1")):
        said = translated(module, source_of)
        for part in (
            "the captured model cannot be written as ONNX: an operator that ONNX has no translation for",
            f" in {path} ({line('bessel')}): ",
            "bessel_j0",
            "--format pt2 or --format torchscript",
        ):
            assert part in said


def test_the_line_of_an_operator_is_known_also_after_the_program_was_written_as_pt2(
    source_of: SourceOf, write: Any
) -> None:
    source = source_of(Deep(Bessel()), "x:float32[batch,8]")
    write(source, "pt2")
    with pytest.raises(PenstockError, match=re.escape(line("bessel"))):
        write(source, "onnx")


@pytest.mark.parametrize(("part", "said"), [(Eight(), r"constant \(8\)"), (Short(), "<= 20")])
def test_a_size_that_the_model_fixes_is_told_with_its_name_and_value_and_what_narrows_it(
    part: nn.Module, said: str, source_of: SourceOf
) -> None:
    for module in (part, Deep(part)):
        message = captured(module, source_of)
        assert "a size that the model fixes, or ties to another, while it is given as dynamic" in message
        assert re.search(rf"\bbatch\b.*{said}", message), message
        assert "--batch or --dim" in message
        assert "TORCH_LOGS" not in message


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (Tries(), f"Tries ({line('tries')})"),
        (nn.Sequential(nn.ReLU(), nn.Sequential(Generates())), f"1.0 ({line('generates')})"),
    ],
)
def test_python_that_torchscript_cannot_compile_is_found_where_it_stands_and_told_of_tracing(
    module: nn.Module, where: str
) -> None:
    found = diagnose(raised(partial(torch.jit.script, module)), module, scripting=True)
    assert found.what == "Python that TorchScript cannot compile"
    assert found.where == where
    assert "--trace" in found.help
    assert "--format onnx or pt2" in found.help


def test_an_error_of_the_models_own_is_found_in_it_and_told_as_it_is() -> None:
    class Refuses(nn.Module):
        def forward(self, x: T) -> T:
            raise KeyError("no such head")  # refuses

    module = nn.Sequential(nn.ReLU(), Refuses())
    found = diagnose(raised(lambda: module(torch.zeros(1))), module)
    assert found == Cause(
        "PyTorch cannot capture it", "KeyError: 'no such head'", f"1 ({line('refuses')})", "try another --format"
    )


def test_the_exporters_own_files_are_never_taken_for_the_models(source_of: SourceOf) -> None:
    """They are called with the model as their first argument too."""
    said = captured(Short(), source_of)
    assert not re.search(r"\((capture|torchscript|adapter|diagnosis)\.py:\d+\)", said)


def test_a_users_folder_may_be_named_torch(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    code = (
        "from torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n        raise ValueError('mine')\n"
    )
    (folder / "net.py").write_text(code)
    space: dict[str, Any] = {}
    exec(compile(code, str(folder / "net.py"), "exec"), space)
    module = space["Net"]()
    assert diagnose(raised(lambda: module(1)), module).where == "Net (net.py:5)"


def test_of_errors_with_causes_the_innermost_is_told_and_its_addresses_are_not() -> None:
    try:
        try:
            raise ValueError("\n=====\nat 0x7f00aa11: sizes differ\nmore")
        except ValueError as inner:
            raise RuntimeError("export failed\n" * 3) from inner
    except RuntimeError as error:
        found = diagnose(error, nn.ReLU())
    assert found.detail == "ValueError: at 0x…: sizes differ"
    assert found.where == ""
    assert str(found) == "PyTorch cannot capture it: ValueError: at 0x…: sizes differ; try another --format"


def test_an_error_that_says_nothing_is_named_by_its_class_and_one_that_causes_itself_ends() -> None:
    error = AssertionError()
    error.__cause__ = error
    assert diagnose(error, nn.ReLU()).detail == "AssertionError"


def test_words_of_a_compiler_mean_one_only_where_one_may_have_said_them() -> None:
    error = ValueError("Unsupported activation gelu2")
    assert diagnose(error, Branch()).what == "PyTorch cannot capture it"
    for said in (error, OSError("could not get source code")):
        assert diagnose(said, Branch(), scripting=True).what == "Python that TorchScript cannot compile"

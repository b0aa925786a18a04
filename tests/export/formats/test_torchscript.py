"""TorchScript: traced or scripted, with float32 at its ends whatever is inside."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock.errors import PenstockError
from penstock.export.formats import Options, Source, torchscript
from penstock.signature import Dim, Signature, Tensor

pytestmark = pytest.mark.filterwarnings("ignore")
SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 3)),),
    outputs=(Tensor(name="output", shape=("batch", 3)),),
    dims={"batch": Dim(opt=8, max=64)},
)


class Branching(nn.Module):
    """A branch on the data: scripting keeps it, tracing cannot."""

    def forward(self, x: T) -> T:
        if bool(x.sum() > 0):
            return x * 2
        return x - 1


class Twice(nn.Module):
    """Loops over a list made of *args, which scripting does not take."""

    def forward(self, *xs: T) -> T:
        return sum(x * 2 for x in xs)  # type: ignore[return-value]


class Named(nn.Module):
    def forward(self, x: T) -> dict[str, T]:
        return {"double": x * 2, "count": torch.ones(x.shape[0], dtype=torch.int64)}


def written(module: nn.Module, folder: Path, **options: Any) -> Any:
    source = Source(module.eval(), SIGNATURE, None)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    built = torchscript.export(source, Options(**{"precision": "fp32", **options}), folder, work)
    assert not list(work.iterdir())
    assert built.build["road"] == ("script" if options.get("script") else "trace")
    return torch.jit.load(str(folder / built.model_file))


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_both_roads_and_precisions_give_float32_answers_at_any_batch(
    tmp_path: Path, script: bool, precision: str
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    loaded = written(module, tmp_path, precision=precision, script=script)
    for rows in (1, 5, 64):
        x = torch.randn(rows, 3)
        with torch.inference_mode():
            got, expected = loaded(x), module(x)
        assert got.dtype == torch.float32
        assert torch.allclose(got, expected, rtol=0, atol=1e-6 if precision == "fp32" else 1e-2)
        assert precision == "fp32" or not torch.equal(got, expected)


def test_exporting_at_half_precision_leaves_the_source_in_float32(tmp_path: Path) -> None:
    module = nn.Linear(3, 3).eval()
    written(module, tmp_path, precision="fp16")
    assert module.weight.dtype == torch.float32


def test_a_branch_is_kept_by_scripting(tmp_path: Path) -> None:
    loaded = written(Branching(), tmp_path, script=True)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(loaded(x), Branching()(x))


def test_a_model_that_cannot_be_scripted_is_told_to_trace(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"cannot be written as TorchScript by --script: .*; try --trace"):
        written(Twice(), tmp_path, script=True)
    x = torch.randn(2, 3)
    assert torch.equal(written(Twice(), tmp_path)(x), x * 2)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_dict_of_outputs_keeps_its_names_and_integers(tmp_path: Path, precision: str) -> None:
    answer = written(Named(), tmp_path, precision=precision)(torch.ones(2, 3))
    assert list(answer) == ["double", "count"]
    assert (answer["double"].dtype, answer["count"].dtype) == (torch.float32, torch.int64)


class Measured(nn.Module):
    """Takes a number out of a tensor, which a trace would keep for every input."""

    def forward(self, x: T) -> T:
        return x * float(x.abs().max().item())


class Looped(nn.Module):
    """As many turns as the data says."""

    def forward(self, x: T) -> T:
        for _ in range(int(x.abs().sum())):
            x = x + 1
        return x


FIXED = (
    r"^--trace would fix a value that may depend on the input \(test_torchscript\.py:\d+: "
    r"Converting a tensor to a Python \w+\); try --script or --format onnx$"
)


@pytest.mark.parametrize("module", [Branching(), Measured(), Looped()], ids=["branch", "item", "loop"])
def test_what_a_trace_would_freeze_is_refused_with_its_line_and_told_to_script(
    tmp_path: Path, module: nn.Module
) -> None:
    with pytest.raises(PenstockError, match=FIXED):
        written(module, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    loaded = written(module, tmp_path, script=True)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(loaded(x), module(x))


def test_at_half_precision_too_a_branch_is_refused_by_tracing_and_kept_by_scripting(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=FIXED):
        written(Branching(), tmp_path, precision="fp16")
    loaded = written(Branching(), tmp_path, precision="fp16", script=True)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(loaded(x), Branching()(x))


class Restless(nn.Module):
    """Warns of something else than a value that is fixed."""

    def forward(self, x: T) -> T:
        warnings.warn("deprecated", UserWarning, stacklevel=1)
        return x * 2


def test_other_warnings_of_a_model_do_not_refuse_it(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    assert torch.equal(written(Restless(), tmp_path)(x), x * 2)

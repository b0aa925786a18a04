"""TorchScript: traced where that is right, scripted where it is not, and float32 at its ends whatever is inside."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock.errors import PenstockError
from penstock.export.formats import Source, torchscript
from penstock.signature import Dim

pytestmark = pytest.mark.filterwarnings("ignore")
SourceOf, Write = Callable[..., Source], Callable[..., Any]
ONE = Dim(opt=1, max=1)
X = "x:float32[batch,3]"


class Branch(nn.Module):
    """A branch on the data: scripting keeps it, tracing cannot."""

    def forward(self, x: T) -> T:
        if bool(x.sum() > 0):
            return x * 2
        return x - 1


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


class Generates(nn.Module):
    """Python that the compiler does not take, around a part that is given."""

    def __init__(self, part: nn.Module | None = None) -> None:
        super().__init__()
        self.part = part or nn.Identity()

    def forward(self, x: T) -> T:
        return sum((y for y in (self.part(x), x)), torch.zeros(1))


class Named(nn.Module):
    def forward(self, x: T) -> dict[str, T]:
        return {"double": x * 2, "count": torch.ones(x.shape[0], dtype=torch.int64)}


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def loaded(written: Any) -> Any:
    return torch.jit.load(str(written.path))


@pytest.mark.parametrize("road", ["script", "trace", "auto"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_road_and_precision_gives_float32_answers_at_any_batch(
    source_of: SourceOf, write: Write, road: str, precision: str
) -> None:
    module = plain()
    written = write(source_of(module, X), "torchscript", road=road, precision=precision)
    assert written.built.build["road"] == ("script" if road == "script" else "trace")
    program = loaded(written)
    for rows in (1, 5, 64):
        x = torch.randn(rows, 3)
        with torch.inference_mode():
            got, expected = program(x), module(x)
        assert got.dtype == torch.float32
        assert torch.allclose(got, expected, rtol=0, atol=1e-6 if precision == "fp32" else 1e-2)
        assert precision == "fp32" or not torch.equal(got, expected)


def test_a_trace_does_not_record_that_cuda_may_round_to_tf32(source_of: SourceOf, write: Write) -> None:
    source = source_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 2, 3)), "x:float32[batch,3,8,8]")
    graph = torch.jit.load(str(write(source, "torchscript", road="trace").path)).inlined_graph
    found = [list(node.inputs())[-1].toIValue() for node in graph.findAllNodes("aten::_convolution")]
    assert found == [False, False]


def test_exporting_at_half_precision_leaves_the_source_in_float32(source_of: SourceOf, write: Write) -> None:
    module = nn.Linear(3, 3).eval()
    write(source_of(module, X), "torchscript", precision="fp16")
    assert module.weight.dtype == torch.float32


# --- What a trace would freeze ------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [Branch(), Measured(), Looped()], ids=["branch", "item", "loop"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_a_trace_would_freeze_is_scripted_unasked(
    source_of: SourceOf, write: Write, module: nn.Module, precision: str
) -> None:
    written = write(source_of(module, X, batch=ONE), "torchscript", precision=precision)
    assert written.built.build["road"] == "script"
    for x in (torch.ones(1, 3), -torch.ones(1, 3), torch.full((1, 3), 0.25)):
        assert torch.equal(loaded(written)(x), module(x))


@pytest.mark.parametrize(
    ("module", "kind"),
    [(Branch(), "boolean"), (Measured(), "number"), (Looped(), "integer")],
    ids=lambda item: str(item),
)
def test_it_is_refused_by_tracing_alone_with_its_line_and_told_to_script(
    source_of: SourceOf, write: Write, module: nn.Module, kind: str
) -> None:
    with pytest.raises(PenstockError) as caught:
        write(source_of(module, X, batch=ONE), "torchscript", road="trace")
    assert re.fullmatch(
        r"the model cannot be written as TorchScript; tried traced: a trace would fix a value that may depend on the "
        rf"input \(test_torchscript\.py:\d+: Converting a tensor to a Python {kind}\); --script keeps it",
        str(caught.value),
    )


def test_a_branch_in_a_part_of_a_model_that_cannot_be_compiled_is_scripted_inside_a_trace(
    source_of: SourceOf, write: Write
) -> None:
    module = Generates(nn.Sequential(nn.Identity(), Branch()))
    written = write(source_of(module, X, batch=ONE), "torchscript")
    assert written.built.build["road"] == "trace, with part.1 scripted"
    assert isinstance(module.part[1], Branch), "the source is left as it was"
    for x in (torch.ones(1, 3), -torch.ones(1, 3)):
        assert torch.equal(loaded(written)(x), module(x))


def test_of_parts_within_parts_that_branch_the_outermost_is_scripted(source_of: SourceOf, write: Write) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner_part = Branch()

        def forward(self, x: T) -> T:
            if bool(x.sum() > 1):
                return -self.inner_part(x)
            return self.inner_part(x)

    module = Generates(Outer())
    written = write(source_of(module, X, batch=ONE), "torchscript")
    assert written.built.build["road"] == "trace, with part scripted"
    for total in (3.0, 0.5, -3.0):
        x = torch.full((1, 3), total / 3)
        assert torch.equal(loaded(written)(x), module(x))


def test_a_branch_that_no_road_keeps_is_refused_with_what_was_tried(source_of: SourceOf, write: Write) -> None:
    class Both(nn.Module):
        def forward(self, x: T) -> T:
            total = sum((y for y in (x, x)), torch.zeros(1))
            return total if bool(x.sum() > 0) else -total

    with pytest.raises(PenstockError) as caught:
        write(source_of(Both(), X, batch=ONE), "torchscript")
    message = str(caught.value)
    for part in (
        "tried traced: a trace would fix a value",
        "; scripted: Python that TorchScript cannot compile in Both (test_torchscript.py:",
        "(at `total = sum((y for y in (x, x)), torch.zeros(1))`)",
        "; mixed: no submodule of its own holds what tracing warns of",
    ):
        assert part in message


def test_a_model_that_cannot_be_scripted_is_told_to_trace(source_of: SourceOf, write: Write) -> None:
    source = source_of(Generates(), X)
    with pytest.raises(PenstockError, match=r"tried scripted: Python that TorchScript cannot compile .*--trace takes"):
        write(source, "torchscript", road="script")
    x = torch.randn(2, 3)
    assert torch.equal(loaded(write(source, "torchscript"))(x), x * 2)


# --- Warnings of tracing that torch.export settles ----------------------------------------------------------------


class Asserts(nn.Module):
    """Checks shapes, which tracing warns of as of any value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: T) -> T:
        assert x.shape[0] >= 1
        if int(x.shape[-1]) != 3:
            raise ValueError
        return self.layer(x)


def test_a_warning_of_what_depends_on_shapes_alone_is_settled_and_the_trace_stands(
    source_of: SourceOf, write: Write
) -> None:
    source = source_of(Asserts(), X)
    _, warned = torchscript._trace(source.module, source)
    assert len(warned) >= 2
    written = write(source, "torchscript")
    assert written.built.build["road"] == "trace"
    written.check(1, 3, 64)


def test_a_warning_is_doubted_where_torch_export_reads_a_value_or_cannot_say(
    source_of: SourceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(Asserts(), X)
    _, warned = torchscript._trace(source.module, source)
    torchscript._settle(warned, source)
    torchscript._settle([], source_of(Branch(), X, batch=ONE))
    with pytest.raises(torchscript._Refused):
        torchscript._settle(warned, source_of(Measured(), X, batch=ONE))  # captured, with a number read
    with pytest.raises(torchscript._Refused):
        torchscript._settle(warned, source_of(Branch(), X, batch=ONE))  # not captured


def test_a_transformer_of_pytorchs_own_is_traced(source_of: SourceOf, write: Write) -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    written = write(source_of(encoder, "x:float32[batch,seq,8]", seq=Dim(opt=4, max=9)), "torchscript")
    assert written.built.build["road"] == "trace"
    for seq in (1, 4, 9):
        written.check(1, 3, seq=seq)


# --- A trace is run on inputs that it was not made from -----------------------------------------------------------


class Frozen(nn.Module):
    """A part of the answer goes by way of numpy: torch.export follows it there, and a trace does not."""

    def forward(self, x: T) -> T:
        return x * torch.from_numpy(x.detach().numpy().max(keepdims=True).copy())


@pytest.mark.parametrize("road", ["trace", "auto"])
def test_a_trace_that_is_wrong_on_a_second_input_is_refused(source_of: SourceOf, write: Write, road: str) -> None:
    source = source_of(Frozen(), X, batch=ONE)
    _, warned = torchscript._trace(source.module, source)
    torchscript._settle(warned, source)  # which does not see it
    with pytest.raises(PenstockError) as caught:
        write(source, "torchscript", road=road)
    found = re.search(
        r"traced: on a second input, of sizes \{'batch': 1\}, output 'output' is (\S+) off; other roads may keep what "
        "this one fixes",
        str(caught.value),
    )
    assert found is not None
    assert float(found[1]) > 0.01


def test_a_trace_that_fails_at_another_size_is_refused(source_of: SourceOf, write: Write) -> None:
    class Sized(nn.Module):
        def forward(self, x: T) -> T:
            return x + torch.from_numpy(x.detach().numpy() * 2)

    with pytest.raises(PenstockError, match=r"traced: on a second input, of sizes \{'batch': 9\}, it fails: "):
        write(source_of(Sized(), X), "torchscript", road="trace")


def test_a_source_that_fails_at_another_size_is_told_as_the_sources_fault(source_of: SourceOf, write: Write) -> None:
    class Even(nn.Module):
        def forward(self, x: T) -> T:
            return x.reshape(x.shape[0], x.shape[1] // 2, 2, 3).sum(2)

    source = source_of(Even(), "x:float32[batch,seq,3]", seq=Dim(opt=8, max=64))
    with pytest.raises(PenstockError, match=r"the source model itself fails at sizes .*'seq': 9.*--batch or --dim"):
        write(source, "torchscript")


# --- Answers and warnings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("road", ["trace", "script"])
def test_named_outputs_are_a_tuple_in_their_order_and_integers_stay_integers(
    source_of: SourceOf, write: Write, precision: str, road: str
) -> None:
    written = write(source_of(Named(), X), "torchscript", precision=precision, road=road)
    answer = loaded(written)(torch.ones(2, 3))
    assert isinstance(answer, tuple)
    assert [(value.dtype, tuple(value.shape)) for value in answer] == [
        (torch.float32, (2, 3)),
        (torch.int64, (2,)),
    ]
    assert [tensor.name for tensor in written.signature.outputs] == ["double", "count"]


class Restless(nn.Module):
    """Warns of something else than a value that is fixed."""

    def forward(self, x: T) -> T:
        warnings.warn("deprecated", UserWarning, stacklevel=1)
        return x * 2


def test_other_warnings_of_a_model_do_not_refuse_it(source_of: SourceOf, write: Write) -> None:
    written = write(source_of(Restless(), X), "torchscript", road="trace")
    x = torch.ones(2, 3)
    assert torch.equal(loaded(written)(x), x * 2)


# --- Programs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda module: torch.jit.script(module), lambda m: torch.jit.trace(m, torch.ones(2, 3))]
)
def test_a_program_is_written_as_it_was_and_takes_no_other_road(
    source_of: SourceOf, write: Write, make: Callable[[nn.Module], Any]
) -> None:
    module = plain()
    source = source_of(make(module), X, kind="torchscript")
    written = write(source, "torchscript")
    assert written.built.build["road"] == "as it was"
    written.check()
    with pytest.raises(PenstockError, match="tried scripted: it is a TorchScript program already"):
        write(source, "torchscript", road="script")


def test_a_program_with_named_outputs_answers_a_tuple_of_them(source_of: SourceOf, write: Write) -> None:
    source = source_of(torch.jit.script(Named()), X, kind="torchscript")
    written = write(source, "torchscript")
    assert isinstance(loaded(written)(torch.ones(2, 3)), tuple)
    written.check()


def test_a_program_goes_to_half_precision_too(source_of: SourceOf, write: Write) -> None:
    module = plain()
    written = write(source_of(torch.jit.script(module), X, kind="torchscript"), "torchscript", precision="fp16")
    x = torch.randn(4, 3)
    with torch.inference_mode():
        got, expected = loaded(written)(x), module(x)
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 1e-2


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: T) -> tuple[T, T]:
        y = self.layer(x)
        return y.double(), y.argmax(1)


@pytest.mark.parametrize("road", ["trace", "script"])
def test_half_precision_inside_leaves_outputs_their_dtypes(source_of: SourceOf, write: Write, road: str) -> None:
    source = source_of(Wide(), "x:float32[batch,3]")
    written = write(source, "torchscript", precision="fp16", road=road)
    answer = written.run(written.feeds(4))
    assert [array.dtype.name for array in answer.values()] == ["float64", "int64"]
    assert [tensor.dtype for tensor in source.signature.outputs] == ["float64", "int64"]


def test_a_model_made_for_single_rows_is_traced_with_one(source_of: SourceOf, write: Write) -> None:
    class Single(nn.Module):
        def forward(self, x: T) -> T:
            return x.view(1, 3) * 2

    source = source_of(Single(), "x:float32[batch,3]", batch=Dim(min=1, opt=1, max=1))
    write(source, "torchscript", road="trace").check(1)


class Hidden(nn.Module):
    """Branches on values without a word to the tracer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: T) -> T:
        y = self.layer(x)
        return y if torch.equal(x, x.clamp(-8, 8)) else -y


def test_a_branch_that_turns_beyond_the_samples_is_scripted(source_of: SourceOf, write: Write) -> None:
    written = write(source_of(Hidden(), "x:float32[batch,3]"), "torchscript")
    assert written.built.build["road"] == "script"

"""Capture: the ONNX graph keeps the signature's names and dynamic dimensions, or it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor as T
from torch import nn
from torch._decomp import global_decomposition_table

from penstock.errors import PenstockError
from penstock.export import capture
from penstock.signature import Dim, Signature, Tensor


def signature(inputs: tuple[str, ...], outputs: tuple[str, ...], **dims: Dim) -> Signature:
    return Signature(inputs=tuple(map(Tensor.parse, inputs)), outputs=tuple(map(Tensor.parse, outputs)), dims=dims)


BATCH = Dim(opt=8, max=64)
DENSE = signature(("x:float32[batch,3]",), ("y:float32[batch,2]",), batch=BATCH)


def captured(module: nn.Module, wanted: Signature) -> Any:
    """The module as an ONNX model, by way of torch.export's program."""
    model, note = capture.onnx_graph(capture.program(module, wanted), module, wanted)
    assert note is None
    return model


class Pair(nn.Module):
    """Two inputs, two outputs, two dynamic dimensions."""

    def forward(self, ids: T, scale: T) -> tuple[T, T]:
        return ids.float() * scale, scale + 1


def test_names_order_and_dynamic_dimensions_are_the_signatures() -> None:
    wanted = signature(
        ("ids:int64[batch,length]", "scale:float32[batch,1]"),
        ("product:float32[batch,length]", "next:float32[batch,1]"),
        batch=BATCH,
        length=Dim(opt=16, max=128),
    )
    graph = captured(Pair(), wanted).graph
    shown = [
        [
            (
                value.name,
                value.type.tensor_type.elem_type,
                [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
            )
            for value in group
        ]
        for group in (graph.input, graph.output)
    ]
    floats, longs = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    assert shown == [
        [("ids", longs, ["batch", "length"]), ("scale", floats, ["batch", 1])],
        [("product", floats, ["batch", "length"]), ("next", floats, ["batch", 1])],
    ]


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2).eval()


@pytest.fixture(scope="module")
def graph(module: nn.Module) -> Any:
    return captured(module, DENSE)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_the_graph_computes_what_the_module_does_by_onnxs_own_evaluator(
    module: nn.Module, graph: Any, rows: int
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    (found,) = ReferenceEvaluator(graph).run(None, {"x": x})
    with torch.inference_mode():
        expected = module(torch.from_numpy(x)).numpy()
    assert np.allclose(found, expected, rtol=0, atol=1e-6)


# A single size, as of one row or of eight, is exported whole by test_pipeline.
@pytest.mark.parametrize("batch", [Dim(opt=1, max=2), Dim(min=4, opt=8, max=16)])
def test_any_range_of_batches_can_be_captured(batch: Dim) -> None:
    graph = captured(nn.Linear(3, 2).eval(), DENSE.with_batch(batch))
    assert [value.name for value in graph.graph.output] == ["y"]


def test_the_graph_says_nothing_of_the_machine_it_was_made_on(graph: Any) -> None:
    content = graph.SerializeToString()
    for trace in (b"site-packages", b".py", b"/tmp", b"Traceback", b"stack_trace"):
        assert trace not in content


def test_the_opset_is_the_one_asked_for(graph: Any) -> None:
    assert [(item.domain, item.version) for item in graph.opset_import if item.domain == ""] == [("", capture.OPSET)]


class Branching(nn.Module):
    def forward(self, x: T) -> T:
        return x[:, :2] if x.sum() > 0 else -x[:, :2]


def test_a_module_that_cannot_be_captured_is_told_why_and_what_else_may_take_it() -> None:
    with pytest.raises(PenstockError) as caught:
        captured(Branching(), DENSE)
    assert "torch.export cannot capture the model" in str(caught.value)
    assert "--format torchscript" in str(caught.value)
    assert "\n" not in str(caught.value)


class Fixing(nn.Module):
    """Uses its batch as a plain number, which fixes it."""

    def forward(self, x: T) -> T:
        return x[:, :2] + torch.zeros(int(x.shape[0]) if x.shape[0] == 8 else 8, 2)


def test_a_dynamic_dimension_that_the_module_fixes_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"a size that the model fixes.*batch.*--batch or --dim"):
        captured(Fixing(), DENSE)


class Any1(nn.Module):
    def forward(self, *xs: T) -> T:
        return xs[0] * 2 + xs[-1]


class Rest(nn.Module):
    def forward(self, x: T, *rest: T) -> T:
        return x * 2 + sum(rest)


@pytest.mark.parametrize("module", [Any1(), Rest()], ids=["all of them", "the rest"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_forward_of_any_number_of_inputs_keeps_their_dimensions(module: nn.Module, count: int) -> None:
    names = "abc"[:count]
    wanted = signature(
        tuple(f"{name}:float32[batch,seq]" for name in names),
        ("y:float32[batch,seq]",),
        batch=BATCH,
        seq=Dim(opt=5, max=16),
    )
    graph = captured(module, wanted)
    feeds = {name: np.full((3, 4), place + 1, np.float32) for place, name in enumerate(names)}
    (found,) = ReferenceEvaluator(graph).run(None, feeds)
    expected = module(*map(torch.from_numpy, feeds.values()))
    assert np.array_equal(found, expected.numpy())


class Scaled(nn.Module):
    """Reads a number out of its input."""

    def forward(self, x: T) -> T:
        return x[:, :2] * torch.tensor(float(x.max()))


class Selected(nn.Module):
    """Makes a size of the values in its input."""

    def forward(self, x: T) -> T:
        return x[:, :2] * torch.nonzero(x > 0).shape[0]


class Counted(nn.Module):
    """Depends on sizes alone."""

    def forward(self, x: T) -> T:
        return x[:, :2] * x.shape[0] if x.shape[1] == 3 else x


@pytest.mark.parametrize(("module", "reads"), [(Scaled(), True), (Selected(), True), (Counted(), False)])
def test_a_program_that_makes_numbers_of_values_is_told_from_one_that_reads_sizes(
    module: nn.Module, reads: bool
) -> None:
    assert capture.reads_values(capture.program(module, DENSE)) is reads


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_program_becomes_a_graph_with_the_same_names_and_dimensions() -> None:
    torch.manual_seed(0)
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    graph, note = capture.onnx_of_script(module, DENSE)
    assert note is None
    assert [(item.domain, item.version) for item in graph.opset_import] == [("", capture.OPSET)]
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        (found,) = ReferenceEvaluator(graph).run(None, {"x": x})
        assert np.allclose(found, module(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-6)
    (value,) = graph.graph.output
    assert [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] == ["batch", 2]


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_program_that_fixes_its_batch_is_refused() -> None:
    class Eight(nn.Module):
        def forward(self, x: T) -> T:
            return x[:, :2] + torch.zeros(8, 2)

    module = torch.jit.trace(Eight(), torch.zeros(8, 3))
    with pytest.raises(PenstockError, match=r"dynamic dimension was fixed on the way|cannot be written as ONNX"):
        capture.onnx_of_script(module, DENSE)


def test_a_signature_that_is_not_the_modules_is_refused() -> None:
    wrong = signature(("x:float32[batch,3]",), ("y:float32[batch,7]",), batch=BATCH)
    with pytest.raises(PenstockError, match=r"y\['batch', 2\].*y:float32\[batch,7\]"):
        captured(nn.Linear(3, 2).eval(), wrong)


def test_examples_fit_the_signature_and_have_no_size_of_one_that_is_dynamic() -> None:
    wanted = signature(("x:float32[batch,n]",), ("y:float32[batch]",), batch=Dim(opt=1, max=9), n=Dim(opt=5, max=9))
    (example,) = capture.examples(wanted)
    assert tuple(example.shape) == (2, 5)
    arrays: dict[str, Any] = {"x": example.numpy()}
    wanted.check(arrays)


class Normalised(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.layer, self.epsilon = nn.Linear(3, 3), epsilon

    def forward(self, x: T) -> T:
        return x / (x.norm(dim=1, keepdim=True) + self.epsilon) + torch.log(x.abs() + self.epsilon)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-8, 1e-12, 1e-30])
def test_a_small_epsilon_is_kept(epsilon: float) -> None:
    """onnxscript's rewriting takes what is under 1e-8 for 0."""
    declared = signature(("x:float32[batch,3]",), ("y:float32[batch,3]",), batch=BATCH)
    graph = captured(Normalised(epsilon).eval(), declared)
    answer = ReferenceEvaluator(graph).run(None, {"x": np.zeros((2, 3), np.float32)})[0]
    assert np.allclose(answer, np.log(epsilon), rtol=1e-5)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True)

    def forward(self, x: T) -> T:
        answer: T = self.layer(x)[0]
        return answer


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_a_loop_of_any_length_also_after_it_has_run_and_the_second_time(kind: Any) -> None:
    seq = Dim(min=1, opt=5, max=9)
    declared = signature(("x:float32[batch,seq,3]",), ("y:float32[batch,seq,4]",), batch=BATCH, seq=seq)
    for _ in range(2):
        module = Recurrent(kind).eval()
        with torch.inference_mode():
            module(torch.ones(2, 5, 3))
        program = capture.program(module, declared).module()
        for length in (1, 7, 9):
            x = torch.randn(3, length, 3)
            torch.testing.assert_close(program(x), module(x))


# --- Recurrent layers as ONNX's own operators -------------------------------------------------------------------------


WIDTH = 48  # weights this large are not folded by onnxscript of its own accord


class Layered(nn.Module):
    """A recurrent layer of two layers and both directions, with all that it answers, rows first everywhere."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(3, WIDTH, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: T, *given: T) -> tuple[T, ...]:
        """`given`: the initial states, and of an LSTM the initial cells."""
        states = tuple(state.transpose(0, 1) for state in given)
        answer, last = self.layer(x, (states if len(states) == 2 else states[0]) if states else None)
        return answer, *(state.transpose(0, 1) for state in (last if isinstance(last, tuple) else (last,)))


def of_layer(kind: type[nn.Module], *, given: bool) -> Signature:
    """The signature of `Layered`, with initial states or without."""
    states = ("h", "c") if kind is nn.LSTM else ("h",)
    return signature(
        ("x:float32[batch,seq,3]", *(f"{name}:float32[batch,4,{WIDTH}]" for name in states if given)),
        (f"y:float32[batch,seq,{2 * WIDTH}]", *(f"last_{name}:float32[batch,4,{WIDTH}]" for name in states)),
        batch=BATCH,
        seq=Dim(min=1, opt=5, max=12),
    )


def recurrent_state() -> list[Any]:
    """What torch knows of recurrent layers in this process, and capture changes while it works."""
    layers = [getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    return [*(dict(layer.py_kernels) for layer in layers), *map(dict, global_decomposition_table.values())]


@pytest.mark.parametrize("given", [False, True], ids=["from zeros", "from given states"])
@pytest.mark.parametrize(("kind", "operator"), [(nn.LSTM, "LSTM"), (nn.GRU, "GRU")])
def test_a_recurrent_layer_is_onnxs_own_operator_with_constant_weights_and_takes_any_length(
    kind: type[nn.Module], operator: str, given: bool
) -> None:
    torch.manual_seed(0)
    module, declared = Layered(kind).eval(), of_layer(kind, given=given)
    model = captured(module, declared)
    layers = [node for node in model.graph.node if node.op_type == operator]
    assert len(layers) == 2
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    gates = {"LSTM": 4, "GRU": 3}[operator] * WIDTH
    for node, width in zip(layers, (3, 2 * WIDTH), strict=True):
        shapes = [weights[name] for name in node.input[1:4]]  # a KeyError: computed in the graph, no initializer
        assert shapes == [[2, gates, width], [2, gates, WIDTH], [2, 2 * gates]]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, length in ((1, 1), (3, 12), (2, 5), (9, 7)):
        sizes = {"x": (rows, length, 3), "h": (rows, 4, WIDTH), "c": (rows, 4, WIDTH)}
        feeds = {tensor.name: torch.randn(sizes[tensor.name]) for tensor in declared.inputs}
        with torch.inference_mode():
            expected = module(*feeds.values())
        answers = session.run(None, {name: value.numpy() for name, value in feeds.items()})
        for found, wanted in zip(answers, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_captured_recurrent_layer_runs_in_torch_at_any_length(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = Layered(kind).eval()
    program = capture.program(module, of_layer(kind, given=True)).module()
    states = 2 if kind is nn.LSTM else 1
    for length in (1, 5, 12):
        feeds = [torch.randn(3, length, 3), *(torch.randn(3, 4, WIDTH) for _ in range(states))]
        for found, wanted in zip(program(*feeds), module(*feeds), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_torch_knows_of_recurrent_layers_what_it_did_also_after_a_capture_that_failed() -> None:
    before = recurrent_state()
    captured(Layered(nn.GRU).eval(), of_layer(nn.GRU, given=False))
    assert recurrent_state() == before
    with pytest.raises(PenstockError):
        captured(Branching(), DENSE)
    assert recurrent_state() == before
    # What was left behind would show here: answers of the right shapes, and of no meaning.
    layer, x = nn.LSTM(3, 4, batch_first=True).eval(), torch.randn(2, 5, 3)
    exported = torch.export.export(layer, (x,)).run_decompositions()
    torch.testing.assert_close(exported.module()(x)[0], layer(x)[0])

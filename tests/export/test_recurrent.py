"""Recurrent layers: plain ones are ONNX's RNN of any length, and what ONNX has no operator for goes elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import capture, pipeline, recurrent
from penstock.export.pipeline import Request
from penstock.signature import Dim, Signature, Tensor

WIDTH = 48  # weights this large are not folded by onnxscript of its own accord
BATCH, SEQ = Dim(opt=8, max=64), Dim(min=1, opt=5, max=12)
ACTIVATIONS = {"tanh": b"Tanh", "relu": b"Relu"}


class Layered(nn.Module):
    """A plain recurrent layer with all that it answers; states come and go rows first."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.RNN(3, WIDTH, **options)

    def forward(self, x: T, *given: T) -> tuple[T, T]:
        first = self.layer.batch_first
        state = given[0].transpose(0, 1) if given else None
        answer, last = self.layer(x if first else x.transpose(0, 1), state)
        return answer if first else answer.transpose(0, 1), last.transpose(0, 1)


def of_layer(module: Layered, *, given: bool) -> Signature:
    """The signature of `Layered`, with an initial state or without."""
    sides = 2 if module.layer.bidirectional else 1
    states = module.layer.num_layers * sides
    inputs = ["x:float32[batch,seq,3]", f"h:float32[batch,{states},{WIDTH}]"]
    outputs = [f"y:float32[batch,seq,{sides * WIDTH}]", f"last:float32[batch,{states},{WIDTH}]"]
    return Signature(
        inputs=tuple(map(Tensor.parse, inputs if given else inputs[:1])),
        outputs=tuple(map(Tensor.parse, outputs)),
        dims={"batch": BATCH, "seq": SEQ},
    )


def captured(module: nn.Module, wanted: Signature) -> Any:
    model, note = capture.onnx_graph(capture.program(module, wanted), module, wanted)
    assert note is None
    return model


def check(model: Any, module: nn.Module, wanted: Signature) -> None:
    """See that the graph answers as the module does, at sizes that it was not captured at."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, length in ((1, 1), (3, 12), (2, 5), (9, 7)):
        sizes = {"batch": rows, "seq": length}
        feeds = {
            tensor.name: torch.randn([sizes.get(str(size), size) for size in tensor.shape])  # type: ignore[misc]
            for tensor in wanted.inputs
        }
        with torch.inference_mode():
            expected = module(*feeds.values())
        answers = session.run(None, {name: value.numpy() for name, value in feeds.items()})
        for found, answer in zip(answers, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(found), answer, rtol=0, atol=2e-6)


def layers(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "RNN"]


@pytest.mark.parametrize(("activation", "given"), [("tanh", True), ("relu", False)])
def test_a_plain_layer_is_onnxs_own_operator_with_constant_weights_and_takes_any_length(
    activation: str, given: bool
) -> None:
    torch.manual_seed(0)
    module = Layered(num_layers=2, bidirectional=True, batch_first=True, nonlinearity=activation).eval()
    wanted = of_layer(module, given=given)
    model = captured(module, wanted)
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    assert len(layers(model)) == 2
    for node, width in zip(layers(model), (3, 2 * WIDTH), strict=True):
        shapes = [weights[name] for name in node.input[1:4]]  # a KeyError: computed in the graph, no initializer
        assert shapes == [[2, WIDTH, width], [2, WIDTH, WIDTH], [2, 2 * WIDTH]]
        (held,) = [attribute for attribute in node.attribute if attribute.name == "activations"]
        assert list(held.strings) == [ACTIVATIONS[activation]] * 2
    check(model, module, wanted)


@pytest.mark.parametrize(
    ("batch_first", "bias", "bidirectional"),
    [(True, True, False), (False, True, True), (True, False, True), (False, False, False)],
)
def test_every_shape_of_a_plain_layer_answers_as_torch_does(batch_first: bool, bias: bool, bidirectional: bool) -> None:
    torch.manual_seed(1)
    options = {"batch_first": batch_first, "bias": bias, "bidirectional": bidirectional, "nonlinearity": "relu"}
    module = Layered(**options).eval()
    wanted = of_layer(module, given=True)
    model = captured(module, wanted)
    assert len(layers(model)) == 1
    check(model, module, wanted)


# --- What ONNX has no operator for -----------------------------------------------------------------------------------


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, size=0):
        super().__init__()
        self.layer = nn.LSTM(3, 8, proj_size=size, batch_first=True)
        self.head = nn.Linear(size or 8, 2)
    def forward(self, x):
        return self.head(self.layer(x)[0])
"""


def saved(folder: Path, size: int) -> tuple[nn.Module, Request]:
    """A net whose states are projected to `size`, and the request to export it."""
    (folder / "net.py").write_text(NET)
    space: dict[str, Any] = {"__name__": "net"}
    exec(NET, space)
    torch.manual_seed(0)
    module: nn.Module = space["Net"](size).eval()
    torch.save(module.state_dict(), folder / "net.pth")
    override = Override(
        model=f"{folder / 'net.py'}:Net",
        model_args={"size": size},
        inputs=("x:float32[batch,seq,3]",),
        dims={"seq": Dim(min=1, opt=5, max=9)},
        batch=Dim(min=1, opt=2, max=4),
    )
    return module, Request(folder / "net.pth", output=folder / "models", override=override)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projected_states_is_refused_for_onnx_and_exported_as_a_program(tmp_path: Path) -> None:
    module, request = saved(tmp_path, 5)
    with pytest.raises(PenstockError) as caught:
        pipeline.export(request, lambda line: None)
    assert str(caught.value) == (
        "net-onnx-fp32: an LSTM with proj_size=5: ONNX's LSTM has no projection; --format pt2 and torchscript do"
    )
    assert not list((tmp_path / "models").iterdir())
    for format in ("pt2", "torchscript"):  # as the sentence says
        (found,) = pipeline.export(
            Request(request.checkpoint, (format,), output=request.output, override=request.override), lambda line: None
        )
        with found.load() as runner:
            for rows, length in ((1, 1), (4, 9), (3, 5)):
                x = torch.randn(rows, length, 3)
                with torch.inference_mode():
                    expected = module(x)
                (answer,) = runner.run({"x": x.numpy()}).values()
                torch.testing.assert_close(torch.from_numpy(answer), expected)


def test_only_projections_are_refused(tmp_path: Path) -> None:
    wanted = Signature(
        inputs=(Tensor.parse("x:float32[batch,seq,3]"),),
        outputs=(Tensor.parse("y:float32[batch,seq,2]"),),
        dims={"batch": BATCH, "seq": SEQ},
    )
    plain, projected = (saved(tmp_path, size)[0] for size in (0, 5))
    recurrent.check(capture.program(plain, wanted))
    with pytest.raises(PenstockError, match=r"an LSTM with proj_size=5: "):
        recurrent.check(capture.program(projected, wanted))

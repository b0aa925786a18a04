"""Every network: it learns, its checkpoint rebuilds it unasked, and it exports through the gate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock import architecture, card, checkpoint
from penstock.export import pipeline
from penstock.export.pipeline import Request
from penstock.train import nets

SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
SICK = {"mean": [152.0], "std": [77.0]}
# Class, its arguments, the samples that it trains on, whether it is also exported in int8.
CASES: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "mlp": ("Mlp", {"features": 64, "widths": [32, 16], "classes": 10}, "rows", True),
    "mlp-of-layer-norms": ("Mlp", {"features": 64, "classes": 10, "norm": "layer", "dropout": 0.1}, "rows", False),
    "residual": ("ResidualNet", {"widths": [8, 16]}, "images", False),
    "repvgg": ("RepVggNet", {"widths": [8, 16], "depths": [2, 2]}, "images", True),
    "text-cnn": ("TextCnn", {"tokens": 48, "width": 24, "filters": 16}, "ids", True),
    "text-lstm": ("TextRnn", {"tokens": 48, "width": 24, "layers": 2}, "ids", True),
    "text-gru": ("TextRnn", {"tokens": 48, "width": 24, "cell": "gru", "bidirectional": False}, "ids", False),
    "bert": ("Bert", {"config": SMALL}, "mask", True),
    "bert-cnn": ("Bert", {"config": SMALL, "head": "cnn", "width": 16}, "mask", False),
    "bert-lstm": ("Bert", {"config": SMALL, "head": "lstm", "width": 16}, "mask", False),
    "bert-gru": ("Bert", {"config": SMALL, "head": "gru", "width": 16}, "mask", False),
    "rescaled": (
        "Rescaled",
        {"net": {"target": f"{card.TRUSTED}:Mlp", "kwargs": {"features": 10, "widths": [16], "classes": 1}}, **SICK},
        "patients",
        False,
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("bert"):
        pytest.importorskip("transformers")
    return name


@pytest.fixture(scope="module")
def learned(case: str, learn: Callable[..., Any]) -> Any:
    name, kwargs, kind, _ = CASES[case]
    return learn(f"{card.TRUSTED}:{name}", kwargs, kind, lr=0.003 if name == "Bert" else 0.01)


def test_every_public_network_is_tried() -> None:
    assert {name for name, *_ in CASES.values()} == set(nets.__all__)


def test_a_few_steps_on_real_data_bring_the_loss_down(learned: Any) -> None:
    first, last = np.mean(learned.losses[:4]), np.mean(learned.losses[-4:])
    assert last < 0.75 * first, learned.losses


def test_a_checkpoint_rebuilds_its_network_unasked(learned: Any) -> None:
    held = checkpoint.load(learned.checkpoint)
    assert held.proof.loaded == held.proof.expected
    assert held.card.architecture == learned.architecture
    inputs = learned.held_out.tensors()
    with torch.inference_mode():
        assert torch.equal(held.module(*inputs), learned.net(*inputs))


def test_it_goes_through_the_gate_and_answers_rows_that_it_has_not_seen_the_same(
    case: str, learned: Any, tmp_path: Path
) -> None:
    precisions = ("fp32", "int8") if CASES[case][3] else ("fp32",)
    made = pipeline.export(Request(learned.checkpoint, precisions=precisions, output=tmp_path), lambda line: None)
    inputs = {name: array[:37] for name, array in learned.held_out.inputs.items()}
    with torch.inference_mode():
        expected = learned.net(*map(torch.from_numpy, inputs.values())).numpy()
    for found in made:
        with found.load() as runner:
            (got,) = runner.run(inputs).values()
        if found.receipt.precision == "fp32":
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        else:
            assert np.linalg.norm(got - expected) < 0.1 * np.linalg.norm(expected)


def test_a_network_learns_with_all_that_it_has(learned: Any) -> None:
    net = architecture.build(learned.architecture).train()
    net(*learned.held_out.tensors()).square().sum().backward()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not still


def test_it_trains_in_half_precision_as_in_float32(learned: Any) -> None:
    net = architecture.build(learned.architecture)
    net.load_state_dict(learned.net.state_dict())
    inputs = learned.held_out.tensors()
    with torch.autocast("cpu", torch.bfloat16):
        answers = net(*inputs)
    answers.float().square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    expected = learned.net(*inputs).detach()
    assert float((answers.detach().float() - expected).norm()) < 0.05 * float(expected.norm())


def test_every_public_name_is_a_network() -> None:
    public = {name: value for name, value in vars(nets).items() if not name.startswith("_")}
    strangers = {name for name, value in public.items() if not isinstance(value, ModuleType)} - set(nets.__all__)
    assert not strangers
    for name in nets.__all__:
        assert inspect.isclass(public[name])
        assert issubclass(public[name], nn.Module)
        assert card.trusted(f"{card.TRUSTED}:{name}")

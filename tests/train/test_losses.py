"""Losses against their formulas, written out in float64; and that they stay finite where formulas do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.train import losses
from penstock.train.recipe import Loss

Array = NDArray[np.float64]
GAMMAS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])
SMOOTHINGS = st.sampled_from([0.0, 0.1, 0.5])
LOGITS = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(-12, 12))


def softmax(z: Array) -> Array:
    raised = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def said(
    outputs: Array, targets: NDArray[Any], loss: Loss, task: Any, counts: Any = None, samples: Any = None
) -> float:
    module = losses.build(loss, task, counts, samples)
    return float(module(torch.from_numpy(outputs), torch.from_numpy(targets)))


def drawn_labels(data: st.DataObject, z: Array) -> NDArray[np.int64]:
    return data.draw(hnp.arrays(np.int64, len(z), elements=st.integers(0, z.shape[1] - 1)))


def drawn_shares(data: st.DataObject, z: Array) -> Array:
    return data.draw(hnp.arrays(np.float64, z.shape, elements=st.floats(0, 1)))


def drawn_weights(data: st.DataObject, z: Array) -> tuple[float, ...] | bool:
    each = st.tuples(*[st.floats(0.1, 10)] * z.shape[1])
    return data.draw(st.one_of(st.just(False), each))


@settings(max_examples=60, deadline=None)
@given(z=LOGITS, gamma=GAMMAS, smoothing=SMOOTHINGS, data=st.data())
def test_losses_of_classes_are_their_formulas(z: Array, gamma: float, smoothing: float, data: st.DataObject) -> None:
    labels, weights = drawn_labels(data, z), drawn_weights(data, z)
    c = z.shape[1]
    p, w = softmax(z), np.ones(c) if weights is False else np.array(weights)
    hot = np.eye(c)[labels]
    shares = hot * (1 - smoothing) + smoothing / c
    for name, power in (("cross-entropy", 0.0), ("focal", gamma)):
        loss = Loss(name=name, gamma=power, label_smoothing=smoothing, class_weights=weights)
        wanted = -(shares * w * (1 - p) ** power * np.log(p)).sum() / (hot @ w).sum()
        assert said(z, labels, loss, "classification") == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        # The same as probabilities, as mixup has them.
        assert said(z, hot, loss, "classification") == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(z=LOGITS, gamma=GAMMAS, smoothing=SMOOTHINGS, alpha=st.sampled_from([None, 0.0, 0.25, 1.0]), data=st.data())
def test_losses_of_labels_are_their_formulas(
    z: Array, gamma: float, smoothing: float, alpha: float | None, data: st.DataObject
) -> None:
    targets, weights = drawn_shares(data, z), drawn_weights(data, z)
    p, w = sigmoid(z), np.ones(z.shape[1]) if weights is False else np.array(weights)
    t = targets * (1 - smoothing) + smoothing / 2
    for name, power, a in (("bce", 0.0, None), ("focal", gamma, alpha)):
        one, zero = (1.0, 1.0) if a is None else (a, 1 - a)
        ones, zeros = -one * (1 - p) ** power * np.log(p), -zero * p**power * np.log(1 - p)
        loss = Loss(name=name, gamma=power, alpha=a, label_smoothing=smoothing, class_weights=weights)
        wanted = (t * w * ones + (1 - t) * zeros).mean()
        assert said(z, targets, loss, "multilabel") == pytest.approx(wanted, rel=1e-7, abs=1e-12)


def test_the_focal_loss_is_the_paper_s_for_two_classes_and_for_many() -> None:
    """Equation 5: FL(p_t) = −α_t (1 − p_t)^γ log(p_t); α_t is α for class 1, 1 − α for the other."""
    z = np.array([[0.3, -1.2], [2.0, 0.5], [-0.7, 1.1]])
    labels = np.array([1, 0, 1])
    p_t, a_t = softmax(z)[np.arange(3), labels], np.array([0.25, 0.75, 0.25])
    wanted = (-a_t * (1 - p_t) ** 2 * np.log(p_t)).mean()
    focal = Loss(name="focal", gamma=2, alpha=0.25)
    assert said(z, labels, focal, "classification", np.array([1, 2])) == pytest.approx(wanted, rel=1e-12)
    # One logit a label, the difference of the two.
    one = (z[:, 1] - z[:, 0])[:, None]
    assert said(one, labels[:, None], focal, "multilabel") == pytest.approx(wanted, rel=1e-12)
    # An example that is right with p = 0.9 counts 100 times less than in cross entropy (section 3.2, γ = 2).
    easy = np.log(np.array([[0.9, 0.05, 0.05]]))
    ratio = said(easy, np.array([0]), Loss(name="cross-entropy"), "classification") / said(
        easy, np.array([0]), Loss(name="focal"), "classification"
    )
    assert ratio == pytest.approx(100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_gamma_focal_is_cross_entropy_to_the_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 7, dtype=dtype) * 5, torch.tensor([3])
    focal = losses.build(Loss(name="focal", gamma=0), "classification")
    assert torch.equal(focal(logits, labels), functional.cross_entropy(logits, labels))
    focal = losses.build(Loss(name="focal", gamma=0), "multilabel")
    many, zeros_and_ones = torch.randn(64, 7, dtype=dtype), torch.randint(2, (64, 7))
    wanted = functional.binary_cross_entropy_with_logits(many, zeros_and_ones.to(dtype))
    assert torch.equal(focal(many, zeros_and_ones), wanted)


NAMED = [
    ("classification", "cross-entropy"),
    ("classification", "focal"),
    ("multilabel", "bce"),
    ("multilabel", "focal"),
]


@pytest.mark.parametrize("gamma", [0.0, 0.3, 2.0, 5.0])
@pytest.mark.parametrize(("task", "name"), NAMED)
@pytest.mark.parametrize("size", [20.0, 120.0, 1e4, 1e30])
def test_gradients_are_finite_at_extreme_logits(task: Any, name: Any, size: float, gamma: float) -> None:
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 3)
    logits = (signs * size).requires_grad_()
    if task == "classification":
        targets: Tensor = torch.arange(len(signs)) % 3
    else:
        targets = (torch.arange(signs.numel()) % 2).view(signs.shape)
    for wanted in (targets, functional.one_hot(targets, 3).float() if task == "classification" else targets.float()):
        for smoothing in (0.0, 0.1):
            loss = losses.build(Loss(name=name, gamma=gamma, label_smoothing=smoothing), task)(logits, wanted)
            (gradient,) = torch.autograd.grad(loss, logits)
            assert torch.isfinite(loss)
            assert torch.isfinite(gradient).all()
            assert gradient.abs().max() > 0  # what is wrong by far still learns


def test_the_gradient_of_the_focal_loss_is_right_where_the_class_is_all_but_certain() -> None:
    """With one rival, 1 − p = 1 / (1 + e^d): the loss is about e^−d(γ + 1), where float32 has 1 − p as 0."""
    logits = torch.tensor([[20.0, 0.0]], requires_grad=True)
    loss = losses.build(Loss(name="focal", gamma=1.0), "classification")(logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, logits)
    exact = torch.tensor([[20.0, 0.0]], dtype=torch.float64, requires_grad=True)
    rest = (1 + exact[0, 0].sub(exact[0, 1]).exp()).reciprocal()
    (wanted,) = torch.autograd.grad(-rest * torch.log1p(-rest), exact)
    assert gradient[0, 1] == pytest.approx(float(wanted[0, 1]), rel=0.5)  # float32's log p is 0 here, log(1 − p) is not
    assert gradient[0, 1] > 0


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_gradients_of_focal_losses_are_those_of_their_values(gamma: float) -> None:
    torch.manual_seed(0)
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    classes = losses.build(Loss(name="focal", gamma=gamma, label_smoothing=0.1), "classification")
    labels = losses.build(Loss(name="focal", gamma=gamma, alpha=0.25), "multilabel")
    assert torch.autograd.gradcheck(lambda x: classes(x, torch.tensor([0, 1, 2, 0])), z)
    assert torch.autograd.gradcheck(lambda x: labels(x, torch.eye(4, 3)), z)


def test_distances_are_their_formulas() -> None:
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(50, 2)) * 3, rng.normal(size=(50, 2))
    off = np.abs(outputs - targets)
    huber = np.where(off <= 0.7, off**2 / 2, 0.7 * (off - 0.35))
    for name, wanted in (("mse", (off**2).mean()), ("l1", off.mean()), ("huber", huber.mean())):
        assert said(outputs, targets, Loss(name=name, delta=0.7), "regression") == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("shapes", [((5, 1), (5,)), ((5,), (5, 1))])
def test_a_column_of_outputs_is_compared_number_by_number(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    outputs, targets = np.arange(5.0).reshape(shapes[0]), np.arange(5.0).reshape(shapes[1])
    assert said(outputs, targets, Loss(), "regression") == 0.0


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(
        PenstockError, match=r"outputs have shape \[4, 3\] and the targets \[4\]; each target must have"
    ):
        said(np.zeros((4, 3)), np.zeros(4), Loss(), "multilabel")
    with pytest.raises(PenstockError, match=r"outputs have shape \[3, 2\] and the targets \[2, 3\]"):
        said(np.zeros((3, 2)), np.zeros((2, 3)), Loss(), "regression")


@pytest.mark.parametrize(
    ("task", "name"), [("classification", "cross-entropy"), ("multilabel", "bce"), ("regression", "mse")]
)
def test_each_task_has_its_loss_unasked(task: Any, name: Any) -> None:
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(6, 3))
    targets = rng.integers(0, 3, 6) if task == "classification" else rng.uniform(size=(6, 3))
    assert said(outputs, targets, Loss(), task) == said(outputs, targets, Loss(name=name), task)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, task: Any) -> None:
    outputs = torch.full((4, 3), 300.0).to(dtype)  # 300² is no number in float16
    targets = torch.zeros(4, dtype=torch.int64) if task == "classification" else torch.zeros(4, 3)
    loss = losses.build(Loss(), task)(outputs, targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, losses.build(Loss(), task)(outputs.float(), targets))


@pytest.mark.parametrize("name", ["cross-entropy", "focal"])
def test_autocast_lowers_nothing_of_a_loss(name: Any) -> None:
    torch.manual_seed(0)
    logits, shares = torch.randn(50, 3), torch.rand(50, 3)
    loss = losses.build(Loss(name=name, class_weights=(0.1, 1.0, 7.0), label_smoothing=0.1), "classification")
    wanted = loss(logits, shares)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(logits, shares), wanted)


def test_weights_by_the_data_make_classes_count_alike() -> None:
    counts = np.array([60, 30, 10])
    weights = losses.class_weights(Loss(class_weights=True), "classification", counts)
    assert weights == pytest.approx([100 / 180, 100 / 90, 100 / 30])
    assert weights * counts == pytest.approx(np.full(3, 100 / 3))
    ones = losses.class_weights(Loss(class_weights=True), "multilabel", counts, samples=100)
    assert ones == pytest.approx([40 / 60, 70 / 30, 90 / 10])


def test_weights_move_with_the_module_and_stay_out_of_its_state() -> None:
    module = losses.build(Loss(class_weights=(1.0, 2.0)), "classification")
    assert module.state_dict() == {}
    assert [buffer.device.type for buffer in module.to("meta").buffers()] == ["meta"]


@pytest.mark.parametrize(
    ("loss", "task", "counts", "sentence"),
    [
        (
            {"name": "mse"},
            "classification",
            None,
            "loss.name is mse; a task of classification takes cross-entropy or focal",
        ),
        ({"name": "bce"}, "classification", None, "loss.name is bce; a task of classification takes"),
        ({"name": "cross-entropy"}, "multilabel", None, "a task of multilabel takes bce or focal"),
        ({"name": "focal"}, "regression", None, "a task of regression takes mse or l1 or huber"),
        (
            {"alpha": 0.5},
            "classification",
            None,
            "loss.alpha is 0.5; it is the focal loss's, and loss.name is cross-entropy",
        ),
        ({"name": "focal", "alpha": 0.5}, "classification", [1, 1, 1], "loss.alpha is 0.5 and there are 3 classes"),
        (
            {"label_smoothing": 0.1},
            "regression",
            None,
            "loss.label_smoothing is 0.1; a task of regression has no classes",
        ),
        (
            {"class_weights": True},
            "regression",
            None,
            "loss.class_weights is given; a task of regression has no classes",
        ),
        ({"class_weights": (1.0, 2.0)}, "classification", [1, 1, 1], "has 2 weights; there are 3 classes"),
        ({"class_weights": (1.0, 0.0)}, "classification", [1, 1], "weights are above 0"),
        ({"class_weights": ()}, "classification", None, "weights are above 0"),
        ({"class_weights": True}, "classification", [3, 0, 1], "class 1 has no training sample"),
        ({"class_weights": True}, "multilabel", [3, 10], "label 1 is in every training sample"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    loss: dict[str, Any], task: Any, counts: Any, sentence: str
) -> None:
    with pytest.raises(PenstockError, match=sentence):
        losses.build(Loss(**loss), task, None if counts is None else np.array(counts), samples=10)

"""Losses: what a batch's outputs are short of their targets, in one number that is to be small."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.train.recipe import Loss, Task

# The losses of each task, the one that is taken unasked first.
BY_TASK: dict[Task, tuple[str, ...]] = {
    "classification": ("cross-entropy", "focal"),
    "multilabel": ("bce", "focal"),
    "regression": ("mse", "l1", "huber"),
}


def build(loss: Loss, task: Task, counts: NDArray[np.int64] | None = None, samples: int | None = None) -> nn.Module:
    """The loss of a task: a module called with (outputs, targets) that answers a scalar, the mean over the batch.

    It computes in float32 or, where the outputs are float64, in that. Its weights are buffers that no state_dict holds.

    - classification: logits `[n, classes]`; class numbers int64 `[n]`, or probabilities `[n, classes]`.
    - multilabel: logits `[n, classes]`; 0 and 1, or what lies between, of the same shape.
    - regression: outputs `[n]`, `[n, 1]` or `[n, k]`; as many numbers.

    Args:
        loss: what a recipe says of it.
        task: what the outputs are.
        counts: int64 `[classes]`, how many training samples each class has; needed for `class_weights = true`.
        samples: the training samples, which in multilabel are not the sum of `counts`.

    Raises:
        PenstockError: the loss is not one of the task's, or a setting is not one of the loss's.
    """
    name = loss.name or BY_TASK[task][0]
    _check(loss, name, task)
    if task == "regression":
        return _Regression(name, loss.delta)
    weights = class_weights(loss, task, counts, samples)
    if task == "multilabel":
        gamma = loss.gamma if name == "focal" else 0.0
        return _Binary(gamma, loss.alpha, loss.label_smoothing, weights)
    if name == "cross-entropy":
        return _CrossEntropy(loss.label_smoothing, weights)
    if loss.alpha is not None and counts is not None and len(counts) != 2:
        raise PenstockError(
            f"loss.alpha is {loss.alpha:g} and there are {len(counts)} classes; it weighs one class against one other: "
            "give loss.class_weights"
        )
    return _Focal(loss.gamma, loss.alpha, loss.label_smoothing, weights)


def _check(loss: Loss, name: str, task: Task) -> None:
    if name not in BY_TASK[task]:
        raise PenstockError(f"loss.name is {name}; a task of {task} takes {' or '.join(BY_TASK[task])}")
    if loss.alpha is not None and name != "focal":
        raise PenstockError(f"loss.alpha is {loss.alpha:g}; it is the focal loss's, and loss.name is {name}")
    if task != "regression":
        return
    if loss.label_smoothing:
        raise PenstockError(f"loss.label_smoothing is {loss.label_smoothing:g}; a task of regression has no classes")
    if loss.class_weights is not False:
        raise PenstockError("loss.class_weights is given; a task of regression has no classes")


def class_weights(
    loss: Loss, task: Task, counts: NDArray[np.int64] | None, samples: int | None = None
) -> NDArray[np.float64] | None:
    """The weight of each class, float64 `[classes]`, or None where all are alike.

    Where the recipe leaves them to the data: in classification samples ÷ (classes × the class's), so that the mean over
    the samples is 1; in multilabel, of the label's ones, its zeros ÷ its ones. Arguments and errors are `build`'s.
    """
    if loss.class_weights is False:
        return None
    if loss.class_weights is not True:
        return _given(np.array(loss.class_weights), counts)
    if counts is None or (task == "multilabel" and samples is None):
        raise ValueError("class_weights = true needs counts, and in multilabel samples")
    lacking = np.flatnonzero(counts == 0)
    if len(lacking):
        raise PenstockError(
            f"loss.class_weights is true; class {lacking[0]} has no training sample to tell its weight by: give the "
            "weights, one a class"
        )
    if task == "multilabel":
        zeros: NDArray[np.float64] = (float(samples or 0) - counts) / counts
        if (zeros == 0).any():
            number = int(np.flatnonzero(zeros == 0)[0])
            raise PenstockError(
                f"loss.class_weights is true; label {number} is in every training sample: give the weights"
            )
        return zeros
    shares: NDArray[np.float64] = counts.sum() / (len(counts) * counts)
    return shares


def _given(weights: NDArray[np.float64], counts: NDArray[np.int64] | None) -> NDArray[np.float64]:
    if counts is not None and len(weights) != len(counts):
        raise PenstockError(f"loss.class_weights has {len(weights)} weights; there are {len(counts)} classes")
    if not len(weights) or not (np.isfinite(weights) & (weights > 0)).all():
        raise PenstockError(f"loss.class_weights is {weights.tolist()}; weights are above 0, one a class")
    return weights


class _Weighted(nn.Module):
    """A loss over classes that may have weights."""

    weights: Tensor | None

    def __init__(self, smoothing: float, weights: NDArray[np.float64] | None) -> None:
        super().__init__()
        self.smoothing = smoothing
        held = None if weights is None else torch.tensor(weights)
        self.register_buffer("weights", held, persistent=False)

    def _weights(self, like: Tensor) -> Tensor | None:
        return None if self.weights is None else self.weights.to(like)


class _CrossEntropy(_Weighted):
    """Cross entropy over classes, the mean weighted where classes have weights, of probabilities as of class numbers.

    Torch's own mean over probabilities is not divided by the weights, so that the two would not agree.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _full(logits)
        weights = self._weights(logits)
        if not targets.is_floating_point():
            return functional.cross_entropy(logits, targets, weights, label_smoothing=self.smoothing)
        targets = targets.to(logits.dtype)
        if weights is None:
            return functional.cross_entropy(logits, targets, label_smoothing=self.smoothing)
        total = functional.cross_entropy(logits, targets, weights, reduction="sum", label_smoothing=self.smoothing)
        return total / (targets * weights).sum()  # no product of matrices, which autocast would lower


class _Focused(_Weighted):
    """One that the surer answers count less in by γ, and that α weighs."""

    alphas: Tensor | None

    def __init__(
        self, gamma: float, alpha: float | None, smoothing: float, weights: NDArray[np.float64] | None
    ) -> None:
        super().__init__(smoothing, weights)
        self.gamma, self.alpha = gamma, alpha
        # It lies where the network does: what is copied to a GPU for each batch has that waited for.
        held = None if alpha is None else torch.tensor([1 - alpha, alpha], dtype=torch.float64)
        self.register_buffer("alphas", held, persistent=False)


class _Focal(_Focused):
    """−α (1 − p)^γ log p of the class that is right, p by softmax, after Lin et al. 2017, equation 5.

    With probabilities as targets, and where they are smoothed, it is the mean over the classes that they weigh. `alpha`
    is the second of two classes' and 1 − `alpha` the first's, as in the paper; weights are the mean's, as in cross
    entropy, which it is with γ = 0.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _full(logits)
        log_p = logits.log_softmax(1)
        each = -log_p
        if self.gamma:
            each = each * (self.gamma * _log_of_rest(logits, log_p)).exp()
        if self.alphas is not None:
            each = each * self.alphas.to(logits)
        weights = self._weights(logits)
        if not targets.is_floating_point() and not self.smoothing and weights is None:
            return each.gather(1, targets[:, None]).mean()
        shares = targets if targets.is_floating_point() else functional.one_hot(targets, logits.shape[1])
        shares = shares.to(logits.dtype)
        whole = len(logits) if weights is None else (shares * weights).sum()
        if self.smoothing:
            shares = shares * (1 - self.smoothing) + self.smoothing / logits.shape[1]
        return (shares * (each if weights is None else each * weights)).sum() / whole


def _log_of_rest(logits: Tensor, log_p: Tensor) -> Tensor:
    """log(1 − p) of each class, `[n, classes]`, without the digits that 1 − p loses where p is all but 1.

    Only the likeliest class can be so near: its rest is added up from the others' logits.
    """
    top = logits.argmax(1, keepdim=True)
    rest = logits.scatter(1, top, -math.inf).logsumexp(1, keepdim=True) - logits.logsumexp(1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, rest)


class _Binary(_Focused):
    """−α (1 − p)^γ log p of each label being as it is, p by sigmoid, after Lin et al. 2017, equation 5.

    With γ = 0 and no α it is the binary cross entropy. α is for a one, 1 − α for a zero; what lies between is the mean
    of the two that it weighs. Weights multiply the ones.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = _full(logits)
        targets = _alike(targets, logits)
        if self.smoothing:
            targets = targets * (1 - self.smoothing) + self.smoothing / 2
        weights = self._weights(logits)
        if not self.gamma and self.alpha is None:
            return functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights)
        # As exponents the factors stay finite, and so do their gradients, where p is 0 or 1 to the last bit.
        log_p, log_q = functional.logsigmoid(logits), functional.logsigmoid(-logits)
        ones, zeros = -log_p * (self.gamma * log_q).exp(), -log_q * (self.gamma * log_p).exp()
        if self.alpha is not None:
            ones, zeros = self.alpha * ones, (1 - self.alpha) * zeros
        if weights is not None:
            ones = ones * weights
        return (targets * ones + (1 - targets) * zeros).mean()


class _Regression(nn.Module):
    """Squared, absolute or Huber's distance, the mean over all numbers."""

    def __init__(self, name: str, delta: float) -> None:
        super().__init__()
        self.name, self.delta = name, delta

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _full(outputs)
        targets = _alike(targets, outputs)
        if self.name == "mse":
            return functional.mse_loss(outputs, targets)
        if self.name == "l1":
            return functional.l1_loss(outputs, targets)
        return functional.huber_loss(outputs, targets, delta=self.delta)


def _full(outputs: Tensor) -> Tensor:
    """Outputs in no less than float32: in half precision a loss is off by more than its steps, or infinite."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def _alike(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the outputs' dtype and shape: `[n]` beside `[n, 1]` would be broadcast to `[n, n]` unasked."""
    if targets.numel() != outputs.numel() or len(targets) != len(outputs):
        raise PenstockError(
            f"the network's outputs have shape {list(outputs.shape)} and the targets {list(targets.shape)}; each "
            "target must have its output"
        )
    return targets.to(outputs.dtype).reshape(outputs.shape)

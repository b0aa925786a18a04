"""Noise: how far a source's float32 answers are from exact ones, which is what an export may differ by.

The limit of an output is its noise times a factor: two right programs each round in their own order, so that they
differ by a few times what one of them differs from exact arithmetic (Higham 2002, "Accuracy and Stability of Numerical
Algorithms", chapter 4: the error of a sum depends on its order; all orders share one bound).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import nn

from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.parity import Columns, Limits, distance, small_columns
from penstock.runtimes.torch import TorchRunner, name_outputs
from penstock.signature import Signature

# The largest error of a right export in docs/models.md is a thirteenth of the limit that this makes.
FACTOR = 32.0
# One unit in the last place of float32: no source is measured to be better than its numbers can say.
FLOOR = 2.0**-23
# A float32 export that may be this far off has been proven to be nothing.
CEILING = 1e-2
_ROWS = 4


class Noise(BaseModel):
    """The relative L2 error of each output's worst sampled row, and what it was measured against.

    `columns` are those that an output's norm hides, with the error of their own; none where that cannot be measured.
    """

    by: Literal["float64", "perturbed weights"]
    values: dict[str, float]
    columns: tuple[tuple[Columns, float], ...] = ()

    def larger(self, other: Noise) -> Noise:
        """For each output the larger of two."""
        return Noise(by=self.by, values={name: max(value, other.values[name]) for name, value in self.values.items()})


def measure(
    module: nn.Module, signature: Signature, rows: Rows, outputs: dict[str, NDArray[np.generic]] | None = None
) -> Noise:
    """The source's own noise: against the same module in float64, over the first and the last few rows.

    A module that computes in float32 whatever it is given, or cannot in float64, is instead compared with itself after
    each weight and input moved by up to a unit in its last place. Where neither can be had, noise is `FLOOR`.

    Args:
        module: as the signature calls it.
        signature: the contract.
        rows: the samples.
        outputs: the source's answers for all samples, which show the columns that a norm hides.
    """
    batch = max(signature.min_batch, min(_ROWS, signature.max_batch))
    ends = np.unique(np.r_[0 : min(batch, len(rows)), max(0, len(rows) - batch) : len(rows)])
    inputs = take(rows.inputs, np.resize(ends, -(-len(ends) // batch) * batch))
    exact = _try(lambda part: _in_float64(module, signature, part), inputs, batch)
    plain = _try(lambda part: TorchRunner(module, signature).run(part), inputs, batch)
    by: Literal["float64", "perturbed weights"] = "float64"
    if exact is None:
        by, exact = "perturbed weights", _try(lambda part: _perturbed(module, signature, part), inputs, batch)
    if exact is None or plain is None:
        return Noise(by=by, values={tensor.name: FLOOR for tensor in signature.outputs})
    try:
        values = {name: _worst_row(exact[name], plain[name]) for name in plain}
        hidden = [group for name, array in (outputs or {}).items() for group in small_columns(name, array)]
        return Noise(by=by, values=values, columns=_own_errors(hidden, exact, plain))
    except ValueError:  # their shapes hang on a value's last bit
        return Noise(by=by, values={tensor.name: FLOOR for tensor in signature.outputs})


def limits(noise: Noise, base: Limits) -> dict[str, Limits]:
    """What each output must keep: the larger of its noise times `FACTOR` and of `base`.

    Raises:
        PenstockError: the noise is so large that nothing would be proven.
    """
    found = {}
    for name, value in noise.values.items():
        error = max(FACTOR * max(value, FLOOR), base.max_error)
        if not error <= max(CEILING, base.max_error):
            raise PenstockError(
                f"the model's own rounding moves output {name!r} by {value:.1e}: float32 does not settle its answers, "
                f"and an export could not be proven; --max-error {error:.1g} accepts that"
            )
        found[name] = base.model_copy(update={"max_error": error})
    return found


def _try(
    answer: Callable[[dict[str, Any]], dict[str, Any]], inputs: dict[str, Any], batch: int
) -> dict[str, Any] | None:
    """The answers for all inputs, a batch at a time, or None where it fails or gives NaN or Inf."""
    count = len(next(iter(inputs.values())))
    try:
        parts = [answer(take(inputs, slice(start, start + batch))) for start in range(0, count, batch)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except Exception:  # the module's own code, in a precision that it may not have been written for
        return None
    return joined if all(np.isfinite(array).all() for array in joined.values()) else None


def _worst_row(exact: Any, plain: Any) -> float:
    if plain.dtype.kind != "f":
        return FLOOR  # whole numbers do not round
    return max(distance("", exact[row : row + 1], plain[row : row + 1]).rel_l2 for row in range(len(exact)))


def _own_errors(
    hidden: list[Columns], exact: dict[str, Any], plain: dict[str, Any]
) -> tuple[tuple[Columns, float], ...]:
    errors = [(group, group.error(exact[group.output], plain[group.output])) for group in hidden]
    return tuple((group, max(error, FLOOR)) for group, error in errors if error is not None)


def _in_float64(module: nn.Module, signature: Signature, inputs: dict[str, Any]) -> dict[str, Any]:
    arguments = [torch.from_numpy(np.array(inputs[tensor.name])) for tensor in signature.inputs]
    with _default_dtype(torch.float64), torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = copy.deepcopy(module).double()
        answer = wide(*(x.double() if x.is_floating_point() else x for x in arguments))
    found = name_outputs(answer, [tensor.name for tensor in signature.outputs])
    if any(array.dtype == np.float32 for array in found.values()):
        raise TypeError("it computes in float32 all the same")
    return found


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What a module makes anew while it runs gets this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _perturbed(module: nn.Module, signature: Signature, inputs: dict[str, Any]) -> dict[str, Any]:
    """The answers after each weight and float input moved up or down by up to a unit in its last place."""
    generator = torch.Generator().manual_seed(0)
    other = copy.deepcopy(module)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return (x.double() * (1 + (torch.rand(x.shape, generator=generator) * 2 - 1) * FLOOR)).to(x.dtype)

    with torch.no_grad():
        for weight in other.parameters():
            if weight.is_floating_point():
                weight.copy_(moved(weight))
    feeds = {
        name: moved(torch.from_numpy(np.array(array))).numpy() if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }
    return TorchRunner(other, signature).run(feeds)

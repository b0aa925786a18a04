"""Noise: what float32 costs a source is measured against exact arithmetic, and limits follow from it."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor as T
from torch import nn

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export import noise
from penstock.export.noise import CEILING, FACTOR, FLOOR, Noise
from penstock.parity import Limits
from penstock.signature import Dim, Signature, Tensor

ULP = 2.0**-23
BATCH = Dim(opt=8, max=64)


def signature(width: int = 256, batch: Dim = BATCH, outputs: tuple[str, ...] = ("y",)) -> Signature:
    return Signature(
        inputs=(Tensor(name="x", shape=("batch", width)),),
        outputs=tuple(Tensor(name=name, shape=("batch", width)) for name in outputs),
        dims={"batch": batch},
    )


def rows(count: int = 8, width: int = 256, scale: float = 1.0) -> Rows:
    drawn = np.random.default_rng(0).standard_normal((count, width)) * scale
    return Rows({"x": drawn.astype(np.float32)}, None)


def measured(module: nn.Module, given: Rows | None = None, form: Signature | None = None) -> Noise:
    return noise.measure(module.eval(), form or signature(), given or rows())


class Cancels(nn.Module):
    """x, by way of a large number: float32 keeps of x what is above that number's last place."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.large = large

    def forward(self, x: T) -> T:
        return (x + self.large) - self.large


def cancelled(large: float) -> float:
    """The root mean square of a number's rounding to the last place of `large`, half of them one binade lower."""
    last = large * ULP
    return math.sqrt((last**2 + (last / 2) ** 2) / 2 / 12)


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 16))
def test_the_noise_of_a_cancellation_is_what_rounding_to_the_large_number_costs(exponent: int) -> None:
    found = measured(Cancels(2.0**exponent))
    assert found.by == "float64"
    assert 0.7 < found.values["y"] / cancelled(2.0**exponent) < 1.5


def test_the_noise_of_a_sum_of_squares_that_cancel_is_its_condition_times_rounding() -> None:
    """a² - b² for b near a, computed as it stands: the rounding of the squares over the difference."""

    class Squares(nn.Module):
        def forward(self, x: T) -> T:
            a = x.abs() + 1
            b = a + 2**-10
            return a * a - b * b

    found = measured(Squares()).values["y"]
    # The squares are near 4, rounded with an error of up to half of 2**-22 each; the difference is near 2**-10 * 4.
    assert 0.1 < found / (2**-22 / (2**-10 * 4)) < 2


def test_the_worst_row_of_the_first_and_the_last_few_counts() -> None:
    samples = rows(20)
    samples.inputs["x"][-1] *= np.float32(1e-3)
    found = measured(Cancels(64.0), samples).values["y"]
    assert 0.7 < found / (1000 * cancelled(64.0)) < 1.5


def test_each_output_has_noise_of_its_own() -> None:
    class Two(nn.Module):
        def forward(self, x: T) -> tuple[T, T]:
            return x * 2, (x + 4096) - 4096

    found = measured(Two(), form=signature(outputs=("clean", "noisy"))).values
    assert list(found) == ["clean", "noisy"]
    assert found["clean"] == 0.0
    assert 0.7 < found["noisy"] / cancelled(4096.0) < 1.5


def test_what_a_module_makes_while_it_runs_is_exact_in_the_exact_run() -> None:
    """0.1 is not a float32: a constant that stayed in float32 would hide that."""

    class Constant(nn.Module):
        def forward(self, x: T) -> T:
            return x * 0 + torch.full((1,), 0.1)

    found = measured(Constant())
    assert found.by == "float64"
    assert found.values["y"] == pytest.approx(abs(float(np.float32(0.1)) - 0.1) / 0.1, rel=1e-6)
    assert torch.get_default_dtype() == torch.float32


class Forces(nn.Module):
    """Computes in float32 whatever it is given: x plus a large weight, minus its value."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), large))
        self.large = large

    def forward(self, x: T) -> T:
        return (x.float() + self.weight.float()) - self.large


@pytest.mark.parametrize("large", [16.0, 1024.0])
def test_a_module_that_stays_in_float32_is_moved_by_a_rounding_of_its_weights_instead(large: float) -> None:
    found = measured(Forces(large))
    assert found.by == "perturbed weights"
    assert ULP < found.values["y"] <= 2 * large * ULP


class Mixes(nn.Module):
    """Cannot run in float64: it multiplies by a plain float32 tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.plain = [torch.eye(256)]

    def forward(self, x: T) -> T:
        return self.layer(x) @ self.plain[0]


def test_a_module_that_fails_in_float64_is_moved_by_a_rounding_of_its_weights_instead() -> None:
    torch.manual_seed(0)
    found = measured(Mixes())
    assert found.by == "perturbed weights"
    assert ULP / 8 < found.values["y"] < 16 * ULP
    assert torch.get_default_dtype() == torch.float32


def test_inputs_that_are_no_floats_are_not_moved() -> None:
    class Picks(nn.Module):
        def forward(self, i: T) -> T:
            return i.float()

    form = Signature(
        inputs=(Tensor(name="i", dtype="int64", shape=("batch", 4)),),
        outputs=(Tensor(name="y", shape=("batch", 4)),),
        dims={"batch": Dim(opt=8, max=64)},
    )
    found = noise.measure(Picks(), form, Rows({"i": np.arange(32).reshape(8, 4)}, None))
    assert found == Noise(by="perturbed weights", values={"y": 0.0})


def test_the_source_is_left_as_it_was() -> None:
    for module in (nn.Linear(256, 256), Mixes(), Forces(16.0)):
        before = copy.deepcopy(module.state_dict())
        measured(module)
        for name, tensor in module.state_dict().items():
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, before[name])


class Fails(nn.Module):
    def forward(self, x: T) -> T:
        raise RuntimeError("no")


class Overflows(nn.Module):
    def forward(self, x: T) -> T:
        return x / 0


@pytest.mark.parametrize("module", [Fails(), Overflows()])
def test_a_source_without_answers_is_taken_to_be_exact_and_left_to_the_gate(module: nn.Module) -> None:
    assert measured(module).values == {"y": FLOOR}


@pytest.mark.parametrize(
    ("batch", "count"),
    [(Dim(opt=1, max=1), 5), (Dim(min=8, opt=8, max=8), 3), (Dim(opt=2, max=2), 3), (Dim(min=5, opt=8, max=64), 64)],
)
def test_any_range_of_batches_and_any_number_of_samples_is_measured(batch: Dim, count: int) -> None:
    seen: list[int] = []

    class Strict(nn.Module):
        def forward(self, x: T) -> T:
            seen.append(len(x))
            return (x + 4096) - 4096

    found = measured(Strict(), rows(count), signature(batch=batch))
    assert 0.7 < found.values["y"] / cancelled(4096.0) < 1.5
    assert all(batch.min <= size <= batch.max for size in seen)


# --- The limits that follow ---------------------------------------------------------------------------------------

BASE = Limits(max_error=0, min_agreement=0.9)


@settings(deadline=None)
@given(
    st.floats(0, 1e3),
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
)
def test_a_limit_is_thirty_two_times_the_noise_or_the_base_or_refused(value: float, base: float) -> None:
    held = Noise(by="float64", values={"y": value})
    wanted = max(32 * max(value, 2**-23), base)
    if wanted > max(1e-2, base):
        with pytest.raises(PenstockError, match="'y'"):
            noise.limits(held, Limits(max_error=base, min_agreement=0.9))
        return
    found = noise.limits(held, Limits(max_error=base, min_agreement=0.9))
    assert found == {"y": Limits(max_error=wanted, min_agreement=0.9)}


def test_a_source_without_noise_keeps_the_limit_of_one_that_rounds_once() -> None:
    found = noise.limits(Noise(by="float64", values={"y": 0.0}), BASE)
    assert found["y"].max_error == FACTOR * FLOOR == 32 * 2**-23


@pytest.mark.parametrize("value", [CEILING / FACTOR * 1.01, 0.5, math.inf, math.nan])
def test_noise_that_leaves_nothing_to_prove_is_refused_with_the_option_that_accepts_it(value: float) -> None:
    with pytest.raises(PenstockError) as caught:
        noise.limits(Noise(by="float64", values={"fine": 1e-7, "loud": value}), BASE)
    for part in ("output 'loud'", f"by {value:.1e}", "could not be proven", f"--max-error {32 * value:.1g} accepts"):
        assert part in str(caught.value)


def test_noise_within_what_a_precision_costs_anyway_is_not_refused() -> None:
    held = Noise(by="float64", values={"y": 4e-3})
    assert noise.limits(held, Limits(max_error=0.15, min_agreement=0.9))["y"].max_error == 0.15
    with pytest.raises(PenstockError):
        noise.limits(held, Limits(max_error=1e-2, min_agreement=0.9))


# --- What the factor is for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 4, 16])
def test_another_order_of_the_same_sums_stays_within_the_limit_and_a_wrong_weight_does_not(depth: int) -> None:
    torch.manual_seed(depth)
    layers = [nn.Linear(256, 256) for _ in range(depth)]
    module = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())]).eval()
    limit = noise.limits(measured(module), BASE)["y"].max_error
    x = torch.from_numpy(rows().inputs["x"])

    def answer(order: T | None) -> Any:
        y = x
        with torch.inference_mode():
            for layer in layers:
                # Column by column in another order, and in parts that are added up at the end.
                columns = torch.arange(256) if order is None else order
                parts = [y[:, part] @ layer.weight[:, part].T for part in columns.split(16)]
                y = torch.tanh(sum(parts) + layer.bias)
        return y.numpy()

    with torch.inference_mode():
        expected = module(x).numpy()

    def off(got: Any) -> float:
        return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))

    for seed in range(3):
        order = torch.randperm(256, generator=torch.Generator().manual_seed(seed))
        assert off(answer(order)) < limit / 3
    with torch.no_grad():
        layers[-1].weight[0, 0] += 1e-2
    assert off(answer(None)) > limit


class Longest(nn.Module):
    """As long an answer as the largest value in the batch says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : 1 + int(x.max() > 1)]


def test_a_source_whose_shape_hangs_on_values_is_left_to_the_gate() -> None:
    held = Rows({"x": np.linspace(0, 2, 8 * 256, dtype=np.float32).reshape(8, 256)}, None)
    found = noise.measure(Longest(), signature(batch=Dim(opt=2, max=2)), held)
    assert found.values == {"y": FLOOR}


def test_small_columns_have_a_noise_of_their_own() -> None:
    class Beside(nn.Module):
        def forward(self, x: T) -> T:
            exact, cancelled = 1e-6 * x[:, :1], 1e-6 * ((x[:, 1:2] + 1e4) - 1e4)
            return torch.cat([1e6 * x[:, 2:], exact, cancelled * 1e-4], 1)

    form, given = signature(width=4), rows(width=4)
    found = noise.measure(Beside(), form, given, {"y": Beside()(torch.from_numpy(given.inputs["x"])).numpy()})
    small = {group.places: error for group, error in found.columns if group.axis == 1}
    assert small.keys() == {(2,), (3,)}
    assert FLOOR <= small[(2,)] < 4 * FLOOR
    assert small[(3,)] == pytest.approx(cancelled(1e4), rel=0.5)


def test_columns_that_say_nothing_on_the_rows_of_the_measurement_get_no_noise() -> None:
    class Beside(nn.Module):
        def forward(self, x: T) -> T:
            return torch.cat([1e6 * x[:, 1:], x[:, :1]], 1)

    given = rows(width=4)
    given.inputs["x"][:, 0] = 0
    found = noise.measure(Beside(), signature(width=4), given, {"y": np.array([[1e6, 1e6, 1e6, 1.0]])})
    assert found.columns == ()

"""Modules: those that would answer wrongly are refused by name, and tied weights are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.modules import refuse_unready, tied


def refused(module: nn.Module, *words: str) -> str:
    with pytest.raises(PenstockError) as caught:
        refuse_unready(module)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()), nn.Flatten(), nn.Linear(4, 2)
    ).eval()


def test_a_sound_module_is_ready_and_left_as_it_was() -> None:
    module = network()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    refuse_unready(module)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


NORMS: list[Any] = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm]


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_norm_without_statistics_is_refused_by_its_path(norm: Any) -> None:
    module = nn.Sequential(nn.Sequential(norm(4), norm(4, track_running_stats=False))).eval()
    told = f"0.1 ({norm.__name__}) has no running statistics, so that its answers depend on what else is in the batch"
    refused(module, told, "train it with track_running_stats=True")


@pytest.mark.parametrize("missing", ["running_mean", "running_var"])
def test_a_norm_that_lost_one_of_its_statistics_is_refused(missing: str) -> None:
    for norm in (nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True)):
        setattr(norm, missing, None)
        told = f"0 ({type(norm).__name__}) has no running statistics, so that it cannot run"
        refused(nn.Sequential(norm).eval(), told)
        with pytest.raises(RuntimeError):
            norm.eval()(torch.ones(2, 4, 3, 3))


def test_a_norm_that_uses_statistics_it_no_longer_tracks_is_ready() -> None:
    """In eval mode BatchNorm normalises by the statistics that it has, whatever track_running_stats says."""
    norm = nn.BatchNorm1d(2).eval()
    norm.track_running_stats = False
    refuse_unready(nn.Sequential(norm).eval())
    x = torch.randn(4, 2)
    assert torch.equal(norm(x)[:1], norm(x[:1]))


@pytest.mark.parametrize("track", [False, True])
def test_an_instance_norm_is_ready_with_statistics_and_without(track: bool) -> None:
    refuse_unready(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=track)).eval())


def test_a_group_norm_needs_no_statistics() -> None:
    refuse_unready(nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4)).eval())


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_a_negative_variance_is_refused_with_its_value(kind: Any) -> None:
    module = nn.Sequential(nn.Sequential(kind(4, track_running_stats=True))).eval()
    module[0][0].running_var[2] = -0.25  # type: ignore[index]
    refused(module, "0.0.running_var holds -0.25")


def test_a_variance_of_zero_is_ready() -> None:
    module = nn.Sequential(nn.BatchNorm2d(4)).eval()
    module[0].running_var.zero_()  # type: ignore[union-attr, operator]
    refuse_unready(module)


def test_a_norm_by_itself_is_named_without_a_leading_dot() -> None:
    norm = nn.BatchNorm2d(4).eval()
    assert norm.running_var is not None
    norm.running_var[0] = -1
    assert refused(norm).startswith("running_var holds -1")
    norm.running_var[0] = float("nan")
    assert refused(norm).startswith("running_var holds NaN or infinity in 1 of its 4 values")
    assert refused(nn.BatchNorm2d(4, track_running_stats=False).eval()).startswith("the model itself (BatchNorm2d)")


class Stubborn(nn.Module):
    """A part whose train() does nothing: eval() goes past it."""

    def train(self, mode: bool = True) -> Stubborn:
        return self


def test_a_part_that_stays_in_training_mode_is_refused_with_its_class() -> None:
    module = nn.Sequential(nn.Identity(), nn.Sequential(Stubborn())).eval()
    refused(module, "in training mode after .eval(): 1.0 (Stubborn);", "reach every submodule")


def test_only_the_first_parts_in_training_mode_are_named() -> None:
    message = refused(nn.Sequential(*(Stubborn() for _ in range(5))).eval())
    assert "0 (Stubborn), 1 (Stubborn), 2 (Stubborn) and 2 more;" in message


def test_three_parts_in_training_mode_are_named_and_no_more_promised() -> None:
    assert " more" not in refused(nn.Sequential(*(Stubborn() for _ in range(3))).eval())


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_parameter_that_is_not_finite_is_refused_by_its_name(name: str, value: float) -> None:
    module = network()
    getattr(module[0][0], name).data.view(-1)[1] = value  # type: ignore[index]
    size = getattr(module[0][0], name).numel()  # type: ignore[index]
    refused(module, f"0.0.{name} holds NaN or infinity in 1 of its {size} values")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_a_parameter_of_any_dtype_is_looked_at(dtype: torch.dtype) -> None:
    module = nn.Module().eval()
    module.scale = nn.Parameter(torch.ones(3, dtype=dtype))
    refuse_unready(module)
    module.scale.data[0] = float("nan")
    refused(module, "scale holds NaN")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_parameter_of_eight_bits_is_looked_at(dtype: torch.dtype) -> None:
    module = nn.Module().eval()
    module.scale = nn.Parameter(torch.ones(3).to(dtype), requires_grad=False)
    refuse_unready(module)
    module.scale.data = torch.tensor([1.0, float("nan"), 1.0]).to(dtype)
    refused(module, "scale holds NaN")


def test_whole_numbers_are_finite() -> None:
    module = nn.Module().eval()
    module.table = nn.Parameter(torch.arange(3), requires_grad=False)
    refuse_unready(module)


def test_a_buffer_may_hold_infinity_as_a_mask_does() -> None:
    module = network()
    module.register_buffer("mask", torch.full((2, 2), float("-inf")))
    refuse_unready(module)


def test_a_running_mean_that_is_not_finite_is_refused() -> None:
    module = network()
    module[0][1].running_mean[0] = float("nan")  # type: ignore[index]
    refused(module, "0.1.running_mean holds NaN or infinity in 1 of its 4 values")


@pytest.mark.parametrize("name", ["weight", "running_mean"])
def test_a_tensor_on_the_meta_device_is_refused_by_its_name(name: str) -> None:
    module = network()
    held: Tensor = getattr(module[0][1], name)  # type: ignore[index]
    moved = held.detach().to("meta")
    setattr(module[0][1], name, nn.Parameter(moved) if isinstance(held, nn.Parameter) else moved)  # type: ignore[index]
    refused(module, f"0.1.{name} is on the meta device", "load its weights")


def test_a_tensor_on_another_device_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Tensor):
        device = torch.device("cuda:1")

    module = nn.Module().eval()
    module.register_buffer("table", torch.ones(2).as_subclass(Elsewhere))
    refused(module, "table is on cuda:1, and all must be on the CPU: call .cpu() on the model")


LAZY: list[Any] = [lambda: nn.LazyLinear(4), lambda: nn.LazyConv2d(4, 3), lambda: nn.LazyBatchNorm2d()]


@pytest.mark.parametrize("make", LAZY)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_that_has_not_run_is_refused_by_its_path(make: Any) -> None:
    part = make()
    module = nn.Sequential(nn.Identity(), part).eval()
    refused(module, f"1 ({type(part).__name__}) has weights without a shape yet", "run the model on an example")
    assert tied(module) == []


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_that_has_run_is_ready() -> None:
    module = nn.Sequential(nn.LazyLinear(4)).eval()
    module(torch.ones(2, 3))
    refuse_unready(module)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight
        self.other = nn.Linear(3, 5)


def test_weights_that_are_one_tensor_are_one_group() -> None:
    assert tied(Tied()) == [["embed.weight", "head.weight"]]


def test_a_module_under_two_names_ties_all_its_weights() -> None:
    layer = nn.Linear(3, 3)
    assert tied(nn.Sequential(layer, nn.Linear(3, 3), layer)) == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]


def test_three_names_of_one_tensor_are_one_group() -> None:
    module = Tied()
    module.other.weight = module.embed.weight
    assert tied(module) == [["embed.weight", "head.weight", "other.weight"]]


def test_separate_weights_of_the_same_values_are_not_tied() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.load_state_dict(first.state_dict())
    assert tied(nn.Sequential(first, second)) == []


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:2], lambda x: x.view(-1), lambda x: x[1:]])
def test_another_view_of_the_same_memory_is_not_tied(view: Any) -> None:
    module = nn.Module()
    module.register_buffer("whole", torch.arange(9.0).view(3, 3))
    module.register_buffer("part", view(module.whole))
    assert tied(module) == []


def test_a_buffer_may_be_tied_to_a_parameter() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3))
    module.register_buffer("shadow", module.weight.data)
    assert tied(module) == [["weight", "shadow"]]


def test_what_has_no_memory_is_not_tied() -> None:
    module = nn.Module()
    for name in ("a", "b"):
        module.register_buffer(f"empty_{name}", torch.empty(0))
        module.register_buffer(f"meta_{name}", torch.empty(3, device="meta"))
    assert tied(module) == []


def test_an_extra_state_that_is_no_tensor_is_passed_over() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

    assert tied(nn.Sequential(Extra(2, 2))) == []

"""Modules: what a torch module must be before it is measured, exported or compared, and which weights it ties."""

from __future__ import annotations

import copy
import zlib
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from penstock.errors import PenstockError

_SHOWN = 3


def refuse_unready(module: nn.Module) -> None:
    """Refuse a module whose answers would be wrong, random, or of the batch's making.

    Args:
        module: with its weights in place, after `.eval()`; only looked at.

    Raises:
        PenstockError: it has weights without a shape yet, tensors elsewhere than on the CPU, parts in training mode,
            norms without running statistics or with impossible ones, or parameters that are no finite numbers. The
            sentence names the part and what to do.
    """
    refuse_lazy(module)
    _refuse_elsewhere(module)
    _refuse_training(module)
    _refuse_norms(module)
    _refuse_non_finite(module)


def tied(module: nn.Module) -> list[list[str]]:
    """The groups of `state_dict` names, two or more in each, that are one tensor: same memory, shape and strides."""
    groups = defaultdict[tuple[object, ...], list[str]](list)
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor) and _has_memory(tensor):  # an extra state may be anything
            key = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            groups[key].append(name)
    return [names for names in groups.values() if len(names) > 1]


def copied(module: nn.Module) -> nn.Module | None:
    """A copy to be run in the module's place, since a module may change by running; None where it cannot be copied."""
    try:
        return copy.deepcopy(module)
    except Exception:  # a module may hold anything
        return None


def fingerprints(module: nn.Module) -> dict[str, int]:
    """A checksum of the bytes of each tensor of the module's `state_dict`, to tell whether it was written to."""
    return {
        name: zlib.crc32(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, Tensor) and _has_memory(tensor)
    }


def unsaved(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of numbers that a module computes with and its `state_dict` does not hold."""
    saved = {tensor.data_ptr() for tensor in module.state_dict().values() if isinstance(tensor, Tensor)}
    found = {
        f"{path}.{name}" if path else name: tensor
        for path, part in module.named_modules()
        for name, tensor in (*part.named_buffers(recurse=False), *vars(part).items())
        if isinstance(tensor, Tensor) and _has_memory(tensor)
    }
    return {name: tensor for name, tensor in found.items() if tensor.data_ptr() not in saved}


def _has_memory(tensor: Tensor) -> bool:
    if is_lazy(tensor) or tensor.device.type == "meta" or tensor.layout != torch.strided:
        return False
    return tensor.numel() > 0


def refuse_lazy(module: nn.Module) -> None:
    """Refuse a module with weights that only its first batch will shape.

    Raises:
        PenstockError: it has such; the sentence names the part and what to do.
    """
    for path, part in module.named_modules():
        own = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        if any(is_lazy(tensor) for _, tensor in own):
            raise PenstockError(
                f"{_label(path, part)} has weights without a shape yet: run the model on an example before its "
                "weights are loaded, as at the end of its __init__, or give the layer its input size"
            )


def _refuse_elsewhere(module: nn.Module) -> None:
    for name, tensor in _tensors(module):
        if tensor.device.type == "meta":
            raise PenstockError(
                f"{name} is on the meta device and holds no values: build the model on the CPU "
                "(to_empty() gives memory, not weights) and load its weights"
            )
        if tensor.device.type != "cpu":
            raise PenstockError(f"{name} is on {tensor.device}, and all must be on the CPU: call .cpu() on the model")


def _refuse_training(module: nn.Module) -> None:
    found = [_label(path, part) for path, part in module.named_modules() if part.training]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise PenstockError(
            f"in training mode after .eval(): {', '.join(found[:_SHOWN])}{more}; their answers may be random or depend "
            "on the batch: let train() and eval() reach every submodule, and set no training flag in forward"
        )


def _refuse_norms(module: nn.Module) -> None:
    for path, part in module.named_modules():
        if not isinstance(part, _NormBase):
            continue
        if isinstance(part, _InstanceNorm) and not part.track_running_stats:
            continue  # each sample is normalised by itself
        if part.running_mean is None or part.running_var is None:
            runs = part.running_mean is part.running_var and not isinstance(part, _InstanceNorm)
            fault = "its answers depend on what else is in the batch" if runs else "it cannot run"
            raise PenstockError(
                f"{_label(path, part)} has no running statistics, so that {fault}: train it with "
                "track_running_stats=True, or use GroupNorm or InstanceNorm"
            )
        for name, tensor in (("running_mean", part.running_mean), ("running_var", part.running_var)):
            _refuse_values(f"{path}.{name}" if path else name, tensor)
        if bool((part.running_var < 0).any()):
            raise PenstockError(
                f"{path}.running_var".lstrip(".") + f" holds {float(part.running_var.min()):g}, and a variance is "
                "never negative: the weights are damaged, or of another layer; load the checkpoint anew"
            )


def _refuse_non_finite(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        _refuse_values(name, parameter.detach())


def _refuse_values(name: str, tensor: Tensor) -> None:
    values = tensor.float() if tensor.element_size() == 1 else tensor  # isfinite knows no float8
    wrong = int((~torch.isfinite(values)).sum())
    if wrong:
        raise PenstockError(
            f"{name} holds NaN or infinity in {wrong} of its {tensor.numel()} values: the training diverged or the "
            "file is damaged; use an earlier checkpoint"
        )


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _label(path: str, part: nn.Module) -> str:
    return f"{path or 'the model itself'} ({type(part).__name__})"

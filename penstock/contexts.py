"""A deserialised engine on a device: its tensors, its profiles, and execution contexts over memory of the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import PenstockError


class Engine:
    """A deserialised engine: its tensors' dtypes, its profiles, and the bytes that a context needs.

    Args:
        trt: the TensorRT module.
        engine: its `ICudaEngine`.
        inputs: their names, in the signature's order.
        outputs: likewise.
        device: the GPU's number.

    Raises:
        PenstockError: the engine has other tensors.
    """

    def __init__(self, trt: Any, engine: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], device: int) -> None:
        self.trt, self.engine, self.inputs, self.outputs, self.device = trt, engine, inputs, outputs, device
        held = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        if held != {*inputs, *outputs}:
            raise PenstockError(
                f"the engine holds {', '.join(sorted(held))}; its signature says {', '.join((*inputs, *outputs))}"
            )
        self.dtypes = {name: np.dtype(trt.nptype(engine.get_tensor_dtype(name))) for name in (*inputs, *outputs)}
        self.profiles = [
            {name: tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index)) for name in inputs}
            for index in range(engine.num_optimization_profiles)
        ]
        wide = getattr(engine, "device_memory_size_v2", None)
        self.scratch = int(engine.device_memory_size if wide is None else wide)

    def fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
        """The profiles that take these shapes: the narrowest first, and of those the one tuned nearest to them."""
        fits = [index for index, profile in enumerate(self.profiles) if _takes(profile, shapes)]
        return sorted(fits, key=lambda index: (_breadth(self.profiles[index]), _far(self.profiles[index], shapes)))

    def context(self, scratch: int, profile: int, stream: int) -> Any:
        """An execution context over memory of the caller's.

        Raises:
            PenstockError: there is no memory for it.
        """
        strategies = getattr(self.trt, "ExecutionContextAllocationStrategy", None)
        if strategies is None:
            context = self.engine.create_execution_context_without_device_memory()
        else:
            context = self.engine.create_execution_context(strategies.USER_MANAGED)
        if context is None:
            raise PenstockError("TensorRT cannot make an execution context: not enough device memory")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(scratch, self.scratch)
        else:
            context.device_memory = scratch
        if len(self.profiles) > 1 and not context.set_optimization_profile_async(profile, stream):
            raise PenstockError(f"TensorRT refuses profile {profile}")
        return context


def _takes(profile: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(
        len(shape) == len(profile[name][0])
        and all(low <= size <= high for low, size, high in zip(profile[name][0], shape, profile[name][2], strict=True))
        for name, shape in shapes.items()
    )


def _breadth(profile: Mapping[str, Any]) -> int:
    return int(sum(np.prod(np.subtract(most, least) + 1, dtype=np.int64) for least, _, most in profile.values()))


def _far(profile: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """How far shapes are from those that a profile is tuned for, in octaves."""
    tuned = {name: profile[name][1] for name in shapes}
    octaves = (np.log2(np.maximum(shape, 1) / np.maximum(tuned[name], 1)) for name, shape in shapes.items())
    return float(sum(np.abs(steps).sum() for steps in octaves))

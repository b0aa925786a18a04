"""The builder, a process of its own: `python -m … GRAPH RECIPE.json CACHE PLAN`, progress as lines of JSON on stdout.

TensorRT may take minutes, gigabytes or the process down; none of this is to happen to who asked for the engine.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.engines import flavor_of, prepare_config, strongly_typed
from penstock.engines import log as engine_log
from penstock.export.engine.recipe import LATER_FILE, Recipe

# Linux: the signal that a process gets when its parent dies.
_PDEATHSIG = 1
# Layers that only move numbers compute in no precision; constraining them would cost copies.
_MOVE = (
    "CONSTANT",
    "SHAPE",
    "SHUFFLE",
    "SLICE",
    "CONCATENATION",
    "GATHER",
    "CAST",
    "IDENTITY",
    "QUANTIZE",
    "DEQUANTIZE",
)
# The builder flags that let TensorRT 8 use what the graph holds, and the rest of the graph's precision.
_ALLOWED = {"fp32": (), "tf32": ("TF32",), "fp16": ("FP16",), "int8": ("INT8",), "int8-fp16": ("INT8", "FP16")}


_told = 1


def tell(**facts: Any) -> None:
    """A line for who asked, on what was stdout."""
    os.write(_told, f"{json.dumps(facts)}\n".encode())


def _alone() -> None:
    """Keep what libraries print out of the lines that are told, and end with whoever asked."""
    global _told
    _told = os.dup(1)
    os.dup2(2, 1)
    with suppress(OSError, AttributeError):  # where there is no such call, ^C and the limit end it still
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


class Refused(Exception):
    """The engine cannot be built; the argument is what to tell of it."""


def build(graph: Path, recipe: Recipe, cached: Path, plan: Path) -> dict[str, Any]:
    """Write a serialized engine, and the timing cache as it is then.

    Args:
        graph: a typed ONNX file.
        recipe: how to build it.
        cached: the timing cache; read if it is there, and written.
        plan: the file to write.

    Returns:
        Facts of the build for the receipt.

    Raises:
        Refused: the parser or the builder refuses the graph.
    """
    flavor, trt = flavor_of(recipe.flavor)
    log = engine_log(trt)
    builder = trt.Builder(log)
    creation = trt.NetworkDefinitionCreationFlag
    wanted = [name for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED") if hasattr(creation, name)]
    network = builder.create_network(sum(1 << int(getattr(creation, name)) for name in wanted))
    parser = trt.OnnxParser(network, log)
    if strongly_typed(trt) and (later := graph.with_name(LATER_FILE)).is_file():
        graph = later
    if not parser.parse_from_file(str(graph)):
        raise Refused({"errors": [_error(parser.get_error(index)) for index in range(parser.num_errors)]})
    config = builder.create_builder_config()
    flags = _configure(trt, config, recipe, flavor)
    if not strongly_typed(trt) and _keep_float32(trt, network):
        # Only then: with it TensorRT 8 finds no way to run the pairs of int8.
        flags.append("OBEY_PRECISION_CONSTRAINTS")
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    for shapes in recipe.profiles:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        if config.add_optimization_profile(profile) < 0:
            raise Refused({"message": f"TensorRT {trt.__version__} refuses the profile {shapes}"})
    # TensorRT for RTX chooses tactics when an engine is loaded: there is nothing to keep.
    cache = None if flavor == "tensorrt_rtx" else _with_cache(config, cached)
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = _monitor(trt)
    started = time.perf_counter()
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise Refused({"message": log.reason()})
    try:
        plan.write_bytes(engine)
    except OSError as error:
        raise Refused({"message": f"{plan.name} cannot be written: {error.strerror}"}) from None
    facts = {
        "tensors": _tensors(trt, network),
        "graph": graph.name,
        "flags": flags,
        "layers": network.num_layers,
        "seconds": round(time.perf_counter() - started, 3),
    }
    if cache is not None:
        raw = bytes(config.get_timing_cache().serialize())
        cached.write_bytes(raw)
        facts["timing_cache"] = hashlib.sha256(raw).hexdigest()
    return {**facts, "warnings": log.warnings[:8]}


def _tensors(trt: Any, network: Any) -> list[tuple[str, str, list[int]]]:
    """Name, dtype and shape of what the network takes and then of what it gives; -1 is a dynamic size."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return [(item.name, item.dtype.name.lower(), list(item.shape)) for item in (*inputs, *outputs)]


def _configure(trt: Any, config: Any, recipe: Recipe, flavor: str) -> list[str]:
    """Set what the recipe asks for; the names of the builder flags that are set then."""
    wanted = [] if strongly_typed(trt) else list(_ALLOWED[recipe.precision])
    prepare_config(trt, config)
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32: TF32 keeps 10 bits of the mantissa
    wanted += ["TF32"] if recipe.precision == "tf32" else []
    for name in dict.fromkeys(wanted):
        if not hasattr(trt.BuilderFlag, name):
            raise Refused({"message": f"TensorRT {trt.__version__} has no builder flag {name}"})
        config.set_flag(getattr(trt.BuilderFlag, name))
    if recipe.workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, recipe.workspace_mb << 20)
    if recipe.level is not None:
        config.builder_optimization_level = recipe.level
    if flavor == "tensorrt_rtx":
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)  # without it nothing can be captured
    if recipe.hardware_compat != "none":
        name = {"ampere+": "AMPERE_PLUS", "same-cc": "SAME_COMPUTE_CAPABILITY"}[recipe.hardware_compat]
        if not hasattr(trt.HardwareCompatibilityLevel, name):
            raise Refused(
                {"message": f"--hardware-compat {recipe.hardware_compat}: TensorRT {trt.__version__} has none"}
            )
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, name)
    return list(dict.fromkeys(wanted))


def _keep_float32(trt: Any, network: Any) -> bool:
    """Hold TensorRT 8 to the float32 parts of a graph that is fp16 elsewhere, if it is: its flags would let it
    compute them in less.

    The graph's casts say where a precision begins and ends; there a tensor's type is no promise of the layer's.
    """
    half_somewhere = any(_type(network, index) == trt.float16 for index in range(network.num_layers))
    if not half_somewhere:
        return False
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type.name not in _MOVE and layer.num_outputs and layer.get_output(0).dtype == trt.float32:
            layer.precision = trt.float32
    return True


def _type(network: Any, index: int) -> Any:
    layer = network.get_layer(index)
    return layer.get_output(0).dtype if layer.num_outputs else None


def _with_cache(config: Any, cached: Path) -> Any | None:
    """The timing cache in the builder's hands, or None where this TensorRT keeps none."""
    held = cached.read_bytes() if cached.is_file() else b""
    cache = config.create_timing_cache(held)
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        cache = config.create_timing_cache(b"")
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            return None
    return cache


def _error(error: Any) -> dict[str, Any]:
    """A parser's error: its code and words, and the node that it is of, by index and by name where it tells."""
    named = {key: getattr(error, key)() for key in ("node_name", "node_operator") if hasattr(error, key)}
    return {"code": str(error.code()).rpartition(".")[2], "desc": error.desc(), "node": error.node(), **named}


def _monitor(trt: Any) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        """Tells of outermost phases alone: those inside them come and go by the hundred."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._outer: set[str] = set()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if not parent_phase:
                self._outer.add(phase_name)
                tell(phase=phase_name, steps=num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._outer:
                tell(phase=phase_name, step=step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._outer.discard(phase_name)

    return Monitor()


if __name__ == "__main__":
    _alone()
    try:
        made = build(Path(sys.argv[1]), Recipe.model_validate_json(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
        tell(done=made)
    except Refused as refusal:
        tell(refused=refusal.args[0])

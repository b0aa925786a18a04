"""Engines: the TensorRT that is installed, what it can do, and where an engine of which it vouches may run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from penstock import cuda
from penstock.errors import PenstockError

# Import names of each flavor, the most wanted flavor first. Both speak one API.
FLAVORS = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
INSTALL = (
    "pip install tensorrt (on a machine with an NVIDIA GPU), or pip install 'penstock[trt-rtx]' "
    "(TensorRT for RTX, which builds without a GPU)"
)
# The compute capabilities that TensorRT for RTX runs on: these, and all from `_RTX_FROM` on.
_RTX, _RTX_FROM = ((8, 0), (8, 6), (8, 9)), (12, 0)
# The first that computes in fp8.
_FP8_FROM = (8, 9)


def flavor_of(wanted: str | None = None, *, build: bool = False) -> tuple[str, ModuleType]:
    """The TensorRT that is installed here: its flavor, and its Python module.

    Args:
        wanted: a key of `FLAVORS`; None takes the first that is there.
        build: whether it must be able to build here, for which TensorRT needs a GPU and TensorRT for RTX none.

    Raises:
        PenstockError: none is installed.
    """
    names = [wanted] if wanted else list(FLAVORS)
    found = [(name, module) for name in names if (module := _imported(name)) is not None]
    if not found:
        broken = "; ".join(said for name in names if (said := _broken(name)))
        raise PenstockError(
            f"a TensorRT engine needs {wanted or 'TensorRT'}, which {broken or f'is not installed: {INSTALL}'}"
        )
    if build and found[0][0] == "tensorrt" and (why := cuda.problem()) is not None:
        if len(found) > 1:
            return found[1]
        raise PenstockError(f"TensorRT builds engines on a machine with an NVIDIA GPU alone; {why}: {INSTALL}")
    return found[0]


def _broken(flavor: str) -> str:
    """How a TensorRT that is installed fails to load, or nothing where there is none."""
    for name in FLAVORS[flavor]:
        if importlib.util.find_spec(name) is not None:
            try:
                importlib.import_module(name)
            except ImportError as error:
                return f"is installed as {name} and does not load: {error}"
    return ""


def _imported(flavor: str) -> ModuleType | None:
    for name in FLAVORS[flavor]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def strongly_typed(trt: Any) -> bool:
    """Whether this TensorRT takes each tensor's type from the graph; 8 takes only permission, by builder flags."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def prepare_config(trt: Any, config: Any) -> None:
    """Set what every engine needs that a runner is to run; of TensorRT 8, since later ones do both by themselves.

    It leaves cuBLAS and cuDNN alone, which it asks for and does not bring; and several contexts, which are a runner's
    lanes, may use one profile.
    """
    if not strongly_typed(trt):
        names = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
        config.set_tactic_sources(sum(1 << int(getattr(trt.TacticSource, name)) for name in names))
    if hasattr(trt, "PreviewFeature") and hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):
        config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)


def unavailable(build: Mapping[str, Any], device: int = 0) -> str | None:
    """Why an engine with these build facts cannot run on a GPU of this machine, or None.

    No TensorRT of its flavor, another version, no such GPU, or one that it was not built for.
    """
    if "recipe" in build and build.get("deferred"):
        return "the engine has not been built yet"
    if build.get("flavor", "tensorrt") not in FLAVORS:
        return f"the engine is of {build['flavor']!r}, and this penstock knows {', '.join(FLAVORS)}"
    try:
        wanted, trt = flavor_of(build.get("flavor"))
    except PenstockError as error:
        return str(error)
    here = cuda.facts(device)
    if here is None and 0 < (there := cuda.count()) <= device:
        return f"--device cuda:{device}: this machine has {there} GPU{'s' if there > 1 else ''}, the first is cuda:0"
    if here is None:
        why = cuda.problem() or f"cuda:{device} does not answer"
        return f"a TensorRT engine needs an NVIDIA GPU, its driver and cuda-bindings; {why}"
    return _other_version(wanted, str(build.get("version", "")), trt.__version__) or _other_gpu(wanted, build, here)


def _other_version(flavor: str, built: str, here: str) -> str | None:
    if not built or built == here:
        return None
    return f"the engine was built by {flavor} {built}; this machine has {here}"


def _other_gpu(flavor: str, build: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    capability, mine = str(build.get("compute_capability") or ""), here["compute_capability"]
    recipe = build.get("recipe") or {}
    if flavor == "tensorrt_rtx":
        whose = f"compute capability {mine}, which this machine's {here['gpu']} has"
        if _numbers(mine) not in _RTX and _numbers(mine) < _RTX_FROM:
            return f"TensorRT for RTX does not run on {whose}"
        return (
            f"fp8 is not computed on {whose}"
            if recipe.get("precision") == "fp8" and _numbers(mine) < _FP8_FROM
            else None
        )
    compat = recipe.get("hardware_compat", "none")
    if (
        not capability
        or (compat == "ampere+" and _numbers(mine) >= (8, 0))
        or (compat == "same-cc" and capability == mine)
    ):
        return None
    if capability != mine:
        return (
            f"the engine was built for compute capability {capability} ({build.get('gpu')}); this machine's GPU, "
            f"{here['gpu']}, has {mine}"
        )
    if build.get("gpu") and build["gpu"] != here["gpu"]:
        return (
            f"the engine was built on a {build['gpu']}; this machine has a {here['gpu']}, for which its tactics were "
            "not chosen (--hardware-compat same-cc builds one for both)"
        )
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def log(trt: Any) -> Any:
    """A logger of TensorRT's that keeps `errors` and `warnings`, and tells the last `reason()`."""

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message.strip()[:500])
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message.strip()[:300])

        def reason(self) -> str:
            """The last errors, without those of a machine that has no GPU, on which it can build all the same."""
            told = [error for error in self.errors if "cudaError 35" not in error]
            return "; ".join(told[-2:]) or "it gives no reason"

    return Log()

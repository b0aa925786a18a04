"""Engines: where one may run, which TensorRT is taken, and what is said where TensorRT, a GPU or its driver is not."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from penstock import cuda, engines
from penstock.errors import PenstockError

VERSION = "10.12.0"
A10, A100, H100, T4 = ("NVIDIA A10", "8.6"), ("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0"), ("NVIDIA T4", "7.5")
A40 = ("NVIDIA A40", "8.6")  # another GPU of A10's compute capability
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this a machine with certain flavors of TensorRT and certain GPUs: `machine("tensorrt", gpus=[A10])`."""

    def make(*flavors: str, gpus: list[tuple[str, str]]) -> None:
        for flavor, names in engines.FLAVORS.items():
            module = ModuleType(flavor)
            module.__version__ = VERSION  # type: ignore[attr-defined]
            for name in names:
                monkeypatch.setitem(sys.modules, name, module if flavor in flavors else None)

        def call(name: str, *arguments: Any) -> Any:
            if name == "cudaGetDeviceCount":
                return len(gpus)
            if name == "cudaDriverGetVersion":
                return 13010
            gpu, capability = gpus[arguments[0]]
            major, minor = capability.split(".")
            return SimpleNamespace(name=gpu.encode(), major=int(major), minor=int(minor))

        monkeypatch.setattr(cuda, "call", call)

    return make


def built(
    gpu: tuple[str, str] = A10, flavor: str = "tensorrt", version: str = VERSION, **recipe: str
) -> dict[str, Any]:
    """The build facts of an engine."""
    tied = {"gpu": gpu[0], "compute_capability": gpu[1]} if flavor == "tensorrt" else {}
    return {"flavor": flavor, "version": version, **tied, "recipe": {"precision": "fp16", **recipe}}


# --- Engines of TensorRT: tied to a version and a GPU ----------------------------------------------------------------


def test_an_engine_runs_where_it_was_built(machine: Machine) -> None:
    machine("tensorrt", gpus=[A10])
    assert engines.unavailable(built(A10)) is None


def test_an_engine_that_has_not_been_built_says_so_wherever_it_is(machine: Machine) -> None:
    machine(gpus=[])
    assert engines.unavailable({**built(), "deferred": True}) == "the engine has not been built yet"


def test_an_engine_of_another_version_is_refused_with_both(machine: Machine) -> None:
    machine("tensorrt", gpus=[A10])
    reason = engines.unavailable(built(version="8.6.1"))
    assert reason == f"the engine was built by tensorrt 8.6.1; this machine has {VERSION}"


@pytest.mark.parametrize(("flavor", "other"), [("tensorrt", "tensorrt_rtx"), ("tensorrt_rtx", "tensorrt")])
def test_an_engine_of_the_flavor_that_is_not_here_names_it_though_the_other_is(
    machine: Machine, flavor: str, other: str
) -> None:
    machine(other, gpus=[A10])
    reason = str(engines.unavailable(built(flavor=flavor)))
    assert f"needs {flavor}, which is not installed: pip install" in reason


def test_an_engine_of_a_flavor_that_nobody_knows_is_refused_with_those_there_are(machine: Machine) -> None:
    machine("tensorrt", gpus=[A10])
    reason = engines.unavailable(built(flavor="lean"))
    assert reason == "the engine is of 'lean', and this penstock knows tensorrt, tensorrt_rtx"


def test_an_engine_for_another_compute_capability_names_both_gpus(machine: Machine) -> None:
    machine("tensorrt", gpus=[A10])
    reason = engines.unavailable(built(H100))
    assert reason == (
        "the engine was built for compute capability 9.0 (NVIDIA H100); this machine's GPU, NVIDIA A10, has 8.6"
    )


def test_an_engine_from_another_gpu_of_the_capability_says_what_builds_one_for_both(machine: Machine) -> None:
    machine("tensorrt", gpus=[A40])
    reason = str(engines.unavailable(built(A10)))
    assert "was built on a NVIDIA A10; this machine has a NVIDIA A40" in reason
    assert "--hardware-compat same-cc" in reason


@pytest.mark.parametrize(
    ("compat", "gpu", "runs"),
    [
        ("same-cc", A40, True),
        ("same-cc", A100, False),
        ("same-cc", H100, False),
        ("ampere+", A40, True),
        ("ampere+", A100, True),
        ("ampere+", H100, True),
        ("ampere+", T4, False),
        ("none", A40, False),
    ],
)
def test_an_engine_made_for_more_gpus_runs_on_those_and_no_others(
    machine: Machine, compat: str, gpu: tuple[str, str], runs: bool
) -> None:
    machine("tensorrt", gpus=[gpu])
    assert (engines.unavailable(built(A10, hardware_compat=compat)) is None) == runs


# --- Engines of TensorRT for RTX: tied to no GPU ---------------------------------------------------------------------


@pytest.mark.parametrize("capability", ["8.0", "8.6", "8.9", "12.0", "12.1", "13.0"])
def test_rtx_engines_run_on_gpus_of_its_kinds(machine: Machine, capability: str) -> None:
    machine("tensorrt_rtx", gpus=[("a GPU", capability)])
    assert engines.unavailable(built(flavor="tensorrt_rtx")) is None


@pytest.mark.parametrize("capability", ["7.5", "8.7", "9.0", "10.0", "11.0"])
def test_rtx_engines_are_refused_where_tensorrt_for_rtx_does_not_run(machine: Machine, capability: str) -> None:
    machine("tensorrt_rtx", gpus=[("a GPU", capability)])
    reason = str(engines.unavailable(built(flavor="tensorrt_rtx")))
    assert f"TensorRT for RTX does not run on compute capability {capability}, which this machine's a GPU has" in reason


@pytest.mark.parametrize(("capability", "runs"), [("8.0", False), ("8.6", False), ("8.9", True), ("12.0", True)])
def test_fp8_of_rtx_needs_a_gpu_that_computes_in_it(machine: Machine, capability: str, runs: bool) -> None:
    machine("tensorrt_rtx", gpus=[("a GPU", capability)])
    reason = engines.unavailable(built(flavor="tensorrt_rtx", precision="fp8"))
    assert (reason is None) == runs
    assert runs or f"fp8 is not computed on compute capability {capability}" in str(reason)


# --- Devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "words"), [(1, "1 GPU, the"), (2, "2 GPUs, the")])
def test_a_device_past_the_last_is_refused_with_how_many_there_are(machine: Machine, count: int, words: str) -> None:
    machine("tensorrt", gpus=[A10] * count)
    assert engines.unavailable(built(), count) == f"--device cuda:{count}: this machine has {words} first is cuda:0"


def test_it_is_the_device_asked_for_that_must_fit(machine: Machine) -> None:
    machine("tensorrt", gpus=[H100, A10])
    assert engines.unavailable(built(A10), 1) is None
    assert "this machine's GPU, NVIDIA H100, has 9.0" in str(engines.unavailable(built(A10), 0))


@pytest.mark.parametrize("device", [0, 1])
def test_a_machine_without_a_gpu_is_told_that_one_is_needed(machine: Machine, device: int) -> None:
    machine("tensorrt", gpus=[])
    reason = engines.unavailable(built(), device)
    assert reason == (
        "a TensorRT engine needs an NVIDIA GPU, its driver and cuda-bindings; no GPU was found on this machine"
    )


def test_a_gpu_that_cannot_be_asked_is_not_called_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("tensorrt", gpus=[A10])
    counted = cuda.call

    def call(name: str, *arguments: Any) -> Any:
        if name == "cudaGetDeviceProperties":
            raise cuda.CudaError(f"{name}: cudaErrorDevicesUnavailable")
        return counted(name, *arguments)

    monkeypatch.setattr(cuda, "call", call)
    assert "None" not in str(engines.unavailable(built()))


# --- The TensorRT that is taken --------------------------------------------------------------------------------------


def test_the_first_flavor_that_is_here_is_taken_and_the_wanted_one_where_one_is_wanted(machine: Machine) -> None:
    machine("tensorrt", "tensorrt_rtx", gpus=[A10])
    assert engines.flavor_of()[0] == engines.flavor_of(build=True)[0] == "tensorrt"
    assert engines.flavor_of("tensorrt_rtx")[0] == "tensorrt_rtx"


def test_without_a_gpu_it_is_tensorrt_for_rtx_that_builds(machine: Machine) -> None:
    machine("tensorrt", "tensorrt_rtx", gpus=[])
    assert engines.flavor_of(build=True)[0] == "tensorrt_rtx"
    machine("tensorrt", gpus=[])
    with pytest.raises(PenstockError, match=r"builds engines on a machine with an NVIDIA GPU alone; no GPU was found"):
        engines.flavor_of(build=True)


@pytest.mark.parametrize("wanted", ["tensorrt", None])
def test_a_tensorrt_that_is_installed_and_does_not_load_is_told_with_its_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str | None
) -> None:
    machine(gpus=[A10])
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.10: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt")
    with pytest.raises(PenstockError) as caught:
        engines.flavor_of(wanted)
    assert str(caught.value) == (
        f"a TensorRT engine needs {wanted or 'TensorRT'}, which is installed as tensorrt and does not load: "
        "libnvinfer.so.10: cannot open shared object file"
    )


# --- What CUDA says --------------------------------------------------------------------------------------------------


class Status(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInsufficientDriver = 35
    cudaErrorSystemNotReady = 802


class Cuda(ModuleType):
    """The module of cuda-bindings, as far as counting GPUs asks it anything."""

    def __init__(self, status: Status, count: int = 0) -> None:
        super().__init__("cuda.bindings.runtime")
        self.status, self.count = status, count

    def cudaGetDeviceCount(self) -> tuple[Status, int]:
        return self.status, self.count

    def cudaGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.cudaSuccess, b"system not yet initialized"


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Puts a module, or none, in the place of cuda-bindings', and what NVIDIA's driver, if it is there, tells."""

    def forget() -> None:
        for found in (cuda.runtime, cuda._function):
            found.cache_clear()

    def put(module: Cuda | None, driver: str | None = None) -> None:
        monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", module)
        if driver is not None:
            (tmp_path / "version").write_text(driver)
        monkeypatch.setattr(cuda, "Path", lambda path: tmp_path / Path(path).name)
        forget()

    yield put
    forget()


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)\nGCC version:\n"


def test_where_a_gpu_can_be_used_there_is_no_problem(bindings: Callable[..., None]) -> None:
    bindings(Cuda(Status.cudaSuccess, 1), PROPRIETARY)
    assert cuda.problem() is None


def test_without_cuda_bindings_it_is_them_that_are_missing(bindings: Callable[..., None]) -> None:
    bindings(None, PROPRIETARY)
    assert cuda.problem() == "cuda-bindings is not installed: pip install cuda-bindings"


def test_without_a_driver_or_a_gpu_none_was_found(bindings: Callable[..., None]) -> None:
    bindings(Cuda(Status.cudaErrorInsufficientDriver))
    assert cuda.problem() == "no GPU was found on this machine"
    bindings(Cuda(Status.cudaSuccess, 0), PROPRIETARY)
    assert cuda.problem() == "no GPU was found on this machine"


def test_where_there_is_a_driver_and_cuda_fails_it_is_told_by_cudas_own_name(bindings: Callable[..., None]) -> None:
    bindings(Cuda(Status.cudaErrorSystemNotReady), PROPRIETARY)
    assert cuda.problem() == ("CUDA answers cudaGetDeviceCount: cudaErrorSystemNotReady (system not yet initialized)")


@pytest.mark.parametrize(("said", "version"), [(PROPRIETARY, "550.54.15"), (OPEN, "580.159.04")])
def test_the_drivers_version_is_read_of_either_kernel_module(
    machine: Machine, bindings: Callable[..., None], said: str, version: str
) -> None:
    bindings(None, said)
    machine("tensorrt", gpus=[A10])
    assert cuda.facts() == {"gpu": "NVIDIA A10", "compute_capability": "8.6", "cuda": "13.1", "driver": version}


class _Config:
    """What is set of a builder's configuration."""

    sources: int | None = None
    previewed: str | None = None

    def set_tactic_sources(self, sources: int) -> None:
        self.sources = sources

    def set_preview_feature(self, feature: str, wanted: bool) -> None:
        assert wanted
        self.previewed = feature


def test_tensorrt_8_needs_no_other_library_and_lets_lanes_share_a_profile() -> None:
    sources = {"CUBLAS": 0, "CUBLAS_LT": 1, "CUDNN": 2, "EDGE_MASK_CONVOLUTIONS": 3, "JIT_CONVOLUTIONS": 4}
    old = SimpleNamespace(
        NetworkDefinitionCreationFlag=SimpleNamespace(),
        TacticSource=SimpleNamespace(**sources),
        PreviewFeature=SimpleNamespace(PROFILE_SHARING_0806="shared"),
    )
    new = SimpleNamespace(NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1))
    for trt, due in ((old, (0b11000, "shared")), (new, (None, None))):
        config = _Config()
        engines.prepare_config(trt, config)
        assert (config.sources, config.previewed) == due

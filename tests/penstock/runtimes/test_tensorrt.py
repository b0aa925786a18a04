"""The TensorRT runtime's preflight: an engine is refused before it is touched, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import artifact, cuda, engines, runtimes
from penstock.errors import PenstockError


def test_a_machine_without_a_gpu_is_told_what_an_engine_needs(repository: Path) -> None:
    if cuda.count():
        pytest.skip("there is a GPU here")
    held = artifact.read(repository / "digits-trt-fp16")
    reason = runtimes.unavailable("tensorrt", held.receipt.build)
    assert reason is not None
    assert "NVIDIA GPU" in reason
    with pytest.raises(PenstockError) as caught:
        held.load()
    for part in ("NVIDIA GPU", held.receipt.hardware, "penstock export --format trt --precision fp16"):
        assert part in str(caught.value)


def test_an_engine_of_a_flavor_that_is_not_installed_names_it_and_how_to_install_it() -> None:
    missing = next((name for name, modules in engines.FLAVORS.items() if not _installed(modules)), None)
    if missing is None:
        pytest.skip("both flavors are installed here")
    reason = str(runtimes.unavailable("tensorrt", {"flavor": missing}))
    assert f"needs {missing}, which is not installed" in reason
    assert "pip install" in reason


def _installed(modules: tuple[str, ...]) -> bool:
    import importlib.util

    return any(importlib.util.find_spec(module) for module in modules)


def test_loading_an_engine_without_a_gpu_is_an_error_not_a_crash(repository: Path) -> None:
    if cuda.count():
        pytest.skip("there is a GPU here")
    held = artifact.read(repository / "digits-trt-fp16")
    with pytest.raises((PenstockError, runtimes.InstanceDead), match=r"CUDA|cuda|GPU"):
        runtimes.load("tensorrt", held.model_path, held.receipt.signature)

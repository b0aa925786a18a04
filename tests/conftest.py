"""Fixtures that many tests share: one briefly trained checkpoint, and one repository exported from it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

# Results of one run of the tests must not come from the one before.
os.environ["PENSTOCK_CACHE"] = tempfile.mkdtemp(prefix="penstock-cache-")
atexit.register(shutil.rmtree, os.environ["PENSTOCK_CACHE"], ignore_errors=True)
# OpenMP's threads spin while they wait: where another process holds a core, that made training ten times as slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")
VARIANTS = (("onnx", ("fp32", "fp16", "int8")), ("torchscript", ("fp32",)), ("trt", ("fp16",)))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """best.pth of the digits recipe after three epochs: a real checkpoint, real samples inside. Read only."""
    pytest.importorskip("lightning")
    from penstock.train import loop, recipe

    run = loop.train(recipe.load("digits", epochs=3), tmp_path_factory.mktemp("trained") / "digits", progress=False)
    return run.best


@pytest.fixture(scope="session")
def repository(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository of five variants of `trained`, each through the gate. Read only: copy what you damage."""
    pytest.importorskip("modelopt")
    from penstock.export import pipeline

    output = tmp_path_factory.mktemp("repository") / "models"
    for name, precisions in VARIANTS:
        request = pipeline.Request(trained, formats=(name,), precisions=precisions, output=output)
        pipeline.export(request, lambda line: None)
    return output


@pytest.fixture(scope="session")
def scans() -> tuple[Any, Any]:
    """The held-out scans as 8-bit grey images `[n, 8, 8]`, with their digits."""
    pytest.importorskip("sklearn")
    from penstock import data
    from penstock.data.specs import Digits

    part = data.load(Digits())["test"]
    return part.items, part.labels

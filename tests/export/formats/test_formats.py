"""Formats: found by file name, and each refusing what it cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.export import formats


def test_names_are_the_files_of_the_folder() -> None:
    folder = Path(next(iter(formats.__path__)))
    assert formats.names() == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", formats.names())
def test_every_format_holds_float32_and_refuses_what_it_does_not_hold(name: str) -> None:
    formats.check(name, "fp32")
    with pytest.raises(PenstockError, match=f"--precision 'fp64': format {name} holds fp32"):
        formats.check(name, "fp64")


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PenstockError, match="--format 'tflite': must be one or more of onnx, torchscript, trt"):
        formats.check("tflite", "fp32")

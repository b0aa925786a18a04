"""Errors: a missing optional package is told with the line that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.errors import GateError, PenstockError, require


def test_an_installed_module_is_returned() -> None:
    assert require("json.decoder", "serve", "reading JSON") is sys.modules["json.decoder"]


def test_a_missing_package_names_who_needs_it_and_how_to_install_it() -> None:
    with pytest.raises(PenstockError) as caught:
        require("no_such_package_here.inner", "serve", "serving an ONNX model")
    assert str(caught.value) == (
        "serving an ONNX model needs no_such_package_here, which is not installed: pip install 'penstock[serve]'"
    )


def test_a_package_broken_inside_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_inside_here.py").write_text("import no_such_dependency_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_here"):
        require("broken_inside_here", "serve", "serving")


def test_a_gate_failure_is_an_error_of_the_caller_too() -> None:
    assert issubclass(GateError, PenstockError)

"""Stages: modules that a command needs, imported when it runs, so that no other command waits for them."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import PenstockError


def import_stage(module: str, extra: str) -> Any:
    """Import a stage's module, or say which extra is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise PenstockError(
            f"this command needs {error.name.split('.')[0]}, which is not installed: pip install 'penstock[{extra}]'"
        ) from None

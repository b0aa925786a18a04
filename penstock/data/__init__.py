"""Data sets by name: one reader each, imported on use."""

from __future__ import annotations

import importlib

from penstock.data.digests import digest
from penstock.data.samples import Samples
from penstock.data.specs import DatasetSpec, Part

__all__ = ["Samples", "digest", "load"]
_READERS = {
    "digits": "digits",
    "fashion-mnist": "idx",
    "image-folder": "folders",
    "csv-text": "texts",
    "csv-table": "tables",
    "numpy": "arrays",
    "recordio": "records",
}


def load(spec: DatasetSpec) -> dict[Part, Samples]:
    """The three parts of a data set.

    Raises:
        PenstockError: a file is missing or damaged, a part would be too small, or a package is not installed.
    """
    found: dict[Part, Samples] = importlib.import_module(f"penstock.data.{_READERS[spec.name]}").load(spec)
    return found

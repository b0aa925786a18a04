"""Data sets by name: one reader each, imported on use."""

from __future__ import annotations

import importlib

from penstock.data.digests import digest
from penstock.data.samples import Samples
from penstock.data.specs import Arrays, DatasetSpec, Part

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


def load(spec: DatasetSpec, task: str | None = None) -> dict[Part, Samples]:
    """The three parts of a data set.

    Args:
        spec: of the data set.
        task: what is learnt of it, where that is known: whole numbers of arrays may be classes, or labels held or not.

    Raises:
        PenstockError: a file is missing or damaged, a part would be too small, or a package is not installed.
    """
    reader = importlib.import_module(f"penstock.data.{_READERS[spec.name]}")
    found: dict[Part, Samples] = reader.load(spec, task) if isinstance(spec, Arrays) else reader.load(spec)
    return found

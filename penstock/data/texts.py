"""Texts and their classes, from CSV files."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.data import found
from penstock.data.csvfiles import CsvFile, count, named, position
from penstock.data.found import Found
from penstock.data.samples import Samples
from penstock.data.specs import CsvText, Part
from penstock.data.views import Lines
from penstock.errors import PenstockError

log = logging.getLogger(__name__)


def load(spec: CsvText) -> dict[Part, Samples]:
    """The parts: texts as they are, but for spaces around them.

    Raises:
        PenstockError: a file cannot be read, lacks a column, or a line of it is broken or has no label; a class that
            train lacks; a part would be too small.
    """
    files = {part: _read(spec, setting, path) for part, (setting, path) in named(spec).items()}
    return found.samples(spec, files, "text")


def _read(spec: CsvText, setting: str, path: Path) -> Found:
    file = CsvFile(setting, path)
    text = position(file.where, file.columns, spec.text, "dataset.text")
    label = position(file.where, file.columns, spec.label, "dataset.label")
    texts: list[str] = []
    labels: list[str] = []
    lines: list[int] = []
    known: dict[str, str] = {}
    for line, cells in file:
        if not cells[label]:
            raise PenstockError(f"{file.where}: line {line} has no label: column {spec.label!r} is empty")
        texts.append(cells[text])
        labels.append(known.setdefault(cells[label], cells[label]))  # one string for all of a class
        lines.append(line)
    if not texts:
        raise PenstockError(f"{file.where}: holds a header and no rows")
    empty = [line for line, value in zip(lines, texts, strict=True) if not value]
    if empty:
        log.warning("%s: %s without a word, as line %d", file.where, count(len(empty), "text"), empty[0])
    return Found(file.where, texts, labels, Lines(path.name, lines))

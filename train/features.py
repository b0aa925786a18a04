"""Features: what texts and table rows become, worked out once and kept, also by processes that train together."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock import cache, datasets, locks
from penstock.data.samples import Samples
from penstock.datasets import Rows
from penstock.errors import first_line
from penstock.files import write_whole
from penstock.preprocessing import Preprocess

log = logging.getLogger(__name__)
# Fewer are worked out sooner than they are found.
_FEW = 20_000


def rows(samples: Samples, preprocess: Preprocess | None) -> Rows:
    """`datasets.rows`, of many texts from a file in the cache; whoever comes first makes it, and the others wait.

    Where the cache cannot be written or read, each works them out by itself.

    Raises:
        PenstockError: as `datasets.rows` does.
    """
    if samples.kind != "text" or preprocess is None or len(samples) < _FEW:
        return datasets.rows(samples, preprocess)
    try:
        return Rows(_kept(samples, preprocess), samples.labels)
    except (OSError, ValueError) as error:  # a cache that cannot be written, is full, or has been cut short
        log.warning("features are not kept: %s", first_line(error))
        return datasets.rows(samples, preprocess)


def _kept(samples: Samples, preprocess: Preprocess) -> dict[str, Any]:
    """Features by input, from files that are mapped; made first where they are not there."""
    folder = cache.folder() / "features"
    folder.mkdir(parents=True, exist_ok=True)
    name = cache.key(preprocess.model_dump_json(), *samples.items)
    index = folder / f"{name}.json"
    with _alone(folder / f"{name}.lock"):
        if not index.is_file():
            _make(samples, preprocess, folder, name, index)
    files = json.loads(index.read_text())
    try:
        return {each: np.load(folder / file, mmap_mode="r") for each, file in files.items()}
    except (OSError, ValueError):
        index.unlink(missing_ok=True)  # for the next run to make them anew
        raise


def _make(samples: Samples, preprocess: Preprocess, folder: Path, name: str, index: Path) -> None:
    made = datasets.rows(samples, preprocess).inputs
    files = {each: f"{name}.{number}.npy" for number, each in enumerate(made)}
    for each, file in files.items():
        part = folder / f".{file}"
        try:
            np.save(part, made[each], allow_pickle=False)
            part.replace(folder / file)
        finally:
            part.unlink(missing_ok=True)
    write_whole(index, json.dumps(files).encode())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    path.touch()
    with locks.held(path):
        yield

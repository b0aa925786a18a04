"""Features: what texts and table rows become, worked out once and kept, also by processes that train together."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from penstock import cache, datasets
from penstock.data.samples import Samples
from penstock.datasets import Rows
from penstock.files import write_whole
from penstock.preprocessing import Preprocess

# Fewer are worked out sooner than they are found.
_FEW = 20_000


def rows(samples: Samples, preprocess: Preprocess | None) -> Rows:
    """`datasets.rows`, of many texts from a file in the cache; whoever comes first makes it, and the others wait.

    Raises:
        PenstockError: as `datasets.rows` does.
    """
    if samples.kind != "text" or preprocess is None or len(samples) < _FEW:
        return datasets.rows(samples, preprocess)
    folder = cache.folder() / "features"
    folder.mkdir(parents=True, exist_ok=True)
    name = cache.key(preprocess.model_dump_json(), *samples.items)
    index = folder / f"{name}.json"
    with _alone(folder / f"{name}.lock"):
        if not index.is_file():
            _make(samples, preprocess, folder, name, index)
    inputs = {each: np.load(folder / file, mmap_mode="r") for each, file in json.loads(index.read_text()).items()}
    return Rows(inputs, samples.labels)


def _make(samples: Samples, preprocess: Preprocess, folder: Path, name: str, index: Path) -> None:
    made = datasets.rows(samples, preprocess).inputs
    files = {each: f"{name}.{number}.npy" for number, each in enumerate(made)}
    for each, file in files.items():
        np.save(folder / f".{file}", made[each], allow_pickle=False)
        (folder / f".{file}").replace(folder / file)
    write_whole(index, json.dumps(files).encode())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

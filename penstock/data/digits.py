"""The handwritten digits that ship inside scikit-learn."""

from __future__ import annotations

import numpy as np

from penstock.data.samples import Samples
from penstock.data.specs import Digits, Part
from penstock.data.split import split
from penstock.errors import require


def load(spec: Digits) -> dict[Part, Samples]:
    """The three parts: grey pictures, uint8 `[8, 8]`.

    Raises:
        PenstockError: scikit-learn is not installed, or a part would be too small.
    """
    require("sklearn", "bench", f"data set {spec.name!r}")
    from sklearn.datasets import load_digits

    scans = load_digits()
    # The scans hold 0..16 (ink counted in 4x4 blocks); as 8-bit grey they can be saved, uploaded and read back.
    images = np.rint(scans.images * (255 / 16)).astype(np.uint8)
    labels = scans.target.astype(np.int64)
    parts = split(spec.name, len(labels), spec.seed, {"val": spec.val, "test": spec.test}, labels)
    names = tuple(str(number) for number in range(10))
    return {part: Samples(images[index], labels[index], classes=names) for part, index in parts.items()}

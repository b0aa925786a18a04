"""Seeded, stratified splits: the same indices on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.data.specs import Part
from penstock.errors import PenstockError, require


def split(
    name: str, count: int, seed: int, shares: dict[Part, float], classes: NDArray[np.int64] | None
) -> dict[Part, NDArray[np.int64]]:
    """The indices of each part: those in `shares` get so much of the whole, train the rest.

    Args:
        name: of the data set, for the error.
        count: of samples.
        seed: of the shuffle.
        shares: of val and test, each between 0 and 1; a part that is not there is left out.
        classes: int64 `[count]` class numbers, of which each part gets its share; None does not look at them.

    Raises:
        PenstockError: a part would be empty, or lack a class.
    """
    require("sklearn", "bench", f"data set {name!r}")
    from sklearn.model_selection import train_test_split

    rest, left = np.arange(count), 1.0
    parts: dict[Part, NDArray[np.int64]] = {}
    for part in ("test", "val"):
        if part not in shares:
            continue
        by = None if classes is None else classes[rest]
        try:
            rest, parts[part] = train_test_split(rest, test_size=shares[part] / left, random_state=seed, stratify=by)
        except ValueError as error:
            told = " and ".join(f"{part} {share}" for part, share in sorted(shares.items(), reverse=True))
            raise PenstockError(f"dataset {name}: {told} leave too little: {error}") from None
        left -= shares[part]
    parts["train"] = rest
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}

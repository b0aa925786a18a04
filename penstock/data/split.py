"""Seeded, stratified splits: the same indices on every machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.data.specs import Part, Parted
from penstock.errors import PenstockError, listed, require


def split(
    name: str,
    count: int,
    seed: int,
    shares: dict[Part, float],
    classes: NDArray[np.int64] | None,
    names: Sequence[str] | None = None,
) -> dict[Part, NDArray[np.int64]]:
    """The indices of each part: those in `shares` get so much of the whole, train the rest.

    Args:
        name: of the data set, for the error.
        count: of samples.
        seed: of the shuffle.
        shares: of val and test, each between 0 and 1; a part that is not there is left out.
        classes: int64 `[count]` class numbers, of which each part gets its share; None does not look at them.
        names: of the classes, for the error; None calls them by their numbers.

    Raises:
        PenstockError: a part would be empty, or train would lack a class.
    """
    if not shares:
        return {"train": np.arange(count)}
    require("sklearn", "bench", f"data set {name!r}")
    from sklearn.model_selection import train_test_split

    rest, left = np.arange(count), 1.0
    parts: dict[Part, NDArray[np.int64]] = {}
    for part in ("test", "val"):
        if part not in shares:
            continue
        by = None if classes is None else classes[rest]
        if classes is not None:
            _see_each_class(name, classes, rest, 2, names, shares)
        try:
            rest, parts[part] = train_test_split(rest, test_size=shares[part] / left, random_state=seed, stratify=by)
        except ValueError as error:
            raise PenstockError(f"dataset {name}: {_told(shares)} leave too little: {error}") from None
        left -= shares[part]
    if classes is not None:
        _see_each_class(name, classes, rest, 1, names, shares)
    parts["train"] = rest
    return {part: parts[part] for part in ("train", "val", "test") if part in parts}


def _told(shares: dict[Part, float]) -> str:
    return " and ".join(f"{part} {share}" for part, share in sorted(shares.items(), reverse=True))


def _see_each_class(
    name: str,
    classes: NDArray[np.int64],
    rest: NDArray[np.int64],
    least: int,
    names: Sequence[str] | None,
    shares: dict[Part, float],
) -> None:
    """See that enough of each class is left to be split: two of which one is split off, one for train."""
    whole = np.bincount(classes)
    short = np.flatnonzero((whole > 0) & (np.bincount(classes[rest], minlength=len(whole)) < least))
    if not short.size:
        return
    told = listed(
        [f"{str(number) if names is None else names[number]!r} ({whole[number]})" for number in short.tolist()]
    )
    raise PenstockError(
        f"dataset {name}: too few samples of class {told} to split {_told(shares)} off and leave one to train on; add "
        "samples, leave the class out, or give each part files of its own"
    )


def split_off(
    spec: Parted, own: Collection[Part], count: int, classes: NDArray[np.int64] | None, names: Sequence[str] | None
) -> dict[Part, NDArray[np.int64]]:
    """The indices, among the samples to train on, of train and of each part that has no samples of its own.

    Args:
        spec: of the data set.
        own: the parts that have samples of their own.
        count: of samples to train on.
        classes, names: as `split` takes them.
    """
    shares: dict[Part, float] = {"val": spec.val, "test": spec.test}
    return split(
        spec.name, count, spec.seed, {part: share for part, share in shares.items() if part not in own}, classes, names
    )

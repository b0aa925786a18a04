"""Which data set: what a recipe says of it, and a checkpoint and its receipts record.

The same spec gives the same split on every machine that has the files. Relative paths are of the working folder.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.fields import NoTruths

Part = Literal["train", "val", "test"]


class _Split(NoTruths):
    """A seeded split, stratified by class; `val` and `test` are shares of the whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    val: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> _Split:
        if self.val + self.test >= 1:
            raise ValueError(f"val + test is {self.val + self.test:g}; it must be under 1, to leave a training part")
        return self


class Digits(_Split):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels."""

    name: Literal["digits"] = "digits"


class FashionMnist(NoTruths):
    """Zalando's 70,000 pictures of clothes, 28x28 grey: its own test part, and a share of the rest to validate on.

    `path` is the folder of its four IDX files, gzipped or not; None looks where Debian's dataset-fashion-mnist and
    torchvision put them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Literal["fashion-mnist"] = "fashion-mnist"
    path: str | None = None
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    val: float = Field(default=0.1, gt=0, lt=1)


class ImageFolder(_Split):
    """Pictures in a folder for each class, `path/cat/7.jpg`; or `path/train/cat/7.jpg`, `path/val/…`, `path/test/…`.

    A part that has no folder of its own is split off train. A picture that cannot be read is named, and ends the run or
    is left out.
    """

    name: Literal["image-folder"] = "image-folder"
    path: str
    unreadable: Literal["fail", "skip"] = "fail"


class CsvText(_Split):
    """Texts and their classes, in two columns of CSV files; a part that has no file of its own is split off train."""

    name: Literal["csv-text"] = "csv-text"
    train: str
    dev: str | None = None
    test_file: str | None = None
    text: str = "text"
    label: str = "label"


class CsvTable(_Split):
    """Rows of CSV or Parquet files, one column of which, `target`, is to be told from the others.

    `kind` is what the target is: one of several classes, or a number. `columns` are those that it is told from; None is
    all others.
    """

    name: Literal["csv-table"] = "csv-table"
    train: str
    dev: str | None = None
    test_file: str | None = None
    target: str
    kind: Literal["classes", "numbers"]
    columns: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _is_told_from_other_columns(self) -> CsvTable:
        if self.columns is None:
            return self
        if not self.columns:
            raise ValueError("columns is empty; list those that the target is told from, or leave it out for all")
        if self.target in self.columns:
            raise ValueError(f"columns hold {self.target!r}, the target; it cannot be told from itself")
        twice = [name for place, name in enumerate(self.columns) if name in self.columns[:place]]
        if twice:
            raise ValueError(f"columns hold {twice[0]!r} twice; each must be named once")
        return self


class Arrays(_Split):
    """A .npz file: an array for each input, by name, rows first, and `labels`: class numbers, or numbers."""

    name: Literal["numpy"] = "numpy"
    path: str


class Records(_Split):
    """Pictures in MXNet's RecordIO (`.rec`), with class numbers as labels; a test file of its own, or split off."""

    name: Literal["recordio"] = "recordio"
    path: str
    test_file: str | None = None
    unreadable: Literal["fail", "skip"] = "fail"


# Those of which a part that has no samples of its own is split off train.
Parted = Digits | ImageFolder | CsvText | CsvTable | Arrays | Records
DatasetSpec = Annotated[
    Digits | FashionMnist | ImageFolder | CsvText | CsvTable | Arrays | Records, Field(discriminator="name")
]

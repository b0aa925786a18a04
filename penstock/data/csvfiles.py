"""CSV files with a header: columns by name, and rows of as many cells, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.data.specs import CsvTable, CsvText, Part
from penstock.errors import PenstockError, listed, nearest, printable
from penstock.tables import BadTable, stream

_TABS = (".tsv", ".tab")


class CsvFile:
    """A CSV file whose first record names its columns.

    Values are parted by tabs in .tsv and .tab files, by commas in others. `where` is the setting and the path, for
    errors.

    Raises:
        PenstockError: it cannot be read, is no CSV, is empty, or names a column twice.
    """

    def __init__(self, setting: str, path: Path) -> None:
        self.path, self.where = path, f"{setting} {printable(str(path))}"
        self._delimiter = "\t" if path.suffix.lower() in _TABS else ","
        if not path.is_file():
            raise PenstockError(f"{self.where}: {'is no file' if path.exists() else 'no such file'}")
        header = next(self._records(), None)
        if header is None:
            raise PenstockError(f"{self.where}: is empty; its first line must name the columns")
        self.columns = tuple(header[1])
        see_named_once(self.where, self.columns)

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """The rows, each with the number of its first line, from 1 on."""
        records = self._records()
        next(records)
        for line, cells in records:
            if len(cells) != len(self.columns):
                raise PenstockError(
                    f"{self.where}: line {line} has {count(len(cells), 'value')}, not {len(self.columns)} as the "
                    "header names columns; a value that holds what parts values must stand in double quotes"
                )
            yield line, cells

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        try:
            yield from stream(self.path, self._delimiter)
        except BadTable as error:
            raise PenstockError(f"{self.where}: {error}") from None
        except OSError as error:
            raise PenstockError(f"{self.where}: cannot be read: {error.strerror}") from None


def named(spec: CsvText | CsvTable) -> dict[Part, tuple[str, Path]]:
    """The files that a spec names, for the parts, each with the setting that names it."""
    settings: dict[Part, tuple[str, str | None]] = {
        "train": ("dataset.train", spec.train),
        "val": ("dataset.dev", spec.dev),
        "test": ("dataset.test_file", spec.test_file),
    }
    return {part: (setting, Path(path)) for part, (setting, path) in settings.items() if path is not None}


def count(number: int, what: str) -> str:
    """So many of something: "1 value", "2 values"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def see_named_once(where: str, columns: Sequence[str]) -> None:
    """See that no two columns have the same name; unnamed ones may be several.

    Raises:
        PenstockError: two have.
    """
    seen: set[str] = set()
    for name in filter(None, columns):
        if name in seen:
            raise PenstockError(f"{where}: the header names column {name!r} twice; rename one")
        seen.add(name)


def position(where: str, columns: Sequence[str], name: str, setting: str) -> int:
    """Where a column stands.

    Args:
        where: the setting and the path of the file, for the error.
        columns: those of the file.
        name: of the column.
        setting: what asks for it: `dataset.label`.

    Raises:
        PenstockError: there is no such column.
    """
    if name not in columns:
        raise PenstockError(
            f"{where}: has no column {name!r}, as {setting} names it; its columns are "
            f"{listed(map(repr, columns))}{nearest(name, columns)}"
        )
    return columns.index(name)

"""Data sets: data pack, data show."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import files
from penstock.commands.terminal import say
from penstock.errors import PenstockError

app = typer.Typer(
    help="Data sets in MXNet's RecordIO: packing pictures, and looking at what a file holds.\n\n"
    "Example: `penstock data pack photos/train train.rec`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
# Rows of a table that are shown; of more, the rest are counted.
_SHOWN = 30


@app.command()
def pack(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that holds a folder of pictures for each class.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT.rec", help="The file to write.")],
    size: Annotated[
        int | None, typer.Option(min=1, help="Resize the shorter side of larger pictures to so many pixels.")
    ] = None,
    quality: Annotated[
        int | None, typer.Option(min=1, max=100, help="Encode all pictures as JPEG of this quality.")
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="Write them in a random order, which SEED gives.")
    ] = None,
    list: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.lst", help="Pack what MXNet's list names in DIR: key, labels, path, with tabs between."
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out pictures that cannot be read; else one ends it.")
    ] = False,
) -> None:
    """Pack pictures into OUT.rec, OUT.idx and OUT.classes.txt, whole or not at all.

    Pictures stay as they are, byte for byte, unless `--size` or `--quality` ask for more; all are decoded once.

    Example: `penstock data pack photos/train train.rec --size 256 --shuffle 0`
    """
    from penstock import recordio
    from penstock.data import packing, records

    if output.suffix != ".rec":
        raise PenstockError(f"{output}: must end in .rec; the index and the names of classes go beside it")
    beside = (recordio.index_path(output), records.names_path(output))
    for path in (output, *beside):
        files.see_writable("OUT.rec", path)
    pictures, classes = (packing.of_list(list, folder), ()) if list else packing.of_folder(folder)
    if shuffle is not None:
        pictures = packing.shuffled(pictures, shuffle)
    with files.writing("OUT.rec", output, "nothing was written"):
        packed = packing.pack(pictures, output, classes, packing.Recoding(size, quality), skip_unreadable)
    for reason in packed.left_out:
        say(f"left out: {reason}")
    told = f" of {len(classes)} classes" if classes else ""
    say(f"{output}: {packed.records} pictures{told}, {_bytes(packed.size)}; index {beside[0]}")


@app.command()
def show(file: Annotated[Path, typer.Argument(metavar="FILE.rec", help="A RecordIO file.")]) -> None:
    """Tell what a RecordIO file holds: records, labels, pictures.

    Example: `penstock data show train.rec`
    """
    from penstock.data import contents, records

    if file.is_dir():
        raise PenstockError(
            f"{file}: is a folder; a file is shown. Of pictures in folders it is made by: penstock data pack {file} "
            f"train.rec; they are trained on as they are by: penstock train image-folder --set dataset.path={file}"
        )
    found = contents.look(file)
    count, lengths = len(found.lengths), found.lengths
    indexed = "no index" if found.index is None else f"index {found.index}"
    say(f"{file}: {count} records, {_bytes(file.stat().st_size)}; {indexed}")
    if not count:
        return
    say(
        f"bytes: {_bytes(min(lengths))} to {_bytes(max(lengths))} a record, median {_bytes(statistics.median(lengths))}"
    )
    if found.headless:
        say(f"without an IRHeader: {found.headless} records")
    if found.formats:
        say(f"pictures: {', '.join(f'{many} {kind}' for kind, many in found.formats.most_common())}{_sides(found)}")
    for width, many in sorted(found.widths.items()):
        say(f"labels: {width} in an array, {many} records")
    if found.values:
        _labels(found.values.items(), records.read_names(records.names_path(file)))


def _sides(found: Any) -> str:
    if not found.sides:
        return ""
    if len(found.sides) == 1:
        return "; {}x{} pixels".format(*next(iter(found.sides)))
    widths, heights = zip(*found.sides, strict=True)
    return f"; {min(widths)} to {max(widths)} pixels wide, {min(heights)} to {max(heights)} high"


def _labels(values: Iterable[tuple[float, int]], names: tuple[str, ...] | None) -> None:
    """A table of scalar labels, of the names of those that are class numbers, and how often they are found."""
    from rich.table import Table

    from penstock.screen import Screen

    rows = sorted(values)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("label", "class", "records"):
        table.add_column(column, no_wrap=True, justify="left" if column == "class" else "right")
    for value, many in rows[:_SHOWN]:
        known = names is not None and value.is_integer() and 0 <= value < len(names)
        table.add_row(f"{value:g}", names[int(value)] if names and known else "", str(many))
    Screen().print(table)
    if len(rows) > _SHOWN:
        say(f"… and {len(rows) - _SHOWN} labels more, of {sum(many for _, many in rows[_SHOWN:])} records")


def _bytes(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"

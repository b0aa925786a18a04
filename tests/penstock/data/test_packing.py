"""Packing pictures into RecordIO: what is in the file is what was in the folder."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from penstock import irheader
from penstock.data import packing
from penstock.data.ahead import ahead
from penstock.data.packing import Picture, Recoding
from penstock.data.records import names_path
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.recordio import Reader

NAMES = ("null", "eins", "zwei", "drei")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten scans of each of four digits as PNG, in folders of the digits' names."""
    digits = load_digits()
    root = tmp_path / "pictures"
    for digit, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        for place, scan in enumerate(digits.images[digits.target == digit][:10]):
            Image.fromarray(np.rint(scan * (255 / 16)).astype(np.uint8)).save(root / name / f"{place}.png")
    return root


@pytest.fixture
def photo() -> bytes:
    """A photograph of 640 x 427 pixels as JPEG."""
    file = io.BytesIO()
    Image.fromarray(load_sample_image("china.jpg")).save(file, "JPEG", quality=90)
    return file.getvalue()


def labels_and_pictures(path: Path) -> list[tuple[float, int, bytes]]:
    found = []
    for record in Reader(path):
        header, picture = irheader.unpack(record)
        assert isinstance(header.label, float)
        found.append((header.label, header.id, picture))
    return found


def test_a_folder_s_pictures_are_packed_byte_for_byte_in_the_order_of_their_paths(folder: Path, tmp_path: Path) -> None:
    (folder / "eins" / ".hidden.png").write_bytes(b"")
    (folder / "eins" / "notes.txt").write_bytes(b"")
    pictures, classes = packing.of_folder(folder)
    packed = packing.pack(pictures, tmp_path / "a.rec", classes)
    assert classes == tuple(sorted(NAMES))
    wanted = [
        (float(number), file.read_bytes())
        for number, name in enumerate(sorted(NAMES))
        for file in sorted((folder / name).glob("[!.]*.png"))
    ]
    found = labels_and_pictures(tmp_path / "a.rec")
    assert [(label, picture) for label, _, picture in found] == wanted
    assert [id for _, id, _ in found] == Reader(tmp_path / "a.rec").keys.tolist() == list(range(40))
    assert names_path(tmp_path / "a.rec").read_text() == "drei\neins\nnull\nzwei\n"
    assert (packed.records, packed.size, packed.left_out) == (40, (tmp_path / "a.rec").stat().st_size, ())


def test_a_seed_gives_an_order_and_pictures_keep_their_keys(folder: Path, tmp_path: Path) -> None:
    pictures, classes = packing.of_folder(folder)
    for name, order in (("a", pictures), ("b", packing.shuffled(pictures, 7)), ("c", packing.shuffled(pictures, 7))):
        packing.pack(order, tmp_path / f"{name}.rec", classes)
    plain, mixed = labels_and_pictures(tmp_path / "a.rec"), labels_and_pictures(tmp_path / "b.rec")
    assert mixed != plain
    assert sorted(mixed, key=lambda row: row[1]) == plain
    assert (tmp_path / "b.rec").read_bytes() == (tmp_path / "c.rec").read_bytes()
    assert packing.shuffled(pictures, 8) != packing.shuffled(pictures, 7)


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_a_longer_shorter_side_is_resized_in_proportion_and_a_shorter_one_is_left_alone(photo: bytes) -> None:
    smaller = opened(Recoding(size=128).apply(photo))
    assert (smaller.format, smaller.size) == ("JPEG", (192, 128))
    wanted = np.asarray(opened(photo).resize((192, 128)), np.float32)
    assert np.abs(np.asarray(smaller, np.float32) - wanted).mean() < 3
    assert Recoding(size=427).apply(photo) is photo
    assert Recoding(size=1000).apply(photo) is photo


def test_a_quality_encodes_every_picture_as_jpeg_and_without_one_png_stays_lossless(photo: bytes) -> None:
    assert len(Recoding(quality=30).apply(photo)) < len(Recoding(quality=90).apply(photo)) < 2 * len(photo)
    png = io.BytesIO()
    opened(photo).convert("RGBA").save(png, "PNG")
    smaller = opened(Recoding(size=100).apply(png.getvalue()))
    assert (smaller.format, smaller.mode, smaller.size) == ("PNG", "RGB", (150, 100))
    assert np.array_equal(np.asarray(smaller), np.asarray(opened(photo).resize((150, 100))))
    assert opened(Recoding(quality=80).apply(png.getvalue())).format == "JPEG"


def test_sixteen_bit_grey_is_encoded_anew_as_the_model_would_see_it() -> None:
    levels = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    png = io.BytesIO()
    Image.fromarray(levels).save(png, "PNG")
    grey = ImagePreprocess(input="x", mode="L", height=64, width=64, mean=(0,), std=(1,), dtype="uint8")
    seen = grey.read(png.getvalue())[0, :, :, 0]
    again = np.asarray(opened(Recoding(quality=100).apply(png.getvalue())))
    assert np.abs(again.astype(int) - seen).max() <= 2


def damaged(folder: Path) -> tuple[Path, Path]:
    """A picture that ends in its middle, and a file that is none."""
    cut, none = folder / "eins" / "3.png", folder / "null" / "5.png"
    cut.write_bytes(cut.read_bytes()[:60])
    none.write_bytes(b"no picture")
    return cut, none


def test_a_picture_that_cannot_be_read_ends_it_with_nothing_written(folder: Path, tmp_path: Path) -> None:
    cut, _ = damaged(folder)
    pictures, classes = packing.of_folder(folder)
    with pytest.raises(PenstockError, match=f"{cut}: .*; --skip-unreadable leaves such pictures out"):
        packing.pack(pictures, tmp_path / "a.rec", classes)
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_with_skip_pictures_that_cannot_be_read_are_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    faults = damaged(folder)
    pictures, classes = packing.of_folder(folder)
    pictures.append(Picture(folder / "gone.png", (0.0,), 40))
    packed = packing.pack(pictures, tmp_path / "a.rec", classes, skip_unreadable=True)
    assert packed.records == len(Reader(tmp_path / "a.rec")) == 38
    assert [reason.split(":")[0] for reason in packed.left_out] == [*map(str, faults), str(folder / "gone.png")]
    assert packed.left_out[2].endswith("cannot be read: No such file or directory")
    lost = [picture for picture in pictures if picture.file in faults]
    with pytest.raises(PenstockError, match=r"none of 2 pictures can be read, the first since .*eins/3.png"):
        packing.pack(lost, tmp_path / "b.rec", classes, skip_unreadable=True)
    assert not list(tmp_path.glob("*b.*"))


def test_a_folder_that_is_no_data_set_is_refused_with_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, told in ((tmp_path / "none", "is no folder"), (tmp_path / "empty", "holds no folders")):
        with pytest.raises(PenstockError, match=told):
            packing.of_folder(place)
    (tmp_path / "empty").rmdir()
    with pytest.raises(PenstockError, match=f"parts are packed each by itself: penstock data pack {folder}"):
        packing.of_folder(tmp_path)
    (folder / "leer").mkdir()
    with pytest.raises(PenstockError, match=r"leer: holds no pictures \(.png, .*\); take the folder away"):
        packing.of_folder(folder)
    (folder / "leer").rmdir()
    (folder / "null" / "0.png").rename(folder / "0.png")
    with pytest.raises(PenstockError, match=r"0\.png: lies in no class's folder"):
        packing.of_folder(folder)
    (folder / "0.png").unlink()
    (folder / "null").rename(folder / "nu\nll")
    with pytest.raises(PenstockError, match=r"the name of the folder 'nu\\nll' cannot be printed"):
        packing.of_folder(folder)


def test_a_list_gives_keys_labels_and_pictures(folder: Path, tmp_path: Path) -> None:
    listed = tmp_path / "a.lst"
    listed.write_text("7\t1.0\t0.5\tnull/0.png\n3\t0\t-2\teins/4.png\n")
    names_path(tmp_path / "a.rec").write_text("of\nanother\n")
    packing.pack(packing.of_list(listed, folder), tmp_path / "a.rec")
    reader = Reader(tmp_path / "a.rec")
    unpacked = [irheader.unpack(record) for record in reader]
    assert reader.keys.tolist() == [header.id for header, _ in unpacked] == [7, 3]
    assert np.array_equal([header.label for header, _ in unpacked], [[1, 0.5], [0, -2]])
    assert [picture for _, picture in unpacked] == [
        (folder / name).read_bytes() for name in ("null/0.png", "eins/4.png")
    ]
    assert not names_path(tmp_path / "a.rec").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0\t1\ta.png\n1\tone\tb.png\n", "line 2: '1\\\\tone\\\\tb.png'; must be a whole number, labels that are"),
        ("0\ta.png\n", "line 1"),
        ("x\t1\ta.png\n", "line 1"),
        ("0\tnan\ta.png\n", "line 1"),
        ("0\t1e39\ta.png\n", "line 1"),
        ("0\t1\t\n", "line 1"),
        ("", "line 1"),
        ("0\t1\ta.png\n1\t1\t2\tb.png\n", "line 2: has 2 labels; line 1 has 1"),
    ],
)
def test_a_line_that_is_none_of_a_list_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(PenstockError, match=f"--list {tmp_path / 'a.lst'}: {told}"):
        packing.of_list(tmp_path / "a.lst", tmp_path)


def test_two_pictures_of_one_key_are_refused_with_nothing_written(folder: Path, tmp_path: Path) -> None:
    pictures = [Picture(folder / "null" / "0.png", (0.0,), 5)] * 2
    with pytest.raises(PenstockError, match="key 5: must be from 0 to"):
        packing.pack(pictures, tmp_path / "a.rec")
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_a_write_that_fails_at_the_last_leaves_no_names_of_classes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.idx").mkdir()
    pictures, classes = packing.of_folder(folder)
    with pytest.raises(IsADirectoryError):
        packing.pack(pictures, tmp_path / "a.rec", classes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.idx", "pictures"]


def test_work_ahead_keeps_the_order_and_does_not_run_away() -> None:
    taken = []

    def items() -> object:
        for number in range(100):
            taken.append(number)
            yield number

    made = ahead(lambda number: number * number, items(), workers=2)  # type: ignore[arg-type,var-annotated]
    assert next(made) == 0
    assert len(taken) <= 7
    assert [1, *made][1:] == [number * number for number in range(1, 100)]


def test_work_that_fails_is_raised_in_its_turn_and_ends_the_rest() -> None:
    done = []

    def work(number: int) -> int:
        done.append(number)
        return 10 // (3 - number)

    made = ahead(work, range(1000), workers=2)
    assert [next(made) for _ in range(3)] == [3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        next(made)
    assert len(done) <= 12

"""What a RecordIO file holds, told without decoding: files of others' making too."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from penstock import irheader
from penstock.data import contents
from penstock.errors import PenstockError
from penstock.recordio import Writer, index_path


def photo(width: int, kind: str, **more: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(load_sample_image("china.jpg")).resize((width, width // 2)).save(file, kind, **more)
    return file.getvalue()


def test_records_of_every_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    # Before its size this JPEG has more than is read at first.
    late = photo(200, "JPEG", exif=b"Exif\0\0" + bytes(50_000))
    rows = [
        (1.0, photo(64, "PNG")),
        (1.0, late),
        (2.5, photo(64, "JPEG")),
        ([0.0] * 2000, photo(32, "PNG")),
        ([1, 2], b""),
    ]
    with Writer(path) as writer:
        for label, picture in rows:
            writer.write(irheader.pack(label, picture))
        writer.write(b"short")
    found = contents.look(path)
    assert found.index == index_path(path)
    assert found.lengths == [24 + len(rows[0][1]), 24 + len(late), 24 + len(rows[2][1]), 8024 + len(rows[3][1]), 32, 5]
    assert found.headless == 1
    assert found.values == Counter({1.0: 2, 2.5: 1})
    assert found.widths == Counter({2000: 1, 2: 1})
    assert found.formats == Counter({"PNG": 2, "JPEG": 2, contents.NO_PICTURE: 1})
    assert found.sides == Counter({(64, 32): 2, (200, 100): 1, (32, 16): 1})


def test_a_file_without_an_index_is_looked_into_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path) as writer:
        writer.write(irheader.pack(0, b""))
    index_path(path).unlink()
    found = contents.look(path)
    assert (found.index, found.lengths, found.values) == (None, [24], Counter({0.0: 1}))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PenstockError, match="byte 0: the file ends after 23 of a record's 24 bytes; it is cut off"):
        contents.look(path)

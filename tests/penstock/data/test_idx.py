"""Fashion-MNIST: the real files, and IDX bytes that are anything else."""

from __future__ import annotations

import gzip
import io
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import data
from penstock.data import idx
from penstock.data.specs import FashionMnist
from penstock.errors import PenstockError

REAL = Path(idx.FOLDERS[0])
needs_files = pytest.mark.skipif(not REAL.is_dir(), reason="dataset-fashion-mnist is not installed")


def written(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@needs_files
def test_the_real_files_give_60000_and_10000_pictures_of_ten_classes() -> None:
    parts = data.load(FashionMnist())
    assert {name: len(part) for name, part in parts.items()} == {"train": 54_000, "val": 6_000, "test": 10_000}
    for part in parts.values():
        assert part.items.dtype == np.uint8
        assert part.items.shape == (len(part), 28, 28)
        assert part.classes == idx.CLASSES
        assert np.bincount(part.labels).tolist() == [len(part) // 10] * 10
    # The first pictures of the test file, by the figures in its paper's repository: ankle boot, pullover, trousers.
    assert [idx.CLASSES[label] for label in parts["test"].labels[:3]] == ["Ankle boot", "Pullover", "Trouser"]
    # The mean and deviation of the 60,000 that are commonly used to standardise them.
    pixels = np.concatenate([parts["train"].items, parts["val"].items]) / 255
    assert abs(pixels.mean() - 0.2860) < 1e-4
    assert abs(pixels.std() - 0.3530) < 1e-4
    first = parts["val"].place(0)
    file, _, number = first.partition(" picture ")
    assert np.array_equal(idx.read(REAL / file)[int(number)], parts["val"].items[0])


def small(folder: Path, wrap: Callable[[bytes], bytes] = lambda raw: raw, suffix: str = "", n: int = 40) -> Path:
    """A data set of the same files with few pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "t10k"):
        pictures = np.random.default_rng(0).integers(0, 256, (n, 28, 28), np.uint8)
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(wrap(written(pictures)))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(wrap(written(np.arange(n, dtype=np.uint8) % 10)))
    return folder


def test_gzipped_files_and_plain_ones_and_torchvisions_folder_are_the_same_data(tmp_path: Path) -> None:
    small(tmp_path / "plain")
    small(tmp_path / "gz", gzip.compress, ".gz")
    small(tmp_path / "root/FashionMNIST/raw")
    small(tmp_path / "misnamed", gzip.compress)
    one = data.load(FashionMnist(path=str(tmp_path / "plain"), val=0.25))
    assert [len(part) for part in one.values()] == [30, 10, 40]
    for name in ("gz", "root", "misnamed"):
        other = data.load(FashionMnist(path=str(tmp_path / name), val=0.25))
        for part in one:
            assert np.array_equal(one[part].items, other[part].items)
            assert np.array_equal(one[part].labels, other[part].labels)


def test_missing_files_are_told_with_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PenstockError, match=f"not in {tmp_path} nor in .*apt install dataset-fashion-mnist"):
        data.load(FashionMnist(path=str(tmp_path)))
    monkeypatch.setattr(idx, "FOLDERS", ("nowhere", "elsewhere"))
    with pytest.raises(PenstockError, match="not in nowhere nor in elsewhere"):
        data.load(FashionMnist())
    (small(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(PenstockError, match="lacks t10k-labels-idx1-ubyte"):
        data.load(FashionMnist(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("file", "array", "words"),
    [
        (
            "train-images-idx3-ubyte",
            np.zeros((40, 28, 27), np.uint8),
            r"shape \[40, 28, 27\]; it must be \[n, 28, 28\]",
        ),
        ("train-images-idx3-ubyte", np.zeros((0, 28, 28), np.uint8), "at least one picture"),
        ("train-labels-idx1-ubyte", np.zeros(39, np.uint8), r"shape \[39\] for the 40 pictures"),
        ("t10k-labels-idx1-ubyte", np.full(40, 10, np.uint8), "label 0 is 10; classes are 0 to 9"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path, file: str, array: np.ndarray, words: str) -> None:
    (small(tmp_path) / file).write_bytes(written(array))
    with pytest.raises(PenstockError, match=f"{file}.*{words}"):
        data.load(FashionMnist(path=str(tmp_path), val=0.25))


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-9],  # without its end
        lambda raw: raw[:50] + bytes(8) + raw[58:],
        lambda raw: raw[:-8] + b"\1\2\3\4" + raw[-4:],  # another checksum
        lambda raw: raw + b"more",
    ],
)
def test_a_damaged_gzip_is_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    small(tmp_path, gzip.compress, ".gz")
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(PenstockError, match=str(file)):
        data.load(FashionMnist(path=str(tmp_path)))


class Endless(io.RawIOBase):
    """An IDX head of one row of 28 x 28, and no end of zeros after it."""

    taken = 0

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        head = written(np.zeros((1, 28, 28), np.uint8))[:16]
        found = (head + bytes(size))[self.taken : self.taken + size] if self.taken < 16 else bytes(size)
        self.taken += len(found)
        return found


def test_of_a_file_that_unpacks_to_more_than_it_says_no_more_is_read() -> None:
    bomb = Endless()
    with pytest.raises(ValueError, match="are of 784 bytes, and it goes on after them"):
        idx.parse(bomb)
    assert bomb.taken == 16 + 784 + 1


def test_a_head_that_promises_too_much_is_refused_before_anything_is_read() -> None:
    head = io.BytesIO(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1))
    with pytest.raises(ValueError, match="at most 268435456 are read"):
        idx.parse(head)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_what_is_written_is_read_back_and_no_other_length(sizes: list[int], random: object) -> None:
    array = np.arange(math.prod(sizes), dtype=np.uint8).reshape(sizes)
    raw = written(array)
    assert np.array_equal(idx.parse(io.BytesIO(raw)), array)
    for other in (raw + b"\0", *(raw[:length] for length in range(len(raw)))):
        with pytest.raises(ValueError, match="it "):
            idx.parse(io.BytesIO(other))


@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: b"\0\0\x08\x02" + tail))
def test_any_bytes_are_an_array_or_refused(raw: bytes) -> None:
    try:
        array = idx.parse(io.BytesIO(raw))
    except ValueError:
        return
    assert written(array) == raw

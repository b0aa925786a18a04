"""Digests: of names and contents, wherever the files lie."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import data
from penstock.data import digests
from penstock.data.specs import Arrays, CsvText, Digits, FashionMnist, ImageFolder, Records
from penstock.errors import PenstockError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat/0.png", "cat/1.png", "dog/0.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), len(name) + int(name[4])).save(tmp_path / "pets" / name)
    return tmp_path / "pets"


def test_a_folder_that_is_moved_is_the_same_data(folder: Path) -> None:
    before = data.digest(ImageFolder(path=str(folder)))
    assert len(bytes.fromhex(before)) == 32
    moved = folder.with_name("moved")
    shutil.move(folder, moved)
    assert data.digest(ImageFolder(path=str(moved), seed=5)) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "cat/0.png").write_bytes((root / "cat/1.png").read_bytes()),
        lambda root: (root / "cat/0.png").rename(root / "cat/2.png"),
        lambda root: (root / "cat/0.png").rename(root / "dog/2.png"),
        lambda root: (root / "cat/0.png").unlink(),
        lambda root: shutil.copy(root / "cat/0.png", root / "cat/2.png"),
    ],
)
def test_another_name_or_content_is_other_data(folder: Path, change: Callable[[Path], None]) -> None:
    spec = ImageFolder(path=str(folder))
    before = data.digest(spec)
    change(folder)
    assert data.digest(spec) != before


def test_pictures_that_cannot_be_read_are_left_to_the_reader(folder: Path) -> None:
    spec = ImageFolder(path=str(folder))
    before = data.digest(spec)
    (folder / "cat/loop.png").symlink_to("loop.png")
    (folder / "cat/gone.png").symlink_to("nowhere.png")
    os.mkfifo(folder / "cat/pipe.png")
    assert data.digest(spec) != before
    with pytest.raises(PenstockError, match=r"3 of 6 pictures cannot be read: .*pipe.png \(it is no file\)"):
        data.load(spec)


def test_a_pipe_is_no_file_of_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.csv")
    with pytest.raises(PenstockError, match=r"train.csv: cannot be read: is no file"):
        data.digest(CsvText(train=str(tmp_path / "train.csv")))


def test_what_is_no_picture_does_not_count(folder: Path) -> None:
    spec = ImageFolder(path=str(folder))
    before = data.digest(spec)
    (folder / "README.txt").write_text("x")
    assert data.digest(spec) == before


def test_files_go_by_what_they_are_there_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.csv").write_text("y")
    a, b = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    both = data.digest(CsvText(train=a, dev=b))
    assert both == data.digest(CsvText(train=a, dev=b, text="other"))
    assert len({both, data.digest(CsvText(train=b, dev=a)), data.digest(CsvText(train=a, test_file=b))}) == 3
    assert data.digest(CsvText(train=a)) == data.digest(Arrays(path=a)) == data.digest(Records(path=a))


def test_the_digits_have_a_digest_of_their_pixels() -> None:
    assert data.digest(Digits()) == data.digest(Digits(seed=3))


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="dataset-fashion-mnist is missing")
def test_the_four_files_of_fashion_mnist_are_digested() -> None:
    assert data.digest(FashionMnist()) == data.digest(FashionMnist(path="/usr/share/datasets/fashion-mnist", seed=1))
    assert len(digests.files(FashionMnist())) == 4


def test_a_digest_is_kept_until_a_file_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.npz"
    file.write_bytes(b"one")
    read: list[Path] = []
    monkeypatch.setattr(digests, "sha256", lambda path: (read.append(path), path.read_bytes().hex())[1])
    spec = Arrays(path=str(file))
    first = data.digest(spec)
    assert data.digest(spec) == first
    assert len(read) == 2  # it is too new: a change within the clock's step would not show
    monkeypatch.setattr(digests, "_SETTLED_S", -1e6)
    assert [data.digest(spec) for _ in range(3)] == [first] * 3
    assert len(read) == 3
    file.write_bytes(b"two")
    assert data.digest(spec) != first


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=f"{tmp_path / 'a.npz'}: cannot be read: No such file"):
        data.digest(Arrays(path=str(tmp_path / "a.npz")))


def test_names_are_told_from_contents(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    first = digests.stamp({"ab": tmp_path / "a.npz", "c": tmp_path / "gone"})
    assert first is None  # changed just now

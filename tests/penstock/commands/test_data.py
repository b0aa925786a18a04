"""`penstock data`: a folder packed and looked at, from the command line."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from typer.testing import CliRunner

from penstock import cli, data
from penstock.data.specs import Records
from penstock.errors import PenstockError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty scans of each digit, in folders 0 to 9."""
    digits = load_digits()
    for digit in range(10):
        (tmp_path / "scans" / str(digit)).mkdir(parents=True)
        for place, scan in enumerate(digits.images[digits.target == digit][:20]):
            pixels = np.rint(scan * (255 / 16)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "scans" / str(digit) / f"{place:02d}.png")
    return tmp_path / "scans"


def ran(*words: object) -> str:
    done = CliRunner().invoke(cli.app, ["data", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_folder_is_packed_looked_at_and_read_as_a_data_set(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "scans.rec"
    told = ran("pack", folder, path, "--shuffle", 3)
    assert told.startswith(f"{path}: 200 pictures of 10 classes, ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["scans", "scans.classes.txt", "scans.idx", "scans.rec"]
    lines = ran("show", path).splitlines()
    assert lines[0].startswith(f"{path}: 200 records, ")
    assert lines[2] == "pictures: 200 PNG; 8x8 pixels"
    assert [line.split() for line in lines[3:]] == [["label", "class", "records"]] + [
        [str(n), str(n), "20"] for n in range(10)
    ]
    parts = data.load(Records(path=str(path)))
    assert {name: len(part) for name, part in parts.items()} == {"train": 140, "val": 20, "test": 40}
    wanted = {(file.read_bytes(), int(file.parent.name)) for file in folder.glob("*/*.png")}
    assert {pair for part in parts.values() for pair in zip(part.items, part.labels, strict=True)} == wanted


def test_the_rest_of_many_labels_is_counted_and_what_is_left_out_named(folder: Path, tmp_path: Path) -> None:
    (folder / "3" / "07.png").write_bytes(b"no picture")
    listed = tmp_path / "a.lst"
    files = sorted(folder.glob("*/*.png"))
    listed.write_text("".join(f"{n}\t{n / 4}\t{file.relative_to(folder)}\n" for n, file in enumerate(files)))
    path = tmp_path / "a.rec"
    lines = ran("pack", folder, path, "--list", listed, "--skip-unreadable").splitlines()
    assert lines[0].startswith(f"left out: {folder}/3/07.png: ")
    assert lines[1].startswith(f"{path}: 199 pictures, ")
    assert ran("show", path).splitlines()[-1] == "… and 169 labels more, of 169 records"


def test_sizes_and_qualities_are_those_asked_for(tmp_path: Path) -> None:
    (tmp_path / "photos" / "one").mkdir(parents=True)
    Image.fromarray(load_sample_image("china.jpg")).save(tmp_path / "photos" / "one" / "a.png")
    ran("pack", tmp_path / "photos", tmp_path / "a.rec", "--size", 64, "--quality", 80)
    assert ran("show", tmp_path / "a.rec").splitlines()[2] == "pictures: 1 JPEG; 96x64 pixels"


def test_what_cannot_be_written_to_is_refused_before_anything_is_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"scans.bin: must end in .rec"):
        ran("pack", folder, tmp_path / "scans.bin")
    (tmp_path / "a.idx").mkdir()
    for output, told in (
        (tmp_path / "a.rec", "a.idx: is a folder"),
        (tmp_path / "none" / "b.rec", "cannot be written"),
    ):
        with pytest.raises(PenstockError, match=told):
            ran("pack", tmp_path / "no folder either", output)


def test_a_full_disk_leaves_nothing_half_written(folder: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(PenstockError, match=r"OUT.rec .*a.rec: cannot be written: .*; nothing was written"):
            ran("pack", folder, tmp_path / "a.rec")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["scans"]


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path) -> None:
    inside = tmp_path / "photos" / "one"
    inside.mkdir(parents=True)
    Image.fromarray(load_sample_image("china.jpg")).resize((2000, 1500)).save(inside / "0.png", compress_level=0)
    for number in range(1, 2000):
        os.link(inside / "0.png", inside / f"{number}.png")
    output = tmp_path / "out"
    output.mkdir()
    words = [sys.executable, "-m", "penstock", "data", "pack", tmp_path / "photos", output / "a.rec", "--quality", "90"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size for file in output.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [file.name.startswith(".a.rec.") for file in output.iterdir()] == [True]
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "interrupted\n")
    assert list(output.iterdir()) == []


def test_a_folder_is_not_shown_and_what_takes_it_is_told(folder: Path) -> None:
    with pytest.raises(PenstockError, match=rf"^{folder}: is a folder; .*penstock data pack {folder} train.rec; .*"):
        ran("show", folder)

"""Folders of pictures: classes by their names; what cannot be read is named, refused or left out."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock import data
from penstock.data.folders import Files
from penstock.data.specs import ImageFolder
from penstock.errors import PenstockError
from penstock.preprocess import decode_image


def draw(file: Path, level: int = 0, kind: str = "PNG") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 7), (level, level, level)).save(file, kind)
    return file


def pets(root: Path, each: int = 10, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    for number, name in enumerate(classes):
        for picture in range(each):
            draw(root / name / f"{picture:02}.png", 10 * number + picture)
    return root


def spec(root: Path, **more: object) -> ImageFolder:
    return ImageFolder.model_validate({"path": str(root), **more})


def test_pictures_are_read_when_asked_for_and_bear_their_folders_class(tmp_path: Path) -> None:
    parts = data.load(spec(pets(tmp_path)))
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "val": 2, "test": 4}
    seen = []
    for part in parts.values():
        assert part.classes == ("cat", "dog")
        assert part.kind == "image"
        assert sorted(set(part.labels.tolist())) == [0, 1]
        for row, item in enumerate(part.items):
            place = part.place(row)
            assert place.startswith(f"{part.classes[part.labels[row]]}/")
            assert item == (tmp_path / place).read_bytes()
            assert np.asarray(decode_image(item)).shape == (7, 9, 3)
            seen.append(place)
    assert len(set(seen)) == 20
    (tmp_path / parts["train"].place(0)).unlink()
    with pytest.raises(PenstockError, match=f"dataset.path {tmp_path / parts['train'].place(0)}: cannot be read: No"):
        parts["train"].items[0]


def test_a_file_sequence_travels_to_another_process(tmp_path: Path) -> None:
    pets(tmp_path)
    files = Files(tmp_path, ["cat/00.png", "dog/01.png"])
    assert list(pickle.loads(pickle.dumps(files))) == list(files)
    assert list(files[1:]) == [(tmp_path / "dog/01.png").read_bytes()]


def test_parts_with_folders_of_their_own_are_those_folders(tmp_path: Path) -> None:
    for part, each in (("train", 10), ("val", 2), ("test", 3)):
        pets(tmp_path / part, each)
    parts = data.load(spec(tmp_path))
    assert {name: len(part) for name, part in parts.items()} == {"train": 20, "val": 4, "test": 6}
    for name, part in parts.items():
        assert {place.split("/")[0] for place in part.places or ()} == {name}


def test_a_part_without_a_folder_is_split_off_train(tmp_path: Path) -> None:
    pets(tmp_path / "train", 10)
    pets(tmp_path / "test", 3)
    parts = data.load(spec(tmp_path, val=0.2))
    assert {name: len(part) for name, part in parts.items()} == {"train": 16, "val": 4, "test": 6}
    assert all(place.startswith("train/") for place in parts["val"].places or ())


def test_a_class_called_train_is_a_class_where_it_holds_pictures(tmp_path: Path) -> None:
    parts = data.load(spec(pets(tmp_path, classes=("bus", "train"))))
    assert parts["train"].classes == ("bus", "train")


def test_folders_beside_parts_are_refused_by_name(tmp_path: Path) -> None:
    pets(tmp_path / "train")
    pets(tmp_path / "valid")
    with pytest.raises(PenstockError, match="holds parts, as train, and beside them valid; parts are train, val, test"):
        data.load(spec(tmp_path))


@pytest.mark.parametrize("parts", [("val",), ("val", "test")])
def test_parts_without_train_are_refused(tmp_path: Path, parts: tuple[str, ...]) -> None:
    for part in parts:
        pets(tmp_path / part)
    with pytest.raises(PenstockError, match="but no train with a folder for each class"):
        data.load(spec(tmp_path))


def test_what_is_no_picture_is_counted_and_what_is_hidden_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets(tmp_path)
    for name in ("cat/notes.txt", "cat/deep/a.tiff", "labels.csv", ".hidden.txt", "dog/._00.png", "dog/.git/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not a picture")
    draw(tmp_path / "stray.png")
    draw(tmp_path / ".cache/a.png")
    (tmp_path / "__MACOSX").mkdir()
    with caplog.at_level(logging.WARNING):
        parts = data.load(spec(tmp_path))
    assert sum(len(part) for part in parts.values()) == 20
    told = [record.getMessage() for record in caplog.records]
    assert any("pictures in no class's folder: 1, which are left out: stray.png" in line for line in told)
    assert any("files that are no .png" in line and ": 3, which are left out:" in line for line in told)
    assert len(told) == 2


def test_folders_in_a_class_belong_to_it_and_links_in_a_circle_end(tmp_path: Path) -> None:
    pets(tmp_path)
    draw(tmp_path / "cat/wild/lynx/0.PNG")
    (tmp_path / "cat/again").symlink_to(tmp_path / "cat")
    (tmp_path / "cat/up").symlink_to(tmp_path)
    (tmp_path / "cat/other").symlink_to(tmp_path / "dog")
    (tmp_path / "cat/wild/round").symlink_to(tmp_path / "cat/wild")
    (tmp_path / "cat/self").symlink_to("self")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    draw(elsewhere / "0.png")
    (tmp_path / "dog/linked").symlink_to(elsewhere)
    parts = data.load(spec(tmp_path))
    places = sorted(place for part in parts.values() for place in part.places or ())
    assert len(places) == 22
    assert {"cat/wild/lynx/0.PNG", "dog/linked/0.png"} <= set(places)


def test_an_empty_class_is_refused_by_name(tmp_path: Path) -> None:
    (pets(tmp_path) / "okapi").mkdir()
    with pytest.raises(PenstockError, match=r"dataset.path .*: no pictures \(.png, .*\) in okapi; add some, or remove"):
        data.load(spec(tmp_path))


@pytest.mark.parametrize("make", [lambda root: None, lambda root: draw(root / "0.png")])
def test_a_folder_without_classes_is_refused(tmp_path: Path, make: object) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(PenstockError, match="holds no folders; each class needs one"):
        data.load(spec(tmp_path))


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="holds only the class 'cat'"):
        data.load(spec(pets(tmp_path, classes=("cat",))))


@pytest.mark.parametrize(("name", "words"), [("nowhere", "no such folder"), ("file", "is no folder")])
def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match=f"dataset.path {tmp_path / name}: {words}"):
        data.load(spec(tmp_path / name))


def test_a_class_that_train_lacks_is_refused_and_the_other_way_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets(tmp_path / "train", classes=("cat", "dog", "owl"))
    pets(tmp_path / "val", 2)
    with caplog.at_level(logging.WARNING):
        data.load(spec(tmp_path))
    assert [record.getMessage() for record in caplog.records] == [
        f"dataset.path {tmp_path / 'val'}: has nothing of class owl; figures of val say nothing of it"
    ]
    draw(tmp_path / "val/dogs/0.png")
    with pytest.raises(PenstockError) as caught:
        data.load(spec(tmp_path))
    assert str(caught.value) == (
        f"dataset.path {tmp_path / 'val'}: val/dogs/0.png is of class 'dogs', of which train has nothing; its classes "
        "are cat, dog, owl; the nearest is 'dog'"
    )


def damaged(root: Path) -> list[str]:
    """Five pictures of pets that cannot be read."""
    pets(root)
    whole = (root / "cat/00.png").read_bytes()
    (root / "cat/cut.png").write_bytes(whole[:-30])
    (root / "cat/text.jpg").write_text("<html>404</html>")
    (root / "dog/empty.webp").write_bytes(b"")
    (root / "dog/gone.gif").symlink_to("nowhere.gif")
    os.mkfifo(root / "dog/pipe.bmp")
    return ["cat/cut.png", "cat/text.jpg", "dog/empty.webp", "dog/gone.gif", "dog/pipe.bmp"]


def test_pictures_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    names = damaged(tmp_path)
    with pytest.raises(PenstockError, match="5 of 25 pictures cannot be read: ") as caught:
        data.load(spec(tmp_path))
    assert all(f"{name} (" in str(caught.value) for name in names)
    assert 'leave them out with dataset.unreadable = "skip"' in str(caught.value)


def test_pictures_that_cannot_be_read_are_left_out_where_that_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = damaged(tmp_path)
    with caplog.at_level(logging.WARNING):
        parts = data.load(spec(tmp_path, unreadable="skip"))
    places = {place for part in parts.values() for place in part.places or ()}
    assert len(places) == 20
    assert not places & set(names)
    (record,) = caplog.records
    assert "5 of 25 pictures cannot be read, and are left out: cat/cut.png (" in record.getMessage()


def test_a_class_of_which_nothing_can_be_read_is_an_empty_one(tmp_path: Path) -> None:
    pets(tmp_path)
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl/0.png").write_bytes(b"")
    with pytest.raises(PenstockError, match="in owl; add some"):
        data.load(spec(tmp_path, unreadable="skip"))


def test_a_class_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    pets(tmp_path)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")  # noqa: PTH102
    with pytest.raises(PenstockError, match=r"\\udcff\\udcfe: the folder's name is a class's, and must be text"):
        data.load(spec(tmp_path))


def test_a_picture_that_is_damaged_in_between_is_left_out_where_such_are(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(noise).save(pets(tmp_path) / "cat/bad.png")
    whole = (tmp_path / "cat/bad.png").read_bytes()
    (tmp_path / "cat/bad.png").write_bytes(whole[:3000] + bytes(40) + whole[3040:])
    parts = data.load(spec(tmp_path, unreadable="skip"))
    assert sum(map(len, parts.values())) == 20
    assert sum(map(len, data.load(spec(tmp_path)).values())) == 21  # its head and end are those of a whole one

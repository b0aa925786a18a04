"""The cache: keys that nothing shares by accident, and files that may be missing, damaged or refused."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache's folder, which is not there yet."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- Keys ---------------------------------------------------------------------------------------------------------


def cut(data: bytes, places: list[int]) -> tuple[bytes, ...]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return tuple(data[start:end] for start, end in pairwise(bounds))


PLACES = st.lists(st.integers(0, 30), max_size=4)
# Digits and colons, as in what a key itself puts before a part, are where parts might be taken for one another.
DATA = st.one_of(st.binary(max_size=12), st.text("01:23", max_size=12).map(str.encode))


@given(DATA, PLACES, PLACES)
def test_the_same_bytes_in_other_parts_are_another_key(data: bytes, here: list[int], there: list[int]) -> None:
    one, other = cut(data, here), cut(data, there)
    assert (cache.key(*one) == cache.key(*other)) == (one == other)


@given(st.lists(DATA, max_size=4), st.lists(DATA, max_size=4))
def test_other_parts_are_another_key(one: list[bytes], other: list[bytes]) -> None:
    assume(one != other)
    assert cache.key(*one) != cache.key(*other)


@given(st.lists(st.text(max_size=6), max_size=4))
def test_text_counts_as_its_utf8(parts: list[str]) -> None:
    assert cache.key(*parts) == cache.key(*(part.encode() for part in parts))


def test_a_key_can_be_the_name_of_a_file(folder: Path) -> None:
    name = cache.key("a/../b\0", b"\xff" * 1000)
    assert set(name) <= set("0123456789abcdef")
    cache.write("kind", name, b"data")
    assert cache.read("kind", name) == b"data"


# --- Reading and writing ------------------------------------------------------------------------------------------


def test_what_was_never_written_is_none(folder: Path) -> None:
    assert cache.read("kind", "name") is None
    cache.write("kind", "name", b"data")
    assert cache.read("kind", "other") is None
    assert cache.read("other", "name") is None


def test_reading_makes_no_folder(folder: Path) -> None:
    cache.read("kind", "name")
    assert not folder.exists()


@pytest.mark.parametrize("data", [b"", b"data", bytes(range(256)) * 1000, b"\r\n\n"])
def test_what_was_written_is_read_to_the_byte(folder: Path, data: bytes) -> None:
    cache.write("kind", "name", data)
    assert cache.read("kind", "name") == data


def test_the_last_write_holds_and_nothing_else_is_left(folder: Path) -> None:
    for data in (b"first, and longer", b"last"):
        cache.write("kind", "name", data)
    assert cache.read("kind", "name") == b"last"
    assert [path.name for path in (folder / "kind").iterdir()] == ["name"]


def test_a_file_that_was_changed_is_as_good_as_none(folder: Path) -> None:
    cache.write("kind", "name", b"0.5 points")
    file = folder / "kind" / "name"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.read("kind", "name") is None
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert cache.read("kind", "name") is None
    file.write_bytes(whole)
    assert cache.read("kind", "name") == b"0.5 points"


def test_a_cache_that_was_deleted_is_made_again(folder: Path) -> None:
    assert cache.write("kind", "name", b"data") == ""
    (folder / "kind" / "name").unlink()
    assert cache.read("kind", "name") is None
    (folder / "kind").rmdir()
    cache.write("kind", "name", b"data")
    assert cache.read("kind", "name") == b"data"


@pytest.mark.parametrize("place", ["cache", "cache/kind"])
def test_a_file_where_a_folder_should_be_is_no_error(folder: Path, tmp_path: Path, place: str) -> None:
    stands = tmp_path / place
    stands.parent.mkdir(exist_ok=True)
    stands.write_bytes(b"a file")
    said = cache.write("kind", "name", b"data")
    assert said.startswith(f"; not kept, so each start measures it anew: {folder}: ")
    assert "PENSTOCK_CACHE" in said
    assert cache.read("kind", "name") is None
    assert stands.read_bytes() == b"a file"


def test_a_folder_where_the_file_should_be_is_no_error(folder: Path) -> None:
    (folder / "kind" / "name").mkdir(parents=True)
    cache.write("kind", "name", b"data")
    assert cache.read("kind", "name") is None
    assert [path.name for path in (folder / "kind").iterdir()] == ["name"]


def test_a_folder_that_the_system_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/proc/none/of/it")
    cache.write("kind", "name", b"data")
    assert cache.read("kind", "name") is None


# --- Where --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "home", "expected"),
    [
        ("/a/chosen", "/an/xdg", "/a/chosen"),
        ("/a/chosen", None, "/a/chosen"),
        ("~/chosen", "/an/xdg", "HOME/chosen"),
        (None, "/an/xdg", "/an/xdg/penstock"),
        ("", "/an/xdg", "/an/xdg/penstock"),
        (None, None, "HOME/.cache/penstock"),
        ("", "", "HOME/.cache/penstock"),
    ],
)
def test_the_folder_is_the_chosen_one_then_that_of_xdg_then_that_of_the_user(
    chosen: str | None, home: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in (("PENSTOCK_CACHE", chosen), ("XDG_CACHE_HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert str(cache.folder()) == expected.replace("HOME", str(tmp_path))


def test_files_lie_in_the_folder_by_kind_and_name(folder: Path) -> None:
    cache.write("kind", "name", b"data")
    assert (folder / "kind" / "name").read_bytes().endswith(b"data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_put_there_is_as_good_as_none(folder: Path) -> None:
    cache.write("kind", "name", b"mine")
    os.chown(folder / "kind" / "name", 12345, 12345)
    assert cache.read("kind", "name") is None
    cache.write("kind", "name", b"mine again")
    assert cache.read("kind", "name") == b"mine again"


def test_a_pipe_in_the_cache_is_not_waited_for(folder: Path) -> None:
    (folder / "kind").mkdir(parents=True)
    os.mkfifo(folder / "kind" / "name")
    assert cache.read("kind", "name") is None

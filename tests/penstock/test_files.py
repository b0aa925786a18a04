"""Files: whole or not at all, and a refusal in one sentence."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import socket
import stat
import threading
import zipfile
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.files import nearby, see_folder, see_unpacked, see_writable, sha256, write_whole, writing


def test_a_file_is_written_with_its_bytes_and_readable_by_all(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one")
    write_whole(tmp_path / "a", memoryview(b"two"))
    assert (tmp_path / "a").read_bytes() == b"two"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught:
            write_whole(tmp_path / "a", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "kept").mkdir()
    target = tmp_path / "kept" / "a"
    if there:
        target.write_bytes(b"old")
    (tmp_path / "link").symlink_to(Path("kept") / "a")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["a"]


def test_a_pipe_stays_and_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_whole(tmp_path / "pipe", b"x" * 100_000)
    reader.join(5)
    assert got == [b"x" * 100_000]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_socket_a_loop_of_links_and_a_folder_are_refused(tmp_path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for name in ("socket", "loop", "folder"):
        with pytest.raises(PenstockError, match=f"{name}: cannot be written"), writing("--csv", tmp_path / name, "-"):
            write_whole(tmp_path / name, b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "loop", "socket"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EBUSY])
def test_a_refusal_names_the_option_the_path_the_reason_and_the_outcome(number: int) -> None:
    expected = f"--output some/models: cannot be written: {os.strerror(number)}; nothing was published"
    with pytest.raises(PenstockError) as caught, writing("--output", Path("some/models"), "nothing was published"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value) == expected


def test_other_errors_of_the_system_go_on_as_they_are() -> None:
    with pytest.raises(ConnectionResetError), writing("--output", Path("models"), "nothing was published"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000  # over one read
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_what_can_be_written_is_seen_without_leaving_anything(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    for name in ("old", "new"):
        see_writable("--json", tmp_path / name)
    see_folder("--logs", tmp_path / "a" / "b")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("old", b"old")]


@pytest.mark.parametrize("name", [".", "pipe", "x" * 300])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PenstockError, match=r"--json .*: (is a folder|is no file|cannot be written: File name too)"):
        see_writable("--json", tmp_path / name)


def test_a_zip_file_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(200 << 20))
    see_unpacked(tmp_path / "a")
    with zipfile.ZipFile(tmp_path / "a", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b", bytes(60 << 20))
    with pytest.raises(PenstockError, match="damaged: it unpacks to 272629760 bytes"):
        see_unpacked(tmp_path / "a")


def test_of_a_file_that_is_not_there_the_nearest_beside_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "best.pth").touch()
    assert nearby(tmp_path / "bset.pth") == "; the nearest is 'best.pth'"
    assert nearby(tmp_path / "something else") == ""
    assert nearby(tmp_path / "no" / "best.pth") == f"; there is no folder {tmp_path / 'no'}"

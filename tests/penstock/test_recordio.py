"""RecordIO: bytes as dmlc-core's description lays them out, read and written; files that break it."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import operator
import os
import pickle
import resource
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.recordio import Reader, Writer, index_path, read_index, records, scan
from penstock.recordparts import LONGEST, MAGIC, BadRecords

WORD = bytes.fromhex("0a23d7ce")  # 0xced7230a, as it lies in a file
# Records, and the bytes of each by the description: magic, flag << 29 | length, data, zeros up to 4 bytes. MXNet 1.9.1
# writes the same for them.
LAID_OUT = (
    (b"", "0a23d7ce 00000000"),
    (b"abcd", "0a23d7ce 04000000 61626364"),
    (b"abcde", "0a23d7ce 05000000 61626364 65000000"),
    # The magic word at byte 4: left out between a first part and a last.
    (b"ABCD" + WORD + b"EF", "0a23d7ce 04000020 41424344 0a23d7ce 02000060 45460000"),
    # At byte 0, and again at once: a first, a middle and a last part, all empty.
    (WORD + WORD, "0a23d7ce 00000020 0a23d7ce 00000040 0a23d7ce 00000060"),
    # At bytes 0 and 8, with data between and behind.
    (WORD + b"abcd" + WORD + b"efg", "0a23d7ce 00000020 0a23d7ce 04000040 61626364 0a23d7ce 03000060 65666700"),
    # At bytes 1, 2 and 3: data like any other.
    (b"A" + WORD, "0a23d7ce 05000000 410a23d7 ce000000"),
    (b"AB" + WORD, "0a23d7ce 06000000 41420a23 d7ce0000"),
    (b"ABC" + WORD, "0a23d7ce 07000000 4142430a 23d7ce00"),
    # At byte 3, and at byte 8.
    (b"ABC" + WORD + b"D" + WORD, "0a23d7ce 08000020 4142430a 23d7ce44 0a23d7ce 00000060"),
    # Cut off: three bytes of it at byte 4.
    (b"ABCD" + WORD[:3], "0a23d7ce 07000000 41424344 0a23d700"),
)  # fmt: skip
PAYLOADS = tuple(payload for payload, _ in LAID_OUT)
BYTES = b"".join(bytes.fromhex(laid_out) for _, laid_out in LAID_OUT)
STARTS = tuple(
    sum(len(bytes.fromhex(laid_out)) for _, laid_out in LAID_OUT[:number]) for number in range(len(LAID_OUT))
)
# Bytes in which the magic word, and parts of it, are as likely as any others.
payloads = st.lists(st.one_of(st.just(WORD), st.just(WORD[:2]), st.just(WORD[2:]), st.binary(max_size=9))).map(b"".join)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The records that are laid out, without an index."""
    path = tmp_path / "laid.rec"
    path.write_bytes(BYTES)
    return path


@pytest.mark.parametrize(("payload", "laid_out"), LAID_OUT)
def test_a_record_is_written_as_the_description_lays_it_out(tmp_path: Path, payload: bytes, laid_out: str) -> None:
    with Writer(tmp_path / "a.rec") as writer:
        writer.write(payload)
    assert (tmp_path / "a.rec").read_bytes() == bytes.fromhex(laid_out)


def test_records_are_read_from_what_the_description_lays_out(file: Path) -> None:
    assert tuple(records(file)) == PAYLOADS
    assert tuple(scan(file)) == tuple(zip(STARTS, map(len, PAYLOADS), strict=True))
    with Reader(file) as reader:
        assert tuple(reader) == PAYLOADS
        assert [reader[number] for number in (5, 0, 3)] == [PAYLOADS[number] for number in (5, 0, 3)]
        assert reader.offsets.tolist() == list(STARTS)


def test_an_index_has_a_line_of_key_tab_and_offset_for_each_record(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.rec") as writer:
        offsets = [writer.write(payload) for payload in PAYLOADS]
    assert tuple(offsets) == STARTS
    wanted = "".join(f"{number}\t{offset}\n" for number, offset in enumerate(STARTS))
    assert (tmp_path / "a.idx").read_text() == wanted


def test_records_are_in_the_order_of_the_index_under_its_keys(file: Path) -> None:
    index_path(file).write_text(f"70\t{STARTS[3]}\r\n5\t{STARTS[1]}\n6\t{STARTS[9]}")
    reader = Reader(file)
    assert tuple(reader) == (PAYLOADS[3], PAYLOADS[1], PAYLOADS[9])
    assert reader.keys.tolist() == [70, 5, 6]
    assert reader.place(2) == f"{file} record 2 at byte {STARTS[9]}"
    with pytest.raises(BadRecords, match="3 lines for the 11 records"):
        reader.check_index()


def test_no_more_of_a_record_is_read_than_is_asked_for(file: Path) -> None:
    reader = Reader(file)
    for number, payload in enumerate(PAYLOADS):
        for most in range(len(payload) + 2):
            assert reader.beginning(number, most) == payload[:most]


@given(st.lists(payloads), st.randoms())
def test_what_is_written_is_read_in_turn_and_by_number(
    tmp_path_factory: pytest.TempPathFactory, wanted, random
) -> None:
    path = tmp_path_factory.mktemp("given") / "a.rec"
    keys = random.sample(range(10**6), len(wanted))
    with Writer(path) as writer:
        for key, payload in zip(keys, wanted, strict=True):
            writer.write(payload, key)
    indexed = Reader(path)
    indexed.check_index()
    assert indexed.keys.tolist() == keys
    order = random.sample(range(len(wanted)), len(wanted))
    assert [indexed[number] for number in order] == [wanted[number] for number in order]
    assert list(records(path)) == wanted
    index_path(path).unlink()
    assert list(Reader(path)) == wanted
    assert Reader(path).offsets.tolist() == indexed.offsets.tolist()
    # Whoever looks for the magic word at multiples of 4 finds beginnings of parts alone: each is followed by a length
    # that leads to the next.
    data, found = path.read_bytes(), []
    assert len(data) % 4 == 0
    for offset in range(0, len(data), 4):
        if data[offset : offset + 4] == WORD:
            found.append(offset)
    for offset, after in pairwise([*found, len(data)]):
        (word,) = struct.unpack_from("<I", data, offset + 4)
        assert after == offset + 8 + ((word & LONGEST) + 3) // 4 * 4


def read_until_an_error(path: Path) -> tuple[list[bytes], str]:
    found: list[bytes] = []
    with contextlib.suppress(StopIteration):
        iterator: Iterator[bytes] = records(path)
        try:
            while True:
                found.append(next(iterator))
        except BadRecords as error:
            return found, str(error)
    return found, ""


def test_a_file_that_is_cut_off_at_any_byte_gives_its_whole_records_and_says_where(file: Path) -> None:
    for cut in range(len(BYTES)):
        file.write_bytes(BYTES[:cut])
        whole = sum(start < cut for start in STARTS) - (cut not in STARTS)
        found, error = read_until_an_error(file)
        assert found == list(PAYLOADS[:whole]), cut
        if cut in STARTS:
            assert error == ""
            continue
        assert error.startswith(f"{file}: byte "), cut
        assert error.endswith("it is cut off")
        where = int(error.split(": byte ")[1].split(":")[0])
        assert STARTS[whole] <= where <= cut
        with pytest.raises(BadRecords, match="it is cut off"):
            Reader(file)


def test_with_its_index_a_file_that_is_cut_off_anywhere_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    for cut in range(len(BYTES)):
        path.write_bytes(BYTES[:cut])
        reader = Reader(path)
        with pytest.raises(BadRecords):
            reader.check_index()
        with pytest.raises(BadRecords, match="it is cut off"):
            list(reader)


@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    damaged = bytearray(BYTES)
    for place in data.draw(st.lists(st.integers(0, len(BYTES) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.rec"
    path.write_bytes(damaged)
    found, error = read_until_an_error(path)
    assert len(found) <= len(PAYLOADS) * 3
    assert error == "" or error.startswith(f"{path}: byte ")


def part(flag: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | len(payload)) + payload + bytes(-len(payload) % 4)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bytes(8), "byte 0: 0x00000000, where a record begins with 0xced7230a; it is no RecordIO file"),
        (part(0, b"abcd") + b"abcdefgh", "byte 12: 0x64636261, where a record begins"),
        (part(0) + part(2), "byte 8: a record begins with flag 2; it must be 0 or 1"),
        (part(3), "byte 0: a record begins with flag 3"),
        (part(5), "byte 0: a record begins with flag 5"),
        (part(1) + part(0), "byte 8: flag 0 within the record that begins at byte 0; it must be 2 or 3"),
        (part(1) + part(2) + part(1), "byte 16: flag 1 within"),
        (part(1) + part(7), "byte 8: flag 7 within"),
        (part(1, b"a"), "byte 12: the file ends after 0 of the 8 bytes"),
        (
            struct.pack("<II", MAGIC, LONGEST) + bytes(100),
            f"byte 0: the file ends after 100 of a record's {LONGEST + 1} ",
        ),
    ],
)
def test_what_breaks_the_format_is_told_with_its_place_and_rule(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(data)
    assert f"{path}: {told}" in read_until_an_error(path)[1]
    with pytest.raises(BadRecords) as caught:
        Reader(path)
    assert told in str(caught.value)


def test_parts_whose_lengths_are_no_multiple_of_4_are_read_as_dmlc_core_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(part(1, b"a") + part(2, b"bcd") + part(3, b"ef"))
    assert list(records(tmp_path / "a.rec")) == [b"a" + WORD + b"bcd" + WORD + b"ef"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("0\t0\n1 12\n", "line 2: b'1 12\\n'; must be a key, a tab and an offset"),
        ("0\t0\n\n1\t12\n", "line 2: b'\\n'"),
        ("a\t0\n", "line 1"),
        ("0\t-4\n", "line 1"),
        ("0\t0\t0\n", "line 1"),
        ("0\t10\n", "line 1: b'0\\t10\\n'; must be a key, a tab and an offset, whole numbers of up to 18 digits, the "),
        ("0\t" + "4" * 19, "line 1"),
        ("0" * 10_000, "line 1"),
        ("3\t0\n4\t8\n7\t8\n4\t20\n", "lines 2 and 4: both have key 4; keys must differ"),
    ],
)
def test_lines_that_are_none_of_an_index_are_told(file: Path, lines: str, told: str) -> None:
    index_path(file).write_text(lines)
    with pytest.raises(BadRecords) as caught:
        Reader(file)
    assert f"{index_path(file)}: {told}" in str(caught.value)


def test_an_empty_file_and_an_empty_index_hold_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(b"")
    assert list(Reader(tmp_path / "a.rec")) == []
    (tmp_path / "a.idx").write_bytes(b"")
    assert list(Reader(tmp_path / "a.rec")) == []
    assert [len(column) for column in read_index(tmp_path / "a.idx")] == [0, 0]


def test_an_index_of_another_file_is_found_out(file: Path) -> None:
    index_path(file).write_text("".join(f"{number}\t{offset + 4}\n" for number, offset in enumerate(STARTS)))
    reader = Reader(file)
    with pytest.raises(BadRecords, match="names byte 4, where none begins; make the index anew, or take it away"):
        reader.check_index()
    with pytest.raises(BadRecords, match="byte 4: 0x00000000, where a record begins"):
        reader[0]
    index_path(file).write_text(f"0\t{len(BYTES)}\n")
    with pytest.raises(BadRecords, match=f"byte {len(BYTES)}: the file ends after 0 of the 8 bytes"):
        Reader(file)[0]


@pytest.mark.parametrize("place", ["none.rec", "folder", "pipe"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRecords, match=f"{place}: (cannot be read: No such file|is no file)"):
        Reader(tmp_path / place)


def test_a_file_of_gigabytes_is_read_by_what_is_asked_for(tmp_path: Path) -> None:
    path, step = tmp_path / "a.rec", 8 + LONGEST + 1
    with path.open("wb") as file:
        for number in range(9):  # 4.8 GB, nearly all of them a hole
            file.seek(number * step)
            file.write(struct.pack("<II", MAGIC, LONGEST) + b"%d" % number)
        file.seek(9 * step)
        file.write(part(0, b"the last"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader = Reader(path)
    assert reader.offsets.tolist() == [number * step for number in range(10)]
    assert [reader.beginning(number, 1) for number in range(9)] == [b"%d" % number for number in range(9)]
    assert reader[9] == b"the last"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_parts_that_make_more_than_a_record_may_hold_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with path.open("wb") as file:
        file.write(struct.pack("<II", MAGIC, 1 << 29 | LONGEST))
        file.seek(8 + LONGEST + 1)
        file.write(part(3, b"ab"))
    with pytest.raises(BadRecords, match=f"byte 0: a record of over {LONGEST} bytes"):
        Reader(path)


def test_a_reader_is_used_by_processes_that_are_sent_it_or_forked_and_by_threads(file: Path) -> None:
    reader = Reader(file)
    numbers = list(range(len(PAYLOADS))) * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(reader.__getitem__, numbers)) == [PAYLOADS[number] for number in numbers]
    for method in ("spawn", "fork"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
            found = list(pool.map(operator.getitem, [reader] * len(PAYLOADS), range(len(PAYLOADS))))
        assert found == list(PAYLOADS), method


def test_a_reader_can_be_closed_and_read_again_unless_the_file_is_another_by_then(file: Path) -> None:
    reader = Reader(file)
    reader.close()
    assert reader[3] == PAYLOADS[3]
    sent = pickle.dumps(reader)
    file.write_bytes(BYTES + part(0))
    with pytest.raises(BadRecords, match=f"has {len(BYTES) + 8} bytes; it had {len(BYTES)} when it was first opened"):
        pickle.loads(sent)[0]


def test_a_file_that_becomes_shorter_while_it_is_read_is_no_record_of_zeros(file: Path) -> None:
    reader = Reader(file)
    file.write_bytes(BYTES[: STARTS[-1] + 10])
    with pytest.raises(BadRecords, match=f"byte {STARTS[-1] + 10}: the file was cut off while it was read"):
        reader[len(PAYLOADS) - 1]


def test_an_error_or_an_interrupt_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path) as writer:
        writer.write(b"old")
    before = {name.name: name.read_bytes() for name in tmp_path.iterdir()}
    for reason in (KeyboardInterrupt, ValueError):
        with pytest.raises(reason), Writer(path) as writer:  # noqa: PT012
            writer.write(b"new")
            raise reason
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as caught, Writer(path) as writer:
            writer.write(bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert {name.name: name.read_bytes() for name in tmp_path.iterdir()} == before
    assert sorted(before) == ["a.idx", "a.rec"]


def test_files_are_there_when_the_block_has_ended_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    with Writer(path) as writer:
        writer.write(b"one")
        assert not path.exists()
        assert not index_path(path).exists()
    assert {name.name: name.stat().st_mode & 0o777 for name in tmp_path.iterdir()} == {"a.rec": 0o644, "a.idx": 0o644}


def test_a_writer_refuses_what_its_reader_would(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.rec") as writer:
        writer.write(b"", 10**18 - 1)
        for key in (10**18 - 1, 10**18, -1):
            with pytest.raises(BadRecords, match="must be from 0 to"):
                writer.write(b"", key)
        with pytest.raises(BadRecords, match=f"a record of {LONGEST + 1} bytes; RecordIO takes {LONGEST} at most"):
            writer.write(np.zeros(LONGEST + 1, np.uint8).data)  # type: ignore[arg-type]  # pages that nobody touches
    assert Reader(tmp_path / "a.rec").keys.tolist() == [10**18 - 1]
    with pytest.raises(IsADirectoryError), Writer(tmp_path):
        pass

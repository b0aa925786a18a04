"""Spools: what an array answers, read from a file; and large samples that are never whole in memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from penstock import arrayfiles, datasets, spool
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess, decode_image
from penstock.spool import Spool, pick, spooled

GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))
ROWS = np.random.default_rng(0).standard_normal((40, 2, 3)).astype(np.float32)


def spool_of(array: Any, cut: int = 7) -> Spool:
    """The array as a spool, written in parts of `cut` rows."""
    parts = (array[start : start + cut] for start in range(0, len(array), cut))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "LEAST", 0)
        made = spooled(parts, len(array), array.dtype, array.shape[1:])
    assert isinstance(made, Spool)
    return made


def same(got: Any, expected: Any) -> bool:
    return (
        type(got) is np.ndarray
        and (got.dtype, got.shape) == (expected.dtype, expected.shape)
        and got.tobytes() == expected.tobytes()
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array that is read becomes a spool."""
    monkeypatch.setattr(spool, "LEAST", 1)
    monkeypatch.setattr(arrayfiles, "LEAST", 1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The place in the file of each read that a spool makes."""
    seen: list[int] = []
    read = os.pread

    def counted(handle: int, length: int, place: int) -> bytes:
        seen.append(place)
        return read(handle, length, place)

    monkeypatch.setattr(spool.os, "pread", counted)
    return seen


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a Path for each would be no cheaper)


# --- What a spool answers --------------------------------------------------------------------------------------------


arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in ("float32", "float16", "int64", "uint8", "bool", ">f4")]),
    st.tuples(st.integers(1, 20), st.integers(1, 3), st.integers(1, 3)),
)


def indices(length: int) -> st.SearchStrategy[Any]:
    """All by which rows are taken: slices, one row, and arrays of rows, over again and from the end."""
    within = st.integers(-length, length - 1)
    return st.one_of(
        st.slices(length),
        st.builds(slice, *[st.none() | st.integers(-2 * length, 2 * length)] * 2),
        within,
        within.map(np.int64),
        st.lists(within, max_size=3 * length).map(lambda rows: np.array(rows, np.intp)),
        st.lists(within, min_size=1, max_size=4),
        hnp.arrays(np.bool_, length),
    )


@given(arrays, st.integers(1, 21), st.data())
def test_rows_of_a_spool_are_those_of_the_array(array: Any, cut: int, data: st.DataObject) -> None:
    made = spool_of(array, cut)
    assert (len(made), made.shape, made.ndim, made.dtype) == (len(array), array.shape, array.ndim, array.dtype)
    for _ in range(3):
        index = data.draw(indices(len(array)))
        assert same(made[index], array[index])


@given(arrays, st.data())
def test_views_of_views_are_the_rows_of_rows(array: Any, data: st.DataObject) -> None:
    made, expected = spool_of(array), array
    for _ in range(3):
        rows = data.draw(indices(len(expected)).filter(lambda rows: not isinstance(rows, int | np.integer)))
        made, expected = made.view(rows), expected[rows]
        assert (len(made), made.shape) == (len(expected), expected.shape)
        assert same(np.asarray(made), expected)
        if not len(expected):
            return
    index = data.draw(indices(len(expected)))
    assert same(made[index], expected[index])


@pytest.mark.parametrize("rows", [40, -41, np.array([0, 40])], ids=["one", "from the end", "of several"])
def test_a_row_that_is_not_there_is_an_error_as_an_arrays_is(rows: Any) -> None:
    made = spool_of(ROWS)
    for held in (ROWS, made, made.view(slice(None))):
        with pytest.raises(IndexError):
            held[rows]


def test_rows_come_out_as_arrays_of_their_own() -> None:
    made = spool_of(ROWS)
    taken = made[:2]
    taken += 1
    assert same(made[:2], ROWS[:2])


@pytest.mark.parametrize("dtype", [None, np.float64, np.float16])
def test_numpy_takes_a_spool_for_an_array(dtype: Any) -> None:
    made = spool_of(ROWS)
    assert same(np.asarray(made, dtype), np.asarray(ROWS, dtype))
    assert same(np.concatenate([made, ROWS]), np.concatenate([ROWS, ROWS]))
    assert same(np.asarray(made.view(slice(3, 5)), dtype), np.asarray(ROWS[3:5], dtype))


def test_only_the_rows_that_are_asked_for_are_read(reads: list[int]) -> None:
    made, row = spool_of(ROWS), 2 * 3 * 4
    view = made.view(slice(10, 30)).view(np.array([5, 5, -1])).view(slice(1, 3))
    assert (view.shape, view.ndim, len(pick(view, slice(1)))) == ((2, 2, 3), 3, 1)
    assert reads == []
    view[:]
    assert reads == [15 * row, 29 * row]
    reads.clear()
    made[7]
    assert reads == [7 * row]


def test_pick_leaves_a_spool_unread_and_takes_rows_of_an_array(reads: list[int]) -> None:
    picked, taken = pick(spool_of(ROWS), np.array([3, 3, 0])), pick(ROWS, np.array([3, 3, 0]))
    assert isinstance(picked, Spool)
    assert reads == []
    assert same(np.asarray(picked), taken)
    assert same(taken, ROWS[[3, 3, 0]])


@pytest.mark.parametrize(("least", "kind"), [(ROWS.nbytes + 1, np.ndarray), (ROWS.nbytes, Spool)])
def test_what_is_smaller_than_the_least_stays_an_array(
    monkeypatch: pytest.MonkeyPatch, least: int, kind: type[Any]
) -> None:
    monkeypatch.setattr(spool, "LEAST", least)
    made = spooled(iter([ROWS[:11], ROWS[11:]]), len(ROWS), ROWS.dtype, ROWS.shape[1:])
    assert isinstance(made, kind)
    assert same(np.asarray(made), ROWS)


def test_parts_are_taken_one_at_a_time() -> None:
    """None is asked for before the one before it is written, and let go."""
    alive: list[Any] = []

    class Part(np.ndarray):  # type: ignore[type-arg]
        def __del__(self) -> None:
            alive.remove(id(self))

    def parts() -> Iterator[Any]:
        for start in range(0, 40, 10):
            part = ROWS[start : start + 10].copy().view(Part)
            alive.append(id(part))
            assert len(alive) <= 2  # this one, and the one that the loop still names
            yield part

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "LEAST", 0)
        made = spooled(parts(), 40, ROWS.dtype, ROWS.shape[1:])
    assert same(made[:], ROWS)
    assert alive == []


def test_the_file_is_closed_with_the_last_view_of_it() -> None:
    before = handles()
    made = spool_of(ROWS)
    assert handles() == before + 1
    view = made.view(slice(5)).view(slice(2))
    del made
    assert handles() == before + 1
    assert same(view[:], ROWS[:2])
    del view
    assert handles() == before


def test_parts_that_fail_leave_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> Iterator[Any]:
        yield ROWS[:7]
        raise EOFError("cut")

    before = handles()
    monkeypatch.setattr(spool, "LEAST", 0)
    with pytest.raises(EOFError):
        spooled(parts(), len(ROWS), ROWS.dtype, ROWS.shape[1:])
    assert handles() == before


def test_a_spool_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = spool_of(ROWS)
    assert list(tmp_path.iterdir()) == []
    assert same(made[:], ROWS)


# --- Samples from files ----------------------------------------------------------------------------------------------


def unlike(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 50])
def test_an_npz_gives_the_rows_that_numpy_reads_stored_and_compressed(
    tmp_path: Path, save: Callable[..., None], rows: int
) -> None:
    ids = np.arange(3 * rows, dtype=np.int64).reshape(rows, 3)
    save(tmp_path / "a.npz", x=unlike(rows, 2, 5), ids=ids, flat=unlike(rows).astype(">f4"))
    found = datasets.read_npz(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        assert list(found.inputs) == archive.files
        for name, array in found.inputs.items():
            assert isinstance(array, Spool)
            assert same(np.asarray(array), archive[name])
    assert (len(found), found.labels, found.real) == (rows, None, True)


@pytest.mark.usefixtures("small")
def test_arrays_by_columns_and_single_numbers_are_left_to_numpy(tmp_path: Path) -> None:
    by_columns = np.asfortranarray(unlike(20, 4))
    np.savez(tmp_path / "a.npz", x=by_columns, y=unlike(20, 4))
    found = datasets.read_npz(tmp_path / "a.npz")
    assert isinstance(found.inputs["x"], np.ndarray)
    assert np.array_equal(found.inputs["x"], by_columns)
    assert isinstance(found.inputs["y"], Spool)
    np.savez(tmp_path / "one.npz", x=np.float32(1))
    with pytest.raises(PenstockError, match="arrays must have the same number of rows"):
        datasets.read_npz(tmp_path / "one.npz")


def test_small_arrays_of_an_npz_stay_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, labels=np.arange(40))
    found = datasets.read_npz(tmp_path / "a.npz")
    assert isinstance(found.inputs["x"], np.ndarray)
    assert isinstance(found.labels, np.ndarray)


def test_a_large_array_of_an_npz_becomes_a_spool_by_its_size_alone(tmp_path: Path) -> None:
    large = np.arange(spool.LEAST // 4, dtype=np.float32).reshape(-1, 1024)
    np.savez(tmp_path / "a.npz", x=large, small=large[:, :8])
    found = datasets.read_npz(tmp_path / "a.npz")
    assert isinstance(found.inputs["x"], Spool)
    assert isinstance(found.inputs["small"], np.ndarray)
    for index in (slice(3), slice(-2, None), np.array([7, 7, 4095])):
        assert same(found.inputs["x"][index], large[index])


def entry_of(array: Any, *, cut: int = 0) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()[: len(file.getvalue()) - cut]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["cut", "cut inside", "changed", "changed inside, compressed"])
def test_a_damaged_npz_is_refused_in_one_sentence_and_leaves_no_file_open(tmp_path: Path, kind: str) -> None:
    array, file = unlike(50, 40), tmp_path / "a.npz"
    compression = zipfile.ZIP_DEFLATED if "compressed" in kind else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x.npy", entry_of(array, cut=5 if kind == "cut inside" else 0))
    content = bytearray(file.read_bytes())
    if kind == "cut":
        del content[len(content) // 2 :]
    elif "changed" in kind:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)
    before = handles()
    with pytest.raises(PenstockError) as caught:
        datasets.read_npz(file)
    text = str(caught.value)
    assert text.startswith(f"--data {file}: ")
    assert "\n" not in text
    if kind == "cut inside":
        assert "it ends before its last row" in text
    caught.value.__traceback__ = None
    del caught
    assert handles() == before


def pictures(folder: Path, count: int) -> list[Path]:
    files = []
    for number in range(count):
        files.append(folder / str(number % 2) / f"{number:02}.png")
        files[-1].parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (9, 11), np.uint8)
        Image.fromarray(pixels).save(files[-1])
    return sorted(files)


@pytest.mark.usefixtures("small")
def test_a_folder_of_pictures_becomes_a_spool_of_what_a_server_reads(tmp_path: Path) -> None:
    files = pictures(tmp_path, 20)
    found = datasets.read(tmp_path, GREY, None)
    expected = np.concatenate([GREY.apply(decode_image(file.read_bytes())) for file in files])
    assert isinstance(found.inputs["image"], Spool)
    assert same(np.asarray(found.inputs["image"]), expected)
    assert found.labels is not None
    assert found.labels.tolist() == [0] * 10 + [1] * 10


@pytest.mark.usefixtures("small")
def test_a_damaged_picture_among_many_is_refused_in_one_sentence(tmp_path: Path) -> None:
    files = pictures(tmp_path, 20)
    files[13].write_bytes(files[13].read_bytes()[:60])
    before = handles()
    with pytest.raises(PenstockError) as caught:
        datasets.read(tmp_path, GREY, None)
    assert str(caught.value).startswith(f"--data {files[13]}: ")
    assert "\n" not in str(caught.value)
    caught.value.__traceback__ = None
    del caught
    assert handles() == before


# --- Rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, spool_of], ids=["array", "spool"])
@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_rows_are_alike_only_where_no_number_of_any_differs(kind: Callable[[Any], Any], count: int) -> None:
    equal = np.repeat(unlike(1, 2, 3), count, 0)
    assert Rows({"x": kind(equal)}, None).alike()
    assert Rows({"x": kind(equal), "y": kind(equal[:, 0])}, None).alike()
    for row in {1, 15, 16, count - 1} & set(range(1, count)):
        other = equal.copy()
        other[row, 1, 2] += 1
        assert not Rows({"x": kind(other)}, None).alike()
        assert not Rows({"y": kind(equal), "x": kind(other)}, None).alike()


@pytest.mark.parametrize("kind", [np.asarray, spool_of], ids=["array", "spool"])
@pytest.mark.parametrize("real", [True, False])
def test_the_first_rows_stay_as_real_as_all_are(kind: Callable[[Any], Any], real: bool) -> None:
    rows = Rows({"x": kind(ROWS), "y": kind(ROWS[:, 0])}, np.arange(40), real)
    for count in (1, 39, 100):
        taken = rows.take(count)
        assert taken.real is real
        assert len(taken) == min(count, 40)
        for name, array in rows.inputs.items():
            assert type(taken.inputs[name]) is type(array)
            assert same(np.asarray(taken.inputs[name]), np.asarray(array)[:count])
        assert taken.labels is not None
        assert taken.labels.tolist() == list(range(min(count, 40)))
    assert Rows({"x": kind(ROWS)}, None, real).take(3).labels is None


# The peak of a process of its own: ru_maxrss would start with that of the one that started it.
PEAK = """
import sys
from pathlib import Path

import numpy as np

from penstock import datasets

if sys.argv[2] == "numpy":
    with np.load(sys.argv[1]) as archive:
        x = archive["x"]
else:
    x = datasets.read_npz(Path(sys.argv[1])).take(10**9).inputs["x"]
total = sum(float(x[row].sum()) for row in range(0, len(x), 97))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak) / 1024, total)
"""


def peak_of(path: Path, how: str) -> tuple[float, float]:
    """The MiB that a process has at most while it reads a file and goes through it, and what it sums up."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(path), how], capture_output=True, text=True, check=True)
    peak, total = done.stdout.split()
    return float(peak), float(total)


def test_the_memory_for_a_large_npz_is_that_for_a_small_one(tmp_path: Path) -> None:
    files = {}
    for size in (20, 200):
        files[size] = tmp_path / f"{size}.npz"
        x = np.random.default_rng(0).integers(0, 256, (size * 10, 100_000), np.uint8)
        np.savez(files[size], x=x)
    expected = sum(float(x[row].sum()) for row in range(0, len(x), 97))
    (few, _), (many, total) = peak_of(files[20], "spool"), peak_of(files[200], "spool")
    assert total == expected
    assert many - few < 40
    whole, _ = peak_of(files[200], "numpy")
    assert whole - many > 120  # what is measured is what an array takes

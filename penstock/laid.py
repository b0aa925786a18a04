"""Requests' arrays that lie at addresses of this process's memory, and batches of them copied by single system calls.

numpy lets go of the interpreter for each array that it copies, and has to wait for it after each: where an event loop
is at work in another thread, a batch of a hundred rows waits a hundred times. process_vm_readv(2), of this process's
own memory, copies all of them at once; and of what only lies somewhere no array has to be made at all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.signature import Arrays

# Fewer arrays or bytes are not worth the call; of more pieces the kernel takes none (UIO_MAXIOV).
_FEW, _SMALL, _MOST = 4, 2**18, 1024


@dataclass(frozen=True)
class Place:
    """An array within a slot of memory: its name, dtype and shape, and where it begins, in bytes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """In bytes."""
        found: int = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return found

    @property
    def end(self) -> int:
        return self.start + self.size

    def at(self, memory: Any, slot: int) -> NDArray[np.generic]:
        """The array, in the slot that begins there: a view.

        Raises:
            TypeError: it does not lie within the memory.
        """
        found: NDArray[np.generic] = np.ndarray(self.shape, self.dtype, memory, slot + self.start)
        return found


class Form:
    """What requests of a kind have in common: their memory, and where in a slot of it each array begins.

    Args:
        memory: a buffer.
        inputs: of a request.
        outputs: of its answer, in another slot.
    """

    def __init__(self, memory: Any, inputs: Sequence[Place], outputs: Sequence[Place]) -> None:
        self.memory = memory
        self.begin, self.bytes = address(memory), memoryview(memory).nbytes
        self.inputs = {place.name: place for place in inputs}
        self.outputs = {place.name: place for place in outputs}
        self.sizes = {place.name: place.size for place in inputs}
        self.end = max((place.end for place in inputs), default=0)
        self.room = max((place.end for place in outputs), default=0)


class Laid(Mapping[str, NDArray[np.generic]]):
    """A request's inputs, as arrays that are made when they are looked at, and where its answer may be laid.

    Args:
        form: of the request.
        slot: where its slot begins in the form's memory, in bytes.
        room: where that of the answer does; None if there is none.

    Raises:
        ValueError: not all of it is within the memory.
    """

    __slots__ = ("form", "room", "slot")

    def __init__(self, form: Form, slot: int, room: int | None) -> None:
        if slot + form.end > form.bytes or (room is not None and room + form.room > form.bytes):
            raise ValueError(f"a request at {slot} with an answer at {room} leaves its memory of {form.bytes} bytes")
        self.form, self.slot, self.room = form, slot, room if form.outputs else None

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.form.inputs[name].at(self.form.memory, self.slot)

    def __iter__(self) -> Iterator[str]:
        return iter(self.form.inputs)

    def __len__(self) -> int:
        return len(self.form.inputs)

    def given(self, answer: Arrays) -> bool:
        """Lay an answer where it is wanted; False if it has no room there."""
        form = self.form
        if self.room is None or not _fits(answer, form):
            return False
        if any(place.shape[:1] != answer[name].shape[:1] for name, place in form.outputs.items()):
            return False
        for name, place in form.outputs.items():
            place.at(form.memory, self.room)[...] = answer[name]
        return True


def shape_of(item: Arrays, name: str) -> tuple[int, ...]:
    """The shape of a request's input."""
    return item.form.inputs[name].shape if type(item) is Laid else np.shape(item[name])


GIVEN: dict[str, Any] = {}
"""The answer to a request that lies where it was wanted."""


def gather(items: Sequence[Arrays], name: str, into: NDArray[np.generic]) -> bool:
    """Copy the items' arrays of a name, one after the other, to the beginning of another array.

    Args:
        items: their arrays in order in memory, of the dtype of `into`.
        name: of the arrays.
        into: in order in memory, and large enough.

    Returns:
        False if they must be copied another way.
    """
    if not _FEW <= len(items) <= _MOST:
        return False
    pieces = _laid_pieces(items, name, into.dtype) if _all_laid(items) else _pieces(items, name, into.dtype)
    if pieces is None:
        return False
    size = int(pieces[:, 1].sum())
    if size < _SMALL or size > into.nbytes or not into.flags.c_contiguous:
        return False
    # Where containers forbid the call, or it copies less, numpy copies all of it.
    return _copied(_whole(into, size), pieces) == size


def scatter(answer: Arrays, items: Sequence[Arrays]) -> bool:
    """Copy each item's rows of an answer to where it wants them, if all of them have told and they fit there.

    Args:
        answer: of all items' rows, in order.
        items: whose rows they are.
    """
    if not _FEW <= len(items) <= _MOST or not _all_laid(items):
        return False
    laid: Sequence[Any] = items
    forms = {item.form for item in laid}
    if any(item.room is None for item in laid) or not all(_fits(answer, form) for form in forms):
        return False
    for name, array in answer.items():
        pieces = np.empty((len(laid), 2), np.uint64)
        pieces[:, 0] = [item.form.begin + item.room + item.form.outputs[name].start for item in laid]
        pieces[:, 1] = [item.form.outputs[name].size for item in laid]
        size = array.nbytes
        if int(pieces[:, 1].sum()) != size or not array.flags.c_contiguous:
            return False
        if _copied(pieces, _whole(array, size)) != size:
            return False
    return True


def _all_laid(items: Sequence[Arrays]) -> bool:
    return all(type(item) is Laid for item in items)


def _fits(answer: Arrays, form: Form) -> bool:
    """Whether the answer is of the dtypes and shapes that requests of the form have room for."""
    return form.outputs.keys() == answer.keys() and all(
        place.dtype == answer[name].dtype and place.shape[:1] and place.shape[1:] == answer[name].shape[1:]
        for name, place in form.outputs.items()
    )


def _laid_pieces(items: Sequence[Any], name: str, dtype: np.dtype[Any]) -> NDArray[np.uint64] | None:
    """Where each of the arrays begins, and its bytes."""
    if any(form.inputs[name].dtype != dtype for form in {item.form for item in items}):
        return None
    pieces = np.empty((len(items), 2), np.uint64)
    pieces[:, 0] = [item.form.begin + item.slot + item.form.inputs[name].start for item in items]
    pieces[:, 1] = [item.form.sizes[name] for item in items]
    return pieces


def _pieces(items: Sequence[Arrays], name: str, dtype: np.dtype[Any]) -> NDArray[np.uint64] | None:
    pieces = np.empty((len(items), 2), np.uint64)
    for number, item in enumerate(items):
        array = item[name]
        if array.dtype != dtype or not array.flags.c_contiguous:
            return None
        pieces[number] = address(array), array.nbytes
    return pieces


def _whole(array: NDArray[np.generic], size: int) -> NDArray[np.uint64]:
    return np.array([[address(array), size]], np.uint64)


def _copied(into: NDArray[np.uint64], source: NDArray[np.uint64]) -> int:
    """Bytes that one call copied from pieces of memory to others; less than all where it may not, or cannot."""
    if _read is None:
        return -1
    found: int = _read(os.getpid(), into.ctypes.data, len(into), source.ctypes.data, len(source), 0)
    return found


def address(held: Any) -> int:
    """Where memory lies, for this process."""
    array = held if isinstance(held, np.ndarray) else np.frombuffer(held, np.uint8)
    start: int = array.__array_interface__["data"][0]
    return start


def _found() -> Any:
    try:
        found = ctypes.CDLL(None).process_vm_readv
    except (AttributeError, OSError):  # not Linux
        return None
    found.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    found.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return found


_read = _found()

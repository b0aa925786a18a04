"""Requests' arrays that lie at addresses of this process's memory, and batches of them copied by single system calls.

numpy lets go of the interpreter for each array that it copies, and has to wait for it after each: where an event loop
is at work in another thread, a batch of a hundred rows waits a hundred times. process_vm_readv(2), of this process's
own memory, copies all of them at once; and of what only lies somewhere no array has to be made at all. What is small is
copied without letting go of the interpreter: to have it again would take longer.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock.signature import Arrays

# Fewer arrays are not worth the call, nor as few bytes of arrays that are there; of more pieces the kernel takes none
# (UIO_MAXIOV).
_FEW, _SMALL, _MOST = 4, 2**18, 1024
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """An array within a slot of memory: its name, dtype and shape, and where it begins, in bytes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @cached_property
    def size(self) -> int:
        """In bytes; asked for each request of a batch."""
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


class Memory:
    """Memory behind a file descriptor, which is this object's from now on; mapped until nobody holds it any more.

    `number` is no other's of this process.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.number = fd, next(_numbers)
        weakref.finalize(self, os.close, fd)
        self.map = mmap.mmap(fd, 0)
        self.address, self.bytes = address(self.map), len(self.map)


class Form:
    """What requests of a kind have in common: their memory, and where in a slot of it each array begins.

    `number` is no other's of this process.

    Args:
        memory: that they lie in.
        inputs: of a request.
        outputs: of its answer, in another slot.
    """

    def __init__(self, memory: Memory, inputs: Sequence[Place], outputs: Sequence[Place]) -> None:
        self.memory, self.number = memory, next(_numbers)
        self.told: Any = None  # as others are told of it, once they are
        self.inputs = {place.name: place for place in inputs}
        self.outputs = {place.name: place for place in outputs}
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
        most = form.memory.bytes
        if slot + form.end > most or (room is not None and room + form.room > most):
            raise ValueError(f"a request at {slot} with an answer at {room} leaves its memory of {most} bytes")
        self.form, self.slot, self.room = form, slot, room if form.outputs else None

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.form.inputs[name].at(self.form.memory.map, self.slot)

    def __iter__(self) -> Iterator[str]:
        return iter(self.form.inputs)

    def __len__(self) -> int:
        return len(self.form.inputs)

    def given(self, answer: Arrays) -> bool:
        """Lay an answer where it is wanted; False if it has no room there."""
        wanted = self.form.outputs
        if self.room is None or wanted.keys() != answer.keys():
            return False
        if any(
            place.shape != answer[name].shape or place.dtype != answer[name].dtype for name, place in wanted.items()
        ):
            return False
        for name, place in wanted.items():
            place.at(self.form.memory.map, self.room)[...] = answer[name]
        return True


def shape_of(item: Arrays, name: str) -> tuple[int, ...]:
    """The shape of a request's input."""
    return item.form.inputs[name].shape if type(item) is Laid else np.shape(item[name])


GIVEN: dict[str, Any] = {}
"""The answer to a request that lies where it was wanted."""


def all_laid(items: Sequence[Arrays]) -> TypeGuard[Sequence[Laid]]:
    """Whether of all requests it is only known where they lie."""
    return all(type(item) is Laid for item in items)


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
    if all_laid(items):
        alike = all(form.inputs[name].dtype == into.dtype for form in {item.form for item in items})
        held = pieces(items, name) if alike else None
    else:
        held = _pieces(items, name, into.dtype)
    if held is None:
        return False
    size = int(held[:, 1].sum())
    if (size < _SMALL and not all_laid(items)) or size > into.nbytes or not into.flags.c_contiguous:
        return False
    # Where containers forbid the call, or it copies less, numpy copies all of it.
    return _copied(_whole(into, size), held, size)


def scatter(answer: Arrays, items: Sequence[Arrays]) -> bool:
    """Copy each item's rows of an answer to where it wants them.

    Args:
        answer: of all items' rows, in order.
        items: whose rows they are.

    Returns:
        False if one has no room for them: then all must be answered another way.
    """
    if not all_laid(items):
        return False
    if len(items) == 1:
        return items[0].given(answer)
    if not have_room(items, answer):
        return False
    for name, array in answer.items():
        if len(items) < _FEW or len(items) > _MOST or not _scattered(array, name, items):
            start = 0
            for item in items:
                place = item.form.outputs[name]
                end = start + place.shape[0]
                place.at(item.form.memory.map, item.room or 0)[...] = array[start:end]
                start = end
    return True


def have_room(items: Sequence[Laid], answer: Arrays) -> bool:
    """Whether each item has room for its rows of an answer that is of all items' rows, in order."""
    if any(item.room is None for item in items):
        return False
    forms = {item.form for item in items}
    if not all(_fits(answer, form) for form in forms):
        return False
    for name, array in answer.items():
        rows = {form: form.outputs[name].shape[0] for form in forms}
        if sum([rows[item.form] for item in items]) != len(array):
            return False
    return True


def _scattered(array: NDArray[np.generic], name: str, items: Sequence[Laid]) -> bool:
    if not array.flags.c_contiguous:
        return False
    return _copied(rooms(items, name), _whole(array, array.nbytes), array.nbytes)


def _fits(answer: Arrays, form: Form) -> bool:
    """Whether rows of the answer are of the dtypes and shapes that requests of the form have room for."""
    return form.outputs.keys() == answer.keys() and all(
        place.dtype == answer[name].dtype and place.shape[:1] and place.shape[1:] == answer[name].shape[1:]
        for name, place in form.outputs.items()
    )


def pieces(items: Sequence[Laid], name: str) -> NDArray[np.uint64]:
    """Of each request's array its address and its bytes."""
    return _addresses(items, [item.slot for item in items], lambda form: form.inputs[name])


def rooms(items: Sequence[Laid], name: str) -> NDArray[np.uint64]:
    """Of each answer's array, of requests that have room for it, the same."""
    return _addresses(items, [item.room or 0 for item in items], lambda form: form.outputs[name])


def _addresses(items: Sequence[Laid], slots: Sequence[int], place: Callable[[Form], Place]) -> NDArray[np.uint64]:
    """The address and the bytes of each item's array, in a slot of its memory; by what all of a form have in common."""
    forms = {item.form for item in items}
    begins = {form: form.memory.address + place(form).start for form in forms}
    sizes = {form: place(form).size for form in forms}
    found = np.empty((len(items), 2), np.uint64)
    found[:, 0] = [begins[item.form] + slot for item, slot in zip(items, slots, strict=True)]
    found[:, 1] = [sizes[item.form] for item in items]
    return found


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


def _copied(into: NDArray[np.uint64], source: NDArray[np.uint64], size: int) -> bool:
    """Whether one call copied all bytes from pieces of memory to others: it may not be allowed to, or copy less."""
    read = _read_held if size < _SMALL else _read
    if read is None:
        return False
    found: int = read(os.getpid(), into.ctypes.data, len(into), source.ctypes.data, len(source), 0)
    return found == size


def address(held: Any) -> int:
    """Where memory lies, for this process."""
    array = held if isinstance(held, np.ndarray) else np.frombuffer(held, np.uint8)
    start: int = array.__array_interface__["data"][0]
    return start


def _found(library: type[ctypes.CDLL]) -> Any:
    try:
        found = library(None).process_vm_readv
    except (AttributeError, OSError):  # not Linux
        return None
    found.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    found.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return found


_read, _read_held = _found(ctypes.CDLL), _found(ctypes.PyDLL)  # the second keeps the interpreter

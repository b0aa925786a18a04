"""Rows of requests that a GPU takes from where they lie, and answers that it lays there, in page-locked memory.

A batch of 128 pictures of 150 KB, each at a place of its own, was gathered by a processor in 3.7 ms, and copied from
there in 0.4; the GPU's copy engines fetch them in 0.5 by themselves, by one call for each tensor of a batch
(`bench/results/h200_front_ends.txt`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import numpy as np
from numpy.typing import NDArray

from penstock import cuda
from penstock.laid import Laid, Memory, pieces, rooms

log = logging.getLogger(__name__)
_DRIVER = 12080  # cuMemcpyBatchAsync is of CUDA 12.8
_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs
_NON_BLOCKING, _TRIED = 1, 64  # cudaStreamNonBlocking; bytes
_Numbers = NDArray[np.uint64]
# CUmemcpyAttributes: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, so that sources may be overwritten once the stream has come
# past the copies, and not before; no hints of where both sides are; no flags. They count from the first copy on.
_ATTRIBUTES, _FIRST = np.array([1, 0, 0, 0, 0, 0], np.uint32), np.zeros(1, np.uint64)
_locked: weakref.WeakKeyDictionary[Memory, bool] = weakref.WeakKeyDictionary()
_locking = threading.Lock()


def lock(memory: Memory) -> bool:
    """Have memory page-locked for as long as somebody holds it; False if its rows are to be copied another way."""
    found = _locked.get(memory)
    if found is None:
        with _locking:  # for a while; nobody who knows theirs waits for it
            found = _locked.get(memory)
            if found is None:
                found = _locked[memory] = _possible() and _lock(memory)
    return found


def _lock(memory: Memory) -> bool:
    try:
        cuda.call("cudaHostRegister", memory.address, memory.bytes, _PORTABLE)
        try:
            _try(memory.address)
        except BaseException:
            _unlock(memory.address)
            raise
    except cuda.CudaError as error:
        log.warning("a GPU cannot fetch from memory of a front end, whose rows the processor copies: %s", error)
        return False
    weakref.finalize(memory, _unlock, memory.address).atexit = False
    return True


def _try(address: int) -> None:
    """See that the GPU fetches from there: a batch that it did not would cost the engine. Others may use it by now: so
    nothing is written there, which the same call does the other way round.
    """
    into, stream = int(cuda.call("cudaMalloc", _TRIED)), int(cuda.call("cudaStreamCreateWithFlags", _NON_BLOCKING))
    try:
        places, sources, sizes = (np.array([number], np.uint64) for number in (into, address, _TRIED))
        _copy(places, sources, sizes, stream)
        cuda.call("cudaStreamSynchronize", stream)
    finally:
        cuda.call("cudaStreamDestroy", stream)
        cuda.call("cudaFree", into)


def _unlock(address: int) -> None:
    with suppress(cuda.CudaError):
        cuda.call("cudaHostUnregister", address)


@cache
def _possible() -> bool:
    """Whether CUDA copies from many places by one call here."""
    try:
        return int(cuda.call("cudaDriverGetVersion")) >= _DRIVER
    except cuda.CudaError:
        return False


def fetch(items: Sequence[Laid], name: str, into: int, rows: int, stream: int) -> None:
    """Have the GPU copy the items' arrays of a name, one after the other, to an address of its own memory.

    Args:
        items: that lie in memory which is locked.
        name: of the arrays.
        into: the address.
        rows: how many there are to be: the last row is copied again where the items have fewer.
        stream: on which it happens.

    Raises:
        CudaError: it does not.
    """
    found = pieces(items, name)
    last, place = items[-1], items[-1].form.inputs[name]
    row = place.size // place.shape[0]
    missing = rows - int(found[:, 1].sum()) // row
    if missing:
        again = last.form.memory.address + last.slot + place.end - row
        found = np.concatenate([found, np.array([[again, row]] * missing, np.uint64)])
    sources, sizes = np.ascontiguousarray(found.T)
    _copy(np.cumsum(sizes) - sizes + np.uint64(into), sources, sizes, stream)


def give(items: Sequence[Laid], name: str, source: int, stream: int) -> None:
    """Have the GPU copy an output of all items' rows, in order, to where each item has room for its own.

    Args:
        items: that have room, in memory which is locked.
        name: of the output.
        source: its address in the GPU's memory.
        stream: on which it happens.

    Raises:
        CudaError: it does not.
    """
    places, sizes = np.ascontiguousarray(rooms(items, name).T)
    _copy(places, np.cumsum(sizes) - sizes + np.uint64(source), sizes, stream)


def _copy(places: _Numbers, sources: _Numbers, sizes: _Numbers, stream: int) -> None:
    failed = np.zeros(1, np.uint64)
    cuda.queue("cuMemcpyBatchAsync", places, sources, sizes, len(places), _ATTRIBUTES, _FIRST, 1, failed, stream)

"""Rows of requests that a GPU takes from where they lie: memory that is page-locked once, and one call for a batch.

A batch of 128 pictures of 150 KB, each at a place of its own, was gathered by a processor in 3.7 ms, and copied from
there in 0.4; the GPU's copy engines fetch them in 0.5 by themselves (`bench/results/h200_front_ends.txt`).
"""

from __future__ import annotations

import importlib
import logging
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from penstock import cuda
from penstock.laid import Laid, Memory, pieces

log = logging.getLogger(__name__)
# cudaMemcpyBatchAsync is of CUDA 12.8, and of another form before 13.
_BINDINGS, _DRIVER = 13, 12080
_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs
_NON_BLOCKING, _TRIED = 1, 64  # cudaStreamNonBlocking; bytes
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
    """See that the GPU fetches from there: a batch that it did not would cost the engine."""
    into, stream = int(cuda.call("cudaMalloc", _TRIED)), int(cuda.call("cudaStreamCreateWithFlags", _NON_BLOCKING))
    try:
        cuda.call("cudaMemcpyBatchAsync", [into], [address], [_TRIED], 1, [_attributes()], [0], 1, stream)
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
        bindings = int(importlib.import_module("cuda.bindings").__version__.partition(".")[0])
        return bindings >= _BINDINGS and int(cuda.call("cudaDriverGetVersion")) >= _DRIVER
    except (ImportError, AttributeError, ValueError, cuda.CudaError):
        return False


def copy(items: Sequence[Laid], name: str, into: int, rows: int, stream: int) -> None:
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
    sizes = found[:, 1]
    places = np.cumsum(sizes) - sizes + np.uint64(into)
    count = len(found)
    cuda.call(
        "cudaMemcpyBatchAsync",
        *(places.tolist(), found[:, 0].tolist(), sizes.tolist(), count, [_attributes()], [0], 1, stream),
    )


@cache
def _attributes() -> Any:
    """Sources may be overwritten once the stream has come past the copies, and not before."""
    found = cuda.runtime().cudaMemcpyAttributes()
    found.srcAccessOrder = cuda.runtime().cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
    return found

"""Bodies inflated where they hold nobody up: the short ones in a thread, the long ones in another process.

A thread that inflates holds the interpreter for half of its time, and whoever preempts it then keeps the event loop
waiting too, for milliseconds. How long a body becomes is not known before, so that a thread tries, and stops soon.
"""

from __future__ import annotations

import asyncio

from penstock.serve import compression
from penstock.serve.compression import Body, Over
from penstock.serve.reader import LONG, Reader

# Compressed bytes that are not worth a try here.
_MUCH = 2**18
INFLATER = Reader("compressed bodies", "send it uncompressed")


async def inflated(body: Body, coding: str, most: int, timeout_s: float, aligned: int = 0) -> Body | memoryview:
    """The body as it was before its Content-Encoding, of no more than `most` bytes; see `compression.inflate`.

    Raises:
        As `compression.inflate`; QueueFull, Expired: it is long, and many others are, or it was not reached within
        `timeout_s` seconds.
    """
    view = memoryview(body)
    if view.nbytes <= _MUCH or not compression.known(coding):
        try:
            return await asyncio.to_thread(compression.inflate, body, coding, min(most, LONG), aligned)
        except Over:
            if most <= LONG:
                raise
    told = {"coding": coding, "most": most}
    _, arrays = await INFLATER.call("inflate", view, told, timeout_s=timeout_s, aligned=aligned)
    return arrays["body"].data

"""Work by threads on one item after another: what is made comes in the items' order, never far ahead of its taker."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(work: Callable[[Item], Made], items: Iterable[Item], workers: int | None = None) -> Iterator[Made]:
    """What `work` makes of each item, in their order.

    At most three items a thread are taken beyond the one that is waited for. Work that has not begun when the taker
    leaves is not done.

    Args:
        work: called in a thread; what it raises is raised where its result would come.
        items: what it is called with.
        workers: threads; None is one for each core of this process.
    """
    workers = workers or len(os.sched_getaffinity(0))
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

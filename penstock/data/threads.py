"""Work on many files at a time, in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.progress import bar

Item = TypeVar("Item")
Result = TypeVar("Result")
# Items that a thread takes at a time.
_CHUNK = 64


def each(what: str, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What `work` makes of each item, in their order; the first error ends it, and so does ^C.

    Args:
        what: the work, for the progress bar: `reading pictures`.
        work: called in threads.
        items: what for.
    """
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    results: list[Result] = []
    with ThreadPoolExecutor() as pool, bar(what, len(chunks)) as advance:
        try:
            for part in pool.map(lambda chunk: [work(item) for item in chunk], chunks):
                results += part
                advance()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return results

"""Progress: a bar on stderr with the time left, where a person may be looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how far the block is; what it yields is called once for each of `total` steps.

    Args:
        what: the work, `measuring`.
        total: how many steps there are.
    """
    columns = (*Progress.get_default_columns()[:3], TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda: shown.advance(task)

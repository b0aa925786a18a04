"""Files that are read anew when they change, or at SIGHUP, beside the requests that rest on them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

log = logging.getLogger(__name__)
_EVERY_S = 0.5


class Reloaded:
    """What is read from files, and put into use; ready when it is constructed.

    Args:
        what: the files hold, in the words of the log.
        paths: the files.
        read: reads them, beside the event loop, and raises PenstockError where they are bad.
        use: puts what was read into use, on the event loop.

    Raises:
        PenstockError: they cannot be read at first.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Any], use: Callable[[Any], object]) -> None:
        self._what, self._paths, self._read, self._use = what, tuple(paths), read, use
        # Its own: where bodies keep the others busy, a removed key would go on working.
        self._thread = ThreadPoolExecutor(1, "reloading")
        self._seen = self._stamps()  # before they are read: what is written meanwhile is read again
        use(read())

    async def look(self, *, anew: bool = False) -> None:
        """Read the files if they have changed, or `anew`; bad ones leave what there was in use, and the log says so."""
        loop = asyncio.get_running_loop()
        stamps = await loop.run_in_executor(self._thread, self._stamps)
        if stamps == self._seen and not anew:
            return
        self._seen = stamps
        try:
            self._use(await loop.run_in_executor(self._thread, self._read))
        except PenstockError as error:
            log.error("%s; the %s of before stay in use", error, self._what)
        else:
            log.info("%s: read anew from %s", self._what, ", ".join(map(str, self._paths)))

    def _stamps(self) -> list[Any]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Any:
    """What changes when a file does: written to, replaced, or made another's."""
    try:
        held = path.stat()
    except OSError as error:
        return error.errno
    return held.st_mtime_ns, held.st_ctime_ns, held.st_ino, held.st_dev, held.st_size


def start(files: Sequence[Reloaded]) -> Callable[[], Awaitable[None]]:
    """Look after files twice a second, and at SIGHUP, in the running event loop; what ends it is given back."""
    loop, hung_up = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)

    async def watch() -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(hung_up.wait(), _EVERY_S)
            anew = hung_up.is_set()
            hung_up.clear()
            for file in files:
                try:
                    await file.look(anew=anew)
                except Exception:  # the next look may do better; none at all would leave removed keys in use
                    log.exception("a file could not be looked after")

    task = asyncio.ensure_future(watch())

    async def stop() -> None:
        loop.remove_signal_handler(signal.SIGHUP)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    return stop

"""The journal of a run, logs/run.log: what it was told, what each epoch came to, and why it ended."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.train.facts import first_process

Say = Callable[[str], object]
# Lines of epochs are said no more often than this: short ones would fill a screen.
_EVERY_S = 10.0


class Journal:
    """Writes lines to a file, and says those that somebody who waits wants to see."""

    def __init__(self, log: logging.Logger, say: Say, *, shown: bool) -> None:
        self._log, self._say, self._shown = log, say, shown
        self._said = time.monotonic()

    def tell(self, line: str) -> None:
        """A line for the file and for whoever watches."""
        self._log.info(line)
        self._say(line)

    def epoch(self, number: int, of: int, figures: Mapping[str, float]) -> None:
        """What an epoch came to; said where no progress bar shows it."""
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        line = f"epoch {number} of {of}: {told}"
        self._log.info(line)
        if self._shown and time.monotonic() - self._said >= _EVERY_S:
            self._say(line)
            self._said = time.monotonic()


class _File(logging.FileHandler):
    """A line that cannot be written is an error as any other: logging itself would print it and go on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


@contextmanager
def kept(logs: Path, say: Say, *, shown: bool) -> Iterator[Journal]:
    """A journal in a folder of logs; an error that ends the block is written there with its traceback.

    Of several processes each has a file of its own, and the first is heard.

    Args:
        logs: made if it is missing; a run that goes on is written below what is there.
        say: told lines as well.
        shown: whether epochs are said, too.
    """
    logs.mkdir(parents=True, exist_ok=True)
    is_first = first_process()
    name = "run.log" if is_first else f"run-{os.environ.get('RANK', os.environ.get('LOCAL_RANK'))}.log"
    handler = _File(logs / name, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("penstock.train")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    propagates, log.propagate = log.propagate, False
    try:
        yield Journal(log, say if is_first else lambda _: None, shown=shown)
    except KeyboardInterrupt:
        with suppress(OSError):
            log.warning("interrupted")
        raise
    except BaseException:
        with suppress(OSError):
            log.exception("the run ended over an error")
        raise
    finally:
        log.propagate = propagates
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()

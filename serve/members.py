"""The processes of a family, as its head knows them: begun, asked whether they run, and missed when they have ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock import parents
from penstock.serve.supervised import Control
from penstock.trial import python_command

LATE_S = 1.0
"""A process that has not answered for so long is dealt no connection."""
_BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


@dataclass
class Member:
    """One process of the family: `ready` is whether it has said so, `linked` whether a front end knows the models.

    `dealt` are the connections that it was dealt, and `open` those that it has, as far as is known. `cut_at` is when a
    front end's way to the engine ended, if it is to be made anew.
    """

    name: str
    module: str
    process: subprocess.Popen[bytes] | None = None
    control: Control | None = None
    ready: bool = False
    linked: bool = False
    heard: float = 0.0
    asked: bool = False
    asked_at: float = 0.0
    dealt: int = 0
    open: int = 0
    counted_at: float = 0.0
    memory: int | None = None
    deaths: int = 0
    buried_at: float = 0.0
    again_at: float = 0.0
    ended: bool = False
    cut_at: float | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def away_s(self) -> float:
        """Seconds since its last process ended."""
        return time.monotonic() - self.buried_at

    @property
    def well(self) -> bool:
        """Whether it does what it is there for."""
        return self.ready and self.cut_at is None and time.monotonic() - self.heard < LATE_S

    @property
    def trouble(self) -> str:
        """What is wrong with it, where it is not well."""
        if not self.ready:
            return f"{self.name} is being restarted"
        return f"{self.name} {'does not answer' if self.cut_at is None else 'has no way to the engine'}"

    def begin(self, what: Mapping[str, Any], descriptors: Mapping[str, int]) -> None:
        """Start its process.

        Args:
            what: it is told.
            descriptors: that it is given, by the names under which it is told their numbers.
        """
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            given = {"control": other.fileno(), **descriptors}
            self.process = subprocess.Popen(  # noqa: S603 (this Python, and words of ours)
                python_command(self.module, orjson.dumps({**what, **given}).decode()),
                pass_fds=list(given.values()),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's ^C is not for it
                env=parents.environment(),
            )
        self.control = Control(own)
        self.ready = self.linked = self.asked = False
        self.cut_at = None
        self.heard, self.open, self.dealt = time.monotonic(), 0, 0

    def ask(self, **told: Any) -> None:
        """Have it say that it runs, and what it has open."""
        assert self.control is not None
        self.asked_at = time.monotonic()
        self.asked = self.control.tell("alive", **told)

    def tell(self, what: str, *descriptors: int, **told: Any) -> bool:
        """Say something to it, if it is there to hear; whether it is."""
        return self.control is not None and self.control.tell(what, descriptors, **told)

    def note(self, open: int, dealt: int) -> None:
        """It has said how many connections it has; those that are on their way to it are not among them."""
        self.open, self.counted_at = open + self.dealt - dealt, time.monotonic()

    def bury(self) -> str:
        """Its process has ended; how. It may be begun anew at `again_at`: later each time it was not ready before."""
        assert self.process is not None
        code = self.process.returncode
        if self.memory is not None:
            os.close(self.memory)
        self.deaths = 0 if self.ready else self.deaths + 1
        self.buried_at = time.monotonic()
        self.again_at = self.buried_at + _BACKOFF_S[min(self.deaths, len(_BACKOFF_S) - 1)]
        self.process, self.memory, self.open = None, None, 0
        self.ready = self.linked = False
        return parents.signal_name(code) if code < 0 else f"exit status {code}"

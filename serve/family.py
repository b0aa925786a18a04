"""The head of a family of processes: begins an engine and front ends, deals clients' connections, and sees to the dead.

It loads no model and reads no request. A front end is dealt the next connection if it has the fewest; a process that
ends, or that does not answer for seconds, is begun anew, and the server is not ready meanwhile. The end of a server is
that of its front ends, as serve/drain.py has it, and then the engine's.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from penstock.errors import PenstockError
from penstock.serve import failures, meters
from penstock.serve.drain import turn_away
from penstock.serve.members import Member
from penstock.serve.settings import Settings

log = logging.getLogger(__name__)
BACKLOG = 2048
"""Connections that may wait to be taken."""
_TICK_S = 0.25
# A process that has not answered for so long is ended.
_STALLED_S = 5.0
_HANDSHAKES_S, _PAUSE_S = 0.1, 0.02
# How old the count of connections may be by which one is refused, and how long a new one is waited for at once.
_COUNTED_S, _MOMENT_S = 0.005, 0.001
# Processes that were told to end at once have so long to say what they leave unanswered.
_CUT_S = 2.0
Say = Callable[[str], None]


class Family:
    """The processes of one server, and the socket that clients knock at.

    Args:
        paths: of models.
        settings: of the server.
        workers: front ends.
        slots_bytes: the memory of each for requests under way.
        listener: bound, and not listened at yet.
        say: told in lines what goes on.
        shown: told once that the server answers, how many declared models do not, and the first that does.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        settings: Settings,
        workers: int,
        slots_bytes: int,
        listener: socket.socket,
        say: Say,
        shown: Callable[[int, str], None],
    ) -> None:
        self._meters = meters.created()
        self._kept: int | None = None
        self._listener, self._say, self._shown = listener, say, shown
        self._settings = settings
        self._what = {
            "paths": [str(path) for path in paths],
            "settings": TypeAdapter(Settings).dump_python(settings, mode="json"),
            "slots_bytes": slots_bytes,
        }
        self.engine = Member("the engine", "penstock.serve.engine")
        self.fronts = [Member(f"front end {number}", "penstock.serve.frontend") for number in range(workers)]
        self._selector = selectors.DefaultSelector()
        self._announced = False
        self._told_at: float | None = None
        self._force = self._leaving = False
        self._stepped_at = time.monotonic()
        self._failure: Exception | None = None
        self.lost = self._answered = 0

    @property
    def _members(self) -> list[Member]:
        return [self.engine, *self.fronts]

    def run(self) -> int:
        """Serve until a signal, and until all is answered; how many requests were lost.

        Raises:
            PenstockError: the engine cannot serve, as it said when it began.
        """
        waker, sleeper = socket.socketpair()
        for end in (waker, sleeper):
            end.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(sleeper, selectors.EVENT_READ, sleeper)
        try:
            for member in self._members:
                self._begin(member)
            while self._told_at is None and self._failure is None:
                self._step()
            if self._failure is not None:
                raise self._failure
            self._drain()
        finally:
            self._kill_all()
            signal.set_wakeup_fd(-1)
            waker.close()
            sleeper.close()
            os.close(self._meters)
            if self._kept is not None:
                os.close(self._kept)
        return self.lost

    def _signalled(self, number: int, _frame: Any) -> None:
        if self._told_at is not None:
            self._force = True
            return
        self._told_at = time.monotonic()
        self._duck_s = self._settings.drain.lame_duck_s if number == signal.SIGTERM else 0.0

    def _begin(self, member: Member) -> None:
        descriptors = {"meters": self._meters}
        if member is self.engine and self._kept is not None:
            descriptors["kept"] = self._kept
        member.begin(self._what, descriptors)
        assert member.control is not None
        self._selector.register(member.control.socket, selectors.EVENT_READ, member)

    def _step(self, within_s: float = _TICK_S) -> None:
        """Hear what there is to hear, and look after everybody."""
        heard = self._selector.select(within_s)
        self._note_pause()
        if self._told_at is not None:
            self._leave()  # before any client that came later is dealt
        for key, _ in heard:
            if key.fileobj is self._listener:
                self._deal_all()
            elif isinstance(key.data, Member):
                self._hear(key.data)
            else:
                with suppress(BlockingIOError):
                    key.data.recv(4096)
        for member in self._members:
            self._look_after(member)

    def _note_pause(self) -> None:
        """Nobody is late for what this process has not done itself: it may have been stopped for a while."""
        now, before = time.monotonic(), self._stepped_at
        self._stepped_at = now
        if now - before > 2 * _TICK_S:
            for member in self._members:
                member.asked_at, member.heard = now, max(member.heard, now - _TICK_S)

    def _hear(self, member: Member) -> None:
        try:
            while member.control is not None and (found := member.control.hear()) is not None:
                member.heard, member.asked = time.monotonic(), False
                self._heard(member, *found)
            self._forget(member)
        except BlockingIOError:
            pass

    def _heard(self, member: Member, message: dict[str, Any], descriptors: list[int]) -> None:
        what = message["what"]
        if what == "say":
            self._say(message["line"])
        elif what == "alive":
            if member is not self.engine:
                member.note(message["open"], message["dealt"])
        elif what == "failed":
            failure = failures.raised(message)
            if self._announced:
                log.error("%s cannot begin anew: %s", member.name, failure)
            else:
                self._failure = failure
        elif what == "kept":
            former, self._kept = self._kept, descriptors.pop()
            descriptors += [] if former is None else [former]
        elif what == "ready":
            member.ready, member.told = True, message
            member.memory = descriptors[0] if descriptors else None
            descriptors = []
            if self._announced and self._told_at is None:
                assert member.process is not None
                log.warning(
                    "%s is there again (process %d), after %.1f s", member.name, member.process.pid, member.away_s
                )
            self._link(member)
        elif what == "linked":
            member.linked = True
        elif what == "cut":
            member.linked, member.cut_at = False, time.monotonic()
        elif what == "connection":
            self.engine.tell("connection", *descriptors)
        elif what == "drained":
            member.ended = True
            if member is not self.engine:  # whose answers go to front ends
                self._answered += message["answered"]
                self.lost += message["lost"]
        for descriptor in descriptors:
            os.close(descriptor)
        is_over = self._told_at is not None
        if not (self._announced or is_over) and self.engine.ready and all(front.linked for front in self.fronts):
            self._announced = True
            self._listener.listen(BACKLOG)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._shown(self.engine.told["problems"], self.engine.told["first"])

    def _link(self, member: Member) -> None:
        """Join front ends to the engine, whichever of them is there now and was not before."""
        if not self.engine.ready:
            return
        for front in self.fronts if member is self.engine else [member]:
            if front.ready and front.memory is not None:
                one, other = socket.socketpair()
                with one, other:
                    self.engine.tell("link", one.fileno(), front.memory)
                    front.tell("link", other.fileno())
                    front.cut_at = None

    def _deal_all(self) -> None:
        """Deal each connection that waits to the front end that has the fewest, of those that know the models.

        Those that are over the limit are dealt too: a front end tells them so.
        """
        most = self._settings.connections.connections
        while True:
            ready = [front for front in self.fronts if front.ready]
            well = [front for front in ready if front.well]
            fronts = [front for front in well if front.linked] or well or ready
            is_over = sum(front.open for front in self.fronts) >= most
            if is_over and self._count_anew(well):
                time.sleep(_MOMENT_S)
                return
            try:
                connection = self._listener.accept()[0] if fronts else None
            except BlockingIOError:
                return
            except OSError as error:
                log.error("a connection cannot be taken: %s", error.strerror)
                connection = None
            if connection is None:
                time.sleep(_PAUSE_S)  # those that knock wait meanwhile
                return
            with connection:
                for front in sorted(fronts, key=lambda front: front.open):
                    if front.tell("connection", connection.fileno(), is_over=is_over):
                        front.dealt, front.open = front.dealt + 1, front.open + 1
                        break

    def _count_anew(self, fronts: list[Member]) -> bool:
        """Whether it is still to be heard how many connections there are now; connections end without a word."""
        for front in fronts:
            if not front.asked and time.monotonic() - front.counted_at > _COUNTED_S:
                self._ask(front)
        return any(front.asked for front in fronts)

    def _ask(self, member: Member) -> None:
        """Have a process say that it runs; the engine is told how the others are, which it answers for."""
        if member is not self.engine:
            member.ask()
            return
        pids = {
            other.name.removeprefix("the ").replace(" ", "-"): other.process.pid
            for other in self._members
            if other.process
        }
        troubles = [other.trouble for other in self._members if not other.well]
        member.ask(troubles=troubles, processes={"head": os.getpid(), **pids})

    def _look_after(self, member: Member) -> None:
        now = time.monotonic()
        if member.process is None:
            if self._told_at is None and now >= member.again_at:
                self._begin(member)
            return
        if member.process.poll() is not None:
            self._hear(member)  # its last words
            self._note_death(member)
        elif member.asked and now - member.asked_at > _STALLED_S:
            log.error(
                "%s (process %d) has not answered for %g s; it is ended", member.name, member.process.pid, _STALLED_S
            )
            member.asked = False
            member.process.kill()
        elif member.cut_at is not None and now - member.cut_at > _TICK_S and self.engine.ready:
            log.error("the way between %s and the engine has ended, and both run; it is made anew", member.name)
            self._link(member)
        elif member.ready and not member.asked and now - member.heard > _TICK_S and member.control is not None:
            self._ask(member)

    def _note_death(self, member: Member) -> None:
        """A process has ended: begin it anew, unless all is to end."""
        assert member.process is not None
        self._forget(member)
        pid, was_ready, how = member.process.pid, member.ready, member.bury()
        if self._told_at is not None:
            return
        if not self._announced and self._failure is None and not was_ready:
            self._failure = PenstockError(f"{member.name} ended before it could serve: {how}")
            return
        stays = "; what clients have set stays, what it counted begins anew" if member is self.engine else ""
        log.error("%s (process %d) ended: %s; it is restarted%s", member.name, pid, how, stays)

    def _forget(self, member: Member) -> None:
        if member.control is not None:
            self._selector.unregister(member.control.socket)
            member.control.socket.close()
            member.control = None

    def _leave(self) -> None:
        """Have everybody ask clients to leave, once."""
        for member in () if self._leaving else self._members:
            member.tell("leave")
        self._leaving = True

    def _drain(self) -> None:
        """Have clients leave, take no more of them, answer what has come, and end."""
        assert self._told_at is not None
        self._leave()
        self._steps(lambda: False, self._told_at + self._duck_s)
        if self._announced:
            turn_away(self._listener)
            self._steps(lambda: False, time.monotonic() + _HANDSHAKES_S)
            self._selector.unregister(self._listener)
        self._listener.close()
        limit = time.monotonic() + self._settings.drain.drain_s + _CUT_S
        for members in (self.fronts, [self.engine]):
            for member in members:
                member.tell("end", at_once=self._force)
            self._steps(lambda: all(member.process is None for member in members), limit)  # noqa: B023
            if self._force:
                # The engine lives on until they have said what they leave: its end would answer it all.
                for member in self.fronts:
                    if not member.ended:
                        member.tell("end", at_once=True)
                until = time.monotonic() + _CUT_S
                while time.monotonic() < until and any(m.process is not None and not m.ended for m in self.fronts):
                    self._step()
                break
        took = time.monotonic() - self._told_at
        why = ""
        if self.lost:
            limit_s = self._settings.drain.drain_s
            why = " (a second signal cut them)" if self._force else f" (cut after --drain-s {limit_s:g})"
        self._say(f"drained in {took:.1f} s: {self._answered} requests answered meanwhile, {self.lost} lost{why}")

    def _steps(self, over: Callable[[], bool], until: float) -> None:
        while not self._force and not over() and (left := until - time.monotonic()) > 0:
            self._step(min(_TICK_S, left))

    def _kill_all(self) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.kill()
                member.process.wait()

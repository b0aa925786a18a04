"""A server asked over HTTP by several threads, patiently: what is busy or not yet there is asked again."""

from __future__ import annotations

import email.utils
import functools
import http.client
import io
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from penstock.client import hints
from penstock.client.access import Access
from penstock.errors import PenstockError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
# What is busy, and what wants to be asked less often.
_LATER = (503, 429)
_NOBODY = Access()
_LOST = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, http.client.HTTPException)


class Unreachable(PenstockError):
    """Nobody takes connections there, also after the last retry."""


class Unanswered(Exception):
    """This request has no answer in its time."""


class Broken(Unanswered):
    """The connection broke over this request each time, as it may where a body is too long."""


@dataclass(frozen=True)
class Patience:
    """How often a request is sent again, and the seconds that one answer, or one pause, may take."""

    retries: int = 5
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Answer:
    """A status, headers by lower-case name, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The server's sentence, or what there is instead."""
        try:
            return str(json.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            return f"status {self.status}: {self.body[:200].decode('utf-8', 'replace')}"


@dataclass(frozen=True)
class Place:
    """Where a server is: scheme, host, port, the path before its routes; and the model, if the URL was of its route."""

    secure: bool
    host: str
    port: int | None
    path: str
    model: str | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' * self.secure}://{host}{f':{self.port}' if self.port else ''}{self.path}"


def place(url: str) -> Place:
    """Read the URL of a server, or of its /predict/MODEL.

    Raises:
        PenstockError: it is no http or https URL.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise PenstockError(f"URL {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise PenstockError(f"URL {url!r}: must read http://HOST:PORT, or http://HOST:PORT/predict/MODEL")
    path, predict, model = parts.path.rstrip("/").rpartition("/predict/")
    if not predict:
        path, model = parts.path.rstrip("/"), ""
    return Place(parts.scheme == "https", host, port, path, unquote(model) or None)


class _Until(io.RawIOBase):
    """What a socket receives until a moment: its own timeout begins anew with every byte."""

    def __init__(self, held: socket.socket, raw: io.RawIOBase, until: float) -> None:
        self._held, self._raw, self._until = held, raw, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._held.settimeout(left)
        return self._raw.readinto(buffer)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that is whole until a moment, or is none."""

    def __init__(self, held: socket.socket, *given: Any, until: float, **named: Any) -> None:
        super().__init__(held, *given, **named)
        self.fp = io.BufferedReader(_Until(held, self.fp.detach(), until))


class Server:
    """A server, with one open connection for each thread that asks it; `close` ends what is under way."""

    def __init__(self, where: Place, patience: Patience, access: Access = _NOBODY) -> None:
        self.where, self._patience, self._access = where, patience, access
        self._held = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._closed = threading.Event()
        self._answered = False

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """One answer; a refused connection, a broken one, a 503 and a 429 are tried again, as late as the server says.

        Raises:
            Unreachable: nobody is there, or it speaks TLS and was asked without, or the other way round.
            Unanswered: there is no answer to this.
        """
        for attempt in range(self._patience.retries + 1):
            last = attempt == self._patience.retries
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311 (chance that is no secret)
            try:
                answer = self._once(method, path, body, headers or {})
            except ConnectionRefusedError:
                if last or self._closed.is_set():
                    raise Unreachable(
                        f"{self.where}: nobody listens there; start it with: penstock serve models/"
                    ) from None
            except _LOST as error:
                self._see_lost(error, final=last or self._closed.is_set())
            except TimeoutError:
                raise Unanswered(f"no answer within {self._patience.timeout_s:g} s (--timeout)") from None
            except (socket.gaierror, ssl.SSLError, OSError) as error:
                why = hints.wrong_scheme(str(self.where), error) or hints.explained(error)
                raise Unreachable(f"{self.where}: {why}") from None
            else:
                asked = retry_after_s(answer)
                pause = pause if asked is None else asked
                if answer.status not in _LATER or last or pause > self._patience.timeout_s:
                    return answer
            self._closed.wait(pause)
        raise AssertionError("the last attempt returns or raises")

    def said(self, answer: Answer) -> str:
        """The server's sentence on why it did not do what it was asked, with what helps."""
        return answer.error + hints.refusal(str(self.where), answer.status, answer.body, self._access)

    def _see_lost(self, error: Exception, *, final: bool) -> None:
        """Consider a connection that broke: there may be no use in another try, and after the `final` one is none.

        Raises:
            Unreachable: it speaks TLS, and was asked without. Broken: it was the last try.
        """
        doubt = not self._answered and not self._closed.is_set()  # else the scheme is the right one
        hint = hints.wrong_scheme(str(self.where), error) if doubt else ""
        if hint and not self.where.secure:
            raise Unreachable(f"{self.where}: {hint}") from None
        if final:
            raise Broken(f"the connection broke: {type(error).__name__}: {error}{hint and f'; {hint}'}") from None

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One attempt; a connection that was closed while it lay idle is opened anew at once."""
        if self._closed.is_set():
            raise http.client.HTTPException("the client is closed")
        kept = getattr(self._held, "connection", None)
        if kept is not None:
            with suppress(*_LOST):
                return self._sent(kept, method, path, body, headers)
        return self._sent(self._connected(), method, path, body, headers)

    def _connected(self) -> http.client.HTTPConnection:
        where, timeout_s = self.where, self._patience.timeout_s
        if where.secure:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                where.host, where.port, timeout=timeout_s, context=self._access.context
            )
        else:
            made = http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)
        made.connect()
        self._open.add(made)
        self._held.connection = made
        return made

    def _sent(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        until = time.monotonic() + self._patience.timeout_s
        connection.sock.settimeout(self._patience.timeout_s)
        connection.response_class = functools.partial(_Response, until=until)  # type: ignore[assignment]
        try:
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # refused before all of it was sent: the answer is there
                connection.request(method, self.where.path + path, body, {**self._access.headers, **headers})
            response = connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except BaseException:
            self._drop(connection)
            raise
        self._answered = True
        if response.will_close:
            self._drop(connection)
        return answer

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        self._held.connection = None
        self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """End all connections, also those that others wait at; no more are opened."""
        self._closed.set()
        for connection in list(self._open):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)


def retry_after_s(answer: Answer) -> float | None:
    """Retry-After, which is seconds or a date."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def model_of(server: Server, named: str | None) -> str:
    """The model to ask: the one that is named, in the URL or beside it, or else the only one there is.

    Raises:
        PenstockError: two are named, or none is and there are none or several.
    """
    given = server.where.model
    if named is not None and given not in (None, named):
        raise PenstockError(f"--model {named}: the URL names {given}; give one or the other")
    if named is not None or given is not None:
        return str(named or given)
    names = [str(entry["name"]) for entry in _json(server, "POST", "/v2/repository/index", b'{"ready": true}')]
    if len(names) != 1:
        with suppress(PenstockError):  # where there are none, or not for this key
            names += _json(server, "GET", "/v2/routes")
        raise PenstockError(
            f"{server.where}: serves {', '.join(sorted(names)) or 'no model that is ready'}; name one: --model NAME"
        )
    return names[0]


def inputs_of(server: Server, model: str) -> list[dict[str, Any]]:
    """Name, datatype and shape of each of a model's inputs."""
    inputs: list[dict[str, Any]] = _json(server, "GET", f"/v2/models/{quote(model, safe='')}")["inputs"]
    return inputs


def _json(server: Server, method: str, path: str, body: bytes = b"") -> Any:
    try:
        answer = server.ask(method, path, body)
        if answer.status == 200:
            return json.loads(answer.body)
    except (Unanswered, ValueError) as error:
        raise PenstockError(f"{server.where}{path}: {error}") from None
    raise PenstockError(f"{server.where}{path}: {server.said(answer)}")

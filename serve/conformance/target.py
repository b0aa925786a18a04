"""The server under test: asked over plain sockets, so that nothing is put right on the way."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

import numpy as np

from penstock.client import hints
from penstock.client.access import Access
from penstock.signature import V2_DTYPES

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls

NUMPY = {v2: np.dtype(name) for name, v2 in V2_DTYPES.items()}
HEADER_LENGTH = "Inference-Header-Content-Length"
# No answer to what is sent here is near it.
_MOST_BYTES = 64 * 2**20


class Failed(Exception):
    """The server does otherwise; the argument says what it did."""


class Nobody(Failed):
    """No process listens where the server was said to be."""


class Skipped(Exception):
    """The server does not claim this, or has no model to try it on; the argument says which."""


@dataclass(frozen=True)
class Answer:
    """A status, headers by lower-case name, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise Failed(f"answers {self.status} with a body that is no JSON: {self.body[:80]!r}") from None

    @property
    def error(self) -> str:
        """The server's sentence on why it refuses, empty where the body holds none."""
        try:
            return str(json.loads(self.body)["error"])[:300]
        except (ValueError, RecursionError, KeyError, TypeError):
            return ""


def has_key(headers: Mapping[str, str]) -> bool:
    """Whether a key goes with requests of these headers."""
    return any(name.lower() == "authorization" for name in headers)


def refusal(said: str, denied: str | None) -> str:
    """Why what was asked is not for this client, and what helps.

    Args:
        said: how the server answers.
        denied: its sentence on why the key that was given may not do this; None where none was given, or not known.
    """
    if denied is None:
        return f"{said}; what it wants to see goes in --key-file FILE, PENSTOCK_API_KEY or --header"
    why = denied or "it has not the right that this takes"
    return f"{said} to the key that was given: {why}"


@dataclass(frozen=True)
class Request:
    """What is asked over HTTP; a body that is neither bytes, an iterator of them nor None is sent as JSON."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Target:
    """A server, and one of its models with an input that it takes: one row, ones.

    `calls` is its gRPC side, or None, and `no_calls` says why there is none. `reload` allows the model to be unloaded;
    `headers` go with every request; `access` says whose certificate is trusted.
    """

    url: str
    timeout_s: float = 20.0
    name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    calls: Calls | None = None
    no_calls: str = "no gRPC address is given"
    reload: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    access: Access = field(default_factory=Access)

    @property
    def extensions(self) -> tuple[str, ...]:
        held = self.server.get("extensions")
        return tuple(str(name) for name in held) if isinstance(held, list) else ()

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own.

        Raises:
            Failed: no whole answer comes in time.
        """
        return self.ask_all([Request(method, path, body, headers or {})])[0]

    def ask_all(self, requests: Iterable[Request]) -> list[Answer]:
        """Requests one after another on one connection, which is opened again where the server closed it.

        Raises:
            Failed: no whole answer to one of them comes in time.
            Skipped: the server keeps one of them for those whom it knows.
        """
        host, port, timeout_s = self.parts.hostname or "", self.parts.port, self.timeout_s
        connection = (
            http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.access.context)
            if self.parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=timeout_s)
        )
        try:
            return [self._asked(connection, request) for request in requests]
        finally:
            connection.close()

    def _asked(self, connection: http.client.HTTPConnection, request: Request) -> Answer:
        body, root = request.body, self.parts.path.rstrip("/")
        if not (body is None or isinstance(body, bytes | Iterator)):
            body = json.dumps(body).encode()
        try:
            with _bounded(connection, self.timeout_s):
                connection.request(request.method, f"{root}{request.path}", body, {**self.headers, **request.headers})
                response = connection.getresponse()
                content = response.read(_MOST_BYTES)
                if response.length:
                    raise Failed(f"breaks its answer off, {response.length} bytes before its end")
                answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content)
                if answer.status in (401, 403):
                    denied = answer.status == 403 and has_key(self.headers)
                    raise Skipped(refusal(f"the server answers {answer.status}", answer.error if denied else None))
                return answer
        except (OSError, http.client.HTTPException) as error:
            why = hints.explained(error) if isinstance(error, ssl.SSLError) else error
            # Once it has told what it is, a connection that breaks is the answer to what was sent.
            hint = "" if self.server else hints.wrong_scheme(self.url, error)
            if not self.server and isinstance(error, ConnectionRefusedError):
                raise Nobody("nobody listens there; start it with: penstock serve models/") from None
            raise Failed(hint or f"does not answer: {type(error).__name__}: {why}") from None

    @property
    def model(self) -> str:
        return f"/v2/models/{quote(self.name, safe='')}"

    def infer(self, content: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("POST", f"{self.model}/infer", content, headers)

    @property
    def inputs(self) -> list[tuple[str, str, list[int]]]:
        """Name, datatype and shape of each input, every dynamic size 1."""
        return [
            (tensor["name"], tensor["datatype"], [1 if int(size) < 1 else int(size) for size in tensor["shape"]])
            for tensor in self.metadata["inputs"]
        ]

    def array(self, datatype: str, shape: list[int]) -> Any:
        return np.ones(shape, NUMPY[datatype])

    def request(self) -> dict[str, Any]:
        """A request in JSON that the model takes."""
        return {
            "inputs": [
                {"name": name, "datatype": kind, "shape": shape, "data": self.array(kind, shape).reshape(-1).tolist()}
                for name, kind, shape in self.inputs
            ]
        }

    def binary(self, content: dict[str, Any] | None = None) -> tuple[bytes, dict[str, str]]:
        """The same with its tensors behind the JSON, and what the header says of it."""
        entries, tail = [], b""
        for name, kind, shape in self.inputs:
            raw = self.array(kind, shape).tobytes()
            entries.append(
                {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
            )
            tail += raw
        text = json.dumps({"inputs": entries, **(content or {})}).encode()
        return text + tail, {HEADER_LENGTH: str(len(text))}


@contextmanager
def _bounded(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Cut the connection after so long: a socket's own timeout begins anew with every byte that drips in."""
    late = threading.Event()

    def cut() -> None:
        late.set()
        if connection.sock is not None:
            with suppress(OSError):  # it is gone by itself
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, Failed):
        if late.is_set():
            raise Failed(f"does not answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if late.is_set():  # what ends with its connection looks whole
        raise Failed(f"does not answer within {seconds:g} s")

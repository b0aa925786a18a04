"""The server under test: asked over plain sockets, so that nothing is put right on the way."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from penstock.errors import PenstockError
from penstock.signature import V2_DTYPES

_NUMPY = {v2: np.dtype(name) for name, v2 in V2_DTYPES.items()}
HEADER_LENGTH = "Inference-Header-Content-Length"


class Failed(Exception):
    """The server does otherwise; the argument says what it did."""


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
        except ValueError:
            raise Failed(f"answers {self.status} with a body that is no JSON: {self.body[:80]!r}") from None


@dataclass
class Target:
    """A server, and one of its models with an input that it takes: one row, ones."""

    url: str
    timeout_s: float = 20.0
    name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own; what is neither bytes nor None is sent as JSON."""
        parts = urlsplit(self.url)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self.timeout_s)
        try:
            connection.request(method, f"{parts.path.rstrip('/')}{path}", data, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"does not answer: {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    @property
    def model(self) -> str:
        return f"/v2/models/{quote(self.name)}"

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
        return np.ones(shape, _NUMPY[datatype])

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


def connect(url: str, model: str | None, timeout_s: float) -> Target:
    """The target at a URL, with a model to try things on: the one that is named, else the first that fits.

    Raises:
        PenstockError: nobody answers there, or no model of it takes numbers alone.
    """
    target = Target(url if "://" in url else f"http://{url}", timeout_s)
    try:
        told = target.ask("GET", "/v2").json
        target.extensions = tuple(told.get("extensions", ()))
        names = [model] if model else [row["name"] for row in target.ask("POST", "/v2/repository/index").json]
        for name in names:
            answer = target.ask("GET", f"/v2/models/{quote(name)}")
            if answer.status == 200 and all(t["datatype"] in _NUMPY for t in answer.json["inputs"]):
                target.name, target.metadata = name, answer.json
                if target.infer(target.request()).status == 200:
                    return target
    except (Failed, KeyError, TypeError, AttributeError) as error:
        raise PenstockError(f"{target.url}: speaks no Open Inference Protocol: {error}") from None
    raise PenstockError(
        f"{target.url}: has no model that answers one row of ones; name one with --model, as in --model resnet18"
    )

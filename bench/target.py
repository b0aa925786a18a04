"""The server that is measured: what it is, which model is asked, what that takes, and what it says of its own time.

Any server of the Open Inference Protocol, over HTTP or gRPC: penstock, Triton, MLServer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from penstock import messages
from penstock.bench import stages
from penstock.bench.calls import INFER, Address, channel
from penstock.bench.fleet import Goal
from penstock.bench.httpanswers import Answer, Head
from penstock.bench.pacing import Pacing, TooSlow
from penstock.bench.stages import Counted
from penstock.client.access import Access
from penstock.client.connection import Answer as Got
from penstock.client.connection import Patience, Place, Server, Unanswered, Unreachable, place, retry_after_s
from penstock.errors import PenstockError, first_line

SCHEMES = ("http://", "https://", "grpc://", "grpcs://")
_BINARY = "binary_tensor_data"


class Gone(PenstockError):
    """Nobody answers there any more."""


class Refused(PenstockError):
    """The server does not let this in."""


def is_url(text: str) -> bool:
    return text.lower().startswith(SCHEMES)


@dataclass(frozen=True)
class Input:
    """An input as the model's metadata has it: -1 is a size that is not fixed."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass
class Target:
    """A model on a server. `grpc_target` is HOST:PORT where it is asked over gRPC, `place` where over HTTP.

    `shared` are the models among which a route shares requests: none for a model's own name, and None where the server
    has routes and does not tell of them, as over gRPC or to a key without the right to the repository.
    """

    url: str
    access: Access
    timeout_s: float
    place: Place | None = None
    grpc_target: str | None = None
    secure: bool = False
    name: str = ""
    version: str = ""
    extensions: tuple[str, ...] = ()
    model: str = ""
    model_version: str = ""
    inputs: tuple[Input, ...] = ()
    outputs: tuple[str, ...] = ()
    shared: tuple[str, ...] | None = ()
    pacing: Pacing = field(default_factory=Pacing, repr=False)
    _http: Server | None = field(default=None, repr=False)

    @property
    def binary(self) -> bool:
        """Whether tensors may stand in binary behind JSON."""
        return _BINARY in self.extensions

    @property
    def is_penstock(self) -> bool:
        return self.name == "penstock"

    @property
    def infer_path(self) -> str:
        return f"/v2/models/{quote(self.model, safe='')}/infer"

    @property
    def address(self) -> Address:
        """Where to call over gRPC."""
        roots = (self.access.roots or b"") if self.secure else None
        return Address(str(self.grpc_target), roots, tuple(self.access.headers.items()))

    def goal(self, *, grpc: bool, timed: bool) -> Goal:
        """Where generators are to send requests."""
        if grpc:
            host, _, port = str(self.grpc_target).rpartition(":")
            address = self.address
            return Goal(host.strip("[]"), int(port), self.secure, None, True, address.metadata, address.roots or b"")
        assert self.place is not None
        if self.secure:
            assert self.access.context is not None  # which complains of a file that holds no certificates
        number = self.place.port or (443 if self.secure else 80)
        return Goal(self.place.host, number, self.secure, self.access.ca, timed=timed)

    def ask(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to one request over HTTP, asked alone.

        Raises:
            PenstockError: there is none.
        """
        try:
            got = self.get("POST", path, body, headers)
        except Unanswered as error:
            raise Gone(f"{self.url}: {error}") from None
        fields = {name.encode(): value.encode("latin-1") for name, value in got.headers.items()}
        return Answer(Head(got.status, len(got.body), chunked=False, closes=False, fields=fields), got.body)

    def get(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Got:
        """One answer over HTTP, asked for again as late as the server says where the key is over its rate.

        Raises:
            Unreachable, Unanswered, TooSlow: there is none.
        """
        assert self._http is not None
        while (got := self._http.ask(method, path, body, headers)).status == 429:
            self.pacing.wait(retry_after_s(got), f"{self.url}{path}: {got.error}")
        return got

    def call(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """The answer to one call over gRPC, made again as late as the server says where the key is over its rate.

        Raises:
            PenstockError: there is none.
        """
        import grpc

        with closing(channel(self.address)) as made:
            ask = made.unary_unary(f"/{messages.SERVICE}/{method}")
            while True:
                try:
                    answer: bytes = ask(request, timeout=timeout_s or self.timeout_s, metadata=self.address.metadata)
                    return answer
                except grpc.RpcError as error:
                    code, details = error.code().name, str(error.details())[:200]
                    said = f"grpc://{self.grpc_target}: {method} is answered {code}: {details}"
                    kind = Gone if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else PenstockError
                    if (wait_s := _pushed_back_s(error)) is None:
                        where = "; --grpc HOST:PORT says where its gRPC is" if kind is Gone and self.place else ""
                        raise kind(f"{said}{where}") from None
                self.pacing.wait(wait_s, said)

    def stages(self) -> Counted | None:
        """What the server says that each version has done, by its statistics extension; None where it has none."""
        try:
            if self._http is not None:
                answer = self.get("GET", f"/v2/models/{quote(self.model, safe='')}/stats")
                return stages.of_json(json.loads(answer.body)["model_stats"]) if answer.status == 200 else None
            request = messages.message("ModelStatisticsRequest")(name=self.model).SerializeToString()
            answer_ = messages.message("ModelStatisticsResponse").FromString(self.call("ModelStatistics", request))
            return stages.of_messages(answer_.model_stats)
        except Exception:  # no answer, or one that holds anything else: the runs are worth more than these
            return None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()


def connect(url: str, model: str | None, access: Access, timeout_s: float, grpc: str | None = None) -> Target:
    """The server at a URL, and a model of it: the one that is named, or else the only one that it has.

    Args:
        url: http://, https://, grpc:// or grpcs://, HOST:PORT.
        model: the model's name.
        access: what lets requests in.
        timeout_s: seconds for one answer.
        grpc: HOST:PORT of its gRPC, for an HTTP URL; default: the port after HTTP's.

    Raises:
        PenstockError: nobody answers there, or it has no such model: which it has is told.
    """
    if url.lower().startswith(("grpc://", "grpcs://")):
        target = _over_grpc(url, access, timeout_s)
        with _understood(target):
            _see_server_by_call(target)
            _see_model_by_call(target, model)
        return target
    where = place(url)
    target = Target(str(where), access, timeout_s, where, secure=where.secure)
    target.grpc_target = grpc or _beside(where)
    target._http = Server(where, Patience(0, timeout_s), access)
    with _understood(target):
        _see_server(target)
        _see_model(target, model if model is not None else where.model)
    return target


@contextmanager
def _understood(target: Target) -> Iterator[None]:
    """Have whatever goes wrong in reading what a server says of itself and its models be the server's."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise PenstockError(
            f"{target.url}: what it says of itself or its models is not the protocol's: {first_line(error)}"
        ) from None


def _beside(where: Place) -> str:
    host = f"[{where.host}]" if ":" in where.host else where.host
    return f"{host}:{(where.port or (443 if where.secure else 80)) + 1}"


def _over_grpc(url: str, access: Access, timeout_s: float) -> Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise PenstockError(f"URL {url!r}: {error}") from None
    if not host or not port or parts.path.strip("/") or parts.query or parts.username:
        raise PenstockError(f"URL {url!r}: must read grpc://HOST:PORT")
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Target(url, access, timeout_s, grpc_target=shown, secure=parts.scheme.lower() == "grpcs")


def _pushed_back_s(error: Any) -> float | None:
    """When to call again, as a server says whose rate was exceeded; None where that is not what it says."""
    if error.code().name != "RESOURCE_EXHAUSTED":
        return None
    told = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms", "")
    return int(told) / 1e3 if str(told).isascii() and str(told).isdigit() else None


def _get(target: Target, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} if body else {}
    try:
        answer = target.get(method, path, body, headers)
    except Unreachable:
        raise
    except Unanswered as error:
        raise Gone(f"{target.url}{path}: {error}") from None
    if answer.status in (401, 403):
        raise Refused(f"{target.url}{path}: {answer.error}; PENSTOCK_API_KEY or --key-file gives a key")
    try:
        return answer.status, json.loads(answer.body)
    except ValueError:
        return answer.status, None


def _see_server(target: Target) -> None:
    status, said = _get(target, "/v2")
    if status != 200 or not isinstance(said, dict):
        alone, routes, rest = target.url.partition("/v2")
        model = rest.removeprefix("/models/").partition("/")[0] or "MODEL"
        step = f"give the address alone: penstock bench {alone} {model}" if routes else "others are not measured"
        raise PenstockError(f"{target.url}: speaks no Open Inference Protocol ({status} for GET /v2); {step}")
    target.name, target.version = str(said.get("name", "")), str(said.get("version", ""))
    target.extensions = tuple(map(str, said.get("extensions") or ()))


def _see_model(target: Target, named: str | None) -> None:
    name = named or _only(target, _models(target))
    status, said = _get(target, f"/v2/models/{quote(name, safe='')}")
    if status != 200 or not isinstance(said, dict):
        told = said.get("error") if isinstance(said, dict) else None
        names = _with_routes(target, _models(target))
        raise PenstockError(_unknown(target, name, names, told or f"status {status}"))
    versions = said.get("versions") or [""]
    target.model, target.model_version = name, str(versions[-1])
    target.inputs = tuple(
        Input(str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
        for each in said.get("inputs") or ()
    )
    target.outputs = tuple(str(each["name"]) for each in said.get("outputs") or ())
    routes = _routes(target)
    weights = {} if routes is None else routes.get(name, {})
    target.shared = None if routes is None else tuple(model for model, weight in weights.items() if weight)


def _routes(target: Target) -> dict[str, dict[str, int]] | None:
    """The weights of each route's models, none of a server that has no routes; None where it does not tell them."""
    if not target.is_penstock:
        return {}
    try:
        status, said = _get(target, "/v2/routes")
    except Refused:
        return None
    return dict(said) if status == 200 else {}


def _models(target: Target) -> list[str]:
    """Those that the server lists, which it need not do, nor for everybody."""
    try:
        status, said = _get(target, "/v2/repository/index", "POST", b"{}")
    except Refused:
        return []
    if status != 200 or not isinstance(said, list):
        return []
    return sorted({str(each["name"]) for each in said if each.get("state", "READY") in ("READY", "")})


def _with_routes(target: Target, names: Sequence[str]) -> list[str]:
    """Models, and the routes beside them as far as those are told, which one may name as well."""
    routes = _routes(target) if target.place is not None else None
    return sorted({*names, *(routes or ())})


def _only(target: Target, names: Sequence[str]) -> str:
    if len(names) != 1:
        listed = ", ".join(_with_routes(target, names)) or "no model that it lists"
        raise PenstockError(f"{target.url}: serves {listed}; name one: penstock bench {target.url} MODEL")
    return names[0]


def _unknown(target: Target, name: str, names: Sequence[str], why: object) -> str:
    if names and all(one in str(why) for one in names):  # they are named already
        return f"{target.url}: {why}"
    return f"{target.url}: has no model {name[:80]!r} ({why}); it serves {', '.join(names) or 'none that it lists'}"


def _see_server_by_call(target: Target) -> None:
    said = messages.message("ServerMetadataResponse").FromString(target.call("ServerMetadata", b""))
    target.name, target.version, target.extensions = said.name, said.version, tuple(said.extensions)


def _see_model_by_call(target: Target, named: str | None) -> None:
    name = named or _only(target, _models_by_call(target))
    request = messages.message("ModelMetadataRequest")(name=name).SerializeToString()
    try:
        answer = target.call("ModelMetadata", request)
    except (Gone, TooSlow):
        raise
    except PenstockError as error:
        why = str(error).partition("answered ")[2]
        raise PenstockError(_unknown(target, name, _models_by_call(target), why)) from None
    said = messages.message("ModelMetadataResponse").FromString(answer)
    target.model, target.model_version = name, said.versions[-1] if said.versions else ""
    target.inputs = tuple(Input(each.name, each.datatype, tuple(each.shape)) for each in said.inputs)
    target.outputs = tuple(each.name for each in said.outputs)
    target.shared = None if target.is_penstock else ()  # no call tells of routes


def _models_by_call(target: Target) -> list[str]:
    try:
        answer = target.call("RepositoryIndex", b"")
    except (Gone, TooSlow):
        raise
    except PenstockError:
        return []
    said = messages.message("RepositoryIndexResponse").FromString(answer)
    return sorted({each.name for each in said.models if each.state in ("READY", "")})


def asked_by_call(target: Target, request: bytes) -> Answer:
    """The answer to a ModelInferRequest, asked alone."""
    body = target.call(INFER.rpartition("/")[2], request)
    return Answer(Head(200, len(body), chunked=False, closes=False, fields={}), body)

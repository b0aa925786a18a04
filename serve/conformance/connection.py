"""Finding what to try: a server at a URL, a model of it that takes a row of ones, and its gRPC side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from penstock.client.access import Access, header
from penstock.errors import PenstockError
from penstock.serve.conformance.target import NUMPY, Answer, Failed, Nobody, Skipped, Target

# How long gRPC is looked for where nobody said that it is there.
_LOOK_S = 3.0
_NOBODY = Access()


def connect(
    url: str,
    model: str | None,
    timeout_s: float,
    grpc: str | None = None,
    *,
    reload: bool = False,
    headers: Iterable[str] = (),
    access: Access = _NOBODY,
) -> Target:
    """The target at a URL, with a model to try things on: the one that is named, else the first that fits.

    Args:
        url: where it speaks HTTP.
        model: the model's name.
        timeout_s: seconds for one answer.
        grpc: HOST:PORT of its gRPC; None looks at the port after HTTP's whether the same server is there.
        reload: whether the model may be unloaded for a moment.
        headers: `NAME: VALUE` of what goes with every request, over HTTP and gRPC.
        access: the API key that goes with them too, and whose certificate is trusted.

    Raises:
        PenstockError: nobody answers there, or no model of it takes numbers alone.
    """
    address = url if "://" in url else f"http://{url}"
    given = dict(header(text) for text in headers)
    target = Target(address, timeout_s, reload=reload, headers={**access.headers, **given}, access=access)
    _see_address(target)
    try:
        target.server = dict(target.ask("GET", "/v2").json)
        names = [model] if model else _names(target)
    except (Nobody, Skipped) as error:
        raise PenstockError(f"{target.url}: {error}") from None
    except (Failed, KeyError, TypeError, ValueError, AttributeError) as error:
        raise PenstockError(f"{target.url}: speaks no Open Inference Protocol: {error}") from None
    _see_model(target, names)
    _find_grpc(target, grpc)
    return target


def _see_address(target: Target) -> None:
    try:
        fits = target.parts.scheme in ("http", "https") and bool(target.parts.hostname) and target.parts.port != 0
    except ValueError:  # urlsplit reads a port only when it is asked for it
        fits = False
    if not fits:
        raise PenstockError(f"{target.url[:120]}: must be an address such as http://127.0.0.1:8000")


def _names(target: Target) -> list[str]:
    """The models of the repository's index; a server need not have one."""
    answer = target.ask("POST", "/v2/repository/index", {})
    if answer.status != 200:
        raise PenstockError(
            f"{target.url}: lists no models ({answer.status} for POST /v2/repository/index); "
            "name one with --model, as in --model resnet18"
        )
    return [str(row["name"]) for row in answer.json]


def _see_model(target: Target, names: list[str]) -> None:
    """Have the target on the first model that answers a row of ones.

    Raises:
        PenstockError: none does.
    """
    refused = None
    for name in names:
        try:
            if _fits(target, name):
                return
        except Skipped as error:  # another model may be for this key
            refused = error
    if refused is not None:
        raise PenstockError(f"{target.url}: {refused}")
    raise PenstockError(
        f"{target.url}: has no model that answers one row of ones; name one with --model, as in --model resnet18"
    )


def _fits(target: Target, name: str) -> bool:
    """Whether a model answers a row of ones; the target is then on it.

    Raises:
        Skipped: it is not for this client.
    """
    try:
        answer: Answer = target.ask("GET", f"/v2/models/{quote(name, safe='')}")
        if answer.status != 200 or not all(tensor["datatype"] in NUMPY for tensor in answer.json["inputs"]):
            return False
        target.name, target.metadata = name, answer.json
        return target.infer(target.request()).status == 200
    except (Failed, KeyError, TypeError, ValueError, AttributeError):  # it may be another model's turn
        return False


def _find_grpc(target: Target, address: str | None) -> None:
    from penstock.serve.conformance.calls import Calls

    secure = target.parts.scheme == "https"
    roots = (target.access.roots or b"") if secure else None
    if address is not None:
        calls = Calls(address, target.timeout_s, target.headers, roots)
        reply = calls.ask("ServerLive")
        if reply.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            raise PenstockError(f"--grpc {address}: nobody answers there: {reply.details[:200]}")
        target.calls = calls
        return
    port = (target.parts.port or (443 if secure else 80)) + 1
    host = target.parts.hostname or ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reply = Calls(address, _LOOK_S, target.headers, roots).ask("ServerMetadata")
    if reply.code == "OK" and _is_same(target.server, reply.message):
        target.calls = Calls(address, target.timeout_s, target.headers, roots)
    else:
        target.no_calls = f"no gRPC of this server at {address}; say where with --grpc HOST:PORT"


def _is_same(server: dict[str, Any], message: Any) -> bool:
    return (message.name, message.version) == (server.get("name"), server.get("version"))

"""The gate in front of gRPC: calls that it refuses end before their message is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from penstock.serve import calls, rights
from penstock.serve.gate import Gate, Refused

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets calls through that the gate admits."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        needed = rights.of_method(details.method)
        if needed is None:
            return await continuation(details)
        # A stream is no request yet; its messages are, each by itself: see `every_message`.
        streams = details.method.endswith(f"/{rights.STREAM}")
        refused = self._gate.refusal(_said(details.invocation_metadata), needed, counts=not streams)
        return await continuation(details) if refused is None else _refusing(refused)


def every_message(gate: Gate) -> Callable[[Any], None]:
    """What sees to it that a call may ask one thing more: with a stream's next message, or of one model's health.

    Raises:
        Refused: by what is given back: it may not, or no longer.
    """

    def admit(context: Any) -> None:
        refused = gate.refusal(_said(context.invocation_metadata()), (rights.INFER,))
        if refused is not None:
            raise refused

    return admit


def _said(metadata: Any) -> bytes | None:
    for name, value in metadata or ():
        if name == "authorization":
            return value if isinstance(value, bytes) else str(value).encode("latin-1", "replace")
    return None


async def end(refused: Refused, context: Any) -> None:
    """End a call that is refused."""
    # Clients that retry know when: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
    after = (("grpc-retry-pushback-ms", str(1000 * refused.wait_s)),) if refused.wait_s else ()
    await calls.abort(context, _CODES[refused.status], str(refused), after)


def _refusing(refused: Refused) -> Any:
    async def refuse(messages: Any, context: Any) -> None:
        await end(refused, context)

    # As a stream, of which nothing is read: for a call of one message gRPC would read that first.
    return grpc.stream_unary_rpc_method_handler(refuse)

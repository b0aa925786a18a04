"""The gRPC side of a server under test: calls by method, raw bytes where a message would put things right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from penstock import messages
from penstock.serve.conformance.target import NUMPY, Failed, Skipped, Target, has_key, refusal

# Where a tensor's numbers lie in its `contents`; FP16 has no place there.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{"INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"},
}
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True)
class Reply:
    """How a call ended: gRPC's code by name, its details, and the message, or those of a stream, that came."""

    code: str
    details: str
    message: Any = None


class Calls:
    """Calls to one address, each on a connection of its own: one that is broken harms no other.

    With `roots`, certificates in PEM that are trusted, over TLS; none of them, b"", stands for gRPC's own.
    """

    def __init__(
        self, address: str, timeout_s: float, headers: Mapping[str, str] | None = None, roots: bytes | None = None
    ) -> None:
        self.address, self.timeout_s, self._roots = address, timeout_s, roots
        self._headers = tuple((headers or {}).items())

    @staticmethod
    def message(kind: str, /, **fields: Any) -> Any:
        """A message of the protocol."""
        return messages.message(kind)(**fields)

    def ask(self, method: str, request: Any = None, timeout_s: float | None = None) -> Reply:
        """Call a method of the service with its message, an empty one if none is given."""
        request = messages.message(f"{method}Request")() if request is None else request
        reader = messages.message(f"{method}Response").FromString
        return self.send(f"/{messages.SERVICE}/{method}", request.SerializeToString(), reader, timeout_s)

    def send(
        self, path: str, data: bytes, reader: Callable[[bytes], Any] = bytes, timeout_s: float | None = None
    ) -> Reply:
        """Call any method with bytes as they are."""
        with closing(self.channel()) as channel:
            method = channel.unary_unary(path, _as_it_is, reader)
            try:
                return Reply("OK", "", method(data, timeout=timeout_s or self.timeout_s, metadata=self._headers))
            except grpc.RpcError as error:
                return self._ended(error)

    def stream(self, path: str, items: Iterable[bytes], reader: Callable[[bytes], Any] = bytes) -> Reply:
        """Send a stream and read the one that comes back to its end; what came before a failure is in the reply."""
        came: list[Any] = []
        with closing(self.channel()) as channel:
            method = channel.stream_stream(path, _as_it_is, reader)
            try:
                for message in method(iter(items), timeout=self.timeout_s, metadata=self._headers):
                    came.append(message)
            except grpc.RpcError as error:
                ended = self._ended(error)
                return Reply(ended.code, ended.details, came)
        return Reply("OK", "", came)

    def infer_stream(self, requests: Iterable[Any]) -> Reply:
        """Ask for inference in a stream; the reply's message is a list of ModelStreamInferResponse."""
        items = (request.SerializeToString() for request in requests)
        reader = messages.message(f"{messages.STREAM}Response").FromString
        return self.stream(f"/{messages.SERVICE}/{messages.STREAM}", items, reader)

    def cancel(self, requests: list[Any]) -> None:
        """Send requests for inference and take each back before its answer is there."""
        with closing(self.channel()) as channel:
            method = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer", _as_it_is, bytes)
            going = [
                method.future(request.SerializeToString(), timeout=self.timeout_s, metadata=self._headers)
                for request in requests
            ]
            for call in going:
                call.cancel()

    def _ended(self, error: Any) -> Reply:
        code, details = error.code().name, str(error.details() or "")
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            denied = code == "PERMISSION_DENIED" and has_key(dict(self._headers))
            raise Skipped(refusal(f"the server ends it in {code}", details[:300] if denied else None))
        return Reply(code, details)

    @staticmethod
    def outputs(response: Any) -> dict[str, Any]:
        """The outputs of a ModelInferResponse as arrays by name, raw or typed."""
        raw, found = list(response.raw_output_contents), {}
        if raw and len(raw) != len(response.outputs):
            raise Failed(f"{len(raw)} raw contents for {len(response.outputs)} outputs")
        for place, tensor in enumerate(response.outputs):
            if tensor.datatype not in CONTENTS and not (raw and tensor.datatype in NUMPY):
                raise Skipped(f"output {tensor.name} is {tensor.datatype}, which is not read here")
            dtype = NUMPY[tensor.datatype]
            held = raw[place] if raw else getattr(tensor.contents, CONTENTS[tensor.datatype])
            array = np.frombuffer(held, dtype) if raw else np.array(held, dtype)
            found[tensor.name] = array.reshape(list(tensor.shape))
        return found

    def channel(self) -> Any:
        if self._roots is None:
            return grpc.insecure_channel(self.address, _OPTIONS)
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(self._roots or None), _OPTIONS)

    def infer(self, t: Target, change: Callable[[Any], None] | None = None, timeout_s: float | None = None) -> Reply:
        """Ask for inference with the model's request, changed."""
        request = self.request(t)
        if change is not None:
            change(request)
        return self.ask("ModelInfer", request, timeout_s)

    def request(self, t: Target, typed: bool = False) -> Any:
        """A request that the model takes, its tensors raw, or typed."""
        request = self.message("ModelInferRequest", model_name=t.name)
        for name, kind, shape in t.inputs:
            entry = request.inputs.add(name=name, datatype=kind, shape=shape)
            array = t.array(kind, shape)
            if typed and kind not in CONTENTS:
                raise Skipped(f"input {name} is {kind}, which goes in raw contents alone")
            if typed:
                getattr(entry.contents, CONTENTS[kind]).extend(array.reshape(-1).tolist())
            else:
                request.raw_input_contents.append(array.tobytes())
        return request


def _as_it_is(data: bytes) -> bytes:
    return data

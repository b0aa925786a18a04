"""Infer requests read once: a client's requests for one model differ in their tensors' bytes alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from typing_extensions import Buffer

from penstock.serve import fields, protocol
from penstock.serve.protocol import InferRequest
from penstock.serve.sharedmemory import Regions
from penstock.serve.tensors import from_bytes
from penstock.signature import Signature

# JSON that is longer is read anew each time, and so many requests are remembered.
_LONGEST, _MOST = 2048, 256


@dataclass(frozen=True)
class Place:
    """Where an input's bytes stand behind the JSON, and what they are."""

    name: str
    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]


class Layouts:
    """The requests of one model so far, by their JSON, of which all tensors follow it."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[InferRequest, tuple[Place, ...]]] = {}

    def known(self, body: Buffer, header_length: str | None) -> InferRequest | None:
        """What `protocol.decode` makes of a request whose like has been seen; None of any other."""
        text, binary = _parts(body, header_length)
        held = self._held.get(text)
        if held is None or len(binary) != held[1][-1].end:
            return None
        request, places = held
        inputs = {at.name: from_bytes(at.name, binary[at.start : at.end], at.dtype, at.shape) for at in places}
        return InferRequest(inputs, request.outputs, request.id, request.timeout_s, request.priority)

    def decode(self, body: Buffer, header_length: str | None, signature: Signature, regions: Regions) -> InferRequest:
        """What `protocol.decode` makes of a request, sooner if its like has been seen."""
        return self.known(body, header_length) or self.read(body, header_length, signature, regions)

    def read(self, body: Buffer, header_length: str | None, signature: Signature, regions: Regions) -> InferRequest:
        """The same of one that is not known, which is from now on."""
        request, (text, _) = protocol.decode(body, header_length, signature, regions), _parts(body, header_length)
        if text:
            self._remember(text, request)
        return request

    def _remember(self, text: bytes, request: InferRequest) -> None:
        """Keep a request that was found right, if its JSON says all of it but the tensors' bytes."""
        entries = fields.parse_json(text, constants=True)["inputs"]
        sizes = [entry.get("parameters", {}).get("binary_data_size") for entry in entries]
        if None in sizes or any(wanted.part is not None for wanted in request.outputs.values()):
            return
        forms = [
            (name, protocol.dtype_of(name, entry["datatype"]))
            for name, entry in zip(request.inputs, entries, strict=True)
        ]
        ends = list(itertools.accumulate(sizes))
        places = tuple(
            Place(name, end - size, end, dtype, request.inputs[name].shape)
            for (name, dtype), size, end in zip(forms, sizes, ends, strict=True)
        )
        if len(self._held) >= _MOST:
            self._held.clear()
        self._held[text] = replace(request, inputs={}), places


def _parts(body: Buffer, header_length: str | None) -> tuple[bytes, memoryview]:
    """The JSON, if it is one to be remembered, and what follows it."""
    view = memoryview(body)
    length = protocol.json_length(header_length, len(view))
    if length is None or length > _LONGEST:
        return b"", view
    return bytes(view[:length]), view[length:]

"""What is sent to a server: rows as requests in V2 binary, V2 JSON or gRPC, pictures as uploads, JSON as it is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from penstock import messages
from penstock.bench.answers import Expected
from penstock.bench.target import Target
from penstock.errors import PenstockError
from penstock.signature import SERVED_DTYPES, V2_DTYPES, Arrays

BINARY, JSON, IMAGE, GRPC = "v2-binary", "v2-json", "image", "grpc"
PREDICT = "predict-json"
FORMS = (BINARY, JSON, IMAGE, GRPC)
_OCTETS, _TEXT = "application/octet-stream", "application/json"


@dataclass(frozen=True)
class Payload:
    """A request: its path and headers over HTTP and its body, or over gRPC its message as the body; and its rows."""

    form: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    rows: int

    def request(self, host: str, headers: Mapping[str, str], prefix: str = "") -> bytes:
        """It as it goes over the wire.

        Args:
            host: of the Host header.
            headers: what goes along besides.
            prefix: what stands before the server's routes.
        """
        if self.form == GRPC:
            return self.body
        fields = {"Host": host, **headers, **self.headers, "Content-Length": str(len(self.body))}
        lines = [f"POST {prefix}{self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1") + self.body


def of_arrays(target: Target, arrays: Arrays, form: str) -> Payload:
    """Inputs by name as a request of a form.

    Raises:
        PenstockError: an array is of a dtype that the protocol has no name for.
    """
    first = next(iter(arrays.values()))
    rows = len(first) if first.ndim else 1
    datatypes = {each.name: each.datatype for each in target.inputs}
    entries = [_entry(name, array, datatypes.get(name)) for name, array in arrays.items()]
    if form == GRPC:
        return Payload(GRPC, "", {}, _message(target, arrays, entries), rows)
    if form == JSON:
        for entry, (name, array) in zip(entries, arrays.items(), strict=True):
            entry["data"] = _listed(name, array, entry["datatype"])
        body = json.dumps({"inputs": entries}, separators=(",", ":")).encode()
        return Payload(JSON, target.infer_path, {"Content-Type": _TEXT}, body, rows)
    tails = [_bytes(array, entry["datatype"]) for entry, array in zip(entries, arrays.values(), strict=True)]
    for entry, tail in zip(entries, tails, strict=True):
        entry["parameters"] = {"binary_data_size": len(tail)}
    text = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    headers = {"Content-Type": _OCTETS, "Inference-Header-Content-Length": str(len(text))}
    return Payload(BINARY, target.infer_path, headers, b"".join([text, *tails]), rows)


def _entry(name: str, array: Any, declared: str | None) -> dict[str, Any]:
    datatype = declared if declared in ("BF16", "BYTES") else SERVED_DTYPES.get(array.dtype.name)
    if array.dtype.kind in "US":
        datatype = "BYTES"
    if datatype is None:
        raise PenstockError(f"array {name!r} is of {array.dtype}; it must be one of {', '.join(V2_DTYPES)}")
    return {"name": name, "shape": list(array.shape), "datatype": datatype}


def _bytes(array: Any, datatype: str) -> bytes:
    """Little-endian bytes; texts with the length of each before it, as the extension has them."""
    if datatype == "BYTES":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel()]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())


def _listed(name: str, array: Any, datatype: str) -> list[Any]:
    if datatype == "BF16":
        raise PenstockError(f"input {name!r} is BF16, which JSON has no numbers for; --form {BINARY} has")
    flat: list[Any] = array.ravel().tolist()
    return [text.decode() if isinstance(text, bytes) else text for text in flat]


def _message(target: Target, arrays: Arrays, entries: Sequence[Mapping[str, Any]]) -> bytes:
    request = messages.message("ModelInferRequest")(model_name=target.model)
    for entry, array in zip(entries, arrays.values(), strict=True):
        request.inputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        request.raw_input_contents.append(_bytes(array, entry["datatype"]))
    serialised: bytes = request.SerializeToString()
    return serialised


def of_pictures(target: Target, pictures: Sequence[tuple[str, bytes]]) -> Payload:
    """Files of pictures as an upload: one as the body, several as a form. The answer comes in binary, by `Accept`.

    In JSON an answer would say how long it took, and no two were alike.
    """
    path, accept = f"/predict/{quote(target.model, safe='')}", {"Accept": _OCTETS}
    if len(pictures) == 1:
        ((_, data),) = pictures
        return Payload(IMAGE, path, {**accept, "Content-Type": "image/*"}, data, 1)
    edge, parts = secrets.token_hex(16), list[bytes]()
    for number, (_, data) in enumerate(pictures):
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{number}"\r\n\r\n'
        parts += [head.encode(), data, b"\r\n"]
    body = b"".join([*parts, f"--{edge}--\r\n".encode()])
    return Payload(
        IMAGE, path, {**accept, "Content-Type": f"multipart/form-data; boundary={edge}"}, body, len(pictures)
    )


def of_json(target: Target, body: bytes, source: str) -> Payload:
    """A whole request in JSON: the protocol's where its inputs are a list, else one for /predict.

    Raises:
        PenstockError: it is no JSON object.
    """
    try:
        said = json.loads(body)
    except ValueError as error:
        raise PenstockError(f"--data {source}: is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise PenstockError(f"--data {source}: must be an object, a whole request")
    if not isinstance(said.get("inputs"), list):
        return Payload(PREDICT, f"/predict/{quote(target.model, safe='')}", {"Content-Type": _TEXT}, body, 1)
    shapes = [entry.get("shape") for entry in said["inputs"] if isinstance(entry, dict)]
    rows = int(shapes[0][0]) if shapes and shapes[0] else 1
    return Payload(JSON, target.infer_path, {"Content-Type": _TEXT}, body, rows)


def answer_of(outputs: Arrays, form: str) -> Expected:
    """Outputs as an answer to a request of that form has them, in binary."""
    entries = [_entry(name, array, None) for name, array in outputs.items()]
    tails = [_bytes(array, entry["datatype"]) for entry, array in zip(entries, outputs.values(), strict=True)]
    if form == GRPC:
        message = messages.message("ModelInferResponse")(raw_output_contents=tails)
        for entry in entries:
            message.outputs.add(**entry)
        return Expected(message.SerializeToString(), None, grpc=True)
    for entry, tail in zip(entries, tails, strict=True):
        entry["parameters"] = {"binary_data_size": len(tail)}
    text = json.dumps({"outputs": entries}).encode()
    return Expected(b"".join([text, *tails]), len(text))

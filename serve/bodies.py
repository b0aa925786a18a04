"""What a /predict request holds, by its content type, read and decoded into the model's inputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from penstock.preprocess import BadImage
from penstock.preprocessing import Preprocess
from penstock.serve import fields, inflating, predict, protocol, reader
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.predict import Bounds, Inputs, Picture
from penstock.serve.rooms import gathered
from penstock.serve.times import Times
from penstock.signature import Signature, served

_FIELDS = ("file", "files")


async def read_inputs(request: Request, model: Model, bounds: Bounds, times: Times) -> Inputs:
    """The inputs of a form of images, a raw image, JSON, CSV, or tensors in binary; the time of decoding is noted.

    A request's time is counted once it is whole, as infer requests' is: how long a client takes to send is not ours. It
    may be read again, for a version that took the model's place meanwhile.

    Raises:
        RequestError, BadImage, BadTable: naming the field, the value and the rule.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        if not hasattr(request.state, "pictures"):  # a form can be read once
            request.state.pictures = await _uploaded(request, bounds)
            times.started = time.perf_counter()
        reading = asyncio.to_thread(predict.image_inputs, model, request.state.pictures, bounds)
        return await _decoded(times, reading)
    header_length = request.headers.get(protocol.HEADER_LENGTH)
    aligned = protocol.json_length(header_length, bounds.max_body_bytes) or 0
    data, coding = await _body(request, bounds, aligned, times), request.headers.get("content-encoding", "identity")
    if coding != "identity":
        data = await inflating.inflated(data, coding, bounds.max_body_bytes, model.limits.timeout_s, aligned)
    if _of_long_json(data, header_length, kind):
        return await _decoded(times, _read_elsewhere(data, header_length, model, bounds))

    def decode() -> Inputs:
        if header_length is not None:
            return _binary(data, header_length, model)
        fields.refuse_gzip(data)
        if kind == "text/csv":
            return predict.csv_inputs(model, bytes(data))
        if _is_json(data, kind):
            return predict.json_inputs(model, data, bounds)
        try:
            return predict.image_inputs(model, [Picture(bytes(data))], bounds)
        except BadImage as error:
            # So curl -d sends a file, and without its line ends and zeros, which pictures have.
            if kind != "application/x-www-form-urlencoded" or set(bytes(data)) & set(b"\0\r\n"):
                raise
            raise BadImage(f"{error}; curl's -d alters a file: send it with --data-binary @FILE") from None

    return await _decoded(times, asyncio.to_thread(decode))


async def _body(request: Request, bounds: Bounds, aligned: int, times: Times) -> memoryview:
    """A request's body, which is received once; its arrays begin at `aligned`."""
    if not hasattr(request.state, "body"):
        request.state.body = await gathered(request.stream(), bounds.max_body_bytes, aligned)
        times.started = time.perf_counter()
    body: memoryview = request.state.body
    return body


def _is_json(data: memoryview, kind: str) -> bool:
    return kind == "application/json" or (not kind.startswith("image/") and bytes(data[:64]).lstrip()[:1] == b"{")


def _of_long_json(data: memoryview, header_length: str | None, kind: str) -> bool:
    """Whether a body has so many numbers that they are read in another process; images in base64 are long, but few."""
    if header_length is not None:
        return (protocol.json_length(header_length, len(data)) or 0) > reader.LONG
    return len(data) > reader.LONG and _is_json(data, kind) and b'"image' not in bytes(data[:256])


async def _read_elsewhere(data: memoryview, header_length: str | None, model: Model, bounds: Bounds) -> Inputs:
    preprocess = predict.of(model)
    told = {
        "header_length": header_length,
        "bounds": asdict(bounds),
        "name": model.name,
        "signature": model.signature.model_dump(mode="json"),
        "preprocess": None if preprocess is None else preprocess.model_dump_json(),
        "most_rows": model.scheduler.max_queue_rows,
    }
    _, inputs = await reader.READER.call("predict", data, told, timeout_s=model.limits.timeout_s)
    return inputs


@dataclass(frozen=True)
class _Told:
    """What is to be known of a model to read a request for it."""

    name: str
    signature: Signature
    receipt: Any
    scheduler: Any


def long_inputs(data: memoryview, told: dict[str, Any]) -> Inputs:
    """The inputs in long JSON, read in the process that does nothing else; `told` is what the server sent it.

    Raises:
        RequestError, BadTable: naming the field, the value and the rule.
    """
    preprocess = None if told["preprocess"] is None else _preprocess(told["preprocess"])
    receipt = SimpleNamespace(preprocess=preprocess)
    most_rows = SimpleNamespace(max_queue_rows=told["most_rows"])
    model: Any = _Told(told["name"], served(told["signature"]), receipt, most_rows)
    if told["header_length"] is not None:
        return _binary(data, told["header_length"], model)
    return predict.json_inputs(model, data, Bounds(**told["bounds"]))


@lru_cache(maxsize=8)
def _preprocess(text: str) -> Preprocess:
    """What a model's receipt records, which holds a whole tokenizer where it is of texts."""
    found: Preprocess = TypeAdapter(Preprocess).validate_json(text)
    return found


async def _decoded(times: Times, decoding: Awaitable[Inputs]) -> Inputs:
    """Decode beside the event loop: a picture takes milliseconds, which others on it should not wait for."""
    inputs = await decoding
    times.decode_s = time.perf_counter() - times.started
    return inputs


def _binary(data: memoryview, header_length: str, model: Model) -> Inputs:
    """Tensors as the Open Inference Protocol has them; what it lets a client ask for beside has its own route."""
    call = protocol.decode(data, header_length, model.signature)
    content = fields.parse_json(data[: int(header_length)], constants=True) if int(header_length) else {}
    for field in content:
        plain = field == "parameters" and not content[field].keys() - {"binary_data_output"}  # Accept says it here
        if field not in ("inputs", "id") and not plain:
            raise RequestError(f"field {field!r} is of POST /v2/models/{model.name}/infer; here 'inputs' stands alone")
    return call.inputs


async def _uploaded(request: Request, bounds: Bounds) -> list[Picture]:
    """The files of a form, in order."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(f"Content-Encoding is {encoding[:40]!r}; forms are taken uncompressed", 415)
    try:
        async with request.form(max_files=bounds.max_images, max_fields=8) as form:
            items = form.multi_items()
            files = [value for name, value in items if name in _FIELDS and isinstance(value, UploadFile)]
            if not files or len(files) < len(items):
                held = ", ".join(repr(name[:40]) for name in form)
                rule = "the form must hold a file in the field 'file', or several in it, and nothing else"
                none = "no field of it is whole: it is empty, or cut before its last boundary"
                raise RequestError(f"{rule}; {f'its fields are {held}' if held else none}")
            several = len(files) > 1
            return [
                Picture(await file.read(), f"files[{index}] {(file.filename or '')[-80:]!r}" if several else "")
                for index, file in enumerate(files)
            ]
    except UnicodeError as error:  # of charsets that only Python knows, such as punycode
        raise RequestError(f"the form's names are not in the charset of its Content-Type: {error}") from None
    except HTTPException as error:
        if error.detail.startswith("Too many files"):
            raise predict.too_many_images("the form", bounds.max_images) from None
        if error.detail.startswith("Missing boundary"):
            why = "Content-Type is multipart/form-data without a boundary; leave that header to what makes the form"
            raise RequestError(f"{why}, as curl -F and HTTP libraries do") from None
        raise

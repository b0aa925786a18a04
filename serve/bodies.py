"""What a /predict request holds, by its content type, read and decoded into the model's inputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from penstock.serve import compression, predict, protocol
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.predict import Bounds, Inputs, Picture
from penstock.serve.times import Times

_FIELDS = ("file", "files")


async def read_inputs(request: Request, model: Model, bounds: Bounds, times: Times) -> Inputs:
    """The inputs of a form of images, a raw image, JSON, CSV, or tensors in binary; the time of decoding is noted.

    A request may be read again, for a version that took the model's place meanwhile.

    Raises:
        RequestError, BadImage, BadTable: naming the field, the value and the rule.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        if not hasattr(request.state, "pictures"):  # a form can be read once
            request.state.pictures = await _uploaded(request, bounds)
        pictures = request.state.pictures
        return await _decoded(times, lambda: predict.image_inputs(model, pictures, bounds.max_pixels))
    body, coding = await request.body(), request.headers.get("content-encoding", "identity")
    header_length = request.headers.get(protocol.HEADER_LENGTH)

    def decode() -> Inputs:
        data = compression.inflate(body, coding, bounds.max_body_bytes)
        if header_length is not None:
            return _binary(data, header_length, model)
        if kind == "text/csv":
            return predict.csv_inputs(model, data)
        if kind == "application/json" or (not kind.startswith("image/") and data[:64].lstrip()[:1] == b"{"):
            return predict.json_inputs(model, data, bounds)
        return predict.image_inputs(model, [Picture(data)], bounds.max_pixels)

    return await _decoded(times, decode)


async def _decoded(times: Times, decode: Callable[[], Inputs]) -> Inputs:
    """Decode in a thread: a picture takes milliseconds, which others on this event loop should not wait for."""
    started = time.perf_counter()
    inputs = await asyncio.to_thread(decode)
    times.decode_s = time.perf_counter() - started
    return inputs


def _binary(data: bytes, header_length: str, model: Model) -> Inputs:
    """Tensors as the Open Inference Protocol has them; what it lets a client ask for beside has its own route."""
    call = protocol.decode(data, header_length, model.signature)
    content = protocol.parse_json(data[: int(header_length)], constants=True) if int(header_length) else {}
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
                held = ", ".join(repr(name[:40]) for name in form) or "none"
                rule = "the form must hold a file in the field 'file', or several in it, and nothing else"
                raise RequestError(f"{rule}; its fields are {held}")
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
        raise

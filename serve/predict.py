"""The human road in: images, text, table rows or tensors as a model's inputs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import sheets
from penstock.preprocess import MAX_PIXELS, BadImage, ImagePreprocess, TooManyPixels
from penstock.preprocessing import Preprocess
from penstock.serve import recorded, rows
from penstock.serve.errors import RequestError
from penstock.serve.fields import parse_json
from penstock.serve.model import Model
from penstock.serve.tensors import from_json
from penstock.signature import Tensor
from penstock.tabular import TablePreprocess
from penstock.textual import TextPreprocess

Inputs = dict[str, NDArray[np.generic]]
FORMS = ("inputs", "image", "images", "text", "texts", "row", "rows")
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):")
_DATA_URL = re.compile(r"\s*data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True)
class Bounds:
    """What a request may bring: so many bytes of body, pixels of a decoded image, images; and whether shared memory.

    With `scaled_decoding` large JPEGs are decoded smaller, as `ImagePreprocess.read` has it.
    """

    max_body_bytes: int = 64 * 2**20
    max_pixels: int = MAX_PIXELS
    max_images: int = 64
    shared_memory: bool = False
    scaled_decoding: bool = False


@dataclass(frozen=True)
class Picture:
    """An image file's bytes, and where they stand in the request, `images[3]`; empty where there is but one."""

    data: bytes
    where: str = ""


def of(model: Model) -> Preprocess | None:
    """How pictures, texts or table rows become a model's inputs, where its receipt records that."""
    return model.receipt.preprocess if model.receipt else None


def image_inputs(model: Model, pictures: Sequence[Picture], bounds: Bounds) -> Inputs:
    """Decode images, and preprocess them as the model was trained: one row each, in order.

    Raises:
        RequestError: the model takes no images; BadImage: one is none, with where it stands.
    """
    preprocess = of(model)
    if not isinstance(preprocess, ImagePreprocess):
        raise _not_taken(model, "records no image preprocessing")
    found = []
    for picture in pictures:
        try:
            found.append(preprocess.read(picture.data, bounds.max_pixels, bounds.scaled_decoding))
        except BadImage as error:
            option = " (--max-pixels)" if isinstance(error, TooManyPixels) else ""
            raise BadImage(f"{picture.where}{': ' * bool(picture.where)}{error}{option}") from None
    return {preprocess.input: found[0] if len(found) == 1 else np.concatenate(found)}


def takes_text(model: Model) -> Tensor | None:
    """The input that text is given to as it is: a model's only one, if it holds strings."""
    inputs = model.signature.inputs
    strings = len(inputs) == 1 and inputs[0].dtype == "object"
    flat = all(size == 1 for size in inputs[0].shape[1:])
    return inputs[0] if strings and flat else None


def text_inputs(model: Model, texts: Sequence[str]) -> Inputs:
    """Texts for a model that takes them as they are, or records how they become numbers: one row each.

    Raises:
        RequestError: it takes numbers, and says with nothing how texts become such.
    """
    held = of(model)
    if isinstance(held, TextPreprocess):
        return recorded.text_inputs(held, texts, model.scheduler.max_queue_rows)
    tensor = takes_text(model)
    if tensor is None:
        raise _not_taken(model, "takes no text: it records no tokenizer")
    array = from_json("texts", list(texts), tensor.dtype)
    return {tensor.name: array.reshape(len(texts), *[1] * (len(tensor.shape) - 1))}


def row_inputs(model: Model, listed: Sequence[Any]) -> Inputs:
    """Table rows, as lists of values or as objects of columns.

    Raises:
        RequestError: the model takes no rows, or a row is none of its.
    """
    held = of(model)
    if isinstance(held, TablePreprocess):
        return recorded.row_inputs(held, listed, model.scheduler.max_queue_rows)
    return rows.from_rows(_columns(model), listed, model.scheduler.max_queue_rows)


def csv_inputs(model: Model, data: bytes) -> Inputs:
    """The rows of a CSV file, or its texts, for a model that takes those.

    Raises:
        RequestError, BadTable: the model takes neither, or the file holds none of its.
    """
    held, most = of(model), model.scheduler.max_queue_rows
    if isinstance(held, TablePreprocess):
        return recorded.csv_rows(held, data, most)
    if isinstance(held, TextPreprocess):
        assert model.receipt is not None
        return recorded.csv_texts(held, data, sheets.text_columns(model.receipt.dataset), most)
    return rows.from_csv(_columns(model), data, model.scheduler.max_queue_rows)


def _columns(model: Model) -> rows.Columns:
    held = rows.columns(model.signature)
    if held is None or isinstance(of(model), TextPreprocess):
        raise _not_taken(model, "takes no table rows")
    return held


def json_inputs(model: Model, body: bytes | memoryview, bounds: Bounds = Bounds()) -> Inputs:
    """Inputs from a JSON object that holds one of `FORMS`.

    `inputs` are tensors, `{name: rows, …}`, or bare rows for a model with one input. The others are what their names
    say, several in the plural; images are in base64, as such or as a data: URL.

    Raises:
        RequestError, BadImage: naming the field, the value and the rule.
    """
    content = parse_json(body)
    given = [name for name in FORMS if name in content] if isinstance(content, dict) else []
    if not given:
        raise RequestError(
            f"the request must be a JSON object with 'inputs', or with one of {', '.join(FORMS[1:])}: {example(model)}"
        )
    if len(content) > 1:
        other = next(name for name in content if name != given[0])
        what = "too, and they exclude each other" if other in FORMS else "is unknown"
        raise RequestError(f"field {other[:40]!r} {what}; the request holds {given[0]!r} alone")
    (field,), value = given, content[given[0]]
    if field == "inputs":
        return _tensors(model, value)
    if field in ("row", "rows"):
        return row_inputs(model, [value] if field == "row" else _list(field, value))
    texts = _texts(field, value)
    if field in ("text", "texts"):
        return text_inputs(model, texts)
    if len(texts) > bounds.max_images:
        raise too_many_images("'images'", bounds.max_images)
    places = [field] if field == "image" else [f"images[{index}]" for index in range(len(texts))]
    pictures = [Picture(_image(text, place), place) for text, place in zip(texts, places, strict=True)]
    return image_inputs(model, pictures, bounds)


def too_many_images(what: str, most: int) -> RequestError:
    return RequestError(f"{what} holds more than {most} images (--max-images); send the rest in another request")


def _tensors(model: Model, given: Any) -> Inputs:
    tensors = model.signature.inputs
    if not isinstance(given, dict):
        if len(tensors) != 1:
            names = ", ".join(tensor.name for tensor in tensors)
            raise RequestError(f"'inputs' must be an object with one entry for each of {names}")
        given = {tensors[0].name: given}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    for name in given:
        if name not in dtypes:
            raise RequestError(f"input {name[:128]!r} is unknown; the model's inputs are {', '.join(dtypes)}")
    return {name: from_json(f"inputs.{name}", rows, dtypes[name]) for name, rows in given.items()}


def _list(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field!r} must be a list of at least one; {field[:-1]!r} holds a single one")
    return value


def _texts(field: str, value: Any) -> list[str]:
    """The strings in a field: one, or in the plural a list of them."""
    several = field.endswith("s")
    listed = _list(field, value) if several else [value]
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise RequestError(f"{field}{f'[{index}]' * several} is {str(text)[:40]!r}; it must be a string")
    return listed


def _image(text: str, where: str) -> bytes:
    """The bytes of an image in base64, or in a data: URL."""
    head = _DATA_URL.match(text)
    scheme = _SCHEME.match(text)
    if head is None and scheme is not None:
        rule = "a data: URL must hold base64" if scheme[1].lower() == "data" else "the server fetches nothing"
        raise RequestError(
            f"{where} is the URL {text.strip()[:40]!r}, and {rule}; send the image's bytes in base64, or the file"
        )
    bare = (text if head is None else text[head.end() :]).translate(_NO_SPACE)
    try:
        return base64.b64decode(bare, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{where} is {text[:20]!r}…, which is no base64: {error}") from None


# `base64 FILE` breaks its lines.
_NO_SPACE = dict.fromkeys(map(ord, " \t\r\n"))


def _not_taken(model: Model, why: str) -> RequestError:
    held = of(model)
    if held is None:
        return RequestError(f"model {model.name!r} {why}; send its tensors as JSON: {example(model)}", 415)
    if isinstance(held, TextPreprocess):
        how = 'it takes texts: send {"text": …} or {"texts": […]} as JSON, or a CSV file'
    elif isinstance(held, TablePreprocess):
        how = f'it takes table rows: send {{"row": {{"{held.names[0]}": …}}}} or {{"rows": […]}} as JSON, or a CSV file'
    else:
        how = 'it takes pictures: send the file of one, or JSON with one in base64: {"image": …}'
    return RequestError(f"model {model.name!r} {why}; {how}", 415)


def example(model: Model) -> str:
    """A request of tensors, in words."""
    first = model.signature.inputs[0]
    return f'{{"inputs": {{"{first.name}": …}}}}, shape [{", ".join(map(str, first.shape))}]'

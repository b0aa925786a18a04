"""JSON that clients send: parsed strictly, its fields held to their kinds and ranges, and refused by name and value."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import orjson

from penstock.serve.errors import RequestError


def parse_json(text: bytes | memoryview, *, constants: bool = False) -> Any:
    """JSON text as Python objects; with `constants` also NaN and Infinity, which Python's clients write.

    Raises:
        RequestError: it is none.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    raw = bytes(text)
    refuse_gzip(raw)
    if constants and (b"NaN" in raw or b"Infinity" in raw):
        with suppress(ValueError, RecursionError, TypeError):
            found = json.loads(raw.decode(), parse_float=_finite, parse_int=_whole_or_float)
            orjson.dumps(found)  # half a surrogate pair is no text
            return found
    raise RequestError(f"the request is not valid JSON: {reason}")


def refuse_gzip(body: bytes | memoryview) -> None:
    """See that a body is not gzip (RFC 1952, section 2.3.1) where no Content-Encoding has said that it is.

    Raises:
        RequestError: it is.
    """
    if bytes(body[:2]) == b"\x1f\x8b":
        raise RequestError("the body is gzip; send it with Content-Encoding: gzip")


def _whole_or_float(text: str) -> int | float:
    """Whole numbers beyond 64 bits as orjson has them."""
    value = int(text) if len(text) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def known(held: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    """See that an object has no fields but these.

    Raises:
        RequestError: as each of these, naming the field, its value and the rule.
    """
    for key in held:
        if key not in fields:
            raise RequestError(f"field {key[:40]!r} of {where} is unknown; it must be one of {', '.join(fields)}")


def whole(value: Any, field: str, least: int, most: int, of: str = "") -> int:
    """A whole number of a range, both ends included; `of` names its unit."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        unit = f" of {of}" if of else ""
        raise RequestError(f"{field} is {shown(value)}; it must be a whole number{unit} from {least} to {most}")
    return value


def flag(value: Any, field: str) -> bool:
    """True or false, and nothing that stands for them."""
    if not isinstance(value, bool):
        raise RequestError(f"{field} is {shown(value)}; it must be true or false")
    return value


def an_object(value: Any, field: str) -> dict[str, Any]:
    """An object, by its keys."""
    if not isinstance(value, dict):
        raise RequestError(f"{field} is {kind_of(value)}; it must be an object")
    return value


def kind_of(value: Any) -> str:
    """What JSON calls such a value."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a truth value",
        type(None): "missing or null",
    }
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """A value as it is quoted in a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"

"""TOML: read by the standard library's parser, and written, which that does not do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import PenstockError

if sys.version_info >= (3, 11):
    import tomllib
    from tomllib import TOMLDecodeError
else:
    import tomli as tomllib
    from tomli import TOMLDecodeError

__all__ = ["TOMLDecodeError", "dumps", "loads"]
_BARE = re.compile(r"[A-Za-z0-9_-]+")
# Parts of a dotted name: the parser takes a time that grows with their square.
_MOST_PARTS = 64
_QUOTED, _BETWEEN_DOTS = re.compile(r""""[^"\n]*"|'[^'\n]*'"""), re.compile(r"[^.=,\[\]{}\n]+")


def loads(text: str) -> dict[str, Any]:
    """The content of TOML text.

    Raises:
        TOMLDecodeError: it is none, or a name in it has more than 64 parts.
    """
    if "." * _MOST_PARTS in _BETWEEN_DOTS.sub("", _QUOTED.sub("", text)):
        raise TOMLDecodeError(f"a name has more than {_MOST_PARTS} parts")
    found: dict[str, Any] = tomllib.loads(text)
    return found


def dumps(content: Mapping[str, Any]) -> str:
    """Plain data as TOML: a table for each dictionary, in the order they come, after the values beside them.

    TOML has no null: what is None is told in a comment, so that a reader sees that the field is there.

    Raises:
        PenstockError: a value is none of str, bool, int, float, list, tuple and dict, nor a None beside other fields.
    """
    return "\n".join(_table(content, ())).strip() + "\n"


def _table(content: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        yield ""
        yield f"[{'.'.join(map(_key, path))}]"
    tables = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    for key, value in content.items():
        if key not in tables:
            yield f"# {_key(key)} is not set" if value is None else f"{_key(key)} = {_value(value)}"
    for key, table in tables.items():
        yield from _table(table, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())} }}"
    raise PenstockError(f"{value!r:.60} is a {type(value).__name__}, which TOML cannot hold")


def _text(text: str) -> str:
    # JSON's strings are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Recipes and receipts, from the models that read them: fields, kinds, defaults and rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.writers.markdown import WRITTEN, code, table
from penstock.receipt import Receipt
from penstock.train.recipe import Recipe

_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", datetime: "time", Any: "anything"}
_BOUNDS = {"ge": "at least", "gt": "over", "le": "at most", "lt": "under"}


def recipes() -> str:
    """What a recipe may say."""
    return _page(
        "Recipes",
        Recipe,
        "A recipe says what `penstock train` trains, on what, and how: a file in TOML, JSON, YAML, INI or Python, or "
        "one that is shipped (`penstock train --list`). `--set NAME=VALUE` sets a field by its dotted name: `--set "
        "optim.lr=3e-4`; `--show` prints the whole recipe, with all defaults. A field that is not below is refused, "
        "with the nearest that is; rules between fields are told by [the errors of recipes](sentences.md#recipes). "
        "[Training](../training.md) says how they work together.",
    )


def receipts() -> str:
    """What a receipt says."""
    return _page(
        "Receipts",
        Receipt,
        "`penstock.json` in an artifact: where it came from, what it promises, what was measured, where it may run. "
        "`penstock inspect` shows it. It is written by `penstock export`, `build` and `verify`, and read by "
        "everything else; a server holds the files beside it to its digests.",
    )


def _page(title: str, model: type[BaseModel], lead: str) -> str:
    parts = [f"# {title}\n", WRITTEN, f"{lead}\n"]
    found = list(_reached(model))
    paths = {each: path for path, each in found}
    for path, each in found:
        if path:
            parts.append(f"## {path} {{#{_anchor(path)}}}\n")
        if each.__doc__ and each.__doc__ != BaseModel.__doc__:
            parts.append(_told(each.__doc__))
        rows = (_row(name, field, paths) for name, field in each.model_fields.items() if not field.exclude)
        parts.append(table(("field", "takes", "default", "rule"), rows))
    return "\n".join(parts)


def _reached(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """A model and those in its fields, each by where it was met first."""
    waiting, met = [("", model)], {model}
    while waiting:
        path, each = waiting.pop(0)
        yield path, each
        found = []
        for name, field in each.model_fields.items():
            inner = list(_models(field.annotation))
            for one in inner:
                if one not in met:
                    met.add(one)
                    found.append((_path(path, name, one, len(inner) > 1), one))
        waiting[:0] = found


def _path(above: str, name: str, model: type[BaseModel], several: bool) -> str:
    path = f"{above.partition(' ')[0]}.{name}" if above else name
    kind = next((word for key in ("name", "kind") if (word := _only(model, key))), "")
    return f"{path} ({kind})" if several and kind else path


def _only(model: type[BaseModel], key: str) -> str:
    """The one text that a field of a model may hold, which tells the model among others."""
    field = model.model_fields.get(key)
    allowed = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    return str(allowed[0]) if len(allowed) == 1 else ""


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from _models(inner)


def _anchor(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def _told(docstring: str) -> str:
    """A docstring's paragraphs; what it says of arguments as a list."""
    shown = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if paragraph.startswith("Args:"):
            entries = re.split(r"\n {4}(?=\S)", paragraph.removeprefix("Args:"))[1:]
            told = (entry.partition(":") for entry in entries)
            shown.append("".join(f"- {code(name)}: {' '.join(text.split())}\n" for name, _, text in told))
        else:
            shown.append(" ".join(paragraph.split()) + "\n")
    return "\n".join(shown)


def _row(name: str, field: FieldInfo, paths: dict[type[BaseModel], str]) -> tuple[str, str, str, str]:
    sections = dict.fromkeys(paths[one] for one in _models(field.annotation))
    links = ", ".join(f"[{each}](#{_anchor(each)})" for each in sections)
    takes = ": ".join(part for part in (_kind(field.annotation), links) if part)
    return code(field.alias or name), takes, _default(field), _rule(field)


def _kind(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is NoneType:
        return "none"
    if origin is Literal:
        return ", ".join(code(str(each).lower() if isinstance(each, bool) else each) for each in inner)
    if origin in (Union, UnionType):
        parts = [_kind(part) for part in inner if part is not NoneType]
        return " or ".join(part for part in dict.fromkeys(parts) if part)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return f"a list of {_kind(inner[0]) or 'sections'}"
        return ", ".join(map(_kind, inner))
    if origin is list:
        return f"a list of {_kind(inner[0]) or 'sections'}"
    if origin is dict:
        return f"a table of {_kind(inner[1]) or 'sections'} by name"
    if origin is not None:  # Annotated
        return _kind(inner[0])
    return _WORDS.get(kind, "" if inspect.isclass(kind) and issubclass(kind, BaseModel) else str(kind))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default_factory is None else PydanticUndefined
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple | list):
        return code(f"[{', '.join(map(str, value))}]")
    return code(value if value != "" else '""')


def _rule(field: FieldInfo) -> str:
    told: list[str] = []
    for rule in field.metadata:
        bounds = ((words, getattr(rule, key, None)) for key, words in _BOUNDS.items())
        told.extend(f"{words} {_number(bound)}" for words, bound in bounds if bound is not None)
        if pattern := getattr(rule, "pattern", None):
            told.append(f"as {code(pattern)}")
    return ", ".join(told)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"

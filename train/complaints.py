"""Complaints: what is wrong with a recipe, in one sentence that names the field, its value, the rule and a way out."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from penstock.fields import Place, first_message, rule, sections, where

# What to write for a value that only the user knows, in the command that the sentence ends with.
_EXAMPLES = {
    ("image-folder", "path"): "photos/",
    ("csv-text", "train"): "train.csv",
    ("csv-table", "train"): "table.csv",
    ("csv-table", "target"): "COLUMN",
    ("numpy", "path"): "arrays.npz",
    ("recordio", "path"): "train.rec",
}
# Sections that every recipe must have, with what they cannot do without.
_SECTIONS = {
    "dataset": '{name="digits"}',
    "model": '{target="penstock.train.nets:ResidualNet"}',
    "optim": "{lr=1e-3}",
    "batch": "{min=1,opt=8,max=32}",
}
_NO_LIST = ("tuple_type", "list_type")
_NO_SECTION = ("model_type", "model_attributes_type", "dict_type")


class Complaint(NamedTuple):
    """The path of the field that is to blame, and the sentence."""

    path: tuple[str | int, ...]
    text: str


def complaint(error: ValidationError, model: type[BaseModel], content: dict[str, Any], command: str) -> Complaint:
    """The first thing that is wrong; of missing values all, since one command gives them.

    Args:
        error: what pydantic says of `content`.
        model: of which it is no valid data.
        content: the data.
        command: the one to add `--set` to, `penstock train image-folder`.
    """
    found = error.errors()
    at = [where(each, model) for each in found]
    first, kind = at[0], found[0]["type"]
    unknown = [place for place, each in zip(at, found, strict=True) if each["type"] == "extra_forbidden"]
    if kind == "extra_forbidden":
        return Complaint(first.path, _unknown(first, model))
    if kind == "missing" and isinstance(first.path[-1], int):
        held = Place(first.path[:-1], None)
        return Complaint(held.path, f"{held} is {_held(content, held)!r:.60}; it must have {first.path[-1] + 1} values")
    if kind == "missing":
        beside = next((place for place in unknown if place.path[:-1] == first.path[:-1]), None)
        if beside is not None:
            return Complaint(beside.path, f"{first} is missing, and {_unknown(beside, model)}")
        missing = [place for place, each in zip(at, found, strict=True) if each["type"] == "missing"]
        return Complaint(first.path, _missing(missing, content, command))
    value = found[0]["input"]
    if kind in ("too_long", "too_short"):
        told = found[0]["ctx"]
        count = told.get("max_length", told.get("min_length"))
        return Complaint(first.path, f"{first} is {value!r:.60}; it must have {count} values")
    if kind == "union_tag_invalid":
        told = found[0]["ctx"]
        near = nearest(str(told["tag"]), re.findall(r"'([^']+)'", told["expected_tags"]))
        return Complaint(first.path, f"{first_message(error, model)}{f'; did you mean {near}?' if near else ''}")
    if kind in _NO_SECTION:
        return Complaint(first.path, _no_section(first, model, value))
    if kind in _NO_LIST:
        return Complaint(
            first.path,
            f"{first} is {value!r:.60}; it must be a list, as in {first}=[{json.dumps(value, default=str):.60}]",
        )
    if kind == "string_type" and isinstance(value, int | float):
        return Complaint(first.path, f'{first} is {value!r:.60}, a number; it must be text: in quotes, "{value!r:.60}"')
    rules = [rule(each) for place, each in zip(at, found, strict=True) if place.path == first.path]
    if None in rules:
        return Complaint(first.path, first_message(error, model))
    return Complaint(
        first.path, f"{first} is {value!r:.60}; it must be {' or '.join(map(str, rules))}{_next(found[0])}"
    )


def _held(content: Any, place: Place) -> Any:
    for step in place.path:
        content = content[step]
    return content


def _next(complaint: Mapping[str, Any]) -> str:
    """The known value that was probably meant, of those that there are."""
    if complaint["type"] != "literal_error" or not isinstance(complaint["input"], str):
        return ""
    near = nearest(complaint["input"], re.findall(r"'([^']+)'", complaint["ctx"]["expected"]))
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant: of the same initials (learning_rate, lr), or of about its letters."""
    words = name.lower().replace("-", "_")
    initials = _initials(words)
    if len(initials) > 1 and initials in known:
        return initials
    turned = next((each for each in known if sorted(each) == sorted(words)), None)  # rl, too short to be close to lr
    return turned or next(iter(difflib.get_close_matches(words, known, n=1)), None)


def _unknown(place: Place, model: type[BaseModel]) -> str:
    *outer, last = map(str, place.path)
    known = _names(place.section or model)
    meant = nearest(last, known)
    if meant is None and not outer:
        meant = _in_a_section(last, model)
    hint = f"; did you mean {meant}?" if meant else _elsewhere(outer, last, model)
    return f"{place} is unknown{hint or ';'} {'.'.join(outer) or 'a recipe'} has: {', '.join(known)}"


def unknown(error: ValidationError, model: type[BaseModel], path: tuple[str, ...]) -> str | None:
    """The sentence on a field that the model has not, if that is what is wrong at this path, or on the way there."""
    for each in error.errors():
        place = where(each, model)
        if each["type"] == "extra_forbidden" and place.path == path[: len(place.path)]:
            return _unknown(place, model)
    return None


def _names(model: type[BaseModel]) -> list[str]:
    """A section's fields, without the older names of others."""
    return [name for name, field in model.model_fields.items() if not field.exclude]


def _elsewhere(outer: Sequence[str], name: str, model: type[BaseModel]) -> str:
    """Where a field is that was looked for in another section: in the recipe itself, or in one other section."""
    if not outer:
        return ""
    if name in model.model_fields and name not in sections(model):
        return f"; {name} is a field of the recipe itself: --set {name}=…;"
    homes = [section for section, kind in sections(model).items() if name in kind.model_fields]
    return f"; did you mean {homes[0]}.{name}?" if len(homes) == 1 else ""


def _in_a_section(name: str, model: type[BaseModel]) -> str | None:
    """`lr`, or `learning_rate`, -> `optim.lr`, where one section alone has such a field."""
    homes = [
        f"{section}.{field}"
        for section, kind in sections(model).items()
        for field in kind.model_fields
        if field in (name, _initials(name))
    ]
    return homes[0] if len(homes) == 1 else None


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def _missing(missing: Sequence[Place], content: dict[str, Any], command: str) -> str:
    names = [str(place) for place in missing]
    dataset = content.get("dataset")
    data = dataset.get("name") if isinstance(dataset, dict) else None
    told = " ".join(_given(place, str(data)) for place in missing)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    is_or_are, it = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{listed} {is_or_are} missing; give {it}, as in {command} {told}"


def _given(place: Place, data: str) -> str:
    """The option that gives what is missing, by example; a section with the fields that it must have."""
    section = _SECTIONS.get(str(place))
    if section is not None:
        return f"--set {quote(f'{place}={section}')}"
    last = str(place.path[-1])
    return f"--set {place}={_EXAMPLES.get((data, last), last.upper())}"


def _no_section(place: Place, model: type[BaseModel], value: Any) -> str:
    kind = sections(model).get(str(place))
    field = f"{place}.{next(iter(kind.model_fields))}" if kind else f"{place}.name"
    has = f", which has: {', '.join(_names(kind))}" if kind else ""
    whole = f"{_given(place, '')}, or " if str(place) in _SECTIONS else ""
    return (
        f"{place} is {value!r:.60}; it must be a section, [{place}]{has}; give {whole}one field, as in --set {field}=…"
    )

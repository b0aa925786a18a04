"""Fields: where in a model's data one of pydantic's complaints is, without the names of unions' branches in the way.

And a base for models of what people write: to Python, and so to pydantic, true is 1.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, model_validator
from pydantic.fields import FieldInfo

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("under", "lt"),
}
# How pydantic's names of errors begin, in the order in which they are looked for.
_KINDS = {
    "finite_number": "a finite number",
    "int_": "a whole number",
    "float_": "a number",
    "bool_": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
}


class NoTruths(BaseModel):
    """A model whose fields of numbers take neither true nor false nor text, and whose fields of truths no numbers."""

    @model_validator(mode="before")
    @classmethod
    def _others_as_words(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        numbers, truths = _numbers(cls), _truths(cls)
        read = {**dict.fromkeys(numbers, _no_number), **dict.fromkeys(truths, _no_truth)}
        return {name: read[name](held) if name in read else held for name, held in given.items()}


class _Word:
    """What pydantic takes for neither a number nor a truth, and an error shows as it was written."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def __repr__(self) -> str:
        return repr(self._given)


@cache
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """The fields that are of numbers and of no truths."""
    kinds = {name: set(_types(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, held in kinds.items() if held & {int, float} and not held & {bool, Any})


@cache
def _truths(model: type[BaseModel]) -> frozenset[str]:
    """The fields that are true or false, or else no number by itself."""
    kinds = {name: set(_branches(field.annotation) or [field.annotation]) for name, field in model.model_fields.items()}
    return frozenset(name for name, held in kinds.items() if bool in held and not held & {int, float})


def _no_number(given: Any) -> Any:
    """As a word, which is no number, where it is a truth or text that reads as a number, also in a list."""
    if isinstance(given, list | tuple):
        return type(given)(map(_no_number, given))
    if isinstance(given, bool):
        return json.dumps(given)
    return _Word(given) if isinstance(given, str) and _reads_as_number(given) else given


def _no_truth(given: Any) -> Any:
    """As a word, which is no truth, where it is a number, or text that reads as one; a list is of numbers."""
    if isinstance(given, list | tuple):
        return _no_number(given)
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return _Word(given) if number or (isinstance(given, str) and _reads_as_number(given)) else given


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _types(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    inner = get_args(annotation)
    if not inner or get_origin(annotation) is Literal:
        yield annotation
    for each in inner:
        yield from _types(each)


class Place(NamedTuple):
    """Keys and indices from the outermost model inwards, and the model that has, or has not, the last one as a field.

    `section` is None where the last step is into a list or a free dictionary.
    """

    path: tuple[str | int, ...]
    section: type[BaseModel] | None

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def place(model: type[BaseModel], loc: Sequence[str | int]) -> Place:
    """Where `loc`, as pydantic's error about data for `model` has it, is in that data.

    pydantic puts the name of a union's branch between two steps (`preprocess`, `image`, `mean`, 0), which is no key of
    the data: only the model's own annotations tell the one from the other.
    """
    path: list[str | int] = []
    section: type[BaseModel] | None = None
    kind, tag = _bare(model, None)
    for step in loc:
        if _is_union(kind):
            kind, tag = _bare(_branch(kind, tag, step), None)
            continue
        path.append(step)
        section = kind if _is_model(kind) else None
        kind, tag = _within(kind, step)
    return Place(tuple(path), section)


def first_message(error: Exception, model: type[BaseModel] | None = None) -> str:
    """The first complaint of a pydantic error, without pydantic's own frame around it.

    Args:
        error: pydantic's, or any other, of which it is all that is said.
        model: whose data is complained about; with it the names of unions' branches are not in the path.
    """
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    found = errors()
    path, kind = _path(found[0], model), found[0]["type"]
    if kind == "union_tag_invalid":
        told = found[0]["ctx"]
        return f"{path}: {told['tag']!r:.60}: must be one of {told['expected_tags']}"
    if kind == "union_tag_not_found":
        return f"{path}: Field required"
    # A plain union complains once for each of its branches.
    also = [each["msg"] for each in found[1:] if model is not None and _path(each, model) == path]
    message = "; or ".join([str(found[0]["msg"]).removeprefix("Value error, "), *also])
    if kind not in ("value_error", "missing"):  # our own rules name the value themselves
        message = f"{found[0]['input']!r:.60}: {message}"
    return f"{path}: {message}" if path else message


def rule(complaint: Mapping[str, Any]) -> str | None:
    """What a value must be, by one of pydantic's errors: `at least 1`, `a whole number`; None of other rules."""
    kind, told = str(complaint["type"]), complaint.get("ctx", {})
    for name, (word, bound) in _BOUNDS.items():
        if kind == name:
            return f"{word} {told[bound]:g}" if isinstance(told[bound], float) else f"{word} {told[bound]}"
    if kind == "literal_error":
        return str(told["expected"])
    return next((words for begins, words in _KINDS.items() if kind.startswith(begins)), None)


def where(complaint: Mapping[str, Any], model: type[BaseModel]) -> Place:
    """Where one of pydantic's errors about data for `model` is; of a union's branch it may be what tells it."""
    found, tag = place(model, complaint["loc"]), _untold(complaint)
    return Place((*found.path, tag), None) if tag else found


def _path(complaint: Mapping[str, Any], model: type[BaseModel] | None) -> str:
    if model is not None:
        return str(where(complaint, model))
    return ".".join(map(str, (*complaint["loc"], *filter(None, [_untold(complaint)]))))


def _untold(complaint: Mapping[str, Any]) -> str:
    """The field that should tell the branch of a union, where that is what is wrong."""
    return str(complaint.get("ctx", {}).get("discriminator", "")).strip("'")


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields of a model that are models themselves; a union is none, since each branch has fields of its own."""
    kinds = {name: _bare(field.annotation, None)[0] for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if _is_model(kind)}


def _within(kind: Any, step: str | int) -> tuple[Any, str | None]:
    """What is at a key or an index of something of this type, and the field that tells the branches of its union."""
    if _is_model(kind):
        field = kind.model_fields.get(step)
        if field is None:
            return None, None
        return _bare(field.annotation, _discriminator(field))
    inner = get_args(kind)
    if get_origin(kind) is dict:
        return _bare(inner[1], None)
    if get_origin(kind) is tuple and inner and inner[-1] is not Ellipsis:
        return _bare(inner[step] if isinstance(step, int) and step < len(inner) else None, None)
    return _bare(inner[0] if inner else None, None)


def _bare(kind: Any, tag: str | None) -> tuple[Any, str | None]:
    """A type without `Annotated` and `None` around it, and what tells its branches apart where it is a union."""
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            tag = next((found for note in notes if (found := _discriminator(note))), tag)
            continue
        branches = _branches(kind)
        if len(branches) != 1:
            return kind, tag
        kind = branches[0]


def _branches(kind: Any) -> list[Any]:
    return [branch for branch in get_args(kind) if branch is not type(None)] if _is_union(kind) else []


def _branch(kind: Any, tag: str | None, name: str | int) -> Any:
    """The branch of a union that an error names, or None where it cannot be told: then nothing inside is a union."""
    models = [branch for branch in (_bare(branch, None)[0] for branch in _branches(kind)) if _is_model(branch)]
    for model in models:
        field = model.model_fields.get(tag) if tag else None
        known = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else (model.__name__,)
        if name in known:
            return model
    return None


def _discriminator(note: Any) -> str | None:
    found = note.discriminator if isinstance(note, FieldInfo) else None
    return found if isinstance(found, str) else None


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)

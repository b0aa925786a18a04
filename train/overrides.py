"""Overrides: `--set optim.lr=3e-4`, a field of a recipe by its dotted name, and the value that it is to have."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.train import toml

_EXAMPLE = "as in --set optim.lr=3e-4"
_LONGEST = 1000


class Override(NamedTuple):
    """A field by its path, and what it becomes."""

    path: tuple[str, ...]
    value: Any
    text: str

    def __str__(self) -> str:
        return f"--set {self.text}"

    @property
    def removes(self) -> bool:
        """Whether nothing stands after the equals sign: then the field goes back to its default."""
        return not self.text.partition("=")[2].strip()


def parse(text: str) -> Override:
    """Read `optim.lr=3e-4`; a part of the name that holds a dot is quoted, as TOML has it: `sweep.space."optim.lr"=1`.

    Raises:
        PenstockError: it is not of that form.
    """
    name, equals, told = text.partition("=")
    if len(name) > _LONGEST:
        raise PenstockError(
            f"--set {name[:40]!r}…: a name has {_LONGEST} characters at most; this one has {len(name):,}"
        )
    if not equals:
        raise PenstockError(f"--set {text!r}: must read NAME=VALUE, {_EXAMPLE}")
    return Override(_path(name, text), value(told), text)


def value(text: str) -> Any:
    """What a text means: a value of TOML (`3e-4`, `true`, `[8, 16]`, `"7"`), or of Python, or else the text itself."""
    try:
        (found,) = toml.loads(f"value = {text}").values()
    except (toml.TOMLDecodeError, ValueError, RecursionError):  # ValueError: there is more than one
        return _literal(text)
    return text.strip() if isinstance(found, date | time) else found  # which no field takes; a name may look like one


def apply(content: dict[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """A copy of a recipe's content with each override put into it, the later over the earlier.

    Raises:
        PenstockError: one goes through a field that is no section.
    """
    changed = copy.deepcopy(content)
    for override in overrides:
        *outer, last = override.path
        inner = changed
        for depth, step in enumerate(outer, 1):
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                name = ".".join(override.path[:depth])
                raise PenstockError(f"{override}: {name} is {inner!r:.60}, which is set whole: --set {name}=…")
        if override.removes:
            inner.pop(last, None)
        else:
            inner[last] = override.value
    return changed


def holds(content: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Whether there is a field of that path in a recipe's content."""
    held: Any = content
    for step in path:
        if not isinstance(held, Mapping) or step not in held:
            return False
        held = held[step]
    return True


def leaves(content: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    """A recipe's fields by their dotted names; an empty section is one itself."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _path(name: str, text: str) -> tuple[str, ...]:
    """The parts of a dotted name, by TOML's own rules for keys."""
    try:
        (line,) = name.strip().splitlines()
        (item,) = toml.loads(f"{line} = 0").items()
        path = [item[0]]
        while isinstance(item[1], dict):
            (item,) = item[1].items()
            path.append(item[0])
    except (toml.TOMLDecodeError, ValueError, RecursionError):
        raise PenstockError(f"--set {text!r}: {name!r} is no name of a field, {_EXAMPLE}") from None
    return tuple(path)


def _literal(text: str) -> Any:
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text.strip()
    return found if isinstance(found, str | int | float | bool | list | tuple | dict | None) else text.strip()

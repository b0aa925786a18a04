"""Files of recipes: TOML, JSON, YAML, INI and Python, each read into the same plain fields; and the shipped ones."""

from __future__ import annotations

import configparser
import difflib
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from penstock.errors import PenstockError, require
from penstock.train import overrides, toml

SHIPPED = Path(__file__).parent / "recipes"
# More values than any recipe has: a YAML file's aliases, or a list that holds itself, may stand for endless ones.
_MOST_VALUES = 100_000
_MOST_BYTES = 1 << 20
_LONGEST_NAME = 200
# Fields that are in no section, where an INI file has to have one.
_TOP = "recipe"
_INI_COMMENT = re.compile(r"\s[#;].*", re.DOTALL)
_YAML_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


class _Unread(Exception):
    """Why a file is none of its kind, and the line where the parser tells it."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why if line is None else f"line {line}: {why}")


def shipped() -> dict[str, str]:
    """The shipped recipes by name, with the line that each begins with."""
    paths = sorted(SHIPPED.glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in paths}


def locate(recipe: str) -> Path:
    """The file of a shipped recipe, by its name, or of one of the user's, by its path.

    Raises:
        PenstockError: there is none.
    """
    names = shipped()
    path = SHIPPED / f"{recipe}.toml" if recipe in names else Path(recipe)
    if path.is_file():
        return path
    near = difflib.get_close_matches(recipe, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise PenstockError(f"recipe {recipe!r}: neither a file nor one of the shipped recipes: {', '.join(names)}{hint}")


def read(path: Path) -> dict[str, Any]:
    """The fields in a recipe's file, as plain data; what they are to hold is not looked at.

    A Python file is run: it is the user's own code, which they named.

    Raises:
        PenstockError: it is of another kind, cannot be read, or holds no fields.
    """
    if path.suffix.lower() not in _READERS:
        raise PenstockError(f"recipe {path}: the file's name must end in one of {', '.join(_READERS)}")
    kind, parse = _READERS[path.suffix.lower()]
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _Unread(f"it has more than the {_MOST_BYTES:,} bytes that a recipe may have")
        content = parse(path.read_bytes().decode("utf-8-sig"), path)
        if not isinstance(content, Mapping):
            raise _Unread(f"it must hold fields by name, and is a {type(content).__name__}")
        plain: dict[str, Any] = _plain(content, (), [_MOST_VALUES])
    except RecursionError:
        raise PenstockError(f"recipe {path}: cannot be read as {kind}: it is nested too deeply") from None
    except (_Unread, UnicodeDecodeError, OSError) as error:
        raise PenstockError(f"recipe {path}: cannot be read as {kind}: {error}") from None
    return plain


def _plain(value: Any, path: tuple[str, ...], left: list[int]) -> Any:
    """The value in JSON's types, so that the same content is equal whichever file it came from."""
    left[0] -= 1
    if left[0] < 0:
        raise _Unread(f"it holds more than {_MOST_VALUES} values")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(inner, (*path, str(place)), left) for place, inner in enumerate(value)]
    if isinstance(value, Mapping):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            raise _Unread(f"{'.'.join((*path, repr(strange)))} is named by a {type(strange).__name__}; names are text")
        long = next((key for key in value if len(key) > _LONGEST_NAME), None)
        if long is not None:
            raise _Unread(f"a name begins with {long[:40]!r} and has {len(long):,} characters; {_LONGEST_NAME} at most")
        return {str(key): _plain(inner, (*path, key), left) for key, inner in value.items()}
    raise _Unread(
        f"{'.'.join(path)} is {value!r:.60}, a {type(value).__name__}; it must be text, a number, true or false, a "
        "list or fields by name"
    )


def _toml(text: str, _: Path) -> Any:
    try:
        return toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise _Unread(str(error)) from None  # which ends in its line and column


def _json(text: str, _: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise _Unread(f"{error.msg}, at column {error.colno}", error.lineno) from None
    except ValueError as error:  # a number of thousands of digits
        raise _Unread(str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ; json itself would take the last of two."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Unread(f"{name!r:.60} is there twice")
        found[name] = value
    return found


def _yaml(text: str, path: Path) -> Any:
    yaml: Any = require("yaml", "train", f"reading {path}")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Plain data only; a name that is there twice is refused, and 3e-4 is a number, as YAML 1.2 has it."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if (key.tag, str(key.value)) in seen:
                    raise yaml.composer.ComposerError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add((key.tag, str(key.value)))
            return node

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(_YAML_FLOAT.pattern + "$"), list("-+.0123456789")
    )
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise _Unread(str(error.problem or error.context), line) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: the 31st of a month that has 30 days
        raise _Unread(" ".join(str(error).split())) from None


def _ini(text: str, _: Path) -> Any:
    """Sections, nested by dots in their names; fields of no section come before the first, or are in [recipe]."""
    headed = re.search(rf"^\[{_TOP}\]", text, re.MULTILINE) is not None
    parser = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), default_section="", empty_lines_in_values=False
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign] # names keep their capitals
    try:
        parser.read_string(text if headed else f"[{_TOP}]\n{text}")
    except configparser.Error as error:
        number = error.errors[0][0] if isinstance(error, configparser.ParsingError) and error.errors else None
        line = getattr(error, "lineno", number)
        raise _Unread(_ini_fault(error), None if line is None else line - (not headed)) from None
    content: dict[str, Any] = {}
    for section in parser.sections():
        inner = content
        for step in () if section == _TOP else section.split("."):
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise _Unread(f"{step!r} is a field, and a section: [{section}]")
        for key, told in parser.items(section):
            if isinstance(inner.get(key), dict):
                raise _Unread(f"{key!r} is a field of [{section}], and a section")
            inner[key] = _ini_value(told)
    return content


def _ini_value(text: str) -> Any:
    """A value as `--set` takes it; what comes after a blank and # or ; is a comment, unless it is in quotes."""
    found = overrides.value(text)
    if isinstance(found, str) and found == text.strip() and _INI_COMMENT.search(text):
        return overrides.value(_INI_COMMENT.sub("", text, count=1))
    return found


def _ini_fault(error: configparser.Error) -> str:
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{error.option!r} is there twice in [{error.section}]"
    if isinstance(error, configparser.DuplicateSectionError):
        return f"[{error.section}] is there twice"
    return "it is neither a [section] nor a field, NAME = VALUE"


def _python(text: str, path: Path) -> Any:
    """What the file leaves as RECIPE, or what its function `recipe()` gives."""
    module = ModuleType(f"_penstock_recipe_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where its own classes are looked up
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that the files beside it shadow no package
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)  # noqa: S102 the user's own file
        made, make = getattr(module, "RECIPE", None), getattr(module, "recipe", None)
        if (made is None) == (make is None):
            raise _Unread(
                f"it must set RECIPE = {{…}} or have a function recipe(), {'none' if made is None else 'not both'}"
            )
        return made if make is None else make()
    except _Unread:
        raise
    except SyntaxError as error:
        raise _Unread(error.msg, error.lineno) from None
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        raise _Unread(f"{type(error).__name__}: {error}", lines[-1] if lines else None) from None
    finally:
        del sys.modules[module.__name__]


_READERS: dict[str, tuple[str, Callable[[str, Path], Any]]] = {
    ".toml": ("TOML", _toml),
    ".json": ("JSON", _json),
    ".yaml": ("YAML", _yaml),
    ".yml": ("YAML", _yaml),
    ".ini": ("INI", _ini),
    ".cfg": ("INI", _ini),
    ".py": ("Python", _python),
}

"""Every sentence that penstock ends a command or refuses a request with, found where it is raised, by families."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.writers.families import FAMILIES
from docs.writers.markdown import WRITTEN, code
from penstock.errors import PenstockError

ROOT = Path(__file__).resolve().parents[2]
_STAGES = ("penstock", "train", "export", "serve", "bench")
_NO_PRODUCT = ("bench/studies/", "bench/serving/")
# What a rule of a recipe, a receipt or a checkpoint is broken with, which ends a sentence that names the field.
_CHECKED = "ValueError"
# What tells clients and users without an exception, or with one of another kind.
_TELLS = {"refuse", "give_up", "abort", "_end", "Hung"}
_SHORTEST = 6


@dataclass(frozen=True)
class Sentence:
    """What is said, `…` where a name or a number comes, and the file that says it."""

    text: str
    file: str


def page() -> str:
    """All sentences, each below the family that its file belongs to."""
    told, parts = sentences(), []
    _check({each.file for each in told})
    for family in FAMILIES:
        found = dict.fromkeys(each.text for each in told if family.has(each.file))
        parts.append(f"## {family.title}\n\n{family.meaning}\n\n**What to do**: {family.remedy}\n")
        parts.append("".join(f"- {code(text)}\n" for text in found))
    lead = (
        f"# Every error's sentence\n\n{WRITTEN}\nThe {len({each.text for each in told}):,} that there are, found in "
        "the code where an error is made. `…` is a name, a value or a number, or what another library said. Some "
        "stand behind others: what breaks a rule of a recipe or a receipt is said behind the field's name.\n\nSearch "
        "this page for words of yours; [what every error means](../errors.md) begins with exit codes, statuses and the "
        "commonest.\n"
    )
    return "\n".join([lead, *parts])


def _check(files: set[str]) -> None:
    """Each file that raises belongs to one family, and each family says something.

    Raises:
        PenstockError: one does not.
    """
    for file in sorted(files):
        if (count := sum(family.has(file) for family in FAMILIES)) != 1:
            raise PenstockError(f"{file} belongs to {count} families of docs/writers/families.py; it must be one")
    for family in FAMILIES:
        if not any(family.has(file) for file in files):
            raise PenstockError(f"docs/writers/families.py: nothing is said by files of {family.title!r}")


def sentences() -> list[Sentence]:
    """Every sentence, in the order of files and lines."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in _sources()}
    raised = _errors(trees) | {_CHECKED, *_TELLS}
    shared = {name: node for tree in trees.values() for name, node in _named(tree)}
    return [Sentence(text, file) for file, tree in trees.items() for text in _said(tree, raised, shared)]


def _sources() -> list[Path]:
    files = [path for stage in _STAGES for path in sorted((ROOT / stage).glob("**/*.py")) if path == path.resolve()]
    return sorted(path for path in files if not path.relative_to(ROOT).as_posix().startswith(_NO_PRODUCT))


def _errors(trees: dict[str, ast.Module]) -> set[str]:
    """The names of PenstockError and all classes below it."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names, before = {"PenstockError"}, 0
    while len(names) != before:
        before = len(names)
        names |= {each.name for each in classes if any(_name(base) in names for base in each.bases)}
    return names


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.FunctionDef]]:
    """A module's constants and functions by name: sentences that several places raise are made there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _texts_held(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The texts that variables of a module's functions hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.JoinedStr):
            yield _name(node.targets[0]), node.value


def _said(tree: ast.Module, raised: set[str], shared: Mapping[str, ast.expr | ast.FunctionDef]) -> Iterator[str]:
    """What errors are made with; what another place has said already is left out."""
    known = {**shared, **dict(_texts_held(tree)), **dict(_named(tree))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in raised:
            for argument in node.args:
                for text in _texts(argument, known):
                    words = " ".join(text.split())
                    if " " in words and words[0] != "," and len(words.replace("…", "").strip(" .:;'")) > _SHORTEST:
                        yield words


def _texts(node: ast.expr, known: Mapping[str, ast.expr | ast.FunctionDef]) -> Iterator[str]:
    """The texts that an error's argument may be: its own words, a constant's, or what a function gives."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, known)
        yield from _texts(node.orelse, known)
        return
    meant = known.get(_name(node.func if isinstance(node, ast.Call) else node))
    if isinstance(node, ast.Call) and isinstance(meant, ast.FunctionDef):
        given = (each.value for each in ast.walk(meant) if isinstance(each, ast.Return))
        yield from (_skeleton(value) for value in given if value is not None)
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(meant, ast.expr):
        yield _skeleton(meant)
    else:
        yield _skeleton(node)


def _skeleton(node: ast.expr) -> str:
    """The words of a text that are in the code, and `…` for the others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_skeleton, node.values)).replace("……", "…")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_skeleton(node.left) + _skeleton(node.right)).replace("……", "…")
    return "…"

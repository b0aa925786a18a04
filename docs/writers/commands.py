"""The command line, from the commands themselves: what `--help` shows, whatever the terminal is like."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer

from docs.writers.markdown import WRITTEN, code, table
from penstock import cli
from penstock.commands.environment import variable_names

_WORDS = {str: "text", int: "whole number", float: "number", Path: "path", bool: ""}


def page() -> str:
    """Every command with its arguments and options."""
    found = list(every())
    parts = [
        "# Command line\n",
        WRITTEN,
        "`penstock COMMAND --help` shows the same. Options may stand anywhere behind the command. An error is one "
        "line on stderr that begins with `error:`, or for an option that does not exist or is out of range a usage "
        "line and a box, and exit status 2; [what every error means](../errors.md) has the other statuses.\n",
        table(
            ("command", "what it does"),
            ((f"[{code(name)}](#{_anchor(name)})", _summary(command)) for name, command in found),
        ),
        *(_section(name, command) for name, command in found),
    ]
    return "\n".join(parts)


def every() -> Iterator[tuple[str, Any]]:
    """Each command by its whole name, `penstock keys add`, in the order of the help."""
    yield from _below("penstock", typer.main.get_command(cli.app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
    else:
        for word, each in inner.items():
            if not each.hidden:
                yield from _below(f"{name} {word}", each)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(command: Any) -> str:
    return " ".join(str(command.help).split("\n\n")[0].split())


def _section(name: str, command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)])
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    parts = [f"## {code(name)} {{#{_anchor(name)}}}\n", f"```text\n{usage}\n```\n", _help(command)]
    if arguments:
        named = ((code(_placeholder(item)), str(item.help or "")) for item in arguments)
        parts.append(table(("argument", "what"), named))
    panels = dict.fromkeys(_panel(item) for item in options)
    read = [(variable, item.name) for variable, item in variable_names(command).items()]
    for panel in panels:
        rows = [
            _option(item, hints[item.name], [variable for variable, name in read if name == item.name])
            for item in options
            if _panel(item) == panel
        ]
        parts.append(f"**{panel}**\n")
        parts.append(table(("option", "takes", "default", "variable", "what"), rows))
    return "\n".join(parts)


def _panel(option: Any) -> str:
    return option.rich_help_panel if isinstance(option.rich_help_panel, str) else "Options"


def _placeholder(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper().strip("{}")
    name = f"{name}..." if argument.nargs == -1 and "..." not in name else name
    return name if argument.required else f"[{name}]"


def _help(command: Any) -> str:
    """What a command says of itself, its examples as they are typed."""
    shown, examples = [], []
    for paragraph in str(command.help).split("\n\n"):
        text = " ".join(paragraph.split())
        typed = re.findall(r"`([^`]+)`", text)
        if text.startswith("Examples:") or (typed and text == code(typed[0])):
            examples.extend(typed)
        else:
            shown.append(f"{text}\n")
    if examples:
        shown.append("```text\n" + "".join(f"{example}\n" for example in examples) + "```\n")
    return "\n".join(shown)


def _option(option: Any, hint: Any, variables: list[str]) -> tuple[str, str, str, str, str]:
    names = ", ".join(map(code, [*option.opts, *option.secondary_opts]))
    kind, info = _kind(hint)
    takes = str(option.metavar or _WORDS.get(kind, "text")) if not option.is_flag else ""
    bounds = _bounds(info.min, info.max) if info is not None else ""
    several = "may be repeated" if option.multiple else ""
    return (
        names,
        ", ".join(part for part in (code(takes) if option.metavar else takes, bounds, several) if part),
        _default(option),
        ", ".join(map(code, variables)),
        option.help or "",
    )


def _kind(hint: Any) -> tuple[Any, Any]:
    """What an option is made of, beside None and lists, and what typer was told of it."""
    info = None
    if hasattr(hint, "__metadata__"):
        info, hint = hint.__metadata__[0], get_args(hint)[0]
    while get_origin(hint) in (Union, UnionType, list, tuple):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    return hint, info


def _bounds(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f"from {least:,}"
    return f"{least:,} to {most:,}" if least is not None else f"up to {most:,}"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.is_flag and option.default is not None and not option.secondary_opts:
        return ""
    if option.is_flag and option.default is not None:
        return code((option.opts if option.default else option.secondary_opts)[0])
    if option.default is None or callable(option.default) or option.default in ("", [], ()):
        return ""
    return code(option.default)

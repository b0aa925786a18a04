"""Help that fits a screen: of a command with many options the usual ones, and all with --help-all."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_ALL = "--help-all"
# What of a parameter decides how it is shown.
_SHOWN = ("hidden", "rich_help_panel", "show_envvar")
_all_wanted = False


def asked(words: list[str]) -> list[str]:
    """The words of the command line, with --help for --help-all, which is noted."""
    global _all_wanted
    before = words[: words.index("--")] if "--" in words else words
    _all_wanted = _ALL in before
    return [word if word != _ALL else "--help" for word in before] + words[len(before) :]


def brief(*usual: str) -> type[TyperCommand]:
    """The class of a command whose --help shows these options alone, by their names in Python, and its arguments."""

    class Brief(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            if _all_wanted:
                super().format_help(ctx, formatter)
                return
            rare = [each for each in self.params if _is_rare(each, usual)]
            # A few need no panels of their own.
            before = [{name: getattr(each, name) for name in _SHOWN if hasattr(each, name)} for each in self.params]
            for each in self.params:
                vars(each).update(
                    hidden=getattr(each, "hidden", False) or each in rare, rich_help_panel=None, show_envvar=False
                )
            try:
                super().format_help(ctx, formatter)
            finally:
                for each, held in zip(self.params, before, strict=True):
                    vars(each).update(held)
            formatter.write(f" {len(rare)} more options: {ctx.command_path} {_ALL}\n")

    return Brief


def _is_rare(parameter: Any, usual: tuple[str, ...]) -> bool:
    return parameter.param_type_name == "option" and not parameter.hidden and parameter.name not in usual

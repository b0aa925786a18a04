"""Commands whose options are variables too: PENSTOCK_SERVE_PORT is --port of serve, and the command line wins."""

from __future__ import annotations

import os
from typing import Any

from typer.core import TyperCommand

from penstock import variables
from penstock.errors import PenstockError


class ByVariables(TyperCommand):
    """A command with an `auto_envvar_prefix`: an error about an option names the variable that it came from."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        for name in variable_names(self):
            if variables.is_link(name, os.environ.get(name, "")):
                del os.environ[name]  # a service's port is not meant for us, whatever it is called
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as raised:
            error: Any = raised
            option = getattr(error, "param", None)
            if option is not None and (source := _source(error.ctx, option)):
                error.param_hint = f"'{option.opts[0]}' ({source})"
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            words = set(str(error).replace(":", " ").replace(",", " ").split())
            named = [
                f"{option.opts[0]} is {name}'s"
                for option in self.params
                if option.opts[0] in words and (name := _source(ctx, option))
            ]
            if not named:
                raise
            raise PenstockError(f"{error} ({'; '.join(named)})") from None


class RefusingUnknown(ByVariables):
    """The same, which takes no variable of penstock's that there is not: what is misspelt would change nothing."""

    def invoke(self, ctx: Any) -> Any:
        root = ctx.find_root().command
        variables.check(os.environ, [name for command in root.commands.values() for name in variable_names(command)])
        return super().invoke(ctx)


def variable_names(command: Any) -> dict[str, Any]:
    """The variables of a command's options, with each option."""
    prefix = command.context_settings.get("auto_envvar_prefix")
    named = {}
    for option in command.params:
        if isinstance(option.envvar, str):
            named[option.envvar] = option
        elif prefix and option.param_type_name == "option" and option.allow_from_autoenv:
            named[f"{prefix}_{option.name.upper()}"] = option
    return named


def _source(ctx: Any, option: Any) -> str | None:
    """The variable that an option's value came from, or None."""
    source = ctx.get_parameter_source(option.name)
    if source is None or source.name != "ENVIRONMENT":
        return None
    return next(name for name, each in variable_names(ctx.command).items() if each.name == option.name)

"""The environment's variables that begin with PENSTOCK_: which there are, and which are not meant for penstock.

Kubernetes gives each container variables of each service in its namespace (service links), so that a service called
penstock makes PENSTOCK_SERVICE_HOST, PENSTOCK_PORT and others, and one called penstock-serve a PENSTOCK_SERVE_PORT:
https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from penstock.errors import PenstockError, nearest

PREFIX = "PENSTOCK_"
SERVE = "PENSTOCK_SERVE"
HEALTH = "PENSTOCK_HEALTH"
# Beside those of commands' options.
OTHERS = {
    "PENSTOCK_API_KEY": (
        "The API key that `predict`, `bench`, `check` and `health` send to a server, where no `--key-file` is given."
    ),
    "PENSTOCK_CACHE": (
        "Folder for what took long to measure and may be deleted at any time: scales, thread counts, timing caches. "
        "Default: `penstock` in `$XDG_CACHE_HOME`, or `~/.cache/penstock`."
    ),
}
# What penstock tells processes that it begins.
_INTERNAL = re.compile(r"PENSTOCK_(PARENT|RUN_[A-Z]+)")
_LINK = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)")
_LINKED_PORT = re.compile(r"(tcp|udp|sctp)://")


def is_link(name: str, value: str) -> bool:
    """Whether a variable is one of Kubernetes' service links."""
    if _LINK.fullmatch(name):
        return True
    return name.startswith(PREFIX) and name.endswith("PORT") and _LINKED_PORT.match(value) is not None


def told(environ: Mapping[str, str], name: str) -> str | None:
    """What a variable says; None where it is not there, empty or a service link."""
    value = environ.get(name)
    return value if value and not is_link(name, value) else None


def check(environ: Mapping[str, str], options: Iterable[str]) -> None:
    """See that each variable of penstock's is one that it reads.

    Args:
        environ: the environment.
        options: the variables of commands' options.

    Raises:
        PenstockError: one is unknown; it names the nearest.
    """
    known = {*options, *OTHERS}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in known or _INTERNAL.fullmatch(name) or is_link(name, value):
            continue
        meant = f"{SERVE}_{name.removeprefix(PREFIX)}"
        near = f"; the nearest is {meant!r}" if meant in known else nearest(name, known)
        raise PenstockError(
            f"{name}: is no variable of penstock's{near}; `penstock serve --help` tells how they are named"
        )

"""Completion: the values that options take, found without importing what uses them, so that a key press is answered.

Where a function finds nothing the shell offers files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import penstock
from penstock import options

_HOME = Path(penstock.__path__[0])
_REGISTERED = re.compile(r"""^@register_model(?:\((?:name="(\w+)")?\))?\n(?:[@ )].*\n)*?def (\w+)\(""", re.MULTILINE)
_ZOOS = ("torchvision", "timm")


def in_bash(run: Callable[[], None]) -> None:
    """Have a completion that bash asks for see the words that were typed: it breaks them at colons.

    In `torchvision:res` it replaces `res` alone, so that of what is completed the part before is left out.
    """
    before, held = _rejoined(), io.StringIO()
    try:
        with contextlib.redirect_stdout(held):
            run()
    finally:
        print("\n".join(line.removeprefix(before) for line in held.getvalue().splitlines()))


def _rejoined() -> str:
    """Put bash's words together again; what of the one that is to be completed stands before its last colon."""
    words, at = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
    joined, place = list[str](), 0
    for number, word in enumerate(words):
        glued = len(joined) > 1 and (word == ":" or joined[-1].endswith(":"))
        joined = [*joined[:-1], joined[-1] + word] if glued else [*joined, word]
        if number == at:
            place = len(joined) - 1
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(place)
    typed = joined[place] if place < len(joined) else ""
    return typed[: typed.rfind(":") + 1]


def stages(incomplete: str) -> list[str]:
    """The stages, and gpu."""
    return _beginning(("train", "export", "serve", "bench", "gpu"), incomplete)


def formats(incomplete: str) -> list[str]:
    """Formats of an export, several with commas, and auto."""
    return _listed([*_files("export/formats/*.py"), "auto"], incomplete)


def precisions(incomplete: str) -> list[str]:
    """Precisions of an export, several with commas."""
    return _listed(options.EVERY_PRECISION, incomplete)


def recipes(incomplete: str) -> list[str]:
    """The recipes that penstock brings."""
    return _beginning(_files("train/recipes/*.toml"), incomplete)


def architectures(incomplete: str) -> list[str]:
    """Models of torchvision and timm, those of penstock's own, and how a transformers folder is named."""
    zoo, colon, _ = incomplete.partition(":")
    if not colon:
        homes = _beginning((*(f"{name}:" for name in _ZOOS), "transformers:", "penstock.train.nets:"), incomplete)
        # After a word that is the only one a shell writes a space, and this one's end is yet to come: it gets several.
        return (architectures(homes[0]) or [f"{homes[0]}./", f"{homes[0]}/"]) if len(homes) == 1 else homes
    if zoo == "penstock.train.nets":
        listed = re.search(
            r"^__all__ = \[(.*?)\]", (_HOME / "train/nets/__init__.py").read_text(), re.MULTILINE | re.DOTALL
        )
        return _beginning((f"{zoo}:{name}" for name in re.findall(r"\w+", listed[1] if listed else "")), incomplete)
    return _beginning((f"{zoo}:{name}" for name in _models(zoo)), incomplete) if zoo in _ZOOS else []


def devices(incomplete: str) -> list[str]:
    """The CPU, and the GPUs that NVIDIA's driver shows."""
    gpus = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return _beginning(("cpu", *(f"cuda:{number}" for number in gpus)), incomplete)


def modes(incomplete: str) -> list[str]:
    """Who loads models."""
    return _beginning(("explicit", "none", "poll"), incomplete)


def flavors(incomplete: str) -> list[str]:
    """The kinds of TensorRT."""
    return _beginning(("tensorrt", "tensorrt-rtx"), incomplete)


def calibrations(incomplete: str) -> list[str]:
    """How scales are measured."""
    return _beginning(("entropy", "max", "percentile", "percentile=99.9", "dynamic"), incomplete)


def compatibilities(incomplete: str) -> list[str]:
    """GPUs that an engine is built for."""
    return _beginning(("none", "ampere+", "same-cc"), incomplete)


def log_formats(incomplete: str) -> list[str]:
    """How a server's lines are written."""
    return _beginning(("text", "json"), incomplete)


def logged(incomplete: str) -> list[str]:
    """Which requests are logged."""
    return _beginning(("none", "failed", "all"), incomplete)


def forms(incomplete: str) -> list[str]:
    """Forms of a request."""
    return _beginning(("v2-binary", "v2-json", "image", "grpc"), incomplete)


def scenarios(incomplete: str) -> list[str]:
    """LoadGen's scenarios."""
    return _beginning(("singlestream", "multistream", "server", "offline"), incomplete)


def rights(incomplete: str) -> list[str]:
    """What a key may do, several with commas."""
    return _listed(("infer", "repository", "shared-memory", "metrics"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """The last of several names with commas between, those before it left out."""
    before, comma, last = incomplete.rpartition(",")
    held = before.split(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in held]


def _files(pattern: str) -> list[str]:
    return sorted(path.stem for path in _HOME.glob(pattern) if not path.name.startswith("_"))


def _models(package: str) -> list[str]:
    """The models that a package registers, read off its source: importing it takes seconds."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    home = Path(spec.submodule_search_locations[0]) / "models"
    found = (pair for path in home.rglob("*.py") for pair in _REGISTERED.findall(path.read_text()))
    return sorted({named or function for named, function in found})

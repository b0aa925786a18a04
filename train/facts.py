"""Facts: what is found when a run begins and no recipe says, recorded beside it so that the run can be repeated."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

import penstock
from penstock import data
from penstock.errors import PenstockError
from penstock.machine import cpu_name
from penstock.train import device
from penstock.train.recipe import Machine, Recipe

LARGEST_SEED = 2**32 - 1
_GIT_S = 5.0
_PACKAGES = (
    *("torch", "torchvision", "lightning", "numpy", "scikit-learn", "pillow", "pyarrow"),
    *("tokenizers", "transformers", "timm"),
)
# What changes a run's weights, in the words of a warning; the host's other facts only change its speed.
_TELLING = {
    "git.revision": "the git revision of the working folder",
    "data": "the data's sha256",
    "device": "the device",
    "devices": "the number of devices",
    "nodes": "the number of nodes",
    "precision": "the precision",
    "device_name": "the device's name",
}


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a later penstock may record more


class Git(_Facts):
    """The revision that the working folder is at, and whether files that git follows were changed since."""

    revision: str
    changed: bool


class Host(_Facts):
    """What a machine is, and not whose or which: no names of machines or of users."""

    system: str
    cpu: str
    cores: int
    memory_bytes: int


class Devices(_Facts):
    """What `machine` comes to on this machine: `devices` of one kind on each of `nodes`."""

    device: Literal["cpu", "cuda"]
    devices: int
    nodes: int
    precision: str
    device_name: str


class Facts(Devices):
    """One run's: `seed` is the recipe's own or was drawn, `data` is the data's sha256, `command` as it was typed."""

    name: str
    seed: int
    seed_drawn: bool = False
    started: str
    command: tuple[str, ...] = ()
    git: Git | None = None
    data: str | None = None
    versions: dict[str, str] = {}
    host: Host


def find(recipe: Recipe, name: str, *, seed_drawn: bool = False) -> Facts:
    """What there is to find for a run; of its processes the first asks git and digests the data.

    Args:
        recipe: what will be trained.
        name: the run's, which its folder bears.
        seed_drawn: the recipe's seed was drawn, and not given.

    Raises:
        PenstockError: the machine has not what the recipe asks for, or the data set cannot be read.
    """
    return Facts(
        **resolve(recipe.machine).model_dump(),
        name=name,
        seed=recipe.seed,
        seed_drawn=seed_drawn,
        started=now(),
        command=_command(sys.argv),
        git=git(Path.cwd()) if first_process() else None,
        data=_digest(recipe) if first_process() else None,
        versions=versions(),
        host=_host(),
    )


def now() -> str:
    """This second, as a run's start is recorded."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def drawn_seed() -> int:
    """A seed from the system's randomness, one for all processes of a run.

    Raises:
        PenstockError: as `agreed`.
    """
    return int(agreed("SEED", lambda: str(secrets.randbelow(LARGEST_SEED + 1)), "--seed random"))


def first_process() -> bool:
    """Whether this is a run's first process, or its only one."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def agreed(name: str, find: Callable[[], str], option: str) -> str:
    """What all processes of a run are to agree on, found by the one that starts the others, which inherit it.

    Args:
        name: of the environment's variable, after PENSTOCK_RUN_.
        find: finds it.
        option: that asks for it.

    Raises:
        PenstockError: this is one of several that torchrun has started, none of which comes before the others.
    """
    variable = f"PENSTOCK_RUN_{name}"
    if os.environ.get("WORLD_SIZE", "1") == "1":
        os.environ[variable] = find()
    elif variable not in os.environ:
        raise PenstockError(
            f"{option}: each of torchrun's processes would find its own; give a number to --seed, and a folder of its "
            "own to --output"
        )
    return os.environ[variable]


def resolve(machine: Machine) -> Devices:
    """The devices that `machine` comes to here; `auto` is the GPU where there is one.

    Raises:
        PenstockError: as `penstock.train.device.resolve`.
    """
    kind: Any = device.resolve(machine)
    there = torch.cuda.device_count() if kind == "cuda" else 1
    count = there if machine.devices == "auto" else machine.devices
    return Devices(
        device=kind,
        devices=count,
        nodes=machine.nodes,
        precision="tf32" if machine.tf32 and kind == "cuda" and machine.precision == "fp32" else machine.precision,
        device_name=torch.cuda.get_device_name(0) if kind == "cuda" else cpu_name(),
    )


def git(folder: Path) -> Git | None:
    """What git says of a folder; None where there is no git, no repository, or no answer in time.

    Files that git does not follow do not count as changes: a run's own output may be among them.
    """
    revision = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return (
        None if revision is None or changes is None else Git(revision=revision.strip(), changed=bool(changes.strip()))
    )


def versions() -> dict[str, str]:
    """The versions of what has a say in a run's weights."""
    found = {"penstock": penstock.__version__, "python": platform.python_version()}
    installed = {name: _version(name) for name in _PACKAGES}
    found |= {name: version for name, version in installed.items() if version is not None}
    return {**found, "torch": str(torch.__version__)}  # which tells the build too, 2.14.1+cu130


def differences(before: Mapping[str, Any], now: Facts) -> list[str]:
    """What is not as it was in a run that is to be repeated, a sentence each; what was not recorded is not compared.

    Args:
        before: the facts in that run's checkpoint.
        now: those of the run that begins.
    """
    old, new = dict(_flat(before)), dict(_flat(now.model_dump(mode="json")))
    told = {
        **_TELLING,
        **{name: f"the version of {name.partition('.')[2]}" for name in (*old, *new) if name.startswith("versions.")},
    }
    found = [
        f"{what} was {old[name]}, and is {new.get(name, 'not there')}"
        for name, what in told.items()
        if name in old and old[name] != new.get(name)
    ]
    if old.get("git.changed") == "true":
        found.append("files under git had been changed since that revision, in ways that are not recorded")
    return found


def _flat(facts: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{outer}{name}.")
        elif value is not None:
            yield f"{outer}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _digest(recipe: Recipe) -> str | None:
    digest = getattr(data, "digest", None)
    return None if digest is None else str(digest(recipe.dataset))


def _git(folder: Path, *command: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    # A repository's own settings may name a program to ask about its files, and reading needs no lock.
    words = [program, "-c", "core.fsmonitor=false", "--no-optional-locks", *command]
    try:
        ran = subprocess.run(  # noqa: S603 git's own program, fixed words
            words, cwd=folder, capture_output=True, text=True, timeout=_GIT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return ran.stdout


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without the place of its program, and without its user's name in paths at home."""
    home = str(Path.home())
    hidden = [word.replace(f"{home}/", "~/") if len(home) > 1 else word for word in words[1:]]
    return ("penstock" if Path(words[0]).name == "__main__.py" else Path(words[0]).name, *hidden)


def _host() -> Host:
    return Host(
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )

"""The machine around penstock: processor, memory, limits of its container, and folders that are written to."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from penstock import cache, machine
from penstock.doctor.findings import Finding

_NEWEST_TRIED = (3, 14)
# Instructions that int8 is computed in at a go, as Linux names them.
_INT8 = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
# Docker gives a container so much unless it is told; a few pictures of one worker of a loader fill it.
_LITTLE_SHARED = 128 * 2**20
_SHARED = "/dev/shm"  # noqa: S108 (looked at, not written to)
_MANY_FILES = 4096 + 256
_LITTLE_SPACE = 2**30


def look() -> list[Finding]:
    """What there is, and what of it stands in the way of a stage."""
    return [
        _python(),
        _processor(),
        _memory(),
        _shared(),
        _files(),
        _folder("cache folder", cache.folder()),
        _scratch(),
    ]


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    tried = tuple(map(int, platform.python_version_tuple()[:2])) <= _NEWEST_TRIED
    why = "" if tried else f"penstock is tried with Python 3.10 to {'.'.join(map(str, _NEWEST_TRIED))}"
    if platform.system() != "Linux":
        return Finding("machine", "Python", False, found, "penstock runs on Linux", "docker build -t penstock .")
    return Finding("machine", "Python", True, found, why)


def _processor() -> Finding:
    bound, allowed = len(os.sched_getaffinity(0)), machine.cores()
    held = [name for name in _INT8 if name in _flags()]
    fast = f"int8 in {', '.join(held)}" if held else "no instructions for int8"
    found = f"{machine.cpu_name()}, {bound} core{'s' if bound > 1 else ''} of {os.cpu_count()}; {fast}"
    why, fix = "", ""
    if allowed < bound:
        why = f"the container's quota is the time of {allowed:g} cores: more threads only take turns"
        fix = f"penstock serve --threads {max(1, int(allowed))} models/"
    elif not held:
        why = "int8 is smaller than fp32 here, and hardly faster; penstock bench models/* says by how much"
    return Finding("machine", "processor", True, found, why, fix)


def _flags() -> set[str]:
    with suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return set(found[1].split()) if found else set()
    return set()


def _memory() -> Finding:
    most, whole = machine.memory_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    of_whole = f" of {_gb(whole)}, by the container's limit" if most < whole else ""
    return Finding("machine", "memory", True, f"{_gb(most)}{of_whole}")


def _shared() -> Finding:
    try:
        free = shutil.disk_usage(_SHARED).free
    except OSError:
        return Finding("machine", _SHARED, None, "not there", "--allow-shared-memory and loaders of training use it")
    if free < _LITTLE_SHARED:
        why = "penstock train with data.workers, and regions of --allow-shared-memory, need more"
        return Finding("machine", _SHARED, False, f"{_gb(free)} free", why, "docker run --shm-size 1g …")
    return Finding("machine", _SHARED, True, f"{_gb(free)} free")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _MANY_FILES:
        why = f"penstock serve takes {_MANY_FILES - 256:,} connections (--max-connections), each of which is one"
        most = _MANY_FILES if hard < 0 else min(hard, 65_536)
        # Beyond the hard limit only who begins the process may go.
        fix = f"ulimit -n {most}" if most >= _MANY_FILES else f"docker run --ulimit nofile={_MANY_FILES} …"
        return Finding("machine", "open files", None, f"{soft:,} at once", why, fix)
    return Finding("machine", "open files", True, "as many as wanted" if soft < 0 else f"{soft:,} at once")


def _folder(name: str, path: Path) -> Finding:
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        why = f"cannot be written to: {error.strerror}; what takes long to measure is measured again at each start"
        return Finding("machine", name, None, str(path), why, "export PENSTOCK_CACHE=/a/folder")
    return Finding("machine", name, True, str(path))


def _scratch() -> Finding:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return Finding(
            "machine", "scratch folder", False, "none", "no folder for files in between", "export TMPDIR=/a/folder"
        )
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_SPACE:
        why = "penstock export and penstock build write whole models there"
        return Finding("machine", "scratch folder", None, f"{folder}, {_gb(free)} free", why, "export TMPDIR=/a/folder")
    return Finding("machine", "scratch folder", True, f"{folder}, {_gb(free)} free")


def _gb(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"

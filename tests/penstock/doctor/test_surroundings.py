"""The machine around penstock: what a container leaves too little of is told, with the command that gives more."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock import machine
from penstock.doctor import surroundings
from penstock.doctor.findings import Finding


def found(name: str) -> Finding:
    return next(each for each in surroundings.look() if each.name == name)


def test_every_finding_has_a_name_of_its_own_and_something_to_say() -> None:
    looked = surroundings.look()
    assert len({each.name for each in looked}) == len(looked)
    assert all(each.found and (each.works or each.why) for each in looked)


def test_a_quota_of_cores_is_told_with_the_threads_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 0.5)
    processor = found("processor")
    assert processor.works
    assert "the time of 0.5 cores" in processor.why
    assert processor.fix == "penstock serve --threads 1 models/"


def test_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 * 2**20))
    shared = found("/dev/shm")
    assert (shared.works, shared.fix) == (False, "docker run --shm-size 1g …")


def test_few_open_files_are_told() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        files = found("open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (files.works, files.found) == (None, "1,024 at once")
    assert files.fix.startswith("ulimit -n ")


def test_more_open_files_than_the_process_may_ask_for_are_not_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert found("open files").fix == "docker run --ulimit nofile=4352 …"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    cache = found("cache folder")
    assert cache.works is None
    assert "cannot be written to" in cache.why
    assert cache.fix == "export PENSTOCK_CACHE=/a/folder"


def test_a_container_s_memory_is_told_as_a_part_of_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 10**9)
    assert found("memory").found.startswith("1.0 GB of ")
    assert os.sysconf("SC_PHYS_PAGES")

"""What an engine's successor is given: the versions that answered, and what clients had set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.artifact import Artifact
from penstock.serve import kept
from penstock.serve.kept import Keeper, Kept
from penstock.serve.lifecycle import Lifecycle, open_with
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer

Make = Callable[..., Artifact]
NOTHING = Kept({}, [], {}, {}, {}, {}, 0, [])


class Head:
    """Holds what it was told last, unless it is `deaf`."""

    deaf = False

    def __init__(self) -> None:
        self.held: list[Kept] = []

    def tell(self, what: str, descriptors: list[int]) -> bool:
        if not self.deaf:
            self.held.append(kept.read(descriptors[0]))
        return not self.deaf


def again(folder: Path, before: Kept, mode: str = "explicit", **how: Any) -> Repository:
    return open_with([folder], Limits(), Metrics(), Lifecycle(mode, **how), before)[0]


def test_a_head_is_told_of_each_change_once_and_again_if_it_did_not_hear(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")
    head, repository = Head(), open_with([tmp_path], Limits(), Metrics(), Lifecycle())[0]
    repository.failures["bad"], repository.held_back["m"] = "why", "half a pair: \udc80"
    tracer = Tracer(tmp_path / "traces")
    keeper = Keeper(head, repository, tracer, Regions())  # type: ignore[arg-type]
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    keeper.keep()
    keeper.keep()
    assert [held.versions for held in head.held] == [{"bad": None, "m": 1}]
    head.deaf = True
    tracer.update({"trace_rate": "5"})
    keeper.keep()
    head.deaf = False
    keeper.keep()
    assert [held.tracing for held in head.held] == [{}, {"": {"trace_rate": "5"}}]
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_the_version_that_answered_answers_again_until_a_client_loads_another(
    tmp_path: Path, fake_artifact: Make
) -> None:
    fake_artifact(tmp_path, "m")
    fake_artifact(tmp_path, "m")
    fake_artifact(tmp_path, "never-loaded")
    before = replace(NOTHING, versions={"m": 1, "lost": 3}, unloaded=["out"], held_back={"m": "version 2 is bad"})
    repository = again(tmp_path, before)
    assert {name: model.version for name, model in repository.models.items()} == {"m": 1}
    assert repository.failures == {"lost": "it is not in the repository any more"}
    assert (repository.unloaded, repository.held_back) == ({"out"}, before.held_back)
    assert again(tmp_path, replace(before, versions={"m": 7})).models["m"].version == 2  # whose folder is gone


def test_by_poll_an_older_version_answers_again_where_the_newest_is_bad(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")
    before = replace(NOTHING, versions={"m": 1})
    newest = fake_artifact(tmp_path, "m").folder
    assert again(tmp_path, before, "poll").models["m"].version == 2
    (newest / "penstock.json").write_text("{")
    repository = again(tmp_path, before, "poll")
    assert repository.models["m"].version == 1
    assert repository.held_back["m"].startswith("version 1 answers; what is to replace it cannot be loaded: ")
    assert (repository.failures, repository.problems) == ({}, [])
    assert list(again(tmp_path, replace(before, versions={}), "poll").failures) == ["m"]


def test_routes_are_those_that_clients_set_but_for_those_that_cannot_be(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake_artifact(tmp_path, "m")
    before = replace(NOTHING, versions={"m": 1}, routes={"r": {"m": 1, "unknown": 2}, "m": {"m": 1}})
    repository = again(tmp_path, before, routes={"first": {"m": 1}})
    assert repository.routes.as_dict() == {"r": {"m": 1, "unknown": 2}}
    assert "route 'm': a model has that name" in caplog.text


def test_a_region_whose_segment_is_gone_costs_no_start(caplog: pytest.LogCaptureFixture) -> None:
    from penstock.serve import control

    region = {"name": "r", "key": "/penstock-no-such-segment", "offset": 0, "byte_size": 8}
    replace(NOTHING, logging=control.log_settings(), regions=[region]).set_again(Regions(True))
    assert "shared memory region 'r' cannot be registered again" in caplog.text


def test_traces_go_on_in_their_file(tmp_path: Path) -> None:
    file = tmp_path / "traces"
    first = Tracer(file)
    first.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    first.traced("m", 1, None, [])
    second = Tracer(file, first.changed, first.written)
    second.traced("m", 1, None, [])
    assert [entry["id"] for entry in json.loads(file.read_text())] == [1, 1, 2, 2]

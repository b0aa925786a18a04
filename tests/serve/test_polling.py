"""--mode poll: what the repository's folders hold is what is served, and nothing half written or broken ever is."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import artifact
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.serve import polling
from penstock.serve.lifecycle import Lifecycle, open_repository, open_with
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.polling import Poll, look
from penstock.serve.repository import Repository

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

Make = Callable[..., Artifact]
INPUTS = {"ids": np.ones((1, 2), np.int64), "weight": np.ones(1, np.float32)}


class Polled:
    """A repository of `folder`, and looks at it."""

    def __init__(self, *paths: Path) -> None:
        self.poll = Poll(list(paths))
        self.repository: Repository = open_repository(list(paths), Limits(), Metrics(), "poll")

    async def look(self) -> dict[str, int]:
        """Look once: the models that are served then, and their versions."""
        await self.poll.once(self.repository)
        return {name: model.version for name, model in self.repository.models.items()}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_a_new_model_is_loaded_and_one_whose_folder_is_gone_is_taken_out(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "first")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        assert await polled.look() == {"first": 1}
        fake_artifact(tmp_path, "second")
        assert await polled.look() == {"first": 1, "second": 1}
        shutil.rmtree(tmp_path / "first")
        assert await polled.look() == {"second": 1}
        assert [row["name"] for row in polled.repository.index()] == ["second"]
        shutil.rmtree(tmp_path / "second")
        assert await polled.look() == {}
        assert polled.repository.problems == ["no model is loaded"]

    run(scenario())


def test_a_new_version_takes_the_old_one_s_place_and_its_removal_brings_the_old_one_back(
    tmp_path: Path, fake_artifact: Make
) -> None:
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        former = polled.repository.models["m"]
        fake_artifact(tmp_path, "m")
        assert await polled.look() == {"m": 2}
        assert former.scheduler.closed
        served = polled.repository.models["m"]
        assert await polled.look() == {"m": 2}
        assert polled.repository.models["m"] is served  # nothing changed, nothing is loaded
        shutil.rmtree(tmp_path / "m" / "2")
        assert await polled.look() == {"m": 1}

    run(scenario())


def test_a_bad_new_version_leaves_the_old_one_answering_and_is_tried_once_until_it_changes(
    tmp_path: Path, fake_artifact: Make
) -> None:
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        repository = polled.repository
        made = fake_artifact(tmp_path, "m", expected={"total": np.zeros(5)})  # which is not what it answers
        for _ in range(3):
            assert await polled.look() == {"m": 1}
        assert repository.load_failures == {"m": 1}
        (row,) = repository.index()
        assert (row["version"], row["state"]) == ("1", "READY")
        assert "version 1 answers; what is to replace it cannot be loaded" in row["reason"]
        assert repository.problems == []
        assert (await repository.find("m").infer(INPUTS))["total"].tolist() == [3.0]
        os.utime(made.folder / artifact.RECEIPT, ns=(1, 1))
        await polled.look()
        assert repository.load_failures == {"m": 2}
        shutil.rmtree(made.folder)
        fake_artifact(tmp_path, "m")
        assert await polled.look() == {"m": 2}
        assert repository.index()[0]["reason"] == ""

    run(scenario())


def test_a_version_that_is_copied_file_by_file_is_not_tried_before_it_is_whole(
    tmp_path: Path, fake_artifact: Make
) -> None:
    home, other = tmp_path / "models", tmp_path / "other"
    fake_artifact(home, "m")
    for _ in range(2):
        made = fake_artifact(other, "m")

    async def scenario() -> None:
        polled = Polled(home)
        (home / "m" / "2").mkdir()
        for name in (artifact.RECEIPT, artifact.GOLDEN):
            shutil.copy(made.folder / name, home / "m" / "2" / name)
            assert await polled.look() == {"m": 1}
        shutil.copy(made.model_path, home / "m" / "2")
        assert await polled.look() == {"m": 2}
        assert not polled.repository.load_failures

    run(scenario())


def test_what_never_becomes_whole_is_told_after_two_looks(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        (tmp_path / "m" / "2").mkdir()
        await polled.look()
        assert not polled.repository.held_back
        assert await polled.look() == {"m": 1}
        assert "penstock.json: missing" in polled.repository.held_back["m"]

    run(scenario())


def test_a_bare_file_that_changes_is_loaded_anew_once_two_looks_saw_it_alike(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_onnx(path, 2.0)
    x = np.ones((1, 3), np.float32)

    async def scenario() -> None:
        polled = Polled(path)
        former = polled.repository.models["net"]
        write_onnx(path, 3.0)
        await polled.look()
        assert polled.repository.models["net"] is former
        await polled.look()
        assert (await polled.repository.find("net").infer({"x": x}))["y"].tolist() == [[3.0, 3.0, 3.0]]
        path.unlink()
        assert await polled.look() == {}

    run(scenario())


def test_a_repository_that_cannot_be_seen_takes_nothing_with_it(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake_artifact(tmp_path / "models", "m")

    async def scenario() -> None:
        polled = Polled(tmp_path / "models")
        (tmp_path / "models").rename(tmp_path / "away")
        for _ in range(2):
            assert await polled.look() == {"m": 1}
        (tmp_path / "away").rename(tmp_path / "models")
        served = polled.repository.models["m"]
        await polled.look()
        assert polled.repository.models["m"] is served

    run(scenario())
    assert caplog.text.count("is not there any more") == 1


def test_a_repository_that_is_exchanged_between_two_looks_is_no_error(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake_artifact(tmp_path / "models", "m")

    async def scenario() -> None:
        polled = Polled(tmp_path / "models")
        (tmp_path / "models").rename(tmp_path / "away")
        assert await polled.look() == {"m": 1}
        (tmp_path / "away").rename(tmp_path / "models")
        assert await polled.look() == {"m": 1}

    run(scenario())
    assert "ERROR" not in [record.levelname for record in caplog.records]


def test_a_folder_that_is_taken_away_while_it_is_looked_at_is_no_model(
    tmp_path: Path, fake_artifact: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_artifact(tmp_path, "stays")
    fake_artifact(tmp_path, "goes")
    whole = artifact.versions

    def versions(folder: Path) -> list[int]:
        shutil.rmtree(tmp_path / "goes", ignore_errors=True)  # after it was seen to be a folder
        return whole(folder)

    (tmp_path / "goes" / artifact.CONFIG).unlink()
    monkeypatch.setattr(artifact, "versions", versions)
    sight = look([tmp_path])
    assert (list(sight.found), sight.missing, sight.unclear) == (["stays"], [], {})


def test_a_file_that_goes_while_its_model_is_looked_at_takes_no_model_out(
    tmp_path: Path, fake_artifact: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_artifact(tmp_path, "m")
    fact = polling._fact

    def gone(file: Path) -> object:
        raise FileNotFoundError(2, "No such file or directory", str(file))

    async def scenario() -> None:
        polled = Polled(tmp_path)
        served = polled.repository.models["m"]
        monkeypatch.setattr(polling, "_fact", gone)
        assert await polled.look() == {"m": 1}
        assert not caplog.records
        for _ in range(2):
            assert await polled.look() == {"m": 1}
        monkeypatch.setattr(polling, "_fact", fact)
        assert await polled.look() == {"m": 1}
        assert polled.repository.models["m"] is served

    run(scenario())
    assert caplog.text.count("model 'm' cannot be looked at; it stays as it is") == 1  # as it was so twice


@pytest.mark.parametrize("becomes", ["nothing", "another"])
def test_a_model_that_changes_while_it_is_loaded_has_not_failed(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture, becomes: str
) -> None:
    fake_artifact(tmp_path, "first")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        opens = polled.repository.open
        assert opens is not None

        def taken_away(path: Path) -> Model:
            shutil.rmtree(tmp_path / "m")
            if becomes == "another":
                fake_artifact(tmp_path, "m")
            raise PenstockError("model.fake: No such file or directory")

        fake_artifact(tmp_path, "m")
        polled.repository.open = taken_away
        assert await polled.look() == {"first": 1}
        assert (polled.repository.failures, polled.repository.load_failures) == ({}, {})
        polled.repository.open = opens
        assert await polled.look() == ({"first": 1} if becomes == "nothing" else {"first": 1, "m": 1})

    run(scenario())
    assert "ERROR" not in [record.levelname for record in caplog.records]


def test_a_model_that_changes_at_each_load_is_told_at_the_second(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "first")

    async def scenario() -> None:
        polled = Polled(tmp_path)

        def exchanged(path: Path) -> Model:
            shutil.rmtree(tmp_path / "m")
            fake_artifact(tmp_path, "m")
            raise PenstockError("model.fake: is damaged")

        fake_artifact(tmp_path, "m")
        polled.repository.open = exchanged
        for failures in ({}, {"m": 1}):
            await polled.look()
            assert polled.repository.load_failures == failures

    run(scenario())


def test_a_look_that_fails_is_told_once_the_next_fails_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([OSError("one"), None, OSError("two"), OSError("three"), OSError("four")])

    async def scenario() -> None:
        poll, over = Poll([tmp_path]), asyncio.Event()

        async def once(repository: Repository) -> None:
            if (found := next(looks, over)) is over:
                over.set()
            elif found is not None:
                raise found

        monkeypatch.setattr(poll, "once", once)
        stop = await poll.start(Repository(), 0.001)
        await over.wait()
        await stop(1)

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "OSError: three" in caplog.text


def test_what_changes_while_the_models_are_loaded_is_not_missed(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")
    poll = Poll([tmp_path])
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        repository = open_repository([tmp_path], Limits(), Metrics(), "poll")
        assert poll._tried["m"].stamp != look([tmp_path]).found["m"].stamp
        await poll.once(repository)
        assert repository.models["m"].version == 2

    run(scenario())


def test_routes_and_shadows_may_name_models_that_are_still_to_come(tmp_path: Path, fake_artifact: Make) -> None:
    lifecycle = Lifecycle("poll", routes={"r": {"m": 1}}, shadows=(("m", "other", 1.0),))

    async def scenario() -> None:
        poll = Poll([tmp_path])
        repository, _ = open_with([tmp_path], Limits(), Metrics(), lifecycle)
        assert repository.problems == ["route 'r' leads to no model that is served"]
        fake_artifact(tmp_path, "m")
        await poll.once(repository)
        assert (repository.find("r").name, repository.problems) == ("m", [])

    run(scenario())


def test_two_models_of_one_name_are_one_and_patterns_in_file_names_are_letters(
    tmp_path: Path, fake_artifact: Make
) -> None:
    fake_artifact(tmp_path / "a", "m")
    fake_artifact(tmp_path / "b", "m")
    sight = look([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert (sight.found["m"].path, sight.missing) == (tmp_path / "a" / "m", [tmp_path / "c"])
    odd, near = tmp_path / "n[1].onnx", tmp_path / "n1.onnx"
    for path in (odd, near):
        path.write_bytes(b"x")
    assert [fact[0] for fact in look([odd]).found["n[1]"].stamp] == ["n[1].onnx"]


@pytest.mark.parametrize("name", [b"b\xff", b"two words", b"x" * 129])
def test_a_folder_whose_name_is_no_model_s_is_left_out_and_told_once(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        shutil.copytree(tmp_path / "m", tmp_path / os.fsdecode(name))
        for _ in range(3):
            assert await polled.look() == {"m": 1}
        assert not polled.repository.failures
        assert polled.repository.problems == []

    run(scenario())
    assert caplog.text.count(f"{name.decode('utf-8', 'backslashreplace')}' is not served") == 1
    (known,) = open_repository([tmp_path], Limits(), Metrics()).models
    assert known == "m"


def test_a_server_tells_its_state_beside_a_folder_whose_name_is_no_text(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    fake_artifact(tmp_path, "m")
    server = start_server(tmp_path, "--mode", "poll", "--poll-s", "0.05")
    shutil.copytree(tmp_path / "m", tmp_path / os.fsdecode(b"b\xff"))
    give_up = time.monotonic() + 10
    while "is not served" not in server.log and time.monotonic() < give_up:
        time.sleep(0.02)
    paths = [
        ("GET", "/v2/health/ready"),
        ("POST", "/v2/repository/index"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ]
    assert [server.ask(*asked).status for asked in paths] == [200] * 4


def test_failures_are_counted_for_as_long_as_the_folder_is_there(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")

    async def scenario() -> None:
        polled = Polled(tmp_path)
        for turn in range(3):
            (tmp_path / f"bad{turn}" / "1").mkdir(parents=True)
            await polled.look()
            await polled.look()
            assert polled.repository.load_failures == {f"bad{turn}": 1}
            shutil.rmtree(tmp_path / f"bad{turn}")
            await polled.look()
            assert not polled.repository.load_failures

    run(scenario())


def test_a_polling_server_begins_empty_and_exchanges_versions_under_load(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    home = tmp_path / "models"
    home.mkdir()
    server = start_server(home, "--mode", "poll", "--poll-s", "0.1")
    assert server.ask("GET", "/v2/health/ready").error == "no model is loaded"
    fake_artifact(home, "m")
    server.wait_for_metric('penstock_model_ready{model="m"}', 1)
    refused = server.ask("POST", "/v2/repository/models/m/unload")
    assert (refused.status, "--mode poll" in refused.error) == (403, True)
    versions = answers_while(server, lambda: [fake_artifact(home, "m") for _ in range(5)], until="6")
    assert versions[0] == "1"
    assert versions == sorted(versions)
    page = server.ask("GET", "/metrics").body.decode()
    assert ('penstock_batch_rows_count{model="m",version="6"}' in page, 'version="5"' in page) == (True, False)
    shutil.rmtree(home / "m")
    server.wait_for_metric('penstock_model_ready{model="m"}', 0)
    assert server.ask("GET", "/v2/models/m").status == 404


def answers_while(server: Server, change: Callable[[], Any], until: str) -> list[str]:
    """The versions that answered, request after request over one connection, until that one has; none may fail."""
    import json
    import threading

    body = {
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
            {"name": "weight", "datatype": "FP32", "shape": [1], "data": [1]},
        ]
    }
    connection, seen = server.connect(), []
    worker = threading.Thread(target=change)
    worker.start()
    give_up = time.monotonic() + 30
    while not seen or seen[-1] != until:
        assert time.monotonic() < give_up, seen[-1]
        path = ("/v2/models/m/infer", "/predict/m")[len(seen) % 2]
        sent = body if "infer" in path else {"inputs": {"ids": [[1, 1]], "weight": [1]}}
        connection.request("POST", path, json.dumps(sent), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = json.loads(response.read())
        assert response.status == 200, content
        seen.append(str(content.get("model_version", content.get("version"))))
    worker.join()
    return seen


def write_onnx(path: Path, factor: float) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    held = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "times", [x], [y], [held])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))

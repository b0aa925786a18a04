"""Which models a server begins with, and who may load and unload them: --mode, --load, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.runtimes.fake import FakeRunner
from penstock.serve.errors import RequestError
from penstock.serve.lifecycle import Lifecycle, open_repository, open_with, settle, together
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.repository import Repository
from penstock.serve.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.serve.conftest import StartServer

Make = Callable[..., Artifact]
INPUTS = {"ids": np.ones((1, 2), np.int64), "weight": np.ones(1, np.float32)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "EXPLICIT"}, "--mode 'EXPLICIT': must be one of explicit, none, poll"),
        ({"poll_s": 3.0}, "--poll-s 3: says how often .* --mode poll"),
        ({"mode": "none", "only": ("m",)}, "--load m: goes with --mode explicit alone"),
    ],
)
def test_options_that_would_do_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(PenstockError, match=words):
        Lifecycle(**given)


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_clients_load_and_unload_nothing_but_in_explicit_mode(tmp_path: Path, fake_artifact: Make, mode: str) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(), Metrics(), mode)

    async def scenario() -> None:
        for verb in (repository.load, repository.unload):
            with pytest.raises(RequestError, match=f"by --mode {mode}") as caught:
                await verb("m")
            assert caught.value.status == 403
        assert (await repository.find("m").infer(INPUTS))["total"].tolist() == [3.0]

    asyncio.run(scenario())


def test_a_server_of_mode_none_refuses_over_http_and_grpc_and_lists_its_models(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    fake_artifact(tmp_path, "m")
    server = start_server(tmp_path, "--mode", "none")
    for verb in ("load", "unload"):
        answer = server.ask("POST", f"/v2/repository/models/m/{verb}")
        assert (answer.status, answer.error) == (403, f"failed to {verb} 'm': by --mode none nobody may")
    assert server.ask("POST", "/v2/repository/index").json[0]["state"] == "READY"
    found = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert found is not None
    with triton.InferenceServerClient(found[1]) as client:
        for call in (client.load_model, client.unload_model):
            with pytest.raises(Exception, match="by --mode none nobody may") as caught:
                call("m")
            assert "PERMISSION_DENIED" in str(caught.value.status())
        assert client.get_model_repository_index().models[0].state == "READY"


def test_a_server_begins_with_the_models_that_are_named_and_clients_load_the_others(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    for name in ("a", "b", "c"):
        fake_artifact(tmp_path, name)
    server = start_server(tmp_path, "--load", "a", "--load", "c")
    assert server.ask("GET", "/v2/health/ready").status == 200
    states = {row["name"]: row["state"] for row in server.ask("POST", "/v2/repository/index").json}
    assert states == {"a": "READY", "b": "UNAVAILABLE", "c": "READY"}
    assert server.ask("POST", "/v2/repository/models/b/load").status == 200
    assert server.ask("GET", "/v2/models/b/ready").status == 200


def test_a_model_to_begin_with_that_is_not_there_is_refused(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "a")
    with pytest.raises(PenstockError, match="--load b: no such model; the models are a"):
        open_with([tmp_path], Limits(), Metrics(), Lifecycle(only=("b",)))


def test_a_bad_version_is_said_in_index_and_metrics_while_the_old_one_answers(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    fake_artifact(tmp_path, "m")
    server = start_server(tmp_path)
    made = fake_artifact(tmp_path, "m")
    made.model_path.write_bytes(b"other")
    answer = server.ask("POST", "/v2/repository/models/m/load")
    assert (answer.status, "vouches for" in answer.error) == (400, True)
    (row,) = server.ask("POST", "/v2/repository/index").json
    assert (row["version"], row["state"]) == ("1", "READY")
    assert "version 1 answers; what is to replace it cannot be loaded" in row["reason"]
    assert server.metric('penstock_model_load_failures_total{model="m"}') == 1
    assert server.ask("GET", "/v2/health/ready").status == 200
    assert "m cannot be loaded" in server.log
    assert server.ask("POST", "/v2/repository/models/nobody/load").status == 400
    assert server.metric('penstock_model_load_failures_total{model="nobody"}') == 0  # whatever a client makes up


class Watched(FakeRunner):
    """Says what becomes of it."""

    told: list[str]

    def run(self, feeds: Any) -> dict[str, Any]:
        self.told.append("run")
        return super().run(feeds)

    def settled(self, timeout_s: float | None = None) -> bool:
        self.told.append("settled")
        return True

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What became of each runner that was loaded, in order."""
    told: list[list[str]] = []

    def load(path: Path, signature: Any, **given: Any) -> Watched:
        made = Watched(signature)
        made.told = []
        told.append(made.told)
        return made

    monkeypatch.setattr("penstock.runtimes.fake.load", load)
    return told


def test_a_new_version_is_replayed_and_warm_before_the_old_one_is_drained(
    tmp_path: Path, fake_artifact: Make, watched: list[list[str]]
) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(), Metrics())
    fake_artifact(tmp_path, "m")
    watched[:] = watched[-2:-1]  # but those that wrote the artifacts
    states: list[Any] = []
    settled = Watched.settled

    def look(self: Watched, timeout_s: float | None = None) -> bool:
        states.append((list(watched[0]), list(self.told), repository.models["m"].version))
        return settled(self, timeout_s)

    async def scenario() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Watched, "settled", look)
            await repository.load("m")
        ((old, new, version),) = states
        assert ("closed" not in old, new, version) == (True, ["run"], 1)
        assert watched[-1] == ["run", "settled"]

    asyncio.run(scenario())


def test_a_server_that_stops_does_not_wait_for_a_new_version_to_be_warm(
    tmp_path: Path, fake_artifact: Make, watched: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(), Metrics())
    waited = threading.Event()

    def never(self: Watched, timeout_s: float | None = None) -> bool:
        waited.set()
        return False

    monkeypatch.setattr(Watched, "settled", never)

    async def scenario() -> None:
        loading = asyncio.ensure_future(repository.load("m"))
        assert await asyncio.to_thread(waited.wait, 10)
        await asyncio.sleep(0.05)
        assert not loading.done()
        await repository.close()
        with pytest.raises(RequestError, match="shutting down"):
            await loading

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_unloading_answers_when_the_runners_are_closed(
    tmp_path: Path, fake_artifact: Make, watched: list[list[str]]
) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(instances=3), Metrics())

    async def scenario() -> None:
        asked = asyncio.ensure_future(repository.find("m").infer(INPUTS))
        await asyncio.sleep(0)
        await repository.unload("m")
        assert [told[-1] for told in watched[1:]] == ["closed"] * 3
        assert (await asked)["total"].tolist() == [3.0]  # what was asked before is answered

    asyncio.run(scenario())


def test_a_change_is_made_whole_though_whoever_asked_for_it_goes_away(tmp_path: Path, fake_artifact: Make) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(), Metrics())
    fake_artifact(tmp_path, "m")
    going, go_on, load = threading.Event(), threading.Event(), repository.open
    assert load is not None

    def slowly(path: Path) -> Any:
        going.set()
        assert go_on.wait(10)
        return load(path)

    repository.open = slowly

    async def scenario() -> None:
        asked = asyncio.ensure_future(repository.load("m"))
        assert await asyncio.to_thread(going.wait, 10)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        former = repository.models["m"]
        go_on.set()
        while repository.models["m"] is former or not former.scheduler.closed:
            await asyncio.sleep(0.01)
        assert repository.models["m"].version == 2

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_requests_that_were_read_for_the_old_version_are_answered_by_the_new_one(
    tmp_path: Path, fake_artifact: Make
) -> None:
    """Over HTTP's two roads and gRPC's: the model is exchanged between a request's reading and its queueing."""
    httpx, _ = pytest.importorskip("httpx"), pytest.importorskip("grpc")
    from penstock import messages
    from penstock.serve.app import create_app
    from penstock.serve.rpc import Service
    from penstock.serve.sharedmemory import Regions
    from penstock.serve.tracing import Tracer
    from penstock.serve.watch import Watch

    fake_artifact(tmp_path, "m")
    metrics = Metrics()
    repository = open_repository([tmp_path], Limits(), metrics)

    class Context:
        def time_remaining(self) -> None:
            return None

        def invocation_metadata(self) -> tuple[()]:
            return ()

        def peer(self) -> str:
            return ""

    def tensors(message: Any) -> Any:
        message.inputs.add(name="ids", datatype="INT64", shape=[1, 2]).contents.int64_contents.extend([1, 1])
        message.inputs.add(name="weight", datatype="FP32", shape=[1]).contents.fp32_contents.extend([1.0])
        return message

    async def scenario() -> None:
        async def close_before(model: Any) -> None:
            """Let another version come while a request is between `find` and the queue."""
            infer = model.infer

            async def late(*given: Any, **named: Any) -> Any:
                model.infer = infer
                await repository.load("m")
                return await infer(*given, **named)

            model.infer = late

        app = create_app(repository, metrics)
        service = Service(repository, Regions(False), Tracer(), Watch(metrics))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            listed = [
                {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
                {"name": "weight", "datatype": "FP32", "shape": [1], "data": [1]},
            ]
            for path, body in (
                ("/v2/models/m/infer", {"inputs": listed}),
                ("/predict/m", {"inputs": {"ids": [[1, 1]], "weight": [1]}}),
            ):
                former = repository.models["m"]
                await close_before(former)
                answer = await client.post(path, json=body)
                assert (answer.status_code, former.scheduler.closed) == (200, True), answer.text
        former = repository.models["m"]
        await close_before(former)
        response = await service.ModelInfer(tensors(messages.message("ModelInferRequest")(model_name="m")), Context())
        assert (response.model_name, former.scheduler.closed) == ("m", True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_what_runs_beside_is_stopped_in_the_order_in_which_it_was_started() -> None:
    told: list[str] = []

    def beside(name: str) -> Any:
        async def start() -> Any:
            told.append(f"start {name}")

            async def stop(within_s: float) -> None:
                told.append(f"stop {name} {within_s:g}")

            return stop

        return start

    async def scenario() -> None:
        stop = await together([beside("a"), beside("b")])()
        await stop(3)

    asyncio.run(scenario())
    assert told == ["start a", "start b", "stop a 3", "stop b 3"]


def test_a_model_that_is_gone_is_unloaded_by_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(RequestError, match="no such model is in the repository"):
            await Repository().remove("m")

    asyncio.run(scenario())


@pytest.mark.parametrize(("ends", "least_s"), [(False, 0.2), (True, 0.0)])
def test_what_models_still_prepare_is_waited_for_a_while_unless_the_server_ends(
    tmp_path: Path, fake_artifact: Make, monkeypatch: pytest.MonkeyPatch, ends: bool, least_s: float
) -> None:
    def settled(_: Scheduler, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False

    monkeypatch.setattr(Scheduler, "settled", settled)
    monkeypatch.setattr("penstock.serve.loading._STEP_S", 0.01)
    monkeypatch.setattr("penstock.serve.lifecycle._SETTLE_S", 0.2)
    for name in ("a", "b", "c"):
        fake_artifact(tmp_path, name)
    repository, _ = open_with([tmp_path], Limits(), Metrics(), Lifecycle())
    began = time.monotonic()
    settle(repository, lambda: ends)
    assert least_s <= time.monotonic() - began < least_s + 2

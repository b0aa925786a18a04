"""Shadows: a share of the requests is computed again behind all others, and no client is any the wiser."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.runtimes.fake import FakeRunner
from penstock.serve import shadow as shadow_module
from penstock.serve.batches import LAST
from penstock.serve.lifecycle import Lifecycle, open_with
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.outcomes import QueueFull
from penstock.serve.repository import Repository
from penstock.serve.scheduler import Scheduler
from penstock.serve.shadow import Shadow, parse
from penstock.signature import Dim, Signature

if TYPE_CHECKING:
    from tests.serve.conftest import StartServer

Make = Callable[..., Artifact]
INPUTS = {"ids": np.ones((1, 2), np.int64), "weight": np.ones(1, np.float32)}


# --- what the option says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["digits"], "must read NAME=MODEL:SHARE"),
        (["a=b"], "the share must be over 0 and at most 1"),
        (["a=b:0"], "the share must be over 0"),
        (["a=b:1.1"], "at most 1"),
        (["a=b:nan"], "the share must be"),
        (["a=a:1"], "no shadow of its own"),
        (["a=b:1", "a=c:1"], "'a' has a shadow"),
    ],
)
def test_what_is_no_shadow_is_refused_by_the_option_s_name(texts: list[str], words: str) -> None:
    with pytest.raises(PenstockError, match=f"^--shadow .*{words}"):
        parse(texts)


@given(st.integers(1, 100), st.integers(0, 500))
def test_the_share_is_exact_over_any_stretch_from_the_start(percent: int, count: int) -> None:
    shadow = Shadow("a", "b", percent / 100)
    assert sum(shadow.due() for _ in range(count)) == int(Fraction(percent, 100) * count)


# --- within a process --------------------------------------------------------------------------------------------


class Served:
    """Models live and other, and a shadow of them."""

    def __init__(self, folder: Path, share: float = 1.0, limits: Limits | None = None, **more: Any) -> None:
        lifecycle = Lifecycle(shadows=(("live", "other", share),), **more)
        self.repository: Repository = open_with([folder], limits or Limits(), Metrics(), lifecycle)[0]
        shadows = self.repository.shadows
        assert shadows is not None
        self.shadows = shadows

    @property
    def live(self) -> Model:
        return self.repository.models["live"]

    async def ask(self, inputs: dict[str, Any] = INPUTS, id: str | None = None, name: str = "live") -> dict[str, Any]:
        """What a route does."""
        model = self.repository.find(name)
        answer = await model.infer(inputs)
        self.shadows.offer(name, model, id, inputs, answer)
        return answer

    async def told(self) -> dict[str, Any]:
        """What there is to tell, once nothing is under way."""
        give_up = time.monotonic() + 20
        while self.shadows.as_dict()["under_way"]:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.002)
        (found,) = self.shadows.as_dict()["shadows"]
        return dict(found)


@pytest.fixture
def folder(tmp_path: Path, fake_artifact: Make) -> Path:
    for name in ("live", "other"):
        fake_artifact(tmp_path, name)
    return tmp_path


@pytest.fixture
def other_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Decides what `other` answers; how many rows each of its batches had."""
    held: dict[str, Any] = {"factor": 1.0, "rows": [], "wait": None, "fail": None}

    class Other(FakeRunner):
        def run(self, feeds: Any) -> dict[str, Any]:
            held["rows"].append(len(feeds["weight"]))
            if held["wait"] is not None:
                assert held["wait"].wait(20)
            if held["fail"] is not None:
                raise held["fail"]
            answer = super().run(feeds)
            return {**answer, "total": answer["total"] * held["factor"]}

    def load(path: Path, signature: Signature, **given: Any) -> FakeRunner:
        return (Other if "other" in path.parts else FakeRunner)(signature)

    monkeypatch.setattr("penstock.runtimes.fake.load", load)
    return held


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_answers_that_agree_and_differ_are_counted_and_the_worst_is_told(
    folder: Path, other_runs: dict[str, Any]
) -> None:
    async def scenario() -> None:
        served = Served(folder)
        await served.ask()
        found = await served.told()
        assert (found["agreed"], found["differed"], found["worst"][0]["outputs"][0]["rel_l2"]) == (1, 0, 0.0)
        other_runs["factor"] = 1.5
        assert (await served.ask(id="x" * 200))["total"].tolist() == [3.0]
        found = await served.told()
        assert (found["agreed"], found["differed"]) == (1, 1)
        worst = found["worst"][0]
        assert (worst["id"], worst["answered_by"], worst["compared_with"]) == ("x" * 128, "live/1", "other/1")
        assert worst["outputs"][0] == {"output": "total", "rel_l2": 0.5, "max_abs": 1.5, "top1_agreement": None}
        assert "output 'total': relative L2 error 0.5" in worst["why"]

    run(scenario())


def test_nothing_of_it_begins_before_the_answer_is_sent(folder: Path, other_runs: dict[str, Any]) -> None:
    async def scenario() -> None:
        served = Served(folder)
        other_runs["rows"].clear()
        other_runs["wait"] = threading.Event()
        answer = await served.ask()
        assert (answer["total"].tolist(), other_runs["rows"]) == ([3.0], [])
        await asyncio.sleep(0)  # in which it is written to the socket
        assert other_runs["rows"] == []
        other_runs["wait"].set()
        assert (await served.told())["agreed"] == 1
        assert other_runs["rows"] == [1]

    run(scenario())


def test_a_share_of_the_requests_is_taken(folder: Path) -> None:
    async def scenario() -> None:
        served = Served(folder, share=0.25)
        for _ in range(12):
            await served.ask()
            found = await served.told()
        assert sum(found[result] for result in ("agreed", "differed", "failed", "dropped")) == 3

    run(scenario())


def test_what_is_under_way_is_bounded_and_what_meets_a_busy_model_is_dropped(
    folder: Path, other_runs: dict[str, Any]
) -> None:
    async def scenario() -> None:
        served = Served(folder)
        other_runs["rows"].clear()
        other_runs["wait"] = threading.Event()
        for _ in range(20):
            await served.ask()
        assert served.shadows.as_dict()["under_way"] <= shadow_module._MOST
        while served.shadows.as_dict()["under_way"] > 1 or not other_runs["rows"]:
            await asyncio.sleep(0.002)
        assert other_runs["rows"] == [1]
        other_runs["wait"].set()
        found = await served.told()
        assert (found["agreed"], found["dropped"]) == (1, 19)

    run(scenario())


def test_requests_of_many_bytes_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "_MOST_BYTES", 10)

    async def scenario() -> None:
        served = Served(folder)
        await served.ask()
        assert (await served.told())["dropped"] == 1

    run(scenario())


def test_a_failing_model_is_counted_and_said_once(
    folder: Path, other_runs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        served = Served(folder)
        other_runs["fail"] = ValueError("it broke")
        for _ in range(3):
            assert (await served.ask())["total"].tolist() == [3.0]
            found = await served.told()
        assert (found["failed"], found["last_failure"]) == (3, "ValueError: it broke")
        await served.repository.unload("other")
        await served.ask()
        assert (await served.told())["last_failure"] == "model 'other' is not served"
        assert (await served.ask())["total"].tolist() == [3.0]

    run(scenario())
    assert sum("it broke" in record.getMessage() for record in caplog.records) <= 1


def test_a_later_version_that_cannot_be_compared_is_told_and_answers(
    folder: Path, fake_artifact: Make, pair_signature: Signature
) -> None:
    wide = pair_signature.model_copy(update={"dims": {**pair_signature.dims, "tokens": Dim(min=1, opt=4, max=32)}})
    fake_artifact(folder, "live", wide)

    async def scenario() -> None:
        with pytest.raises(PenstockError, match=r"--shadow live=other:1: the models must take and give the same"):
            Served(folder)

    run(scenario())


def test_a_request_that_the_shadow_itself_answers_by_a_route_is_not_compared(folder: Path) -> None:
    async def scenario() -> None:
        served = Served(folder, routes={"r": {"live": 1, "other": 1}})
        for _ in range(4):
            await served.ask(name="r")
            await served.told()
        found = await served.told()
        assert found["agreed"] == 2

    run(scenario())


@pytest.mark.parametrize(
    ("wanted", "words"),
    [(("live", "nobody", 1.0), "no model is named 'nobody'"), (("nobody", "live", 1.0), "no model or route is named")],
)
def test_names_that_are_not_there_are_refused(folder: Path, wanted: tuple[str, str, float], words: str) -> None:
    with pytest.raises(PenstockError, match=f"--shadow .*{words}"):
        open_with([folder], Limits(), Metrics(), Lifecycle(shadows=(wanted,)))


def test_what_stops_a_shadow_leaves_nothing_under_way(folder: Path, other_runs: dict[str, Any]) -> None:
    async def scenario() -> None:
        served = Served(folder)
        other_runs["rows"].clear()
        other_runs["wait"] = threading.Event()
        stop = await served.shadows.start()
        await served.ask()
        while not other_runs["rows"]:
            await asyncio.sleep(0.002)
        await asyncio.wait_for(stop(30), 5)
        await served.ask()
        other_runs["wait"].set()
        assert (await served.told())["dropped"] == 1

    run(scenario())


# --- the queue ---------------------------------------------------------------------------------------------------


def test_what_gives_way_leaves_the_queue_where_there_is_no_room_and_shares_no_batch() -> None:
    batches: list[list[str]] = []
    go_on = threading.Event()

    def work(items: list[str]) -> list[str]:
        batches.append(items)
        assert go_on.wait(20)
        return items

    async def scenario() -> None:
        scheduler = Scheduler(lambda: work, max_batch=8, max_queue_rows=2)
        first = asyncio.ensure_future(scheduler.submit("first"))
        await asyncio.sleep(0.05)
        last = [asyncio.ensure_future(scheduler.submit(f"last {n}", priority=LAST)) for n in range(2)]
        await asyncio.sleep(0)
        client = asyncio.ensure_future(scheduler.submit("client"))
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(first, client) == ["first", "client"]
        assert await last[0] == "last 0"
        with pytest.raises(QueueFull, match="gave way"):  # the one that came last
            await last[1]
        await scheduler.close()

    run(scenario())
    assert batches == [["first"], ["client"], ["last 0"]]


def test_what_gave_way_makes_room_once() -> None:
    go_on = threading.Event()

    def work(items: list[str]) -> list[str]:
        assert go_on.wait(20)
        return items

    async def scenario() -> None:
        scheduler = Scheduler(lambda: work, max_batch=8, max_queue_rows=1)
        first = asyncio.ensure_future(scheduler.submit("first"))
        while scheduler.pending_rows or scheduler.idle:
            await asyncio.sleep(0.002)
        last = asyncio.ensure_future(scheduler.submit("last", priority=LAST))
        await asyncio.sleep(0)
        client = asyncio.ensure_future(scheduler.submit("client"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 rows are waiting"):
            await scheduler.submit("one more")
        go_on.set()
        assert await asyncio.gather(first, client) == ["first", "client"]
        with pytest.raises(QueueFull, match="gave way"):
            await last
        await scheduler.close()

    run(scenario())


# --- over the wire -----------------------------------------------------------------------------------------------


def test_a_server_compares_what_it_answered_over_every_road(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    for name in ("a", "b"):
        fake_artifact(tmp_path, name)
    server = start_server(tmp_path, "--route", "r=a", "--shadow", "r=b:1")
    labels = 'model="b",name="r"'
    agreed = f'penstock_shadow_requests_total{{{labels},result="agreed"}}'
    listed = [
        {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
        {"name": "weight", "datatype": "FP32", "shape": [1], "data": [1]},
    ]
    answer = server.ask("POST", "/v2/models/r/infer", {"id": "mine", "inputs": listed})
    assert answer.json["model_name"] == "a"
    server.wait_for_metric(agreed, 1)
    assert server.ask("POST", "/predict/r", {"inputs": {"ids": [[1, 1]], "weight": [1]}}).json["model"] == "a"
    server.wait_for_metric(agreed, 2)
    found = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert found is not None
    inputs = [triton.InferInput("ids", [1, 2], "INT64"), triton.InferInput("weight", [1], "FP32")]
    for held, array in zip(inputs, INPUTS.values(), strict=True):
        held.set_data_from_numpy(array)
    with triton.InferenceServerClient(found[1]) as client:
        assert client.infer("r", inputs).get_response().model_name == "a"
    server.wait_for_metric(agreed, 3)
    assert server.ask("POST", "/v2/models/a/infer", {"inputs": listed}).status == 200  # it is of the route
    answer = server.ask("GET", "/debug/shadow")
    assert b"\n  " in answer.body  # readable as it stands
    told = answer.json
    (shadow,) = told["shadows"]
    assert (shadow["name"], shadow["model"], shadow["share"], shadow["agreed"]) == ("r", "b", 1.0, 3)
    slow = server.ask("GET", "/debug/slow").json["requests"]
    ids = {each["request_id"] for each in slow if each.get("route") == "r"}
    assert {case["id"] for case in shadow["worst"]} == ids >= {"mine"}
    assert all(case["when"].endswith("Z") for case in shadow["worst"])
    assert server.metric('penstock_requests_total{code="200",model="b"}') == 0
    stats = server.ask("GET", "/v2/models/b/stats").json["model_stats"][0]
    assert (stats["inference_stats"]["success"]["count"], stats["execution_count"]) == (0, 3)


def test_int8_beside_fp32_is_as_near_as_its_receipt_allows(
    repository: Path, scans: Any, png: Any, start_server: StartServer
) -> None:
    names = ("digits-onnx-fp32", "digits-onnx-int8")
    server = start_server(*(repository / name for name in names), "--shadow", f"{names[0]}={names[1]}:1")
    images = scans[0][:10]
    labels = f'model="{names[1]}",name="{names[0]}"'
    for count, image in enumerate(images, 1):
        answer = server.ask("POST", f"/predict/{names[0]}", png(image), {"Content-Type": "image/png"})
        assert answer.status == 200
        server.wait_for_metric(f"penstock_shadow_rows_total{{{labels}}}", count)
    (shadow,) = server.ask("GET", "/debug/shadow").json["shadows"]
    assert (shadow["agreed"] + shadow["differed"], shadow["failed"], shadow["dropped"]) == (10, 0, 0)
    assert shadow["agreed"] >= 8
    assert 0 < shadow["worst"][0]["outputs"][0]["rel_l2"] < 0.3
    assert shadow["top1_agreement"] >= 0.9

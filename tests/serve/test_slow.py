"""The slowest requests: which are kept, for how long, and what a server tells of them."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve.metrics import Metrics
from penstock.serve.records import Record
from penstock.serve.slow import Slow
from penstock.serve.watch import Watch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.serve.conftest import Server, StartServer


class Clocked(Slow):
    """A Slow of which the test says what time it is, asked as `Watch` asks it."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now, **settings)

    def ended(self, total_s: float, model: str = "m", id: str = "") -> None:
        kept = self.models.get(model)
        if kept is None or total_s > kept.least or self.now >= kept.ends:
            self.note(Record(model=model, total_s=total_s, id=id), self.now)

    def totals(self, limit: int = 1000, model: str | None = None) -> list[float]:
        return [told["total_ms"] / 1000 for told in self.slowest(limit, model)]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 10))
def test_the_slowest_are_kept_and_no_more(totals: list[int], most: int) -> None:
    slow = Clocked(most=most)
    for total in totals:
        slow.ended(total)
    assert slow.totals() == sorted(totals, reverse=True)[:most]


def test_each_window_keeps_its_own_and_the_oldest_is_forgotten() -> None:
    slow = Clocked(most=2, windows=3, window_s=60)
    for window in range(4):
        slow.now = 60.0 * window
        for total in (1, 2, 3):
            slow.ended(10 * window + total)
    assert slow.totals() == [33, 32, 23, 22, 13, 12]
    slow.now += 1000  # and nothing has come since
    assert slow.totals() == []


def test_a_slow_minute_does_not_hide_the_slow_ones_of_the_next() -> None:
    slow = Clocked(most=1)
    slow.ended(9)
    slow.now = 61
    slow.ended(1)
    assert slow.totals() == [9, 1]


def test_a_slow_model_does_not_hide_those_of_a_fast_one() -> None:
    slow = Clocked(most=2)
    for _ in range(5):
        slow.ended(9, "heavy")
        slow.ended(1, "light")
    assert slow.totals(model="light") == [1, 1]
    assert slow.totals(limit=3) == [9, 9, 1]
    assert slow.totals(model="nobody") == []


def test_memory_is_bounded_whatever_comes() -> None:
    slow, rng = Clocked(most=5, windows=3), random.Random(0)
    for step in range(5000):
        slow.now = step
        slow.ended(rng.random() + step)  # each slower than all before it
    held = [entry for kept in slow.models.values() for window in kept.windows for entry in window.held]
    assert len(held) == 15


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=8))
def test_another_process_is_told_what_is_kept_once_and_then_keeps_the_same(told: list[list[int]]) -> None:
    front, engine = Clocked(most=3), Clocked(most=3)
    for totals in told:
        for total in totals:
            front.ended(total)
        taken = front.taken()
        assert len(taken) <= min(3, len(totals))
        engine.add(taken)
        assert engine.totals() == front.totals()
    assert front.taken() == []


def test_what_nobody_asks_for_takes_no_memory() -> None:
    slow = Clocked(most=5, windows=3)
    for step in range(5000):
        slow.now = step
        slow.ended(step)  # each slower than all before it
    assert len(slow.taken()) == 10  # of this window and the one before


def test_what_was_slow_hours_ago_is_not_told_as_new() -> None:
    slow = Clocked()
    slow.ended(5)
    slow.now = 10_000
    assert slow.taken() == []


def test_a_fast_request_is_not_looked_at() -> None:
    watch = Watch(Metrics())
    for _ in range(watch.slow.most):
        watch.ended(Record(started=-1e9), "m", 200)
    looked: list[Record] = []
    watch.slow.note = lambda record, now: looked.append(record)  # type: ignore[method-assign]
    watch.ended(Record(), "m", 200)
    assert not looked
    watch.ended(Record(started=-1e12), "m", 200)
    assert len(looked) == 1


NAME = "digits-onnx-fp32"


@pytest.fixture(scope="module")
def watched(repository: Path, slow_onnx: Path, start_server: StartServer) -> Server:
    return start_server(repository / NAME, slow_onnx, "--timeout-s", "20")


def tensors(**named: Any) -> dict[str, Any]:
    kinds = {"float32": "FP32", "int64": "INT64"}
    return {
        "inputs": [
            {"name": name, "shape": list(array.shape), "datatype": kinds[str(array.dtype)], "data": array.tolist()}
            for name, array in named.items()
        ]
    }


def digits(rows: int) -> dict[str, Any]:
    return tensors(image=np.zeros((rows, 1, 8, 8), np.float32))


def told(server: Server, query: str = "") -> list[dict[str, Any]]:
    answer = server.ask("GET", f"/debug/slow{query}")
    assert answer.status == 200
    assert b"\n" in answer.body  # readable as it stands
    found: list[dict[str, Any]] = answer.json["requests"]
    return found


def test_requests_over_every_road_are_told_with_their_stages(watched: Server) -> None:
    grpc = pytest.importorskip("tritonclient.grpc")
    assert watched.ask("POST", f"/v2/models/{NAME}/infer", {**digits(3), "id": "own"}).status == 200
    assert watched.ask("POST", f"/predict/{NAME}", {"inputs": {"image": np.zeros((2, 1, 8, 8)).tolist()}}).status == 200
    address = re.search(r"gRPC at (\S+)", "\n".join(watched.lines))
    assert address is not None
    image = grpc.InferInput("image", [4, 1, 8, 8], "FP32")
    image.set_data_from_numpy(np.zeros((4, 1, 8, 8), np.float32))
    with grpc.InferenceServerClient(address[1]) as client:
        client.infer(NAME, [image], request_id="call")
        ended: list[Any] = []
        client.start_stream(lambda result, error: ended.append((result, error)))
        client.async_stream_infer(NAME, [image], request_id="streamed")
        client.stop_stream()
    by_road = {entry["via"]: entry for entry in told(watched, f"?model={NAME}")}
    infer, predict = by_road["POST /v2/models/{model}/infer"], by_road["POST /predict/{model}"]
    call, streamed = by_road["ModelInfer"], by_road["ModelStreamInfer"]
    assert (infer["request_id"], call["request_id"], streamed["request_id"]) == ("own", "call", "streamed")
    assert [entry["rows"] for entry in (infer, predict, call, streamed)] == [3, 2, 4, 4]
    for entry in by_road.values():
        assert (entry["model"], entry["version"], entry["status"]) == (NAME, 1, 200)
        stages = [entry[f"{stage}_ms"] for stage in ("decode", "queue", "compute", "rest")]
        assert min(stages) >= 0
        assert entry["compute_ms"] > 0
        assert sum(stages) == pytest.approx(entry["total_ms"], abs=0.01)
        assert entry["when"].endswith("Z")


def test_the_slowest_comes_first_and_its_time_went_into_computing(watched: Server) -> None:
    turns = np.array([400], np.int64)
    answer = watched.ask("POST", "/v2/models/slow/infer", tensors(turns=turns), {"X-Request-Id": "the-slow-one"})
    assert (answer.status, answer.headers["x-request-id"]) == (200, "the-slow-one")
    watched.ask("POST", f"/v2/models/{NAME}/infer", digits(1))
    (first,) = told(watched, "?limit=1")
    assert first["request_id"] == "the-slow-one"
    assert first["compute_ms"] > 0.5 * first["total_ms"]
    assert told(watched, "?model=nobody") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "limit=²", "what=1"])
def test_a_query_that_means_nothing_is_refused(watched: Server, query: str) -> None:
    answer = watched.ask("GET", f"/debug/slow?{query.replace('²', '%C2%B2')}")
    assert answer.status == 400
    assert re.search("must be", answer.error)

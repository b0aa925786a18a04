"""Routes: names for models, shares that are exact, and that one model stands in for another unseen."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.serve.errors import RequestError
from penstock.serve.lifecycle import Lifecycle, open_repository, open_with
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.repository import Repository
from penstock.serve.routes import difference, parse, turns
from penstock.signature import Dim, Signature, Tensor

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

Make = Callable[..., Artifact]
NAMES = st.text("abc", min_size=1, max_size=3)
BODY = {
    "inputs": [
        {"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
        {"name": "weight", "datatype": "FP32", "shape": [1], "data": [1]},
    ]
}


# --- what the option says ----------------------------------------------------------------------------------------


def test_an_alias_and_a_split() -> None:
    assert parse(["now=m-1", "digits=a:90, b:10"]) == {"now": {"m-1": 1}, "digits": {"a": 90, "b": 10}}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["digits"], "must read NAME=MODEL"),
        (["=a"], "a route's name must be letters"),
        (["d="], "'' is no name of a model"),
        (["d=a:90,b"], "'b' has no weight"),
        (["d=a:1,a:2"], "names 'a' twice"),
        (["d=a:-1"], "weight of 'a' must be a whole number from 0 to 1000"),
        (["d=a:1001"], "weight of 'a' must be a whole number from 0 to 1000"),
        (["d=a:" + "9" * 5000], "weight of 'a' must be"),
        (["d=a:"], "weight of 'a' must be"),
        (["d=a:0,b:0"], "all weights are 0"),
        (["d=a", "d=b"], "the route 'd' is given twice"),
        (["d=" + ",".join(f"m{n}:1" for n in range(17))], "must name 1 to 16 models"),
    ],
)
def test_what_is_no_route_is_refused_by_the_option_s_name(texts: list[str], words: str) -> None:
    with pytest.raises(PenstockError, match=r"^--route ") as caught:
        parse(texts)
    assert re.search(words, str(caught.value))


@given(st.text(max_size=40))
def test_any_text_is_a_route_or_one_sentence(text: str) -> None:
    found: dict[str, dict[str, int]] = {}
    with suppress(PenstockError):
        found = parse([text])
    assert all(0 <= weight <= 1000 for weights in found.values() for weight in weights.values())


# --- shares ------------------------------------------------------------------------------------------------------


@given(st.dictionaries(NAMES, st.integers(0, 100), min_size=1, max_size=6).filter(lambda held: any(held.values())))
def test_every_stretch_from_the_start_is_shared_as_the_weights_say(weights: dict[str, int]) -> None:
    order, had, total = turns(weights), Counter[str](), sum(weights.values())
    for count, name in enumerate(order, 1):
        had[name] += 1
        assert all(abs(had[each] - count * weight / total) < 1 for each, weight in weights.items()), (count, had)
    assert all(had[name] * total == len(order) * weight for name, weight in weights.items())


def test_weights_that_come_out_even_soon_take_few_turns() -> None:
    assert turns({"a": 90, "b": 10}) == ["a"] * 9 + ["b"]
    assert turns({"a": 500, "b": 500, "c": 0}) == ["a", "b"]


# --- routes of a repository --------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path: Path, fake_artifact: Make) -> Repository:
    """Models a, b and c of one signature."""
    for name in ("a", "b", "c"):
        fake_artifact(tmp_path, name)
    return open_repository([tmp_path], Limits(), Metrics())


def chosen(repository: Repository, count: int, version: str | None = None) -> Counter[str]:
    return Counter(repository.find("r", version).name for _ in range(count))


def test_a_model_that_is_not_there_leaves_its_share_to_the_first_that_is(pairs: Repository) -> None:
    pairs.change_routes({"r": {"a": 3, "b": 1}})
    assert chosen(pairs, 8) == {"a": 6, "b": 2}

    async def scenario() -> None:
        await pairs.unload("a")
        assert chosen(pairs, 8) == {"b": 8}
        assert pairs.problems == []
        await pairs.unload("b")
        with pytest.raises(RequestError, match="route 'r' leads to no model that is served: a, b") as caught:
            pairs.find("r")
        assert caught.value.status == 503
        assert pairs.problems == ["route 'r' leads to no model that is served"]
        assert not pairs.is_ready("r")
        await pairs.load("a")
        assert chosen(pairs, 4) == {"a": 4}

    asyncio.run(scenario())
    assert pairs.routes.held["r"].counts == {"a": 10, "b": 10}


def test_a_model_whose_instance_is_dead_is_passed_over(pairs: Repository) -> None:
    pairs.change_routes({"r": {"a": 1, "b": 1}})
    pairs.models["a"].scheduler._dead = 1
    assert chosen(pairs, 4) == {"b": 4}
    pairs.models["b"].scheduler._dead = 1
    assert pairs.find("r").name == "a"  # which may be back before the request's time is over


def test_a_version_that_is_asked_for_is_of_the_models_that_have_it(tmp_path: Path, fake_artifact: Make) -> None:
    for name in ("a", "b", "b"):
        fake_artifact(tmp_path, name)
    found = open_repository([tmp_path], Limits(), Metrics())
    found.change_routes({"r": {"a": 1, "b": 1}})
    assert chosen(found, 6, "2") == {"b": 6}
    with pytest.raises(RequestError, match="version '3' is of no model that route 'r' leads to: a, b") as caught:
        found.find("r", "3")
    assert caught.value.status == 404


def test_looking_takes_no_turn(pairs: Repository) -> None:
    pairs.change_routes({"r": {"a": 1, "b": 1}})
    assert [(pairs.look("r").name, pairs.find("r").name) for _ in range(4)] == [("a", "a"), ("a", "b")] * 2


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"a": {"b": 1}}, "route 'a': a model has that name"),
        ({"r": {"nobody": 1}}, "route 'r': no model is named 'nobody'"),
        ({"r": {"r": 1}}, "no model is named 'r'"),
        ({"r": {}}, "must name 1 to 16 models"),
        ({"r": "a"}, "must name 1 to 16 models"),
        ({"r": {"a": True}}, "must be a whole number"),
        ({"r": {"a": 0.5}}, "must be a whole number"),
        ({f"r{n}": {"a": 1} for n in range(256)}, "there are 257 routes"),
    ],
)
def test_routes_that_cannot_be_change_nothing(pairs: Repository, wanted: Any, words: str) -> None:
    pairs.change_routes({"r": {"a": 1}})
    with pytest.raises(RequestError, match=words):
        pairs.change_routes({"fine": {"a": 1}, **wanted})
    assert pairs.routes.as_dict() == {"r": {"a": 1}}


def test_models_whose_classes_have_other_names_share_no_route(tmp_path: Path, fake_artifact: Make) -> None:
    """One name would give two labels for one input."""
    for name, labels in (("a", ("fig", "pear")), ("b", ("fig", "plum")), ("c", None), ("d", ("fig", "pear"))):
        fake_artifact(tmp_path, name, labels=labels)
    found = open_repository([tmp_path], Limits(), Metrics())
    words = "its models must give the same labels: class 1 is 'pear' in 'a' and 'plum' in 'b'"
    with pytest.raises(RequestError, match=f"route 'r': {words}"):
        found.change_routes({"r": {"c": 1, "a": 1, "b": 1}})
    found.change_routes({"r": {"c": 1, "a": 1, "d": 1}})
    fake_artifact(tmp_path, "d", labels=("fig", "plum"))
    with pytest.raises(RequestError, match=r"class 1 is 'pear' in 'a' and 'plum' in 'd'"):
        asyncio.run(found.load("d"))
    assert found.find("d").version == 1


@pytest.mark.parametrize(
    ("lifecycle", "words"),
    [
        (Lifecycle(routes={"r": {"nobody": 1}}), "--route 'r': no model is named 'nobody'"),
        (Lifecycle(shadows=(("a", "nobody", 1.0),)), "--shadow a=nobody:1: no model is named 'nobody'"),
        (Lifecycle(shadows=(("nobody", "a", 1.0),)), "--shadow nobody=a:1: no model or route is named 'nobody'"),
    ],
)
def test_names_that_are_nobody_s_are_told_before_a_model_is_loaded(
    tmp_path: Path, fake_artifact: Make, monkeypatch: pytest.MonkeyPatch, lifecycle: Lifecycle, words: str
) -> None:
    fake_artifact(tmp_path, "a")
    monkeypatch.setattr("penstock.serve.lifecycle.load", lambda *_: pytest.fail("it is loaded"))
    with pytest.raises(PenstockError, match=words):
        open_with([tmp_path], Limits(), Metrics(), lifecycle)


def test_models_that_differ_share_no_route_also_not_by_a_later_version(
    tmp_path: Path, fake_artifact: Make, pair_signature: Signature
) -> None:
    narrow = pair_signature.model_copy(update={"dims": {**pair_signature.dims, "tokens": Dim(min=1, opt=4, max=8)}})
    fake_artifact(tmp_path, "a")
    fake_artifact(tmp_path, "b", narrow)
    fake_artifact(tmp_path, "c")
    found = open_repository([tmp_path], Limits(), Metrics())
    words = r"input 'ids' is int64\[\?,1..16\] in 'a' and int64\[\?,1..8\] in 'b'"
    with pytest.raises(RequestError, match=f"route 'r': its models must take and give the same: {words}"):
        found.change_routes({"r": {"a": 1, "b": 1}})
    found.change_routes({"r": {"a": 1, "c": 1}})
    wide = pair_signature.model_copy(update={"dims": {**pair_signature.dims, "tokens": Dim(min=1, opt=4, max=32)}})
    fake_artifact(tmp_path, "c", wide)

    async def scenario() -> None:
        with pytest.raises(RequestError, match=r"int64\[\?,1..16\] in 'a' and int64\[\?,1..32\] in 'c'"):
            await found.load("c")
        assert found.find("c").version == 1
        found.change_routes({})
        await found.load("c")
        assert found.find("c").version == 2

    asyncio.run(scenario())


def test_a_model_cannot_take_a_route_s_name(tmp_path: Path, pairs: Repository, fake_artifact: Make) -> None:
    pairs.change_routes({"r": {"a": 1}})
    fake_artifact(tmp_path, "r")
    with pytest.raises(RequestError, match="'r' is the name of a route"):
        asyncio.run(pairs.load("r"))
    assert pairs.find("r").name == "a"


def test_names_of_dimensions_and_sizes_of_batches_are_no_difference() -> None:
    def signature(batch: str, most: int, dtype: str = "float32", **more: Any) -> Signature:
        x, y = (Tensor(name=name, dtype=dtype, shape=(batch, 3)) for name in "xy")
        return Signature(inputs=(x,), outputs=(y,), dims={batch: Dim(min=1, opt=1, max=most)}, **more)

    assert difference(signature("batch", 8), signature("N", 64), "a", "b") is None
    found = difference(signature("batch", 8), signature("batch", 8, "float16"), "a", "b")
    assert found == "input 'x' is float32[?,3] in 'a' and float16[?,3] in 'b'"


def test_the_choice_costs_a_request_next_to_nothing(pairs: Repository) -> None:
    import timeit

    pairs.change_routes({"r": {"a": 90, "b": 10}})
    runs = 2000
    routed = min(timeit.repeat(lambda: pairs.find("r"), number=runs, repeat=5)) / runs
    assert routed < 50e-6


# --- over the wire -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Server:
    from tests.serve.conftest import write_fake_artifact

    folder = tmp_path_factory.mktemp("routed")
    for name in ("a", "b"):
        write_fake_artifact(folder, name)
    return start_server(folder, "--route", "now=a", "--route", "split=a:9,b:1")


def test_http_clients_use_a_route_as_a_model(routed: Server) -> None:
    assert routed.ask("GET", "/v2/models/split/ready").json == {"name": "split", "ready": True}
    metadata = routed.ask("GET", "/v2/models/split").json
    assert (metadata["name"], metadata["versions"]) == ("split", ["1"])
    assert metadata["inputs"] == routed.ask("GET", "/v2/models/a").json["inputs"]
    assert routed.ask("GET", "/v2/models/split/config").json["name"] == "split"
    stats = routed.ask("GET", "/v2/models/split/stats").json["model_stats"]
    assert [each["name"] for each in stats] == ["a", "b"]
    answers = [routed.ask("POST", "/v2/models/split/infer", BODY).json for _ in range(20)]
    assert Counter(answer["model_name"] for answer in answers) == {"a": 18, "b": 2}
    answer = routed.ask("POST", "/predict/now", {"inputs": {"ids": [[1, 1]], "weight": [1]}}).json
    assert (answer["model"], answer["outputs"]["total"]) == ("a", [3.0])
    assert routed.ask("POST", "/v2/models/now/versions/1/infer", BODY).json["model_name"] == "a"
    assert routed.ask("POST", "/v2/models/now/versions/2/infer", BODY).status == 404
    assert routed.metric('penstock_route_requests_total{model="b",route="split"}') == 2
    assert routed.metric('penstock_requests_total{code="200",model="b"}') == 2
    assert routed.metric('penstock_requests_total{code="200",model="split"}') == 0
    slow = routed.ask("GET", "/debug/slow?model=b").json["requests"]
    assert {(each["model"], each["route"], each["version"]) for each in slow} == {("b", "split", 1)}
    assert "'split' is a route" in routed.ask("GET", "/v2/models/split/trace/setting").error
    assert [row["name"] for row in routed.ask("POST", "/v2/repository/index").json] == ["a", "b"]
    assert routed.ask("GET", "/debug/shadow").json == {"shadows": []}
    assert "no such model" in routed.ask("POST", "/v2/repository/models/split/unload").error


def test_requests_that_uvicorn_s_side_answers_take_one_turn_each(routed: Server) -> None:
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    import json

    before = routed.metric('penstock_route_requests_total{model="a",route="now"}')
    connection = routed.connect()
    connection.request("POST", "/v2/models/now/infer", iter([json.dumps(BODY).encode()]), headers, encode_chunked=True)
    assert connection.getresponse().status == 200
    assert routed.metric('penstock_route_requests_total{model="a",route="now"}') == before + 1


def test_grpc_clients_use_a_route_as_a_model(routed: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    found = re.search(r"gRPC at (\S+)", "\n".join(routed.lines))
    assert found is not None
    inputs = [triton.InferInput("ids", [1, 2], "INT64"), triton.InferInput("weight", [1], "FP32")]
    for held, array in zip(inputs, (np.ones((1, 2), np.int64), np.ones(1, np.float32)), strict=True):
        held.set_data_from_numpy(array)
    with triton.InferenceServerClient(found[1]) as client:
        assert client.is_model_ready("split")
        assert not client.is_model_ready("split", "9")
        assert client.get_model_metadata("split").name == "split"
        assert client.get_model_config("split").config.name == "split"
        assert len(client.get_inference_statistics("split").model_stats) == 2
        names = Counter(client.infer("split", inputs).get_response().model_name for _ in range(10))
    assert names == {"a": 9, "b": 1}


def test_grpc_health_knows_routes(routed: Server) -> None:
    grpc, health = pytest.importorskip("grpc"), pytest.importorskip("grpc_health.v1.health_pb2")
    stubs = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    found = re.search(r"gRPC at (\S+)", "\n".join(routed.lines))
    assert found is not None
    with grpc.insecure_channel(found[1]) as channel:
        checked = stubs.HealthStub(channel).Check(health.HealthCheckRequest(service="split"))
    assert checked.status == health.HealthCheckResponse.SERVING


def test_routes_are_changed_while_the_server_runs(
    tmp_path: Path, fake_artifact: Make, start_server: StartServer
) -> None:
    for name in ("a", "b"):
        fake_artifact(tmp_path, name)
    server = start_server(tmp_path, "--route", "r=a")
    assert server.ask("GET", "/v2/routes").json == {"r": {"a": 1}}
    assert server.ask("POST", "/v2/models/r/infer", BODY).json["model_name"] == "a"
    assert server.ask("PUT", "/v2/routes", {"r": {"b": 1}, "s": {"a": 1}}).json == {"r": {"b": 1}, "s": {"a": 1}}
    assert server.ask("POST", "/v2/models/r/infer", BODY).json["model_name"] == "b"
    assert server.metric('penstock_route_requests_total{model="a",route="r"}') == 1
    refused = server.ask("PUT", "/v2/routes", {"r": {"c": 1}})
    assert (refused.status, refused.error) == (400, "route 'r': no model is named 'c'; the models are a, b")
    assert server.ask("PUT", "/v2/routes", {}).json == {}
    assert server.ask("POST", "/v2/models/r/infer", BODY).status == 404


def test_a_model_that_is_not_there_is_told_with_those_that_are_the_nearest_first(
    tmp_path: Path, fake_artifact: Make
) -> None:
    for name in ("digits-onnx-fp32", "digits-onnx-int8", "people"):
        fake_artifact(tmp_path, name)
    words = "no model is named 'digit-int8'; the models are digits-onnx-int8, digits-onnx-fp32, people"
    with pytest.raises(PenstockError) as caught:
        open_with([tmp_path], Limits(), Metrics(), Lifecycle(routes={"digits": {"digit-int8": 1}}))
    assert str(caught.value) == f"--route 'digits': {words}"
    with pytest.raises(RequestError) as refused:
        open_repository([tmp_path], Limits(), Metrics()).change_routes({"digits": {"digit-int8": 1}})
    assert (str(refused.value), refused.value.status) == (f"route 'digits': {words}", 400)


def test_by_mode_poll_clients_lead_routes_to_models_that_are_there_or_were_led_to_before(
    tmp_path: Path, fake_artifact: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake_artifact(tmp_path, "a")
    found, _ = open_with([tmp_path], Limits(), Metrics(), Lifecycle("poll", routes={"r": {"a": 9, "to-come": 1}}))
    assert "--route leads to 'to-come', which is still to come: the models are a" in caplog.text
    with pytest.raises(RequestError, match="route 's': no model is named 'b'; the models are a") as refused:
        found.change_routes({"s": {"b": 1}})
    assert refused.value.status == 400
    wanted = {**found.routes.as_dict(), "s": {"a": 1}}
    found.change_routes(wanted)
    assert found.routes.as_dict() == {"r": {"a": 9, "to-come": 1}, "s": {"a": 1}}


def test_by_mode_none_routes_stay_as_they_are(pairs: Repository) -> None:
    pairs.mode = "none"
    with pytest.raises(RequestError, match="--mode none") as caught:
        pairs.change_routes({})
    assert caught.value.status == 403

"""Servers that say of themselves what the protocol does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.bench import server, target
from penstock.bench.server import Plan
from penstock.client.access import Access
from penstock.errors import PenstockError

MODEL, INDEX, STATS = "/v2/models/double", "/v2/repository/index", "/v2/models/double/stats"
PENSTOCK, ROUTES = {"/v2": {"name": "penstock", "version": "1"}}, "/v2/routes"
DEEP = b"[" * 100_000 + b"]" * 100_000


def inputs(*listed: Any, **told: Any) -> dict[str, Any]:
    return {MODEL: {"name": "double", "versions": ["1"], "inputs": listed, **told}}


@pytest.mark.parametrize(
    "said",
    [
        {"/v2": {"name": "toy", "extensions": 5}},
        {"/v2": DEEP},
        {MODEL: DEEP},
        {MODEL: {"name": "double", "versions": {"1": 2}}},
        {MODEL: {"name": "double", "versions": 1}},
        {MODEL: {"name": "double", "inputs": 3}},
        inputs("x"),
        inputs({"name": "x", "datatype": "FP32"}),
        inputs({"name": "x", "datatype": "FP32", "shape": None}),
        inputs({"name": "x", "datatype": "FP32", "shape": ["a"]}),
        inputs({"name": "x", "datatype": "FP32", "shape": [float("inf")]}),
        inputs({"name": "x", "datatype": "FP32", "shape": [1]}, outputs=[{}]),
    ],
)
def test_metadata_that_is_none_is_told_in_a_sentence(toy: Callable[..., Any], said: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match="not the protocol's"):
        target.connect(toy(said=said).url, "double", Access(), 5.0)


def test_an_index_that_is_none_is_told_in_a_sentence(toy: Callable[..., Any]) -> None:
    with pytest.raises(PenstockError, match="not the protocol's"):
        target.connect(toy(said={INDEX: [1, 2]}).url, None, Access(), 5.0)


def test_an_input_without_end_is_not_made_up(toy: Callable[..., Any]) -> None:
    served = toy(said=inputs({"name": "x", "datatype": "FP32", "shape": [1, 2**70]}))
    with pytest.raises(PenstockError, match="too large to be made up; --shape"):
        server.measure(served.url, "double", Plan(concurrency=(1,)))


@pytest.mark.parametrize(
    "said", [DEEP, [], {"model_stats": [{"inference_stats": {"success": {"count": float("inf")}}}]}]
)
def test_statistics_that_are_none_are_left_out(toy: Callable[..., Any], said: Any) -> None:
    found = target.connect(toy(said={STATS: said}).url, "double", Access(), 5.0)
    assert found.stages() is None
    found.close()


QUICK = Plan(concurrency=(1,), seconds=0.3, warmup_s=0.1, processes=1)


def test_answers_of_a_route_of_several_models_are_read_and_not_compared_however_alike(toy: Callable[..., Any]) -> None:
    routes = {"double": {"one": 90, "other": 10, "left": 0}, "else": {"one": 1, "other": 1}}
    # After the first 200 one answer in nine is another model's: those before the first run are all alike.
    served = toy(said={**PENSTOCK, ROUTES: routes}, wrong_every=9)
    result = server.measure(served.url, "double", QUICK)
    assert served.answered > 210
    assert server.exit_code(result) == 0
    (note,) = [note for note in result["notes"] if "route" in note]
    assert note.startswith("double is a route that shares requests among one, other: answers are not compared")


@pytest.mark.parametrize("routes", [{}, {"double": {"one": 1}}, {"double": {"one": 1, "left": 0}}])
def test_answers_of_one_model_are_compared_by_whatever_name(toy: Callable[..., Any], routes: dict[str, Any]) -> None:
    result = server.measure(toy(said={**PENSTOCK, ROUTES: routes}, wrong_every=9).url, "double", QUICK)
    assert result["runs"][0]["failures"]["wrong"] > 0
    assert not [note for note in result["notes"] if "route" in note]


def test_where_routes_are_not_told_a_name_that_another_model_answers_for_is_one(toy: Callable[..., Any]) -> None:
    answer = {"model_name": "one", "outputs": []}
    told = {**PENSTOCK, "/v2/models/double/infer": answer}
    closed = server.measure(toy(said=told, refused=(ROUTES,)).url, "double", QUICK)
    (note,) = [note for note in closed["notes"] if "route" in note]
    assert note.startswith("double is a route, answered by one;")
    assert "a key with the right repository" in note
    other = server.measure(toy(said={**told, "/v2": {"name": "other"}}, refused=(ROUTES,)).url, "double", QUICK)
    assert not [note for note in other["notes"] if "route" in note]


def test_without_a_model_the_routes_are_named_beside_the_models(toy: Callable[..., Any]) -> None:
    told = {**PENSTOCK, ROUTES: {"canary": {"double": 1, "other": 1}}}
    with pytest.raises(PenstockError, match="serves canary, double, other; name one"):
        target.connect(toy(said=told).url, None, Access(), 5.0)
    with pytest.raises(PenstockError, match="it serves canary, double, other"):
        target.connect(toy(said=told).url, "nobody", Access(), 5.0)
    with pytest.raises(PenstockError, match="serves double, other; name one"):
        target.connect(toy(said=PENSTOCK, refused=(ROUTES,)).url, None, Access(), 5.0)

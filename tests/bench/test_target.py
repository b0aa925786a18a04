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

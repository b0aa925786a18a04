"""What a server counted between two looks at its statistics."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import messages
from penstock.bench import stages
from penstock.bench.stages import Stages


def counted(version: str, count: int, seconds: float, name: str = "m") -> dict[str, Any]:
    """A version's statistics: so many requests of so many seconds in all, half of them in the queue, half computing."""
    half = {"count": count, "ns": int(5e8 * seconds)}
    none = {"count": count, "ns": 0}
    said = {"success": {"count": count, "ns": int(1e9 * seconds)}, "queue": half, "compute_infer": half}
    return {
        "name": name,
        "version": version,
        "inference_stats": {**said, "compute_input": none, "compute_output": none},
    }


def between(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Stages | None:
    return stages.between(stages.of_json(before), stages.of_json(after))


def test_all_versions_are_added_up() -> None:
    done = between([counted("1", 5, 1.0), counted("2", 0, 0.0)], [counted("1", 7, 3.0), counted("2", 10, 4.0)])
    assert done == Stages(12, 6.0, 3.0, 3.0)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([counted("2", 90, 9.0)], id="another version in its place"),
        pytest.param([counted("1", 90, 9.0), counted("2", 1, 0.1)], id="another version beside it"),
        pytest.param([counted("1", 10, 9.0)], id="fewer requests"),
        pytest.param([counted("1", 90, 0.5)], id="less time"),
        pytest.param([counted("1", 90, 9.0, name="other")], id="another model behind a route"),
    ],
)
def test_counters_that_began_anew_are_not_subtracted(after: list[dict[str, Any]]) -> None:
    assert between([counted("1", 50, 5.0)], after) is None


def test_one_version_that_began_anew_is_not_hidden_by_another() -> None:
    before = [counted("1", 50, 5.0), counted("2", 50, 5.0)]
    assert between(before, [counted("1", 1, 0.1), counted("2", 200, 20.0)]) is None


def test_versions_are_told_apart_over_grpc_too() -> None:
    answer = messages.message("ModelStatisticsResponse")()
    for version in "12":
        each = answer.model_stats.add(name="m", version=version)
        each.inference_stats.success.count = int(version)
    found = stages.of_messages(answer.model_stats)
    assert {key: each.count for key, each in found.items()} == {("m", "1"): 1, ("m", "2"): 2}

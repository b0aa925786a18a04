"""Profiles: which of an engine's a batch is run in, on a GPU in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import lanes
from penstock.lanes import Lane
from penstock.runtimes.tensorrt import TensorRTRunner
from penstock.signature import Dim, Signature, Tensor

if TYPE_CHECKING:
    from tests.penstock.runtimes.conftest import Gpu

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 3)), Tensor(name="n", dtype="int32", shape=("batch",))),
    outputs=(Tensor(name="y", shape=("batch", 3)), Tensor(name="total", shape=("batch",))),
    dims={"batch": Dim(min=1, opt=4, max=12)},
)
Profile = tuple[int, int, int]


def fitting(gpu: Gpu, rows: int, *profiles: Profile) -> list[int]:
    return gpu.engine(*profiles).fitting({"x": (rows, 3), "n": (rows,)})


def test_the_narrowest_profile_comes_first_wherever_it_stands(gpu: Gpu) -> None:
    assert fitting(gpu, 1, (1, 4, 12), (1, 1, 1), (1, 2, 4)) == [1, 2, 0]
    assert fitting(gpu, 3, (1, 4, 12), (1, 1, 1), (1, 2, 4)) == [2, 0]


@pytest.mark.parametrize(("rows", "order"), [(1, [2, 0, 1]), (2, [0, 2, 1]), (5, [0, 1, 2]), (6, [1, 0, 2])])
def test_of_equally_wide_profiles_the_one_tuned_nearest_comes_first(gpu: Gpu, rows: int, order: list[int]) -> None:
    """Near is as many times the size, not as many rows: 5 rows are nearer to 3 than to 10, 6 the other way round."""
    assert fitting(gpu, rows, (1, 3, 12), (1, 10, 12), (1, 1, 12)) == order


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    profiles=st.lists(st.lists(st.integers(1, 20), min_size=3, max_size=3).map(sorted), min_size=1, max_size=5),
    rows=st.integers(1, 20),
)
def test_the_profiles_that_fit_are_those_that_take_the_rows(gpu: Gpu, profiles: list[list[int]], rows: int) -> None:
    found = fitting(gpu, rows, *((least, usual, most) for least, usual, most in profiles))
    takes = [index for index, (least, _, most) in enumerate(profiles) if least <= rows <= most]
    assert sorted(found) == takes
    widths = [profiles[index][2] - profiles[index][0] for index in found]
    assert widths == sorted(widths)


def test_the_profiles_of_an_engine_with_other_ranks_do_not_fit(gpu: Gpu) -> None:
    assert gpu.engine((1, 4, 12)).fitting({"x": (2, 3, 1), "n": (2,)}) == []


def used(lane: Lane) -> dict[int, int]:
    """By how many rows are captured: the profile that they are captured in."""
    return {shapes[0][0]: launch.context.profile for shapes, launch in lane.launches.items()}


@pytest.mark.parametrize("slow", [0, 1])
def test_a_batch_is_captured_in_the_profile_in_which_it_runs_quickest(gpu: Gpu, slow: int) -> None:
    """Both fit all; 4 rows are nearer to what the first is tuned for, and 8 to the second."""
    gpu.slow = {slow}
    with TensorRTRunner(gpu.engine((1, 4, 12), (1, 8, 12)), SIGNATURE, 1) as loaded:
        assert loaded.settled(10)
        assert used(loaded._lanes[0]) == dict.fromkeys((1, 2, 4, 8, 12), 1 - slow)
        assert len(gpu.graphs) == 5  # what the other profile was captured as is given back
        rows = {"x": np.ones((3, 3), np.float32), "n": np.arange(3, dtype=np.int32)}
        assert loaded.run(rows)["y"].tolist() == [[2.0 + n] * 3 for n in range(3)]
    assert not gpu.graphs
    assert not gpu.held


@pytest.mark.parametrize("full", [0, 1])
def test_a_profile_that_cannot_be_captured_leaves_the_others(gpu: Gpu, full: int) -> None:
    """The third is what other shapes are run in, and too wide to be taken first."""
    engine = gpu.engine((1, 4, 12), (1, 8, 12), (1, 8, 13))
    gpu.full = {full}
    with TensorRTRunner(engine, SIGNATURE, 1) as loaded:
        assert loaded.settled(10)
        assert sorted(used(loaded._lanes[0])) == [1, 2, 4, 8, 12]
    assert not gpu.graphs


@pytest.mark.parametrize(
    ("copy_s", "far_s", "copies"),
    [(0.0, 0.002, 4), (0.005, 0.0, 0)],
    ids=["copies are quick", "copies are slow"],
)
def test_small_tensors_are_copied_or_used_where_they_lie_whichever_is_quicker(
    gpu: Gpu, copy_s: float, far_s: float, copies: int
) -> None:
    gpu.copy_s, gpu.far_s = copy_s, far_s
    with TensorRTRunner(gpu.engine((1, 4, 12)), SIGNATURE, 1) as loaded:
        assert loaded.settled(10)
        gpu.copied = 0
        rows = {"x": np.ones((4, 3), np.float32), "n": np.arange(4, dtype=np.int32)}
        assert loaded.run(rows)["y"].tolist() == [[2.0 + n] * 3 for n in range(4)]
        assert gpu.copied == copies
    assert not gpu.graphs
    assert not gpu.held


@pytest.mark.parametrize(("limit", "copies"), [("_DIRECT_OUT", 4), ("_DIRECT_IN", 2)])
def test_large_tensors_are_copied_whatever_it_takes(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, limit: str, copies: int
) -> None:
    monkeypatch.setattr(lanes, limit, 1)
    gpu.copy_s = 0.005
    with TensorRTRunner(gpu.engine((1, 4, 12)), SIGNATURE, 1) as loaded:
        assert loaded.settled(10)
        gpu.copied = 0
        loaded.run({"x": np.ones((4, 3), np.float32), "n": np.arange(4, dtype=np.int32)})
        assert gpu.copied == copies

"""The TensorRT runtime: an engine is refused before it is touched, and what the runner does with lanes, captures and
buffers, on a GPU in host memory, wherever the tests run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import artifact, cuda, engines, lanes, rows, runtimes
from penstock.errors import PenstockError
from penstock.laid import GIVEN, Form, Laid, Memory, Place
from penstock.runtimes import InstanceDead, RejectedInput
from penstock.runtimes.tensorrt import TensorRTRunner
from penstock.signature import Dim, Range, Signature, Tensor

if TYPE_CHECKING:
    from tests.penstock.runtimes.conftest import Gpu


def test_a_machine_without_a_gpu_is_told_what_an_engine_needs(repository: Path) -> None:
    if cuda.count():
        pytest.skip("there is a GPU here")
    held = artifact.read(repository / "digits-trt-fp16")
    reason = runtimes.unavailable("tensorrt", held.receipt.build)
    assert reason is not None
    assert "NVIDIA GPU" in reason
    with pytest.raises(PenstockError) as caught:
        held.load()
    for part in ("NVIDIA GPU", held.receipt.hardware, f"penstock build {repository / 'digits-trt-fp16'}"):
        assert part in str(caught.value)


def test_an_engine_of_a_flavor_that_is_not_installed_names_it_and_how_to_install_it() -> None:
    missing = next((name for name, modules in engines.FLAVORS.items() if not _installed(modules)), None)
    if missing is None:
        pytest.skip("both flavors are installed here")
    reason = str(runtimes.unavailable("tensorrt", {"flavor": missing}))
    assert f"needs {missing}, which is not installed" in reason
    assert "pip install" in reason


def _installed(modules: tuple[str, ...]) -> bool:
    import importlib.util

    return any(importlib.util.find_spec(module) for module in modules)


def test_loading_an_engine_without_a_gpu_is_an_error_not_a_crash(repository: Path) -> None:
    if cuda.count():
        pytest.skip("there is a GPU here")
    held = artifact.read(repository / "digits-trt-fp16")
    with pytest.raises((PenstockError, runtimes.InstanceDead), match=r"CUDA|cuda|GPU"):
        runtimes.load("tensorrt", held.model_path, held.receipt.signature)


SIGNATURE = Signature(
    inputs=(
        Tensor(name="x", dtype="float32", shape=("batch", 3)),
        Tensor(name="n", dtype="int64", shape=("batch",)),
    ),
    outputs=(
        Tensor(name="y", dtype="float32", shape=("batch", 3)),
        Tensor(name="total", dtype="float32", shape=("batch",)),
    ),
    dims={"batch": Dim(min=1, opt=4, max=12)},
)


TakeTurns = Callable[[float], None]


def runner(gpu: Gpu, *profiles: tuple[int, int, int], lanes: int = 2, device: int = 0) -> TensorRTRunner:
    """A runner for batches up to the last profile's largest."""
    *_, (_, _, most) = profiles = profiles or ((1, 4, 12),)
    signature = SIGNATURE.model_copy(update={"dims": {"batch": Dim(min=1, opt=min(4, most), max=most)}})
    return TensorRTRunner(gpu.engine(*profiles, device=device), signature, lanes)


def feeds(rows: int, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {"x": draw.standard_normal((rows, 3)).astype(np.float32), "n": draw.integers(-99, 99, rows)}


def assert_right(answer: dict[str, Any], asked: dict[str, Any]) -> None:
    y = 2 * asked["x"] + asked["n"].astype(np.float32)[:, None]
    assert np.array_equal(answer["y"], y)
    assert np.array_equal(answer["total"], y.sum(axis=1))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8), wait=st.booleans())
def test_batches_of_any_size_one_after_another_hold_their_own_rows_alone(
    gpu: Gpu, sizes: list[int], wait: bool
) -> None:
    with runner(gpu) as loaded:
        if wait:
            assert loaded.settled(10)
        for number, rows in enumerate(sizes):
            asked = feeds(rows, number)
            assert_right(loaded.run(asked), asked)
    assert not gpu.held
    assert not gpu.graphs


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_callers_that_share_a_batch_get_their_own_rows(gpu: Gpu, sizes: list[int]) -> None:
    items = [feeds(rows, number) for number, rows in enumerate(sizes)]
    with runner(gpu) as loaded:
        for answer, asked in zip(loaded.run_together(items), items, strict=True):
            assert_right(answer, asked)


def test_threads_share_the_lanes_and_each_gets_its_own_answer(gpu: Gpu) -> None:
    with runner(gpu, lanes=3) as loaded, ThreadPoolExecutor(8) as pool:
        assert loaded.callers == 3
        asked = [feeds(1 + number % 12, number) for number in range(200)]
        for answer, wanted in zip(pool.map(loaded.run, asked), asked, strict=True):
            assert_right(answer, wanted)
    assert not gpu.held


@pytest.mark.parametrize(("heavy_bytes", "most_together"), [(1, 1), (10_000, 3)])
@pytest.mark.parametrize("captured", [True, False])
def test_the_kernels_of_large_batches_take_turns(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, heavy_bytes: int, most_together: int, captured: bool
) -> None:
    monkeypatch.setattr(lanes, "_HEAVY_BYTES", heavy_bytes)
    gpu.slow = {0}
    if not captured:
        gpu.broken = "cudaGraphInstantiate"
    with runner(gpu, lanes=3) as loaded, ThreadPoolExecutor(8) as pool:
        assert loaded.settled(10)
        gpu.together = 0
        asked = [feeds((1, 2, 4, 8, 12)[number % 5], number) for number in range(60)]
        for answer, wanted in zip(pool.map(loaded.run, asked), asked, strict=True):
            assert_right(answer, wanted)
        assert gpu.together == most_together
    assert not gpu.held


def test_what_is_answered_belongs_to_the_caller(gpu: Gpu) -> None:
    with runner(gpu, lanes=1) as loaded:
        first = loaded.run(feeds(3))
        kept = {name: array.copy() for name, array in first.items()}
        loaded.run(feeds(3, 1))
    assert all(np.array_equal(first[name], kept[name]) for name in kept)


def test_the_usual_batch_is_captured_before_the_runner_is_ready_and_the_rest_behind(gpu: Gpu) -> None:
    with runner(gpu) as loaded:
        usual = ((4, 3), (4,))
        assert usual in loaded._lanes[0].launches
        assert loaded.settled(10)
        for lane in loaded._lanes:
            assert sorted(shapes[0][0] for shapes in lane.launches) == [1, 2, 4, 8, 12]
        before = gpu.launches
        loaded.run(feeds(4))
        assert gpu.launches == before + 1


def test_between_large_sizes_there_are_others_in_the_way_that_is_best_for_the_larger_one(gpu: Gpu) -> None:
    gpu.slow = {0}
    with runner(gpu, (1, 4, 64), (1, 64, 64), lanes=1) as loaded:
        assert loaded.settled(30)
        (lane,) = loaded._lanes
        launches = {shapes[0][0]: launch for shapes, launch in lane.launches.items()}
        assert sorted(launches) == [1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64]
        assert {launch.profile for launch in launches.values()} == {1}
        for rows in (17, 20, 25, 50, 57):
            asked = feeds(rows)
            assert_right(loaded.run(asked), asked)


def test_the_best_way_is_looked_for_once_and_not_by_every_lane(gpu: Gpu) -> None:
    with runner(gpu, (1, 1, 12), (1, 4, 12), (1, 12, 12), lanes=1) as loaded:
        assert loaded.settled(10)
    alone = gpu.contexts
    assert alone >= 1 + 3 * 5  # one for what is not captured, and each profile for each size
    with runner(gpu, (1, 1, 12), (1, 4, 12), (1, 12, 12), lanes=3) as loaded:
        assert loaded.settled(10)
        ways = [
            {shapes: (held.profile, held.direct) for shapes, held in lane.launches.items()} for lane in loaded._lanes
        ]
        assert ways[0] == ways[1] == ways[2]
    assert gpu.contexts == 2 * alone + 2 * (1 + 5)


@pytest.mark.parametrize(("rows", "profile"), [(1, 0), (2, 0), (3, 1), (12, 1)])
def test_the_narrowest_profile_that_takes_a_batch_runs_it(gpu: Gpu, rows: int, profile: int) -> None:
    with runner(gpu, (1, 1, 2), (1, 4, 12)) as loaded:
        assert loaded.settled(10)
        assert loaded._engine.fitting({"x": (rows, 3), "n": (rows,)})[0] == profile
        asked = feeds(rows)
        assert_right(loaded.run(asked), asked)


def test_a_batch_outside_the_profile_is_an_error_that_tells_its_range(gpu: Gpu) -> None:
    with runner(gpu) as loaded:
        with pytest.raises(PenstockError) as caught:
            loaded.run(feeds(13))
        assert "'x' has shape [13, 3]" in str(caught.value)
        assert "x [1, 3] to [12, 3]" in str(caught.value)
        assert_right(loaded.run(feeds(12)), feeds(12))


def test_a_number_that_the_engine_has_no_room_for_is_refused_and_not_wrapped(gpu: Gpu) -> None:
    with runner(gpu) as loaded:
        with pytest.raises(RejectedInput, match=f"'n' holds {2**31}; the engine takes 32 bits"):
            loaded.run({"x": np.zeros((2, 3), np.float32), "n": np.array([0, 2**31])})
        assert_right(loaded.run(feeds(2)), feeds(2))


def test_numbers_below_0_are_as_good_as_others(gpu: Gpu) -> None:
    with runner(gpu) as loaded:
        for numbers in ([-1, 5], [-(2**31), 2**31 - 1]):
            asked = {**feeds(2), "n": np.array(numbers)}
            assert_right(loaded.run(asked), asked)
            assert_right(loaded.run_together([asked, feeds(2)])[0], asked)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_one_number_too_large_among_several_requests_is_refused_and_the_others_are_right_without_it(
    gpu: Gpu, value: int
) -> None:
    with runner(gpu) as loaded:
        items = [feeds(2, number) for number in range(5)]
        assert items[0]["n"].dtype == np.int64
        answers = loaded.run_together(items)
        wrong = {**items[3], "n": np.array([7, value])}
        with pytest.raises(RejectedInput, match=f"'n' holds {value}; the engine takes 32 bits"):
            loaded.run_together([*items[:3], wrong, items[4]])
        for answer, asked in zip(answers, items, strict=True):
            assert_right(answer, asked)


def test_whoever_may_not_be_held_up_may_run_it_once_all_is_captured(gpu: Gpu) -> None:
    with runner(gpu) as loaded:
        assert loaded.settled(10)
        assert loaded.lone
    assert not loaded.lone


def test_a_model_that_cannot_be_captured_is_run_all_the_same(gpu: Gpu) -> None:
    gpu.broken = "cudaGraphInstantiate"
    with runner(gpu) as loaded:
        assert loaded.settled(10)
        assert not gpu.graphs
        assert not loaded.lone  # it may take as long as its values say
        assert_right(loaded.run(feeds(4)), feeds(4))
    assert not gpu.held


def test_captures_run_on_rows_that_the_model_takes(gpu: Gpu) -> None:
    """What lay in the buffers before, of another shape, may index where nothing is."""
    signature = SIGNATURE.model_copy(update={"ranges": {"n": Range(low=5, high=6)}})
    with TensorRTRunner(gpu.engine((1, 4, 12)), signature, 1) as loaded:
        assert loaded.settled(10)
    assert gpu.seen <= {5, 6}


def test_requests_go_on_while_batches_are_captured(gpu: Gpu) -> None:
    with runner(gpu, lanes=1) as loaded:
        for number in range(50):
            assert_right(loaded.run(feeds(4, number)), feeds(4, number))
        assert loaded.settled(10)  # though the lane was asked for all the time
        assert len(loaded._lanes[0].launches) == 5


def test_whoever_waits_for_a_lane_is_told_that_the_runner_closes(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtimes.tensorrt._CLOSE_S", 0.5)
    loaded = runner(gpu, lanes=1)
    assert loaded.settled(10)
    with ThreadPoolExecutor(2) as pool, loaded.lease(((4, 3), (4,))) as lease:
        waiting = [pool.submit(loaded.run, feeds(4)) for _ in range(2)]
        loaded.close()
        for other in waiting:
            with pytest.raises(RuntimeError, match="closed"):
                other.result(10)
        assert gpu.held  # the memory in use is not taken from under the lease
        for name, array in feeds(4).items():
            lease.inputs[name][...] = array
        lease.run()


def test_a_runner_that_closed_while_in_use_stays_closed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtimes.tensorrt._CLOSE_S", 0.1)
    loaded = runner(gpu, lanes=1)
    assert loaded.settled(10)
    with loaded.lease(((4, 3), (4,))):
        loaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded.run(feeds(4))


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cudaStreamSynchronize", "cuCtxSetCurrent"])
def test_an_error_of_cuda_ends_the_instance_with_cudas_own_name_for_it(gpu: Gpu, call: str) -> None:
    loaded = runner(gpu)
    assert loaded.settled(10)
    gpu.broken = call
    with pytest.raises(InstanceDead, match=f"{call}: cudaErrorIllegalAddress"):
        loaded.run(feeds(4))
    loaded.close()
    assert set(gpu.held) <= set(gpu.streams)  # memory is given back, whatever else fails


def test_memory_that_runs_out_while_opening_is_given_back(gpu: Gpu) -> None:
    gpu.broken = "cudaMalloc"
    with pytest.raises(cuda.CudaError):
        runner(gpu)
    assert not gpu.held


def test_a_closed_runner_says_so_and_closing_again_does_nothing(gpu: Gpu) -> None:
    loaded = runner(gpu)
    loaded.close()
    loaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded.run(feeds(1))
    assert not gpu.held
    assert not gpu.graphs


# --- Parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("captured", [True, False])
def test_a_batch_s_parts_are_its_copies_and_all_of_it(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    gpu.slow = {0}
    gpu.far_s = 0.02  # so that copying is the better way
    if not captured:
        monkeypatch.setattr(lanes.Lane, "capture", lambda *_: None)
    with runner(gpu, lanes=1) as loaded:
        assert loaded.settled(10)
        gpu.copy_s = 0.003
        asked = feeds(4)
        found = loaded.parts(asked)
        gpu.copy_s = 0.0
        assert_right(loaded.run(asked), asked)
    assert 0.006 <= found.copy_in < 0.012  # two inputs
    assert 0.006 <= found.copy_out < 0.012
    assert 0.022 <= found.whole < 0.06  # both, and kernels of 10 ms
    assert not gpu.held


def test_tensors_that_are_used_where_they_lie_take_no_copies(gpu: Gpu) -> None:
    gpu.copy_s = 0.003
    with runner(gpu, lanes=1) as loaded:
        assert loaded.settled(10)
        found = loaded.parts(feeds(4))
    assert found.copy_in < 0.003
    assert found.whole < 0.003


def test_parts_of_shapes_that_no_profile_takes_are_refused(gpu: Gpu) -> None:
    with runner(gpu) as loaded, pytest.raises(PenstockError, match="profile takes"):
        loaded.parts(feeds(13))


@pytest.fixture
def fetching(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every captured batch is large enough for its rows to be fetched."""
    monkeypatch.setattr(lanes, "_HEAVY_BYTES", 1)
    rows._possible.cache_clear()
    yield
    rows._possible.cache_clear()


def laid_requests(sizes: Sequence[int], n: Any = np.int32) -> tuple[list[Laid], list[dict[str, Any]]]:
    """Requests that lie in one memory, with room for their answers, and what they ask."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 2**16)
    memory, found, asked, at = Memory(fd), [], [], 64
    for number, size in enumerate(sizes):
        inputs = (Place("x", np.dtype(np.float32), (size, 3), 0), Place("n", np.dtype(n), (size,), 12 * size + 8))
        y = Place("y", np.dtype(np.float32), (size, 3), 0)
        form = Form(memory, inputs, (y, Place("total", np.dtype(np.float32), (size,), y.end)))
        item = Laid(form, at, at + 512)
        asked.append(feeds(size, number))
        for name, array in asked[-1].items():
            item[name][...] = array  # type: ignore[index]
        found.append(item)
        at += 1024
    return found, asked


def assert_laid(requests: list[Laid], asked: list[dict[str, Any]]) -> None:
    for request, wanted in zip(requests, asked, strict=True):
        rooms = request.form.outputs.values()
        answer = {place.name: place.at(request.form.memory.map, request.room or 0) for place in rooms}
        assert_right(answer, wanted)


@pytest.mark.parametrize("sizes", [[1], [2, 1], [1, 1, 2, 1], [3, 1, 2, 1], [1] * 12, [4, 4, 4], [5, 2]])
def test_rows_are_fetched_from_where_they_lie_and_answers_laid_where_they_are_wanted(
    gpu: Gpu, fetching: None, sizes: list[int]
) -> None:
    with runner(gpu) as loaded:
        assert loaded.settled(10)
        requests, asked = laid_requests(sizes)
        assert loaded.run_together(requests) == [GIVEN] * len(sizes)
        assert gpu.fetched >= 2 * len(sizes)
        assert gpu.given == 2 * len(sizes)
        assert_laid(requests, asked)
        assert len(gpu.locked) == 1
        del requests
        gc.collect()
        assert not gpu.locked
    assert not gpu.held


def test_answers_without_room_are_the_callers_though_their_rows_were_fetched(gpu: Gpu, fetching: None) -> None:
    with runner(gpu) as loaded:
        assert loaded.settled(10)
        requests, asked = laid_requests([1, 2, 1, 1])
        requests[2] = Laid(requests[2].form, requests[2].slot, None)
        answers = loaded.run_together(requests)
        assert gpu.fetched >= 8
        assert gpu.given == 0
        for answer, wanted in zip(answers, asked, strict=True):
            assert_right(answer, wanted)


def test_nothing_is_under_way_any_more_where_a_batch_could_not_be_given_out(
    gpu: Gpu, fetching: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives = rows.give

    def give(items: Any, name: str, *about: Any) -> None:
        if name == "total":
            raise cuda.CudaError("cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE")
        gives(items, name, *about)

    with runner(gpu) as loaded:
        assert loaded.settled(10)
        requests, _ = laid_requests([1, 1, 1, 1])
        monkeypatch.setattr(rows, "give", give)
        with pytest.raises(InstanceDead, match="CUDA_ERROR_INVALID_VALUE"):
            loaded.run_together(requests)
        assert gpu.given == 4
        assert not any(gpu.streams.values())
        del requests
        gc.collect()  # the error's frames have held them
        assert not gpu.locked


@pytest.mark.parametrize("laid", [True, False])
def test_the_interpreter_is_kept_but_for_the_wait_for_the_gpu(
    gpu: Gpu, fetching: None, monkeypatch: pytest.MonkeyPatch, take_turns: TakeTurns, laid: bool
) -> None:
    seen: list[tuple[str, float]] = []

    def noted(name: str) -> Any:
        does = getattr(gpu, name)

        def note(*arguments: Any) -> Any:
            seen.append((name, round(sys.getswitchinterval(), 6)))
            return does(*arguments)

        return note

    with runner(gpu, lanes=1) as loaded:
        assert loaded.settled(10)
        requests, asked = laid_requests([1, 1, 1, 1])
        loaded.prepare(requests[0].form.memory)
        take_turns(1e-4)
        for name in ("cuGraphLaunch", "cudaStreamSynchronize"):
            monkeypatch.setattr(gpu, name, noted(name))
        loaded.run_together(requests if laid else asked)
        assert seen == [("cuGraphLaunch", 5e-4), ("cudaStreamSynchronize", 1e-4)]
        assert sys.getswitchinterval() == pytest.approx(1e-4)


@pytest.mark.parametrize("fails", ["cuGraphLaunch", "cudaStreamSynchronize", "cuMemcpyBatchAsync"])
def test_a_batch_that_fails_leaves_the_interpreter_to_all(
    gpu: Gpu, fetching: None, take_turns: TakeTurns, fails: str
) -> None:
    with runner(gpu, lanes=1) as loaded:
        assert loaded.settled(10)
        requests, _ = laid_requests([1, 1, 1, 1])
        loaded.prepare(requests[0].form.memory)
        take_turns(1e-4)
        gpu.broken = fails
        with pytest.raises(InstanceDead):
            loaded.run_together(requests)
        assert sys.getswitchinterval() == pytest.approx(1e-4)
        gpu.broken = None
    del requests
    gc.collect()


def test_copies_are_described_to_the_driver_as_cuda_has_it() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    assert rows._ATTRIBUTES.tobytes() == ctypes.string_at(attributes.getPtr(), rows._ATTRIBUTES.nbytes)


def test_engines_on_two_gpus_are_called_in_turns_by_one_thread(gpu: Gpu) -> None:
    with runner(gpu) as first, runner(gpu, device=1) as second:
        assert first.settled(10)
        assert second.settled(10)
        for number in range(4):
            asked = feeds(3, number)
            for loaded in (first, second):
                assert_right(loaded.run(asked), asked)


def test_memory_is_locked_before_the_first_request_lies_in_it_and_once(gpu: Gpu, fetching: None) -> None:
    with runner(gpu) as loaded:
        ((request, *_), _) = laid_requests([1])
        loaded.prepare(request.form.memory)
        assert len(gpu.locked) == 1
        gpu.broken = "cudaHostRegister"
        loaded.prepare(request.form.memory)


@pytest.mark.parametrize("why", ["another dtype", "cannot be locked", "an old driver"])
def test_rows_that_cannot_be_fetched_are_copied(
    gpu: Gpu, fetching: None, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "cannot be locked":
        gpu.broken = "cudaHostRegister"
    if why == "an old driver":
        monkeypatch.setattr(gpu, "cudaDriverGetVersion", lambda: 12060)
    with runner(gpu) as loaded:
        assert loaded.settled(10)
        requests, asked = laid_requests([1, 2, 1, 3, 1], np.int64 if why == "another dtype" else np.int32)
        assert loaded.run_together(requests) == [GIVEN] * 5
        assert gpu.fetched == 0
        assert_laid(requests, asked)


def test_threads_whose_rows_are_fetched_get_their_own_answers(gpu: Gpu, fetching: None) -> None:
    with runner(gpu, lanes=3) as loaded, ThreadPoolExecutor(6) as pool:
        assert loaded.settled(10)
        drawn = [laid_requests([1 + number % 3] * (1 + number % 4)) for number in range(40)]
        assert all(answer[0] is GIVEN for answer in pool.map(loaded.run_together, [each for each, _ in drawn]))
        for requests, asked in drawn:
            assert_laid(requests, asked)

"""Calibration: every sample is seen, ranges are those of the data, and a measurement is kept while it holds."""

from __future__ import annotations

import io
import tracemalloc
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export.precision.calibration import (
    Scales,
    calibrate,
    check_method,
    digest,
    largest,
    shapes,
)
from penstock.export.precision.histogram import BINS

Array = NDArray[np.float32]
METHODS = ("entropy", "max", "percentile", "percentile=90")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache's folder, which is not there yet."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def unrunnable(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, nothing can be run any more: what is still answered comes from the cache."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("something was run")

    return lambda: monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)


def model(
    nodes: Sequence[Any],
    weights: Mapping[str, Any],
    inputs: Mapping[str, Sequence[int | str]],
    dtypes: Mapping[str, int] | None = None,
) -> Any:
    """A model that answers with what its last node makes."""
    kinds = {name: (dtypes or {}).get(name, TensorProto.FLOAT) for name in inputs}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


WEIGHT = np.array([[1, -2, 3], [0, 5, -1], [2, 2, 2], [-7, 1, 0]], np.float32)
TENSORS = ("x", "scaled", "product", "y")


def linear(weight: Array = WEIGHT, batch: int | str = "batch") -> Any:
    """x, half of it, its product with a small weight, and that above zero."""
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["scaled"], name="scale"),
        helper.make_node("MatMul", ["scaled", "weight"], ["product"], name="product"),
        helper.make_node("Relu", ["product"], ["y"], name="relu"),
    ]
    return model(nodes, {"half": np.float32(0.5), "weight": weight}, {"x": (batch, 4)})


def rows(count: int = 100, seed: int = 0, real: bool = True) -> Rows:
    """Whole numbers up to 1000, of which float32 adds products exactly in any order."""
    drawn = np.random.default_rng(seed).integers(-1000, 1001, (count, 4)).astype(np.float32)
    return Rows({"x": drawn}, None, real)


def by_numpy(x: Array, weight: Array = WEIGHT) -> dict[str, NDArray[np.float64]]:
    scaled = x.astype(np.float64) / 2
    product = scaled @ weight.astype(np.float64)
    return {"x": x.astype(np.float64), "scaled": scaled, "product": product, "y": np.maximum(product, 0)}


def ends(arrays: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The range of each array, and 0, which every scale holds."""
    return {name: (min(0.0, float(a.min())), max(0.0, float(a.max()))) for name, a in arrays.items()}


def measure(
    work: Path, graph: Any = None, given: Rows | None = None, method: str = "entropy", least: int = 1
) -> Scales:
    return calibrate(graph or linear(), TENSORS, given or rows(), method, least, work)


# --- Ranges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 3, 4])
def test_by_max_the_ranges_are_those_of_numpy(least: int, tmp_path: Path) -> None:
    assert measure(tmp_path, method="max", least=least).ranges == ends(by_numpy(rows().inputs["x"]))


def test_the_ranges_of_a_graph_are_those_of_the_onnx_reference(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"], name="a"),
        helper.make_node("Softmax", ["x"], ["b"], name="b", axis=1),
        helper.make_node("Sub", ["b", "a"], ["c"], name="c"),
        helper.make_node("Mul", ["c", "z"], ["y"], name="y"),
    ]
    graph = model(nodes, {}, {"x": ("batch", 6), "z": ("batch", 6)})
    drawn = np.random.default_rng(0).standard_normal((2, 20, 6)).astype(np.float32)
    given, names = dict(zip("xz", drawn, strict=True)), ["a", "b", "c", "y"]
    found = calibrate(graph, ["x", "z", *names], Rows(given, None), "max", 1, tmp_path).ranges
    expected = ends({**given, **dict(zip(names, ReferenceEvaluator(graph).run(names, given), strict=True))})
    assert list(found) == ["x", "z", *names]
    for name, pair in expected.items():
        assert found[name] == pytest.approx(pair, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", ["percentile=90", "entropy"])
def test_a_threshold_clips_both_ends_and_none_beyond_the_data_and_no_answer_at_all(method: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32)
    x[7, 2], x[8, 1] = 500, -125
    nodes = [
        helper.make_node("Abs", ["x"], ["size"], name="abs"),
        helper.make_node("Neg", ["size"], ["minus"], name="minus"),
        helper.make_node("Identity", ["minus"], ["y"], name="y"),
    ]
    names = ["x", "size", "minus", "y"]
    found = calibrate(model(nodes, {}, {"x": ("batch", 4)}), names, Rows({"x": x}, None), method, 1, tmp_path).ranges
    clip = found["x"][1]
    # All have the same magnitudes; the last is what the graph answers with.
    assert found == {"x": (-clip, clip), "size": (0.0, clip), "minus": (-clip, 0.0), "y": (-500.0, 0.0)}
    # One bin is 512 / 4096; the entropy method clips at 128 of them or more.
    wanted = np.quantile(np.abs(x), 0.9) if method != "entropy" else 128 * 512 / BINS
    assert clip == pytest.approx(wanted, abs=512 / BINS)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_rows_changes_no_bit(method: str, tmp_path: Path) -> None:
    given = rows()
    first = measure(tmp_path, given=given, method=method)
    for order in (np.arange(100)[::-1], np.random.default_rng(1).permutation(100)):
        mixed = Rows({"x": given.inputs["x"][order]}, None)
        found = measure(tmp_path, given=mixed, method=method)
        assert found.ranges == first.ranges
        assert found.record.digest != first.record.digest


@pytest.mark.parametrize("method", METHODS)
def test_the_least_rows_that_a_graph_takes_change_no_bit(method: str, tmp_path: Path) -> None:
    alone = measure(tmp_path, method=method, least=1).ranges
    assert measure(tmp_path, method=method, least=4).ranges == alone
    assert measure(tmp_path, linear(batch=4), method=method, least=4).ranges == alone


def test_a_graph_gets_as_many_rows_as_it_takes_where_there_are_fewer(tmp_path: Path) -> None:
    given = rows(3)
    found = measure(tmp_path, linear(batch=4), given, "max", least=4)
    assert found.ranges == ends(by_numpy(given.inputs["x"]))
    assert found.record.samples == 3


@pytest.mark.parametrize("least", [1, 4, 7])
@pytest.mark.parametrize("place", [0, 1, 50, 98, 99])
@pytest.mark.parametrize("value", [1e6, -1e6])
def test_each_of_a_hundred_samples_is_seen(place: int, value: float, least: int, tmp_path: Path) -> None:
    given = rows()
    given.inputs["x"][place, 0] = value
    low, high = measure(tmp_path, given=given, method="max", least=least).ranges["scaled"]
    assert (low if value < 0 else high) == value / 2


def test_the_record_says_what_was_seen(tmp_path: Path) -> None:
    given = rows(37, real=False)
    record = measure(tmp_path, given=given, method="percentile=99.5").record
    assert (record.method, record.samples, record.real) == ("percentile=99.5", 37, False)
    assert record.digest == digest(given)
    assert measure(tmp_path, given=rows(37), method="max").record.real


def test_the_graph_is_left_as_it_was(tmp_path: Path) -> None:
    graph = linear()
    before = graph.SerializeToString(deterministic=True)
    measure(tmp_path, graph)
    largest(graph, TENSORS, rows().inputs, 1, tmp_path, "ranges")
    shapes(graph, TENSORS, rows(2).inputs, 2, tmp_path)
    assert graph.SerializeToString(deterministic=True) == before


def test_the_digest_is_of_names_dtypes_shapes_and_values() -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    other = x.copy()
    other[-1, -1] += 1
    given = [{"x": x}, {"z": x}, {"x": x.reshape(6, 2, 2)}, {"x": x.view(np.int32)}, {"x": other}, {"x": x[::-1]}]
    assert len({digest(Rows(inputs, None)) for inputs in given}) == len(given)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    assert digest(Rows({"x": strided}, None)) == digest(Rows({"x": x}, np.zeros(6, np.int64)))


# --- The cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_same_measurement_is_not_run_twice_whatever_the_method(
    method: str, tmp_path: Path, unrunnable: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(tmp_path, method="entropy")
    with monkeypatch.context() as inside:
        inside.setenv("PENSTOCK_CACHE", str(tmp_path / "fresh"))
        fresh = measure(tmp_path, method=method)
    unrunnable()
    assert measure(tmp_path, method=method) == fresh


def test_another_folder_for_the_work_changes_nothing(tmp_path: Path, unrunnable: Callable[[], None]) -> None:
    first = measure(tmp_path)
    unrunnable()
    (tmp_path / "elsewhere").mkdir()
    assert measure(tmp_path / "elsewhere") == first


def test_another_weight_under_the_same_names_is_measured_anew(tmp_path: Path) -> None:
    other = WEIGHT.copy()
    other[3, 0] = -700
    for weight in (WEIGHT, other):
        found = measure(tmp_path, linear(weight), method="max").ranges
        assert found == ends(by_numpy(rows().inputs["x"], weight))


def test_other_data_is_measured_anew(tmp_path: Path) -> None:
    for given in (rows(), rows(seed=1), rows(50)):
        assert measure(tmp_path, given=given, method="max").ranges == ends(by_numpy(given.inputs["x"]))


def test_other_tensors_are_measured_anew(tmp_path: Path) -> None:
    expected = ends(by_numpy(rows().inputs["x"]))
    for tensors in (["x", "y"], ["y"], ["y", "x"], ["product"], list(TENSORS), []):
        found = calibrate(linear(), tensors, rows(), "max", 1, tmp_path).ranges
        assert found == {name: expected[name] for name in tensors}
        assert list(found) == tensors


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def flipped(data: bytes) -> bytes:
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "garbage": lambda data: b"garbage" * 100,
    "cut": lambda data: data[: len(data) // 2],
    "one byte": flipped,
    "another archive": lambda data: archive(a=np.zeros(3)),
    "other counts": lambda data: archive(ends=np.frombuffer(b"[]", np.uint8), counts=np.zeros((0, BINS), np.int64)),
    "fewer bins": lambda data: archive(
        ends=np.frombuffer(b'[["x",0,1,1,0],["scaled",0,1,1,0],["product",0,1,1,0],["y",0,1,1,0]]', np.uint8),
        counts=np.ones((4, BINS // 2), np.int64),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_measured_anew_and_put_right(
    damage: str, tmp_path: Path, cache: Path, unrunnable: Callable[[], None]
) -> None:
    first = measure(tmp_path)
    (file,) = (cache / "calibration").iterdir()
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    assert measure(tmp_path) == first
    unrunnable()
    assert measure(tmp_path) == first


def test_a_cache_that_cannot_be_written_changes_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = measure(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "under"))
    (tmp_path / "file").write_bytes(b"")
    assert measure(tmp_path) == measure(tmp_path) == first


# --- Methods and refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["entropy", "max", "percentile", "percentile=99.9", "percentile=50.1", "percentile=100"]
)
def test_a_method_that_there_is_is_taken(method: str) -> None:
    check_method(method)


@pytest.mark.parametrize(
    "method", ["kl", "", "Max", "max=3", "entropy=", "percentiles", "percentile:99", "percentile=99=1", " max"]
)
def test_a_method_that_there_is_not_is_refused_with_those_there_are(method: str, tmp_path: Path) -> None:
    for refuses in (check_method, lambda name: measure(tmp_path, method=name)):
        with pytest.raises(PenstockError) as caught:
            refuses(method)
        assert repr(method) in str(caught.value)
        assert method.startswith("percentile=") or "entropy, max, percentile" in str(caught.value)


@pytest.mark.parametrize("share", ["40", "50", "100.1", "x", "", "nan", "inf", "-99"])
def test_a_share_that_is_none_is_refused(share: str) -> None:
    with pytest.raises(PenstockError, match="over 50 and 100 at most"):
        check_method(f"percentile={share}")


@pytest.mark.parametrize("place", [0, 7, 29])
def test_a_tensor_that_gets_nan_is_named_with_its_sample(place: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sqrt", ["x"], ["root"], name="root"),
        helper.make_node("Relu", ["root"], ["y"], name="relu"),
    ]
    graph = model(nodes, {}, {"x": ("batch", 3)})
    x = np.ones((30, 3), np.float32)
    x[place, 1] = -1
    with pytest.raises(PenstockError, match=f"'root' gets NaN or Inf on sample {place}, and no scale fits that"):
        calibrate(graph, ["x", "root"], Rows({"x": x}, None), "max", 1, tmp_path)
    found = calibrate(graph, ["x", "root"], Rows({"x": x}, None), "max", 1, tmp_path, bounded=False)
    assert (set(found.ranges), found.unbounded) == ({"x"}, {"root"})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_nan_or_inf_is_named_with_its_sample(bad: float, tmp_path: Path) -> None:
    given = rows()
    given.inputs["x"][41, 3] = bad
    with pytest.raises(PenstockError, match="input 'x' holds NaN or Inf in sample 41;"):
        measure(tmp_path, given=given)


def test_a_graph_that_fails_on_a_sample_says_on_which(tmp_path: Path) -> None:
    graph = model(
        [helper.make_node("Gather", ["table", "i"], ["y"], name="gather")],
        {"table": np.ones((5, 2), np.float32)},
        {"i": ("batch",)},
        {"i": TensorProto.INT64},
    )
    given = Rows({"i": np.array([0, 4, 2, 99, 1])}, None)
    with pytest.raises(PenstockError, match="the graph fails on sample 3: "):
        calibrate(graph, ["y"], given, "max", 1, tmp_path)


def test_a_graph_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    graph = model([helper.make_node("NoSuchOperator", ["x"], ["y"], name="n")], {}, {"x": ("batch", 4)})
    with pytest.raises(PenstockError, match=r"onnxruntime refuses the float32 graph: .*INVALID_GRAPH"):
        calibrate(graph, ["y"], rows(), "max", 1, tmp_path)


# --- Memory -------------------------------------------------------------------------------------------------------

WIDTH = 250_000


def wide() -> Any:
    """A graph that takes rows of a megabyte and makes as much of them."""
    nodes = [
        helper.make_node("Abs", ["x"], ["wide"], name="wide"),
        helper.make_node("ReduceSum", ["wide"], ["y"], name="sum", keepdims=0),
    ]
    return model(nodes, {}, {"x": ("batch", WIDTH)})


def wide_rows(count: int) -> Rows:
    return Rows({"x": np.broadcast_to(np.ones((1, WIDTH), np.float32), (count, WIDTH))}, None)


def peak(run: Callable[[], object]) -> int:
    """The most bytes that Python and numpy held at once meanwhile."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    def most(count: int) -> int:
        return peak(lambda: calibrate(wide(), ["x", "wide"], wide_rows(count), "max", 1, tmp_path))

    most(2)  # what is made once
    # Beyond the 64 rows at a time of which a digest is made, nothing hangs on how many there are.
    few, many = most(64), most(256)
    assert few > 64 * 4 * WIDTH
    assert many < 1.1 * few


def test_memory_for_the_largest_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    def most(count: int) -> int:
        return peak(lambda: largest(wide(), ["x", "wide"], wide_rows(count).inputs, 1, tmp_path, "ranges"))

    most(2)
    few, many = most(8), most(64)
    assert few > 4 * WIDTH
    assert many < 1.1 * few


def test_no_more_than_one_answer_is_held_when_the_next_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime's own buffers, which no profiler of Python sees."""
    answers: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Watched(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run(self, *args: Any, **options: Any) -> Any:
            alive.append(sum(answer() is not None for answer in answers))
            found = super().run(*args, **options)
            answers.extend(map(weakref.ref, found))
            return found

    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    calibrate(wide(), ["x", "wide"], wide_rows(20), "max", 1, tmp_path)
    assert len(alive) == len(answers) == 20
    assert max(alive) <= 1


# --- Largest and shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 4, 7])
def test_the_largest_is_that_of_numpy(least: int, tmp_path: Path) -> None:
    found = largest(linear(), TENSORS, rows(30).inputs, least, tmp_path, "ranges")
    assert found == {name: float(np.abs(array).max()) for name, array in by_numpy(rows(30).inputs["x"]).items()}


@pytest.mark.parametrize("place", [0, 29])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_largest_of_nan_or_inf_is_infinite_for_those_that_get_it(bad: float, place: int, tmp_path: Path) -> None:
    given = rows(30).inputs
    given["x"][place, 0] = bad
    nodes = [
        helper.make_node("Slice", ["x", "one", "four", "one"], ["rest"], name="rest"),
        helper.make_node("Mul", ["x", "half"], ["y"], name="half"),
    ]
    ends_of = {"one": np.array([1]), "four": np.array([4]), "half": np.float32(0.5)}
    found = largest(model(nodes, ends_of, {"x": ("batch", 4)}), ["x", "rest", "y"], given, 1, tmp_path, "ranges")
    assert found == {"x": np.inf, "rest": float(np.abs(given["x"][:, 1:]).max()), "y": np.inf}


def test_the_shapes_are_those_that_the_rows_make(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["conv"], name="conv", strides=[2, 2]),
        helper.make_node("Flatten", ["conv"], ["flat"], name="flat"),
        helper.make_node("ReduceSum", ["flat"], ["y"], name="sum", keepdims=0),
    ]
    graph = model(nodes, {"kernel": np.ones((5, 1, 3, 3), np.float32)}, {"x": ("batch", 1, "height", 9)})
    found = shapes(graph, ["x", "conv", "flat", "y"], {"x": np.ones((3, 1, 7, 9), np.float32)}, 3, tmp_path)
    # 7 by 9 in steps of 2 under a kernel of 3: 3 by 4.
    assert found == {"x": (3, 1, 7, 9), "conv": (3, 5, 3, 4), "flat": (3, 60), "y": ()}

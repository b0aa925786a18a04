"""A served model: its rows are its caller's, and a model that is not what its receipt says never answers."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import artifact, runtimes
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.runtimes import InstanceDead, RejectedInput
from penstock.runtimes.fake import FakeRunner
from penstock.serve.errors import RequestError
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load
from penstock.serve.outcomes import Expired, QueueFull
from penstock.serve.times import Times
from penstock.signature import Dim, Signature, SignatureMismatch, Tensor


class Recording(FakeRunner):
    """The fake runner, which also notes the number of rows of each run, and waits while its gate is shut."""

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self.rows: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(self, feeds: Any) -> dict[str, Any]:
        self.rows.append(len(feeds[self.inputs[0].name]))
        assert self.gate.wait(10)
        return super().run(feeds)


def model_of(runner: FakeRunner, signature: Signature, **limits: Any) -> Model:
    return Model("m", 1, signature, None, lambda: RunnerBatches(runner), Limits(**limits), Metrics())


def pair_inputs(rows: int, first: int = 0, tokens: int = 2) -> dict[str, Any]:
    """Inputs whose rows differ from each other: row `i` sums up to `first + i` + 0.5."""
    ids = np.zeros((rows, tokens), np.int64)
    ids[:, 0] = first + np.arange(rows)
    return {"ids": ids, "weight": np.full(rows, 0.5, np.float32)}


def expected_total(rows: int, first: int = 0) -> list[float]:
    return [first + row + 0.5 for row in range(rows)]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 21])
def test_a_request_over_the_largest_batch_is_split_and_joined_again_in_order(
    rows: int, pair_signature: Signature
) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature)
    answer = asyncio.run(model.infer(pair_inputs(rows)))
    assert answer["total"].tolist() == expected_total(rows)
    assert answer["wide"].shape == (rows, 2, 3)
    assert answer["wide"][:, 0, 0].tolist() == [int(value + 1) for value in expected_total(rows)]
    assert sum(runner.rows) == rows
    assert max(runner.rows) <= 8


def test_the_times_of_a_split_request_are_the_longest_of_its_parts(pair_signature: Signature) -> None:
    class Slow(FakeRunner):
        def run(self, feeds: Any) -> dict[str, Any]:
            time.sleep(0.3 if len(feeds["ids"]) == 8 else 0)
            return super().run(feeds)

    async def scenario() -> None:
        model, times = model_of(Slow(pair_signature), pair_signature), Times()
        await model.infer(pair_inputs(17), times=times)
        assert 0.29 <= times.compute_s < 0.5
        assert times.queue_s >= 0.58  # the third part waits for the two before it
        counted = model.statistics  # one request, not three
        assert (counted.success.count, counted.executions, counted.rows) == (1, 3, 17)
        assert (counted.queue.count, counted.queue.ns) == (1, round(1e9 * times.queue_s))
        assert (counted.compute.count, counted.compute.ns) == (1, round(1e9 * times.compute_s))

    asyncio.run(scenario())


def test_many_callers_at_once_share_batches_and_each_gets_its_own_rows(pair_signature: Signature) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature)

    async def scenario() -> None:
        sizes = [1 + caller % 3 for caller in range(60)]
        answers = await asyncio.gather(
            *[
                model.infer(pair_inputs(rows, first=1000 * caller, tokens=2 + caller % 2))
                for caller, rows in enumerate(sizes)
            ]
        )
        for caller, (rows, answer) in enumerate(zip(sizes, answers, strict=True)):
            assert answer["total"].tolist() == expected_total(rows, first=1000 * caller)
        assert sum(runner.rows) == sum(sizes)
        assert len(runner.rows) < len(sizes)  # they did share

    asyncio.run(scenario())


def test_requests_of_different_inner_shapes_never_share_a_batch(pair_signature: Signature) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature)

    async def scenario() -> None:
        runner.gate.clear()
        plug = asyncio.ensure_future(model.infer(pair_inputs(1)))
        others = [asyncio.ensure_future(model.infer(pair_inputs(1, tokens=tokens))) for tokens in (3, 4, 3)]
        await asyncio.sleep(0)
        runner.gate.set()
        await asyncio.gather(plug, *others)
        assert sorted(runner.rows) == [1, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize(("build", "runs"), [({"rows_share_scales": True}, [1, 1, 1, 2]), ({}, [1, 4])])
def test_only_where_rows_share_their_scales_do_requests_never_share_a_batch(
    tmp_path: Path,
    fake_artifact: Callable[..., Artifact],
    pair_signature: Signature,
    build: dict[str, Any],
    runs: list[int],
) -> None:
    receipt = fake_artifact(tmp_path, "m", pair_signature).receipt.model_copy(update={"build": build})
    runner = Recording(pair_signature)
    model = Model("m", 1, pair_signature, receipt, lambda: RunnerBatches(runner), Limits(), Metrics())

    async def scenario() -> None:
        runner.gate.clear()
        plug = asyncio.ensure_future(model.infer(pair_inputs(1)))
        while not runner.rows:
            await asyncio.sleep(0.001)
        rows = (1, 1, 2)
        others = [asyncio.ensure_future(model.infer(pair_inputs(count, first=10 * count))) for count in rows]
        await asyncio.sleep(0)
        runner.gate.set()
        await plug
        for count, answer in zip(rows, await asyncio.gather(*others), strict=True):
            assert answer["total"].tolist() == expected_total(count, first=10 * count)
        assert sorted(runner.rows) == runs

    asyncio.run(scenario())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=12))
def test_any_mix_of_sizes_gives_each_caller_the_answer_it_would_get_alone(callers: list[tuple[int, int]]) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", dtype="int64", shape=("n", "width")),),
        outputs=(Tensor(name="y", dtype="int64", shape=("n", 2)),),
        dims={"n": Dim(min=1, opt=2, max=6), "width": Dim(min=1, opt=2, max=3)},
    )
    runner = FakeRunner(signature)
    model = model_of(runner, signature)
    rng = np.random.default_rng(len(callers))
    requests = [{"x": rng.integers(-1000, 1000, shape)} for shape in callers]

    async def scenario() -> list[dict[str, Any]]:
        return await asyncio.gather(*[model.infer(request) for request in requests])

    for request, answer in zip(requests, asyncio.run(scenario()), strict=True):
        assert np.array_equal(answer["y"], runner.run(request)["y"])


def test_a_model_whose_shape_is_fixed_answers_one_request_at_a_time() -> None:
    signature = Signature(inputs=(Tensor(name="x", shape=(2, 3)),), outputs=(Tensor(name="y", shape=(2, 1)),))
    runner = Recording(signature)
    model = model_of(runner, signature)

    async def scenario() -> None:
        requests = [{"x": np.full((2, 3), value, np.float32)} for value in range(5)]
        answers = await asyncio.gather(*[model.infer(request) for request in requests])
        assert [answer["y"].tolist() for answer in answers] == [[[3.0 * v], [3.0 * v]] for v in range(5)]
        assert runner.rows == [2] * 5
        with pytest.raises(SignatureMismatch, match=r"shape \[3, 3\]; it must be \[2, 3\]"):
            await model.infer({"x": np.zeros((3, 3), np.float32)})

    asyncio.run(scenario())


def test_inputs_that_do_not_fit_the_signature_never_reach_the_runner(pair_signature: Signature) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature)
    inputs = pair_inputs(2)
    with pytest.raises(SignatureMismatch, match="input 'weight' is missing"):
        asyncio.run(model.infer({"ids": inputs["ids"]}))
    with pytest.raises(SignatureMismatch, match="must be float32"):
        asyncio.run(model.infer({**inputs, "weight": inputs["weight"].astype(np.float64)}))
    assert runner.rows == []


def test_the_order_of_a_request_s_inputs_does_not_matter(pair_signature: Signature) -> None:
    model = model_of(FakeRunner(pair_signature), pair_signature)
    swapped = dict(reversed(pair_inputs(3).items()))

    async def scenario() -> None:
        both = await asyncio.gather(*[model.infer(inputs) for inputs in [pair_inputs(3), swapped] * 4])
        assert all(answer["total"].tolist() == expected_total(3) for answer in both)

    asyncio.run(scenario())


def test_a_request_of_more_rows_than_the_queue_holds_is_refused(pair_signature: Signature) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature, max_queue_rows=16)
    with pytest.raises(RequestError, match="17 rows and the queue holds 16") as caught:
        asyncio.run(model.infer(pair_inputs(17)))
    assert caught.value.status == 400  # not a 503, which would invite the same request again
    assert runner.rows == []
    assert len(asyncio.run(model.infer(pair_inputs(16)))["total"]) == 16


def test_a_split_request_that_finds_no_room_leaves_nothing_in_the_queue(pair_signature: Signature) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature, max_queue_rows=16)

    async def scenario() -> None:
        runner.gate.clear()
        plug = asyncio.ensure_future(model.infer(pair_inputs(1)))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(model.infer(pair_inputs(6)))
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await model.infer(pair_inputs(16))
        assert model.scheduler.pending_rows == 6
        runner.gate.set()
        await asyncio.gather(plug, waiting)

    asyncio.run(scenario())


@pytest.mark.parametrize(("own", "of_server"), [(None, 0.02), (0.02, 10.0), (10.0, 0.02)])
def test_the_shorter_of_the_caller_s_and_the_server_s_timeout_holds(
    own: float | None, of_server: float, pair_signature: Signature
) -> None:
    runner = Recording(pair_signature)
    model = model_of(runner, pair_signature, timeout_s=of_server)

    async def scenario() -> None:
        runner.gate.clear()
        try:
            with pytest.raises(Expired, match=r"0\.02 s"):
                await model.infer(pair_inputs(1), timeout_s=own)
        finally:
            runner.gate.set()

    asyncio.run(scenario())


def test_a_model_is_not_ready_while_its_instance_is_dead(pair_signature: Signature) -> None:
    restart = threading.Event()
    made: list[int] = []

    class Dying(FakeRunner):
        def run(self, feeds: Any) -> dict[str, Any]:
            if len(made) == 1:
                raise InstanceDead("gone")
            return super().run(feeds)

    def make() -> Any:
        if made:
            assert restart.wait(10)
        made.append(1)
        return RunnerBatches(Dying(pair_signature))

    model = Model("m", 1, pair_signature, None, make, Limits(), Metrics())

    async def scenario() -> None:
        assert model.ready
        answer = asyncio.ensure_future(model.infer(pair_inputs(1)))
        while model.ready:
            await asyncio.sleep(0.001)
        restart.set()
        assert (await answer)["total"].tolist() == expected_total(1)
        assert model.ready

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_instances_share_the_cores_and_none_is_left_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert [Limits(instances=count).most_threads for count in (None, 1, 3, 8, 10_000)] == [8, 8, 2, 1, 1]


class Strict(FakeRunner):
    """The fake runner, which takes no batch outside the signature's range."""

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        self.signature = signature

    def run(self, feeds: Any) -> dict[str, Any]:
        self.signature.check(feeds)
        return super().run(feeds)


@settings(max_examples=100, deadline=None)
@given(
    least=st.integers(1, 8),
    more=st.integers(0, 8),
    extra=st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
def test_a_request_of_any_size_is_answered_by_batches_that_the_model_takes(
    least: int, more: int, extra: list[int]
) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", dtype="int64", shape=("n", 2)),),
        outputs=(Tensor(name="y", dtype="int64", shape=("n", 1)),),
        dims={"n": Dim(min=least, opt=least, max=least + more)},
    )
    model = model_of(Strict(signature), signature)
    draw = np.random.default_rng(least)
    requests = [{"x": draw.integers(-1000, 1000, (least + rows, 2))} for rows in extra]

    async def scenario() -> list[dict[str, Any]]:
        return await asyncio.gather(*[model.infer(request) for request in requests])

    for request, answer in zip(requests, asyncio.run(scenario()), strict=True):
        assert np.array_equal(answer["y"][:, 0], request["x"].sum(axis=1))


def test_a_request_under_the_smallest_batch_is_refused() -> None:
    signature = Signature(
        inputs=(Tensor(name="x", shape=("n", 2)),),
        outputs=(Tensor(name="y", shape=("n", 1)),),
        dims={"n": Dim(min=3, opt=3, max=4)},
    )
    with pytest.raises(SignatureMismatch, match="with 'n' from 3 on"):
        asyncio.run(model_of(Strict(signature), signature).infer({"x": np.zeros((2, 2), np.float32)}))


# --- Loading: ready means right ----------------------------------------------------------------------------------


@pytest.fixture
def copied(repository: Path, tmp_path: Path) -> Callable[[str], Artifact]:
    """Copies one variant of the repository, to be damaged."""

    def copy(name: str) -> Artifact:
        shutil.copytree(repository / name, tmp_path / name)
        return artifact.read(tmp_path / name)

    return copy


def vouch(found: Artifact) -> None:
    """Rewrite the receipt so that it vouches for the files as they are now."""
    files = {name: artifact.digests(found.folder)[name] for name in found.receipt.files}
    receipt = found.receipt.model_copy(update={"files": files})
    (found.folder / artifact.RECEIPT).write_text(receipt.to_json())


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-onnx-int8", "digits-torchscript-fp32"])
def test_a_loaded_artifact_answers_what_its_runner_answers(name: str, repository: Path) -> None:
    found = artifact.read(repository / name)
    inputs, outputs = found.golden()
    model = load(repository / name, Limits(), Metrics())
    assert model.ready
    assert (model.name, model.version) == (name, 1)
    answer = asyncio.run(model.infer(inputs))
    with found.load() as runner:
        assert np.allclose(answer["logits"], runner.run(inputs)["logits"], rtol=1e-5, atol=1e-5)
    assert (answer["logits"].argmax(1) == outputs["logits"].argmax(1)).all()


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-onnx-int8"])
def test_a_model_whose_golden_outputs_no_longer_come_out_is_refused(
    name: str, copied: Callable[[str], Artifact]
) -> None:
    found = copied(name)
    inputs, outputs = found.golden()
    altered = np.roll(outputs["logits"], 1, axis=1)
    artifact.write_golden(found.folder, inputs, {"logits": altered})
    vouch(found)
    artifact.read(found.folder).check_digests()  # the files are vouched for: only the replay can tell
    with pytest.raises(PenstockError, match=rf"{name}: output 'logits' .* golden inputs is wrong .* relative L2 error"):
        load(found.folder, Limits(), Metrics())


def test_a_model_whose_weights_changed_is_refused_though_its_receipt_vouches_for_them(
    copied: Callable[[str], Artifact],
) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import numpy_helper

    found = copied("digits-onnx-fp32")
    graph = onnx.load(str(found.model_path))
    weights = max(graph.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    onnx.save(graph, str(found.model_path))
    vouch(found)
    with pytest.raises(PenstockError, match="wrong on this machine"):
        load(found.folder, Limits(), Metrics())


def test_golden_outputs_that_are_not_finite_are_refused(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    made = fake_artifact(tmp_path, "m", expected={"total": np.full(5, np.nan)})
    with pytest.raises(PenstockError, match="output 'total'"):
        load(made.folder, Limits(), Metrics())


def test_golden_data_that_cannot_be_read_is_refused(copied: Callable[[str], Artifact]) -> None:
    found = copied("digits-onnx-fp32")
    (found.folder / artifact.GOLDEN).write_bytes(b"PK\x03\x04 not really")
    vouch(found)
    with pytest.raises(PenstockError, match=r"golden\.npz: cannot be read"):
        load(found.folder, Limits(), Metrics())


def test_golden_outputs_of_another_shape_are_refused(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    made = fake_artifact(tmp_path, "m", expected={"total": np.zeros(4)})
    with pytest.raises(PenstockError, match="total"):
        load(made.folder, Limits(), Metrics())


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-torchscript-fp32"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "grow", "remove"])
def test_a_damaged_file_is_refused_by_its_digest_before_a_runtime_sees_it(
    name: str, damage: str, copied: Callable[[str], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = copied(name)
    content = bytearray(found.model_path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    changed = {"truncate": content[:-1], "grow": content + b"\0"}.get(damage, content)
    found.model_path.unlink() if damage == "remove" else found.model_path.write_bytes(changed)
    seen: list[Path] = []

    def spy(runtime: str, path: Path, *arguments: Any, **options: Any) -> Any:
        seen.append(path)
        raise AssertionError("a runtime was given a file that its receipt does not vouch for")

    monkeypatch.setattr(runtimes, "load", spy)
    with pytest.raises(PenstockError, match=rf"{found.receipt.model_file}.*export the model again"):
        load(found.folder, Limits(), Metrics())
    assert seen == []


def test_an_engine_that_cannot_run_here_is_refused_with_what_to_rebuild(repository: Path) -> None:
    found = artifact.read(repository / "digits-trt-fp16")
    if found.unavailable() is None:
        pytest.skip("this machine can run the engine")
    with pytest.raises(
        PenstockError,
        match=r"penstock verify \S+digits-trt-fp16; for another GPU, .*: penstock build \S+digits-trt-fp16$",
    ):
        load(repository / "digits-trt-fp16", Limits(), Metrics())


@pytest.mark.parametrize(
    ("runtime", "asked", "instances", "callers"),
    [
        ("fake", None, 1, [None]),
        ("fake", 3, 3, [None] * 3),
        ("tensorrt", None, 2, [2]),
        ("tensorrt", 1, 1, [1]),
        ("tensorrt", 3, 3, [3]),
    ],
)
def test_there_is_one_instance_unless_told_but_two_over_one_loaded_engine(
    tmp_path: Path,
    fake_artifact: Callable[..., Artifact],
    monkeypatch: pytest.MonkeyPatch,
    runtime: str,
    asked: int | None,
    instances: int,
    callers: list[int | None],
) -> None:
    found = fake_artifact(tmp_path, "m")
    receipt = found.receipt.model_copy(update={"runtime": runtime})
    (found.folder / artifact.RECEIPT).write_text(receipt.to_json())
    loaded: list[int | None] = []

    def opened(runtime: str, path: Path, signature: Signature, *, callers: int | None, **options: Any) -> FakeRunner:
        loaded.append(callers)
        return FakeRunner(signature)

    monkeypatch.setattr(runtimes, "unavailable", lambda *_: None)
    monkeypatch.setattr(runtimes, "load", opened)
    model = load(tmp_path / "m", Limits(instances=asked), Metrics())
    assert loaded == callers
    assert model.limits.instances == instances
    assert len(model.scheduler._instances) == instances
    assert asyncio.run(model.infer(pair_inputs(3)))["total"].tolist() == expected_total(3)


def test_inputs_that_the_model_itself_rejects_are_the_caller_s_fault(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnx.numpy_helper")
    table = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(6, 2), "table")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "ids"], ["rows"])],
        "lookup",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch"])],
        [onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, ["batch", 2])],
        [table],
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), str(tmp_path / "lookup.onnx"))
    model = load(tmp_path / "lookup.onnx", Limits(), Metrics())
    with pytest.raises(RejectedInput, match=r"rejects these inputs: .*out of data bounds"):
        asyncio.run(model.infer({"ids": np.array([2, 60], np.int64)}))
    np.testing.assert_array_equal(asyncio.run(model.infer({"ids": np.array([2], np.int64)}))["rows"], [[4, 5]])


def test_closing_a_model_closes_its_runner(pair_signature: Signature) -> None:
    closed = threading.Event()

    class Closing(FakeRunner):
        def close(self) -> None:
            closed.set()

    asyncio.run(model_of(Closing(pair_signature), pair_signature).scheduler.close())
    assert closed.wait(5)


def test_decoders_are_loaded_with_the_model_and_not_with_the_first_picture(repository: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from penstock.serve import metrics, model
model.load(Path({str(repository / "digits-onnx-fp32")!r}), model.Limits(), metrics.Metrics())
print("PIL.PngImagePlugin" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"

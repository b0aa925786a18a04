"""Speed: a lowered model is timed against float32 when it is exported, and says so where it is the slower one."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock import artifact, runtimes, timing
from penstock.errors import PenstockError
from penstock.export import pipeline, speed
from penstock.export.pipeline import Request
from penstock.parity import Distance, Limits
from penstock.receipt import FileDigest, Receipt, Source, Verification
from penstock.runtimes import BaseRunner, InstanceDead
from penstock.signature import Dim, Signature, Tensor

WIDTH = 256
SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", WIDTH)),),
    outputs=(Tensor(name="y", shape=("batch", WIDTH)),),
    dims={"batch": Dim(opt=16, max=64)},
)
SLOWER = "note: fp16 is slower than fp32 on this CPU, 0.50 times as fast (few CPU kernels take it)"


# --- What is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("ratio", [1.0, 1.01, 3.0])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_of_a_model_that_is_faster_than_float32_nothing_is_said(precision: str, ratio: float, device: str) -> None:
    assert speed.note(precision, ratio, None, device) is None
    assert speed.note(precision, ratio, ratio, device) is None
    assert speed.note(precision, ratio, 0.9, device) is None


@pytest.mark.parametrize(
    ("precision", "device", "words"),
    [
        ("fp16", "cpu", SLOWER),
        ("fp16", "cuda:0", "note: fp16 is slower than fp32 on this GPU, 0.50 times as fast"),
        ("bf16", "cuda:0", "note: bf16 is slower than fp32 on this GPU, 0.50 times as fast"),
        ("int8", "cpu", "note: int8 is slower than fp32 on this CPU, 0.50 times as fast"),
        ("int8", "cuda:1", "note: int8 is slower than fp32 on this GPU, 0.50 times as fast"),
    ],
)
@pytest.mark.parametrize("half", [None, 0.1, 9.0])
def test_a_model_slower_than_float32_says_so_and_what_to_do(
    precision: str, device: str, words: str, half: float | None
) -> None:
    assert speed.note(precision, 0.5, half, device) == f"{words}; --format auto picks the fastest"


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize(("device", "place"), [("cpu", "on this CPU"), ("cuda:0", "on this GPU")])
def test_eight_bits_slower_than_fp16_say_so(precision: str, device: str, place: str) -> None:
    expected = f"note: {precision} is slower than fp16 {place}: 1.25 times as fast as fp32, and fp16 2.50"
    assert speed.note(precision, 1.25, 2.5, device) == expected


def test_half_precision_is_not_compared_with_itself() -> None:
    assert speed.note("fp16", 1.25, 2.5, "cuda:0") is None
    assert speed.note("bf16", 1.25, 2.5, "cuda:0") is None


# --- What is measured ------------------------------------------------------------------------------------------------


def products(count: int) -> Any:
    """A graph of so many products with a square matrix."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(WIDTH**0.5)
    names = ["x", *(f"h{place}" for place in range(1, count)), "y"]
    nodes = [helper.make_node("MatMul", [names[place], "w"], [names[place + 1]]) for place in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(("ours", "theirs", "faster"), [(1, 24, True), (24, 1, False)])
def test_the_ratio_says_which_of_two_graphs_runs_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: int, faster: bool
) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.1)
    files = tmp_path / "low.onnx", tmp_path / "full.onnx"
    for file, count in zip(files, (ours, theirs), strict=True):
        onnx.save(products(count), str(file))
    inputs = {"x": np.ones((3, WIDTH), np.float32)}
    with (
        runtimes.load("onnxruntime", files[0], SIGNATURE) as low_runner,
        runtimes.load("onnxruntime", files[1], SIGNATURE) as full_runner,
    ):
        middle, low, high = speed.against(low_runner, full_runner, SIGNATURE, inputs)
    assert low <= middle <= high
    # 24 times the work: no noise makes that the same time.
    assert low > 2 if faster else high < 0.5


def test_an_export_in_lower_precision_holds_its_speed_and_says_it_where_it_is_slower(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.1)
    said: list[str] = []
    request = Request(trained, precisions=("fp16", "fp32"), output=tmp_path / "models")
    half, full = pipeline.export(request, said.append)
    middle, low, high = half.receipt.build["speed_vs_fp32"]
    assert 0 < low <= middle <= high
    notes = [line for line in said if "slower than fp32" in line]
    if middle != speed._AS_FAST:  # which may be rounded
        assert len(notes) == (middle < speed._AS_FAST)
    for line in notes:
        assert line.startswith("digits-onnx-fp16: note: fp16 is slower than fp32 on this ")
    assert "speed_vs_fp32" not in full.receipt.build
    assert speed.of_sibling(tmp_path / "models" / "digits-onnx-fp16") == middle
    assert speed.of_sibling(tmp_path / "models" / "digits-onnx-fp32") is None


# --- Engines beside fp16's -------------------------------------------------------------------------------------------


class Sleeper(BaseRunner):
    """A runner whose run takes a while, and dies at `dies`."""

    def __init__(self, seconds: float, dies: bool = False) -> None:
        super().__init__(SIGNATURE)
        self.seconds, self.dies, self.closed = seconds, dies, False

    def run(self, feeds: Any) -> dict[str, Any]:
        time.sleep(self.seconds)
        if self.dies:
            raise InstanceDead("CUDA: cudaGraphLaunch: cudaErrorIllegalAddress")
        return {"y": feeds["x"]}

    def close(self) -> None:
        self.closed = True


Found = tuple[dict[str, tuple[float, ...]], str | None]


def compared(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    ours: Sleeper | PenstockError,
    theirs: Sleeper | PenstockError,
    signature: Signature = SIGNATURE,
) -> Found:
    """What is found of an engine of int8 beside that of fp16 in a folder; an error stands for what does not load."""
    monkeypatch.setattr(speed, "_SECONDS", 0.1)
    monkeypatch.setattr(timing, "WINDOW_S", 0.0)

    def opened(runner: Sleeper | PenstockError) -> Sleeper:
        if isinstance(runner, PenstockError):
            raise runner
        return runner

    monkeypatch.setattr(runtimes, "load", lambda *_, **__: opened(ours))
    monkeypatch.setattr(artifact.Artifact, "load", lambda *_, **__: opened(theirs))
    inputs = {"x": np.ones((3, WIDTH), np.float32)}
    return speed.of_engine(folder / "model.plan", signature, "int8", folder, inputs, "cuda:0")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_an_engine_of_no_fewer_bits_is_not_compared_with_fp16(tmp_path: Path, precision: str) -> None:
    assert speed.of_engine(tmp_path / "model.plan", SIGNATURE, precision, tmp_path, {}) == ({}, None)


@pytest.mark.parametrize(("ours", "theirs"), [(0.001, 0.004), (0.004, 0.001)])
def test_an_engines_speed_beside_fp16s_is_kept_and_said_where_it_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float
) -> None:
    low, full = Sleeper(ours), Sleeper(theirs)
    kept, said = compared(monkeypatch, published(tmp_path, {}), low, full)
    middle, least, most = kept["speed_vs_fp16"]
    assert least <= middle <= most
    if ours < theirs:
        assert middle > 1.5
        assert said is None
    else:
        assert middle < 1 / 1.5
        assert re.fullmatch(r"note: int8 is slower than fp16 on this GPU: 0\.\d\d times as fast", str(said))
    assert low.closed
    assert full.closed


def assert_not_compared(found: Found, why: str) -> None:
    kept, said = found
    assert kept == {}
    assert str(said).startswith("note: its speed was not compared with fp16's: ")
    assert why in str(said)


def test_an_engine_without_one_of_fp16_beside_it_is_not_compared_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "net-trt-fp16"
    assert_not_compared(compared(monkeypatch, folder, Sleeper(0), Sleeper(0)), f"{folder}: no such folder")


def test_one_of_another_signature_is_not_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published(tmp_path, {})
    other = SIGNATURE.with_batch(Dim(opt=1, max=2))
    assert_not_compared(compared(monkeypatch, folder, Sleeper(0), Sleeper(0), other), "is of another signature")


def test_an_engine_that_does_not_load_or_dies_stops_nothing_but_its_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, refused = published(tmp_path, {}), PenstockError("not enough device memory")
    for ours, theirs in ((refused, Sleeper(0)), (Sleeper(0), refused)):
        assert_not_compared(compared(monkeypatch, folder, ours, theirs), "not enough device memory")
    for dying in (0, 1):
        runners = [Sleeper(0, dies=place == dying) for place in (0, 1)]
        assert_not_compared(compared(monkeypatch, folder, *runners), "cudaErrorIllegalAddress")
        assert all(runner.closed for runner in runners)


# --- What a sibling was ----------------------------------------------------------------------------------------------


def receipt(version: int, build: dict[str, Any]) -> Receipt:
    digest = FileDigest(sha256="0", bytes=1)
    return Receipt(
        schema=2,
        name="net-onnx-fp16",
        version=version,
        created=datetime(2026, 1, 1, tzinfo=timezone.utc),
        format="onnx",
        precision="fp16",
        runtime="onnxruntime",
        model_file="model.onnx",
        files={"model.onnx": digest, "golden.npz": digest},
        source=Source(checkpoint="net.pth", sha256="0", architecture="nets:Net", loaded=1, expected=1),
        signature=SIGNATURE,
        verification=Verification(
            runtime="onnxruntime",
            engine_run=True,
            samples=8,
            real=True,
            batches=(1, 64),
            distances=(Distance(output="y", max_abs=1, rel_l2=0.1, cosine=1),),
            limits={"y": Limits(max_error=1, min_agreement=0)},
            passed=True,
        ),
        build=build,
        hardware="any CPU",
    )


def published(folder: Path, *builds: dict[str, Any]) -> Path:
    """A model folder with a version for each of the build facts."""
    for version, build in enumerate(builds, 1):
        home = folder / "net-onnx-fp16" / str(version)
        home.mkdir(parents=True)
        (home / artifact.RECEIPT).write_text(receipt(version, build).to_json())
    return folder / "net-onnx-fp16"


def test_the_speed_of_another_variant_is_the_median_in_its_newest_receipt(tmp_path: Path) -> None:
    folder = published(tmp_path, {"speed_vs_fp32": (9.0, 8.0, 10.0)}, {"speed_vs_fp32": (1.5, 1.25, 2.0)})
    assert speed.of_sibling(folder) == 1.5


@pytest.mark.parametrize("held", [{}, {"speed_vs_fp32": []}, {"speed_vs_fp32": 2.0}, {"speed_vs_fp32": None}])
def test_a_receipt_that_says_no_speed_gives_none(tmp_path: Path, held: dict[str, Any]) -> None:
    assert speed.of_sibling(published(tmp_path, held)) is None


def test_where_there_is_no_such_variant_or_it_is_damaged_there_is_no_speed(tmp_path: Path) -> None:
    assert speed.of_sibling(tmp_path / "nothing") is None
    assert speed.of_sibling(tmp_path) is None
    folder = published(tmp_path, {"speed_vs_fp32": (1.5, 1.25, 2.0)})
    (folder / "1" / artifact.RECEIPT).write_text("{")
    assert speed.of_sibling(folder) is None

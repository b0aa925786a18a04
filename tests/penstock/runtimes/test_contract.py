"""The contract of every runtime, each on a real file of its own where it can run here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import artifact, parity, runtimes
from penstock.errors import PenstockError
from penstock.runtimes import Runner
from penstock.signature import Signature

# A runtime that is not here fails these tests: add one artifact of the `repository` fixture for it.
ARTIFACTS = {
    "fake": "digits-onnx-fp32",
    "onnxruntime": "digits-onnx-fp32",
    "tensorrt": "digits-trt-fp16",
    "torch": "digits-torchscript-fp32",
}
REAL = [name for name in runtimes.names() if name != "fake"]
# float16 has eps 2^-11; a network of ten layers stays within the gate's own limit for it.
CLOSE = {"digits-onnx-fp32": 1e-5, "digits-torchscript-fp32": 1e-5, "digits-trt-fp16": 1e-2}


@pytest.fixture(params=runtimes.names())
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def held(runtime: str, repository: Path) -> artifact.Artifact:
    """The artifact that a runtime is tried on."""
    found = artifact.read(repository / ARTIFACTS[runtime])
    reason = runtimes.unavailable(runtime, found.receipt.build)
    if reason is not None:
        pytest.skip(reason)
    return found


def load(runtime: str, held: artifact.Artifact) -> Runner:
    return runtimes.load(runtime, held.model_path, held.receipt.signature)


@pytest.fixture
def runner(runtime: str, held: artifact.Artifact) -> Iterator[Runner]:
    with load(runtime, held) as runner:
        yield runner


def images(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((rows, 1, 8, 8)).astype(np.float32)}


def test_every_runtime_is_tried() -> None:
    assert set(ARTIFACTS) == set(runtimes.names())


def test_a_runner_holds_the_tensors_of_its_signature(runner: Runner, held: artifact.Artifact) -> None:
    assert (runner.inputs, runner.outputs) == (held.receipt.signature.inputs, held.receipt.signature.outputs)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_outputs_have_the_declared_order_dtypes_and_shapes(runner: Runner, held: artifact.Artifact, rows: int) -> None:
    answer = runner.run(images(rows))
    signature: Signature = held.receipt.signature
    assert list(answer) == [tensor.name for tensor in signature.outputs]
    for tensor in signature.outputs:
        array = answer[tensor.name]
        assert isinstance(array, np.ndarray)
        assert array.dtype.name == tensor.dtype
        assert array.shape == (rows, *tensor.shape[1:])
        assert np.isfinite(array).all()


def test_a_row_has_the_same_answer_alone_and_among_others(runner: Runner) -> None:
    together = runner.run(images(7))["logits"]
    alone = [runner.run({"image": images(7)["image"][i : i + 1]})["logits"] for i in range(7)]
    found = parity.distance("logits", together, np.concatenate(alone))
    assert found.rel_l2 < 1e-5  # kernels may sum in another order for another batch
    assert len(np.unique(together, axis=0)) == 7


def test_answers_belong_to_the_caller(runner: Runner) -> None:
    first = runner.run(images(3, seed=1))["logits"]
    kept = first.copy()
    runner.run(images(3, seed=2))
    assert np.array_equal(first, kept)
    first[:] = 0
    assert np.array_equal(runner.run(images(3, seed=1))["logits"], kept)


def test_feeds_are_left_as_they_were(runner: Runner) -> None:
    feeds = images(5)
    before = feeds["image"].copy()
    runner.run(feeds)
    assert list(feeds) == ["image"]
    assert np.array_equal(feeds["image"], before)


def test_read_only_and_strided_feeds_are_taken(runner: Runner) -> None:
    plain = images(4)["image"]
    expected = runner.run({"image": plain})["logits"]
    frozen = plain.copy()
    frozen.flags.writeable = False
    spread = np.repeat(plain, 2, axis=0)[::2]
    assert not spread.flags["C_CONTIGUOUS"]
    for feed in (frozen, spread):
        assert np.array_equal(runner.run({"image": feed})["logits"], expected)


def test_closing_twice_does_nothing(runtime: str, held: artifact.Artifact) -> None:
    runner = load(runtime, held)
    runner.run(images(1))
    runner.close()
    runner.close()


@pytest.mark.parametrize("runtime", REAL, indirect=True)
def test_a_closed_runner_says_so(runtime: str, held: artifact.Artifact) -> None:
    runner = load(runtime, held)
    runner.close()
    with pytest.raises(RuntimeError, match="the runner is closed"):
        runner.run(images(1))


def test_a_with_block_gives_the_runner_and_lets_errors_out(runtime: str, held: artifact.Artifact) -> None:
    runner = load(runtime, held)
    with runner as entered:
        assert entered is runner
    with pytest.raises(ZeroDivisionError), load(runtime, held):
        raise ZeroDivisionError


def test_two_runners_of_one_file_are_apart(runtime: str, held: artifact.Artifact) -> None:
    first, second = load(runtime, held), load(runtime, held)
    first.close()
    with second:
        assert second.run(images(2))["logits"].shape == (2, 10)


def test_availability_is_none_or_a_sentence(runtime: str) -> None:
    reason = runtimes.unavailable(runtime, {})
    assert reason is None or len(reason.split()) > 3


@pytest.mark.parametrize("runtime", REAL, indirect=True)
def test_golden_inputs_give_golden_outputs(runner: Runner, held: artifact.Artifact) -> None:
    inputs, outputs = held.golden()
    (found,) = parity.compare(outputs, runner.run(inputs))
    assert found.rel_l2 < CLOSE[held.receipt.name]
    assert found.agreement == 1.0


@pytest.mark.parametrize("runtime", REAL, indirect=True)
@pytest.mark.parametrize("content", [b"", b"no model\n" * 100, None], ids=["empty", "text", "missing"])
def test_a_file_that_is_no_model_is_refused_by_name(
    runtime: str, held: artifact.Artifact, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / held.receipt.model_file
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PenstockError, match=str(path)):
        runtimes.load(runtime, path, held.receipt.signature)


@pytest.mark.parametrize("runtime", REAL, indirect=True)
def test_a_model_cut_in_the_middle_is_refused_by_name(runtime: str, held: artifact.Artifact, tmp_path: Path) -> None:
    whole = held.model_path.read_bytes()
    path = tmp_path / held.receipt.model_file
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PenstockError, match=str(path)):
        runtimes.load(runtime, path, held.receipt.signature)


BAD_DEVICES = [
    "",
    "gpu",
    "CPU",
    "cuda:",
    "cuda:x",
    "cuda:-1",
    "cuda:0 ",
    "cuda:0,1",
    "cuda:1234",
    "cuda0",
    "mps",
    "cpu:0",
]


@pytest.mark.parametrize("device", BAD_DEVICES)
@pytest.mark.parametrize("runtime", runtimes.names())
def test_a_device_of_no_known_form_is_refused_before_the_file_is_read(
    tmp_path: Path, runtime: str, device: str
) -> None:
    with pytest.raises(PenstockError) as caught:
        runtimes.load(runtime, tmp_path / "none", Signature(inputs=(), outputs=()), device=device)
    assert str(caught.value) == f"--device {device!r}: must be cpu, cuda or cuda:N"


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:15"])
def test_devices_of_the_known_forms_are_taken(tmp_path: Path, device: str) -> None:
    runtimes.load("fake", tmp_path / "none", Signature(inputs=(), outputs=()), device=device)


def test_an_unknown_runtime_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"runtime 'openvino' is unknown; .*fake, onnxruntime"):
        runtimes.load("openvino", tmp_path, Signature(inputs=(), outputs=()))
    assert "runtime 'openvino' is unknown; it must be one of fake, onnxruntime" in str(
        runtimes.unavailable("openvino", {})
    )


def test_a_runtime_whose_package_is_missing_is_unavailable_with_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "penstock.runtimes.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    said = "runtime torch needs torch, which is not installed: pip install torch"
    assert runtimes.unavailable("torch", {}) == said
    with pytest.raises(PenstockError, match=said):
        runtimes.load("torch", tmp_path / "model.pt", Signature(inputs=(), outputs=()))


def test_names_are_the_files_of_the_folder() -> None:
    folder = Path(next(iter(runtimes.__path__)))
    assert runtimes.names() == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def test_a_runner_is_what_the_protocol_says(runner: Runner) -> None:
    wanted: set[str] = {name for name in vars(Runner) if not name.startswith("_")} | {"__enter__", "__exit__"}
    missing: list[Any] = [name for name in wanted if not hasattr(runner, name)]
    assert not missing

"""A repository of models: the good ones serve, the others are listed with their reasons."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import artifact
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.serve.errors import RequestError
from penstock.serve.lifecycle import open_repository
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.repository import Repository


def opened(*paths: Path) -> Repository:
    return open_repository(list(paths), Limits(), Metrics())


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., Path]:
    """Writes an ONNX file that doubles its input: `bare(file name, first dimension)`."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    def write(name: str, first: int | str, tensors: tuple[str, str] = ("x", "y")) -> Path:
        x, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, [first, 3]) for tensor in tensors)
        graph = helper.make_graph([helper.make_node("Add", [tensors[0]] * 2, [tensors[1]])], "double", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        path = tmp_path / name
        onnx.save(model, str(path))
        return path

    return write


def test_a_damaged_artifact_is_listed_with_its_reason_and_the_others_serve(repository: Path, damaged: Path) -> None:
    found = opened(repository / "digits-onnx-fp32", damaged, repository / "digits-onnx-int8")
    assert list(found.models) == ["digits-onnx-fp32", "digits-onnx-int8"]
    assert list(found.failures) == ["digits-onnx-fp16"]
    assert "model.onnx: its bytes are not those that the receipt vouches for" in found.failures["digits-onnx-fp16"]
    (problem,) = found.problems
    assert "'digits-onnx-fp16' failed to load" in problem
    index = {row["name"]: row for row in found.index()}
    assert [row["name"] for row in found.index()] == sorted(index)
    assert index["digits-onnx-fp32"] == {
        "name": "digits-onnx-fp32",
        "version": "1",
        "state": "READY",
        "reason": "",
    }
    assert index["digits-onnx-fp16"]["state"] == "UNAVAILABLE"
    assert "vouches for" in index["digits-onnx-fp16"]["reason"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "damaged receipt"), (b"{}", "damaged receipt"), (b'{"schema": "x"}', "damaged receipt"), (None, "missing")],
    ids=["empty", "no fields", "wrong field", "no receipt"],
)
def test_a_damaged_receipt_is_a_reason_of_one_line(
    content: bytes | None, reason: str, tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    made = fake_artifact(tmp_path, "broken")
    fake_artifact(tmp_path, "whole")
    receipt = made.folder / artifact.RECEIPT
    receipt.unlink() if content is None else receipt.write_bytes(content)
    found = opened(tmp_path)
    assert list(found.models) == ["whole"]
    assert reason in found.failures["broken"]
    assert "\n" not in found.failures["broken"]


def test_a_receipt_that_leads_out_of_its_folder_is_refused(
    tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    made = fake_artifact(tmp_path, "m")
    receipt = made.receipt.model_copy(update={"model_file": "../../secret"})
    (made.folder / artifact.RECEIPT).write_text(receipt.to_json())
    assert "leaves the artifact's folder" in opened(tmp_path).failures["m"]


def test_a_repository_all_of_whose_models_fail_has_problems_and_no_models(damaged: Path) -> None:
    found = opened(damaged)
    assert found.models == {}
    assert len(found.problems) == 1


def test_an_empty_repository_object_is_not_ready() -> None:
    assert Repository().problems == ["no model is loaded"]


def test_two_models_of_one_name_are_refused(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    fake_artifact(tmp_path / "a", "same")
    fake_artifact(tmp_path / "b", "same")
    with pytest.raises(PenstockError, match="a model named 'same' is already declared; names must differ"):
        opened(tmp_path / "a", tmp_path / "b")


def test_a_failed_model_keeps_its_name_from_another(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    broken = fake_artifact(tmp_path / "a", "same")
    broken.model_path.unlink()
    fake_artifact(tmp_path / "b", "same")
    with pytest.raises(PenstockError, match="already declared"):
        opened(tmp_path / "a", tmp_path / "b")


def test_a_folder_that_does_not_bear_its_model_s_name_is_refused(
    tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    fake_artifact(tmp_path, "original")
    (tmp_path / "original").rename(tmp_path / "renamed")
    assert "its receipt names it 'original'" in opened(tmp_path).failures["renamed"]


def test_the_highest_version_serves_unless_a_version_folder_is_given(
    tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    for _ in range(2):
        fake_artifact(tmp_path, "m")
    assert opened(tmp_path).models["m"].version == 2
    assert opened(tmp_path / "m" / "1").models["m"].version == 1


def test_unfinished_drafts_are_not_models(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    fake_artifact(tmp_path, "m")
    (tmp_path / ".draft-abc").mkdir()
    found = opened(tmp_path)
    assert (list(found.models), found.failures) == (["m"], {})


def test_a_path_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no such file or folder"):
        opened(tmp_path / "nowhere")


def test_an_empty_folder_is_refused_with_what_would_fill_it(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="holds no models; make one with penstock export"):
        opened(tmp_path)


def test_a_file_that_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.plan"
    path.write_bytes(b"engine")
    assert "must be an .onnx file" in opened(path).failures["model"]


@pytest.mark.parametrize(
    ("name", "content", "checkpoint"),
    [
        ("make.py", b"import torch", False),
        ("rows.npz", b"PK\x03\x04", False),
        ("net.pth", b"", True),
        ("net", b"PK\x03\x04", True),
        ("old", b"\x80\x02", True),
    ],
)
def test_only_what_may_be_a_checkpoint_is_told_to_be_exported(
    tmp_path: Path, name: str, content: bytes, checkpoint: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    reason = opened(path).failures[path.stem]
    assert (f"penstock export {path}" in reason) == checkpoint
    assert ("; penstock export makes them of checkpoints" in reason) != checkpoint


def test_bytes_that_only_bear_the_name_of_onnx_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    reason = opened(path).failures["text"]
    assert "not an ONNX model" in reason
    assert "\n" not in reason


def test_a_bare_onnx_file_serves_under_its_file_name_unverified(bare: Callable[..., Path]) -> None:
    model = opened(bare("my-net.onnx", "batch")).models["my-net"]
    assert model.receipt is None
    assert model.version == 1
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(asyncio.run(model.infer({"x": x}))["y"], 2 * x)


def test_a_bare_onnx_file_whose_batch_is_fixed_takes_exactly_that(bare: Callable[..., Path]) -> None:
    model = opened(bare("fixed.onnx", 4)).models["fixed"]
    assert model.signature.batch is None
    x = np.arange(12, dtype=np.float32).reshape(4, 3)

    async def scenario() -> list[dict[str, Any]]:
        return await asyncio.gather(*[model.infer({"x": x + n}) for n in range(6)])

    for n, answer in enumerate(asyncio.run(scenario())):
        assert np.array_equal(answer["y"], 2 * (x + n))
    with pytest.raises(PenstockError, match=r"shape \[3, 3\]; it must be \[4, 3\]"):
        asyncio.run(model.infer({"x": x[:3]}))


def test_a_bare_onnx_file_of_any_dynamic_name_takes_more_rows_than_its_default_batch(bare: Callable[..., Path]) -> None:
    model = opened(bare("wide.onnx", "N")).models["wide"]
    x = np.arange(300, dtype=np.float32).reshape(100, 3)
    assert np.array_equal(asyncio.run(model.infer({"x": x}))["y"], 2 * x)


def test_a_bare_onnx_file_with_numbered_tensor_names_serves(bare: Callable[..., Path]) -> None:
    found = opened(bare("old.onnx", "batch", ("input.1", "495")))  # as older exporters of PyTorch named them
    assert found.failures == {}
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(asyncio.run(found.models["old"].infer({"input.1": x}))["495"], 2 * x)


def test_a_bare_file_whose_name_no_model_may_bear_is_refused(bare: Callable[..., Path]) -> None:
    (reason,) = opened(bare("my net!.onnx", "batch")).failures.values()
    assert "letters, digits" in reason


@pytest.mark.parametrize(
    ("mode", "step"),
    [
        ("explicit", "POST /v2/repository/models/b/load loads it"),
        ("none", "by --mode none clients may not load it"),
    ],
)
def test_a_model_that_was_never_loaded_is_not_said_to_have_been(
    tmp_path: Path, fake_artifact: Callable[..., Artifact], mode: str, step: str
) -> None:
    for name in "ab":
        fake_artifact(tmp_path, name)
    found = open_repository([tmp_path], Limits(), Metrics(), mode, only=["a"])
    with pytest.raises(RequestError) as caught:
        found.find("b")
    assert (str(caught.value), caught.value.status) == (f"model 'b' is not loaded; {step}", 404)


def test_closing_a_repository_drains_its_models(tmp_path: Path, fake_artifact: Callable[..., Artifact]) -> None:
    fake_artifact(tmp_path, "m")
    found = opened(tmp_path)
    inputs = {"ids": np.ones((1, 2), np.int64), "weight": np.ones(1, np.float32)}

    async def scenario() -> None:
        answer = asyncio.ensure_future(found.models["m"].infer(inputs))
        await asyncio.sleep(0)
        await found.close()
        assert (await answer)["total"].tolist() == [3.0]
        with pytest.raises(PenstockError, match="shutting down"):
            await found.models["m"].infer(inputs)

    asyncio.run(scenario())
    assert not found.models["m"].ready


def test_copies_of_a_repository_serve_wherever_they_lie(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "digits-onnx-int8", tmp_path / "deep" / "er" / "digits-onnx-int8")
    assert list(opened(tmp_path / "deep" / "er").models) == ["digits-onnx-int8"]


def test_a_folder_that_is_no_model_is_passed_over(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "digits-onnx-fp32", tmp_path / "digits-onnx-fp32")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "today.txt").write_text("nothing to serve")
    found = open_repository([tmp_path], Limits(), Metrics())
    assert list(found.models) == ["digits-onnx-fp32"]
    assert found.problems == []

"""The source's own rows: first, in the artifacts' contract, and of the file that they were made of."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import artifact, cli
from penstock.artifact import Artifact
from penstock.bench import source
from penstock.bench.measure import Plan, measure
from penstock.errors import PenstockError


def rows(donors: list[Artifact], path: Path, device: str = "cpu") -> Any:
    return source.rows(donors, path, device, lambda line: None)


@pytest.fixture(scope="module")
def donors(repository: Path) -> list[Artifact]:
    return [artifact.read(path) for path in artifact.find([repository])]


def test_pytorch_gives_the_stored_answers_of_the_artifacts(donors: list[Artifact], trained: Path) -> None:
    (row,) = rows(donors, trained)
    inputs, outputs = row.golden()
    with row.load() as runner:
        answer = runner.run(inputs)
    for name, array in outputs.items():
        np.testing.assert_allclose(answer[name], array, rtol=1e-4, atol=1e-5)


def test_it_goes_first_and_is_what_the_exports_are_compared_with(repository: Path, trained: Path) -> None:
    sources = functools.partial(source.rows, path=trained, device="cpu", say=lambda line: None)
    found = measure([repository / "digits-onnx-int8"], Plan(batches=(2,), seconds=0.02), sources=sources)
    assert [row.name for row in found.rows] == ["torch-eager-fp32", "digits-onnx-int8"]
    assert found.reference == "torch-eager-fp32"
    assert all(cell.rounds for row in found.rows for cell in row.cells.values())
    assert found.rows[0].score is not None
    assert found.rows[0].model_bytes > 100_000


def test_another_file_of_the_same_architecture_is_refused(
    donors: list[Artifact], trained: Path, tmp_path: Path
) -> None:
    held = torch.load(trained, weights_only=True)
    first = next(iter(held["state_dict"]))
    held["state_dict"][first] = held["state_dict"][first] + 1
    torch.save(held, tmp_path / "other.pth")
    with pytest.raises(PenstockError, match=r"--source .*other.pth: none of the artifacts was made of this file"):
        rows(donors, tmp_path / "other.pth")


def test_a_gpu_that_is_not_there_is_named(donors: list[Artifact], trained: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(PenstockError, match=r"--device cuda:0: PyTorch .* finds no CUDA device"):
        rows(donors, trained, "cuda:0")


def test_a_half_module_takes_and_gives_float32_and_leaves_whole_numbers_alone() -> None:
    seen = []

    class Net(torch.nn.Module):
        def forward(self, image: torch.Tensor, number: torch.Tensor) -> Any:
            seen.append((image.dtype, image.is_contiguous(memory_format=torch.channels_last), number.dtype))
            return image * 2, number

    image, number = source._Half(Net())(torch.ones(1, 3, 4, 4), torch.tensor([3]))
    assert seen == [(torch.float16, True, torch.int64)]
    assert (image.dtype, number.dtype) == (torch.float32, torch.int64)
    assert image.sum() == 96


def test_what_belongs_to_a_source_is_refused_without_one(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["penstock", "bench", str(repository), "--model", "net.py:Net"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "--model is of --source CKPT" in capsys.readouterr().err


def test_a_source_gets_the_pixels_of_an_artifact_that_takes_those(
    trained: Path, repository: Path, tmp_path: Path
) -> None:
    from penstock.export import pipeline

    (found,) = pipeline.export(pipeline.Request(trained, output=tmp_path, pixels=True), lambda line: None)
    (row,) = rows([found], trained)
    inputs, outputs = row.golden()
    assert inputs["image"].dtype == np.uint8
    with row.load() as runner:
        np.testing.assert_allclose(runner.run(inputs)["logits"], outputs["logits"], rtol=1e-4, atol=1e-5)

"""Every model of the zoo in every format: published with its source's answers, or refused for the stated reason."""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import nn

from penstock.artifact import Artifact
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.signature import Dim, Range

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def _all_cores() -> Iterator[None]:
    """One thread is right for many small tests, but these models are large."""
    held = torch.get_num_threads()
    torch.set_num_threads(max(held, zoo.cores()))
    yield
    torch.set_num_threads(held)


@pytest.fixture(scope="module", params=zoo.MODELS, ids=lambda model: model.name)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[zoo.Model, nn.Module, Path]]:
    """A model of the zoo, its module, and its checkpoint."""
    model: zoo.Model = request.param
    if model.library != "nets":
        pytest.importorskip(model.library)
    folder = tmp_path_factory.mktemp("checkpoint")
    module = zoo.build(model)
    yield model, module, zoo.save(model, module, folder)
    shutil.rmtree(folder)
    gc.collect()


def asked(model: zoo.Model, weights: Path, column: str, output: Path) -> pipeline.Request:
    """What the command line of matrix.py asks for."""
    name, road, _ = zoo.COLUMNS[column]
    override = Override(
        model=zoo.target(model),
        model_args=model.args,
        inputs=() if model.known else model.inputs,
        dims={name: _dim(sizes) for name, sizes in model.dims.items()},
        batch=_dim(model.batch),
        ranges={name: _range(*ends) for name, ends in model.ranges.items()},
    )
    return pipeline.Request(weights, (name,), output=output, override=override, road=road)


def _dim(sizes: zoo.Range) -> Dim:
    return Dim(min=sizes[0], opt=sizes[1], max=sizes[2])


def _range(*ends: str) -> Range:
    low, high = (float(end) if end.isdigit() else end for end in ends)
    return Range(low=low, high=high)


def test_the_model_itself_answers_at_every_end_of_its_ranges(made: tuple[zoo.Model, nn.Module, Path]) -> None:
    model, module, _ = made
    for place, batch in enumerate(model.batch):
        answers = zoo.answers(model, module, zoo.samples(model, zoo.sizes(model, place)))
        others = zoo.answers(model, module, zoo.samples(model, zoo.sizes(model, place), seed=2))
        assert len(answers) == len(model.outputs)
        for answer, other in zip(answers, others, strict=True):
            assert len(answer) == batch
            assert bool(answer.isfinite().all())
            # An answer that no input moves would agree with any export's.
            assert float((answer - other).norm() / answer.norm()) > 1e-3


@pytest.mark.parametrize("column", zoo.COLUMNS)
def test_a_model_keeps_its_answers_or_is_refused_for_the_stated_reason(
    made: tuple[zoo.Model, nn.Module, Path], column: str, tmp_path: Path
) -> None:
    model, module, weights = made
    request = asked(model, weights, column, tmp_path / "models")
    reason = model.reasons.get(column)
    try:
        if reason is not None:
            with pytest.raises(PenstockError) as caught:
                pipeline.export(request, print)
            assert re.search(reason, str(caught.value)), caught.value
            assert list(tmp_path.glob("models/*")) == []
            return
        (published,) = pipeline.export(request, print)
        assert list(tmp_path.glob("models/*/*/penstock.json")) == [published.folder / "penstock.json"]
        assert_passed(published, model)
        assert_answers(published, model, module)
    finally:
        shutil.rmtree(tmp_path / "models", ignore_errors=True)


def assert_passed(published: Artifact, model: zoo.Model) -> None:
    receipt = published.receipt
    assert receipt.verification.passed
    assert {item.output for item in receipt.verification.distances} == set(model.outputs)
    for item in receipt.verification.distances:
        assert item.rel_l2 <= receipt.verification.limits[item.output].max_error
    assert tuple(tensor.name for tensor in receipt.signature.outputs) == model.outputs
    assert receipt.signature.dims[str(receipt.signature.batch)] == _dim(model.batch)


def assert_answers(published: Artifact, model: zoo.Model, module: nn.Module) -> None:
    """On inputs that the gate has not seen, the artifact answers as the module does whose norms are all in place."""
    with published.load() as runner:
        for place in (0, 1, 2):
            inputs = zoo.samples(model, zoo.sizes(model, place), seed=3 + place)
            expected = zoo.answers(model, module, inputs)
            # The library may have names of its own for its inputs.
            named: dict[str, Any] = dict(zip([tensor.name for tensor in runner.inputs], inputs.values(), strict=True))
            got = runner.run({name: tensor.numpy() for name, tensor in named.items()})
            assert tuple(got) == model.outputs
            for name, tensor in zip(model.outputs, expected, strict=True):
                assert got[name].shape == tuple(tensor.shape)
                error = float((torch.from_numpy(got[name]) - tensor).norm() / tensor.norm())
                assert error <= published.receipt.verification.limits[name].max_error, (name, place, error)

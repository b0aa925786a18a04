"""What tests of the export stage share: sources of any module, written by any format, and run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from penstock import probe, runtimes
from penstock.arrays import take
from penstock.export import formats
from penstock.export.formats import Built, Options, Source
from penstock.export.lowering import Wish
from penstock.export.precision.budget import Judgement
from penstock.runtimes.torch import TorchRunner
from penstock.signature import BATCH, Dim, Signature, Tensor
from penstock.synthetic import synthesize


@dataclass(frozen=True)
class Written:
    """A source and the file that a format made of it."""

    source: Source
    built: Built
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / self.built.model_file

    @property
    def signature(self) -> Signature:
        return self.source.signature

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """The file's own answer, by its runtime."""
        with runtimes.load(self.built.runtime, self.path, self.signature) as runner:
            return runner.run(feeds)

    def feeds(self, rows: int, seed: int = 7, **sizes: int) -> dict[str, Any]:
        dims = {name: dim.opt for name, dim in self.signature.dims.items()}
        return dict(synthesize(self.signature, {**dims, str(self.signature.batch): rows, **sizes}, seed).inputs)

    def check(self, *rows: int, **sizes: int) -> None:
        """See that the file answers as its source does, at each number of rows."""
        source = TorchRunner(self.source.module, self.signature)
        with runtimes.load(self.built.runtime, self.path, self.signature) as runner:
            for count in rows or (1, 2, 5):
                feeds = self.feeds(count, **sizes)
                got, expected = runner.run(feeds), source.run(feeds)
                assert list(got) == list(expected) == [tensor.name for tensor in self.signature.outputs]
                for name, array in expected.items():
                    torch.testing.assert_close(
                        torch.from_numpy(got[name]), torch.from_numpy(array), rtol=1e-4, atol=1e-5, msg=name
                    )
                for name, array in take(expected, slice(1)).items():
                    assert got[name].dtype == array.dtype


def _anything(graph: Any) -> Judgement:
    """A judge that takes any graph."""
    return Judgement(0.0, None, None)


@pytest.fixture(scope="session")
def source_of() -> Callable[..., Source]:
    """Makes of a module what formats are given: `source_of(net, "x:float32[batch,seq,8]", batch=…, seq=Dim(…))`."""

    def make(module: nn.Module, *inputs: str, keep: Sequence[str] = (), kind: str = "weights", **dims: Dim) -> Source:
        tensors = tuple(map(Tensor.parse, inputs))
        ranges = {size: BATCH for tensor in tensors for size in tensor.shape if isinstance(size, str)}
        wanted = Signature(inputs=tensors, outputs=(), dims={**ranges, **dims})
        signature, call = probe.complete(module.eval(), wanted, keep)
        samples = synthesize(signature, {name: dim.opt for name, dim in signature.dims.items()})
        return Source(module, call, signature, samples, samples, kind)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Written]:
    """Writes a source as a format: `write(source, "onnx", opset=17)`."""

    def make(source: Source, format: str, *, precision: str = "fp32", **options: Any) -> Written:
        count = len(list(tmp_path.glob("written-*")))
        folder, work = tmp_path / f"written-{count}", tmp_path / f"work-{count}"
        folder.mkdir()
        work.mkdir()
        wish = Wish(precision, "auto", _anything, _anything, "anything", "anything", lambda line: None)
        built = formats.export(format, source, Options(precision, wish=wish, **options), folder, work)
        return Written(source, built, folder)

    return make

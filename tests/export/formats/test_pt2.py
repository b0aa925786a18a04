"""pt2: torch.export's own program, which reloads, keeps its ranges, and says nothing of the machine."""

from __future__ import annotations

import getpass
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock import artifact, programs
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.export.formats import Source
from penstock.export.request import Request
from penstock.runtimes import RejectedInput
from penstock.signature import Dim

SourceOf, Write = Callable[..., Source], Callable[..., Any]
X = "x:float32[batch,8]"


class Net(nn.Module):
    """Parts that torch.export puts into graphs of their own: no_grad, autocast and cond."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: T) -> T:
        with torch.no_grad():
            y = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            y = y * 2
        return torch.cond(x.shape[0] > 4, lambda y: y * 2, lambda y: y + y, (y,))


@pytest.fixture
def written(source_of: SourceOf, write: Write) -> Any:
    torch.manual_seed(0)
    return write(source_of(Net(), X, batch=Dim(min=2, opt=8, max=16)), "pt2")


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_file_reloads_and_answers_as_the_source_within_its_range(written: Any) -> None:
    assert written.built.runtime == "torch"
    assert written.path.name == "model.pt2"
    written.check(2, 3, 8, 16)
    program = programs.open_exported(written.path)
    (held,) = program.range_constraints.values()
    assert (int(held.lower), int(held.upper)) == (2, 16)


def test_a_batch_beyond_its_range_is_refused_by_the_file_itself(written: Any) -> None:
    with pytest.raises((RejectedInput, AssertionError), match="16"):
        written.run({"x": np.zeros((17, 8), np.float32)})


def test_the_file_says_nothing_of_the_machine_it_was_made_on(written: Any) -> None:
    held = entries(written.path)
    assert any(name.endswith(".json") for name in held)
    traces = (b"site-packages", b'stack_trace": "', b"Traceback", Path(__file__).name.encode(), b'File "')
    for name, content in held.items():
        for trace in (*traces, str(Path(torch.__file__).parent).encode(), str(Path.cwd()).encode()):
            assert trace not in content, (name, trace)
        assert not re.search(rb'"[^"]*\.py\b', content), name
    assert getpass.getuser().encode() + b"/" not in b"".join(held.values())


def test_writing_leaves_the_program_its_lines(source_of: SourceOf, write: Write) -> None:
    """Which a later format's errors are told with."""
    source = source_of(Net(), X)

    def lines() -> list[str]:
        graphs = [part.graph for part in source.program.graph_module.modules()]
        return [str(node.meta.get("stack_trace")) for graph in graphs for node in graph.nodes]

    before = lines()
    assert sum(Path(__file__).name in line for line in before) >= 4
    write(source, "pt2")
    assert lines() == before


def test_the_file_passes_the_look_for_what_would_run_as_python(written: Any) -> None:
    assert programs.kind(written.path) == "exported"
    assert programs.beyond_tensors(written.path) is None


def test_a_branch_on_values_is_refused_with_its_line(source_of: SourceOf, write: Write) -> None:
    class Branch(nn.Module):
        def forward(self, x: T) -> T:
            return -x if x.mean() > 0 else x

    with pytest.raises(PenstockError, match=r"a branch or a number .* in Branch \(test_pt2\.py:\d+\)"):
        write(source_of(Branch(), X, batch=Dim(opt=1, max=1)), "pt2")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .pt2 file as a user's own script saves it, with a range of batches."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    batch = torch.export.Dim("batch", min=1, max=32)
    path = tmp_path_factory.mktemp("exported") / "theirs.pt2"
    torch.export.save(torch.export.export(net, (torch.randn(4, 8),), dynamic_shapes=({0: batch},)), path)
    return path


def test_a_pt2_file_goes_to_every_format_and_keeps_its_answers(exported: Path, tmp_path: Path) -> None:
    request = Request(exported, formats=("pt2", "onnx", "torchscript"), output=tmp_path)
    made = pipeline.export(request, lambda line: None)
    assert [item.receipt.format for item in made] == ["pt2", "onnx", "torchscript"]
    module = torch.export.load(exported).module()
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(x)).numpy()
    for item in made:
        receipt = item.receipt
        assert (receipt.source.kind, receipt.source.architecture) == ("exported", "exported")
        assert receipt.source.loaded == receipt.source.expected == 4
        assert [str(tensor) for tensor in receipt.signature.inputs] == ["input:float32[batch,8]"]
        assert receipt.signature.dims["batch"] == Dim(opt=8, max=32)
        with item.load() as runner:
            assert np.allclose(runner.run({"input": x})["output"], expected, rtol=0, atol=1e-5)


def test_its_inputs_may_be_named_by_the_user(exported: Path, tmp_path: Path) -> None:
    override = Override(inputs=("features:float32[rows,8]",), batch=Dim(opt=2, max=16))
    (made,) = pipeline.export(
        Request(exported, formats=("pt2",), output=tmp_path, override=override), lambda line: None
    )
    again = artifact.read(made.folder).receipt.signature
    assert [str(tensor) for tensor in again.inputs] == ["features:float32[rows,8]"]
    assert again.dims == {"rows": Dim(opt=2, max=16)}

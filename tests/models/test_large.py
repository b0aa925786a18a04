"""A model whose one weight alone is over 2 GiB, protobuf's limit: a small graph, and the weights beside it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from penstock.checkpoint import Override
from penstock.export import pipeline
from penstock.signature import Dim

pytestmark = [pytest.mark.models, pytest.mark.timeout(900)]
ROWS = 550_000
NET = f"""
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding({ROWS}, 1000), nn.Linear(1000, 8)
    def forward(self, ids):
        return self.head(self.table(ids).mean(1))
"""


def test_weights_over_2_gib_lie_beside_the_graph_and_the_answers_stay(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory < 16 * 2**30 or shutil.disk_usage(tmp_path).free < 12 * 2**30:
        pytest.skip("takes 12 GB of memory and of disk")
    (tmp_path / "net.py").write_text(NET)
    space: dict[str, type[nn.Module]] = {"__name__": "net"}
    exec(NET, space)
    torch.save(space["Net"]().state_dict(), tmp_path / "big.pth")
    override = Override(model=f"{tmp_path}/net.py:Net", inputs=("ids:int64[batch,6]",), batch=Dim(min=1, opt=2, max=4))
    request = pipeline.Request(tmp_path / "big.pth", override=override, output=tmp_path / "models")
    try:
        (found,) = pipeline.export(request, print)
        sizes = {path.name: path.stat().st_size for path in found.folder.iterdir()}
        assert sizes["model.onnx"] < 1e5
        assert sizes["model.onnx.data"] > 2**31
        ids = torch.tensor([[0, 1, 2, 3, 4, ROWS - 1]] * 3)
        net = space["Net"]()
        net.load_state_dict(torch.load(tmp_path / "big.pth", weights_only=True, mmap=True), assign=True)
        with found.load() as runner, torch.inference_mode():
            answer = torch.from_numpy(runner.run({"ids": ids.numpy()})["output"])
            torch.testing.assert_close(answer, net.eval()(ids))
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)

"""Unloading gives memory back, and has given it back when it answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.serve import memory
from penstock.signature import Dim, Signature, Tensor

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

SIDE, LAYERS = 1024, 12  # weights of 12 times 4 MiB
MIB = 2**20


def heavy_graph() -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(0, SIDE**-0.5, (LAYERS, SIDE, SIDE)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{n}" if n else "x", f"w{n}"], [f"x{n + 1}"]) for n in range(LAYERS)]
        + [helper.make_node("ReduceMean", [f"x{LAYERS}"], ["y"], axes=[1], keepdims=1)],
        "heavy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(held, f"w{n}") for n, held in enumerate(weights)],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one model of 48 MiB."""
    pytest.importorskip("onnx")
    from tests.serve.conftest import write_fake_artifact

    folder = tmp_path_factory.mktemp("heavy")
    signature = Signature(
        inputs=(Tensor(name="x", dtype="float32", shape=("batch", SIDE)),),
        outputs=(Tensor(name="y", dtype="float32", shape=("batch", 1)),),
        dims={"batch": Dim(min=1, opt=4, max=8)},
    )
    write_fake_artifact(folder, "heavy", signature, graph=heavy_graph())
    return folder


def resident(server: Server) -> float:
    """MiB of the server that are in memory."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def test_a_model_that_is_loaded_and_unloaded_again_and_again_leaves_nothing_behind(
    heavy: Path, start_server: StartServer
) -> None:
    server = start_server(heavy)
    loaded, unloaded, late = [resident(server)], [], 0
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [8, SIDE], "data": [0.5] * (8 * SIDE)}]}
    for _ in range(20):
        assert server.ask("POST", "/v2/models/heavy/infer", body).status == 200
        assert server.ask("POST", "/v2/repository/models/heavy/unload").status == 200
        at_once = resident(server)
        late += at_once > min(loaded) - 30
        give_up = time.monotonic() + 1.0
        while resident(server) > min(loaded) - 30 and time.monotonic() < give_up:
            time.sleep(0.02)
        unloaded.append(resident(server))
        assert server.ask("POST", "/v2/repository/models/heavy/load").status == 200
        loaded.append(resident(server))
    assert min(loaded) - max(unloaded) > 40  # the weights, 48
    assert late <= 2  # what is answered is so, but for pages that the kernel takes a moment longer to count
    assert max(unloaded[1:]) - min(unloaded) < 3  # less than one of the matrices
    # A model that is loaded anew is there twice until the old one is drained, and once when that is answered.
    assert server.ask("POST", "/v2/repository/models/heavy/load").status == 200
    assert resident(server) - loaded[-1] < 20
    server.stop()


def test_memory_is_given_back_where_the_c_library_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    memory.keep_together()
    memory.give_back()

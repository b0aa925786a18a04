"""Tensors in shared memory, by tritonclient over HTTP and gRPC, of a real server."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import artifact
from penstock.serve.errors import RequestError
from penstock.serve.sharedmemory import Regions

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
shm = pytest.importorskip("tritonclient.utils.shared_memory")
triton_error = pytest.importorskip("tritonclient.utils").InferenceServerException
NAME, ROW, ANSWER = "digits-onnx-fp32", 256, 40


@pytest.fixture(scope="module")
def sharing(repository: Path, start_server: StartServer) -> Server:
    return start_server(repository / NAME, "--allow-shared-memory")


@pytest.fixture(scope="module")
def golden(repository: Path) -> tuple[Any, Any]:
    inputs, outputs = artifact.read(repository / NAME).golden()
    return inputs["image"], outputs["logits"]


@dataclass
class Client:
    """A client of one flavour, and its module."""

    module: Any
    client: Any


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, sharing: Server) -> Iterator[Client]:
    module = http if request.param == "http" else grpc
    address = re.search(r"gRPC at (\S+)", "\n".join(sharing.lines))
    assert address is not None
    with module.InferenceServerClient(sharing.netloc if module is http else address[1]) as made:
        made.unregister_system_shared_memory()
        yield Client(module, made)
        made.unregister_system_shared_memory()


@pytest.fixture
def segment() -> Iterator[Any]:
    """A segment of 64 KiB with its key."""
    key = f"/penstock-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region("mine", key, 65_536)
    yield handle, key
    shm.destroy_shared_memory_region(handle)


def taken(client: Client, region: str, rows: int, offset: int = 0, size: int | None = None) -> list[Any]:
    wanted = client.module.InferInput("image", [rows, 1, 8, 8], "FP32")
    wanted.set_shared_memory(region, rows * ROW if size is None else size, offset)
    return [wanted]


def test_input_and_output_lie_in_a_registered_region(client: Client, segment: Any, golden: tuple[Any, Any]) -> None:
    handle, key = segment
    shm.set_shared_memory_region(handle, [golden[0][:4]], offset=128)
    client.client.register_system_shared_memory("mine", key, 32_768, offset=64)
    wanted = client.module.InferRequestedOutput("logits")
    wanted.set_shared_memory("mine", 1000, offset=8192)
    answer = client.client.infer(NAME, taken(client, "mine", 4, offset=64), outputs=[wanted])
    found = shm.get_contents_as_numpy(handle, np.float32, [4, 10], offset=64 + 8192)
    assert np.allclose(found, golden[1][:4], atol=1e-4)
    entry = answer.get_output("logits")
    if client.module is http:
        assert entry == {
            **{"name": "logits", "datatype": "FP32", "shape": [4, 10]},
            "parameters": {
                **{"shared_memory_region": "mine", "shared_memory_offset": 8192, "shared_memory_byte_size": 160}
            },
        }
    else:
        assert list(entry.shape) == [4, 10]
        assert entry.parameters["shared_memory_region"].string_param == "mine"
        assert entry.parameters["shared_memory_offset"].int64_param == 8192


def test_an_input_in_memory_goes_with_an_output_in_the_answer(
    client: Client, segment: Any, golden: tuple[Any, Any]
) -> None:
    handle, key = segment
    shm.set_shared_memory_region(handle, [golden[0][:3]])
    client.client.register_system_shared_memory("mine", key, 65_536)
    answer = client.client.infer(NAME, taken(client, "mine", 3))
    assert np.allclose(answer.as_numpy("logits"), golden[1][:3], atol=1e-4)


def test_regions_are_listed_and_forgotten(client: Client, segment: Any) -> None:
    def listed(name: str = "") -> dict[str, Any]:
        found = client.client.get_system_shared_memory_status(name, **({} if client.module is http else as_json))
        rows = found if client.module is http else found.get("regions", {}).values()
        return {row["name"]: (row["key"], int(row.get("offset", 0)), int(row["byte_size"])) for row in rows}

    as_json = {"as_json": True}
    client.client.register_system_shared_memory("one", segment[1], 100)
    client.client.register_system_shared_memory("two", segment[1], 200, offset=100)
    assert listed() == {"one": (segment[1], 0, 100), "two": (segment[1], 100, 200)}
    assert listed("two") == {"two": (segment[1], 100, 200)}
    client.client.unregister_system_shared_memory("one")
    client.client.unregister_system_shared_memory("one")  # is forgotten already
    assert list(listed()) == ["two"]
    client.client.unregister_system_shared_memory()
    assert listed() == {}
    with pytest.raises(triton_error, match="'two' is not registered"):
        client.client.get_system_shared_memory_status("two")


def test_what_cannot_be_is_refused_by_name(client: Client, segment: Any, golden: tuple[Any, Any]) -> None:
    register, key = client.client.register_system_shared_memory, segment[1]
    for wrong, why in (
        (("a", "/penstock-nobody", 10), "cannot be opened: No such file"),
        (("a", "/../etc/passwd", 10), "must be the name of a segment"),
        (("a", "", 10), "must be the name of a segment"),
        (("a", key, 65_537), "would reach to byte 65537"),
        (("a", key, 2**40), "would reach to byte"),
        (("a", key, 0), "byte_size is '0'"),
    ):
        with pytest.raises(triton_error, match=why):
            register(*wrong)
    register("mine", key, 1024)
    with pytest.raises(triton_error, match="registered already"):
        register("mine", key, 1024)
    for inputs, why in (
        (taken(client, "yours", 1), "'yours' is not registered"),
        (taken(client, "mine", 1, offset=800), "reaches to byte 1056 of shared memory region 'mine'; it has 1024"),
        (taken(client, "mine", 1, size=255), "takes 256"),
    ):
        with pytest.raises(triton_error, match=why):
            client.client.infer(NAME, inputs)
    small = client.module.InferRequestedOutput("logits")
    small.set_shared_memory("mine", ANSWER - 1)
    given = client.module.InferInput("image", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(golden[0][:1])
    with pytest.raises(triton_error, match="has 40 bytes; shared_memory_byte_size is 39"):
        client.client.infer(NAME, [given], outputs=[small])


def test_a_segment_that_is_made_shorter_ends_the_request_and_not_the_server(client: Client, segment: Any) -> None:
    client.client.register_system_shared_memory("mine", segment[1], 65_536)
    os.truncate(f"/dev/shm{segment[1]}", 100)
    with pytest.raises(triton_error, match="has become shorter"):
        client.client.infer(NAME, taken(client, "mine", 1))
    wanted = client.module.InferRequestedOutput("logits")
    wanted.set_shared_memory("mine", ANSWER, offset=90)
    given = client.module.InferInput("image", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
    with pytest.raises(triton_error, match="has become shorter"):
        client.client.infer(NAME, [given], outputs=[wanted])
    assert Path(f"/dev/shm{segment[1]}").stat().st_size == 100
    assert client.client.is_server_ready()
    os.truncate(f"/dev/shm{segment[1]}", 65_536)  # as its owner expects to find it


def test_memory_of_a_gpu_is_none_and_refused(client: Client, sharing: Server) -> None:
    status = client.client.get_cuda_shared_memory_status()
    assert status == [] if client.module is http else not status.regions
    client.client.unregister_cuda_shared_memory()
    with pytest.raises(triton_error, match="of a GPU is not taken"):
        client.client.register_cuda_shared_memory("a", b"AAAA", 0, 100)
    assert "system_shared_memory" in sharing.ask("GET", "/v2").json["extensions"]
    assert "cuda_shared_memory" not in sharing.ask("GET", "/v2").json["extensions"]


def test_it_is_off_unless_it_is_allowed(repository: Path, start_server: StartServer, segment: Any) -> None:
    server = start_server(repository / NAME)
    assert "system_shared_memory" not in server.ask("GET", "/v2").json["extensions"]
    refused = server.ask("POST", "/v2/systemsharedmemory/region/a/register", {"key": segment[1], "byte_size": 10})
    assert (refused.status, "--allow-shared-memory turns it on" in refused.error) == (400, True)
    assert server.ask("GET", "/v2/systemsharedmemory/status").json == []
    tensor = {
        **{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]},
        "parameters": {"shared_memory_region": "a", "shared_memory_byte_size": ROW},
    }
    assert server.ask("POST", f"/v2/models/{NAME}/infer", {"inputs": [tensor]}).status == 404


def test_an_input_is_in_one_place_only(sharing: Server, segment: Any) -> None:
    sharing.ask("POST", "/v2/systemsharedmemory/region/once/register", {"key": segment[1], "byte_size": ROW})
    tensor: dict[str, Any] = {
        **{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64},
        "parameters": {"shared_memory_region": "once", "shared_memory_byte_size": ROW},
    }
    both = sharing.ask("POST", f"/v2/models/{NAME}/infer", {"inputs": [tensor]})
    assert (both.status, "more than one of" in both.error) == (400, True)
    for parameters in ({"shared_memory_region": 7}, {"shared_memory_region": "once"}):
        held = {key: value for key, value in tensor.items() if key != "data"} | {"parameters": parameters}
        assert sharing.ask("POST", f"/v2/models/{NAME}/infer", {"inputs": [held]}).status in (400, 404)
    sharing.ask("POST", "/v2/systemsharedmemory/unregister")


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_closed_when_their_regions_are_forgotten(segment: Any) -> None:
    regions = Regions(allowed=True)
    before = opened()
    for _ in range(50):
        regions.register("mine", segment[1], 0, 100)
        regions.unregister("mine")
    assert opened() == before
    for number in range(128):
        regions.register(str(number), segment[1], 0, 1)
    with pytest.raises(RequestError, match="at most 128"):
        regions.register("more", segment[1], 0, 1)
    regions.unregister()
    assert opened() == before

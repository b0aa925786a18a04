"""Models of text and of bfloat16, by every flavour of tritonclient, of a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.errors import RequestError
from penstock.serve.tensors import from_bytes, from_json, text_bytes
from penstock.signature import SERVED_DTYPES

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

onnx = pytest.importorskip("onnx")
http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
triton_error = pytest.importorskip("tritonclient.utils").InferenceServerException
WORDS = np.array([[b"a", "ß".encode()], [b"", b"four"], [b"x" * 300, b"."]], object)


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Path:
    graph = onnx.helper.make_graph(nodes, path.stem, inputs, outputs)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Server:
    """Serves `words`, which gives text back and says numbers in words, and `squares` of bfloat16."""
    home, info, node = tmp_path_factory.mktemp("special"), onnx.helper.make_tensor_value_info, onnx.helper.make_node
    text, number, brain = (onnx.TensorProto.DataType.Value(name) for name in ("STRING", "FLOAT", "BFLOAT16"))
    words = saved(
        home / "words.onnx",
        [node("Identity", ["text"], ["same"]), node("Cast", ["number"], ["said"], to=text)],
        [info("text", text, ["batch", 2]), info("number", number, ["batch"])],
        [info("same", text, ["batch", 2]), info("said", text, ["batch"])],
    )
    squares = saved(
        home / "squares.onnx",
        [
            node("Cast", ["x"], ["wide"], to=number),
            node("Mul", ["wide", "wide"], ["square"]),
            node("Cast", ["square"], ["y"], to=brain),
        ],
        [info("x", brain, ["batch", 3])],
        [info("y", brain, ["batch", 3])],
    )
    return start_server(words, squares)


Ask = Callable[[str, dict[str, tuple[Any, str]]], Any]


def _clients(server: Server, flavour: str) -> tuple[Any, str]:
    found = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert found is not None
    return (grpc, found[1]) if flavour == "grpc" else (http, server.netloc)


@pytest.fixture(params=["http", "http-json", "grpc", "aio"])
def ask(request: pytest.FixtureRequest, special: Server) -> Ask:
    module, address = _clients(special, request.param)

    def wanted(given: dict[str, tuple[Any, str]]) -> list[Any]:
        made = []
        for name, (array, kind) in given.items():
            made.append(module.InferInput(name, list(array.shape), kind))
            plain = {"binary_data": False} if request.param == "http-json" else {}
            made[-1].set_data_from_numpy(array, **plain)
        return made

    def asked(model: str, given: dict[str, tuple[Any, str]]) -> Any:
        if request.param == "aio":
            import tritonclient.http.aio as aio

            async def once() -> Any:
                async with aio.InferenceServerClient(address) as client:
                    return await client.infer(model, wanted(given))

            return asyncio.run(once())
        with module.InferenceServerClient(address) as client:
            return client.infer(model, wanted(given))

    return asked


def test_text_goes_in_and_comes_out_as_it_was(ask: Ask) -> None:
    answer = ask("words", {"text": (WORDS, "BYTES"), "number": (np.array([1.5, 2, 3], np.float32), "FP32")})
    same, said = answer.as_numpy("same"), answer.as_numpy("said")
    plain = np.frompyfunc(lambda item: item if isinstance(item, bytes) else item.encode(), 1, 1)
    assert (plain(same) == WORDS).all()
    assert list(plain(said)) == [b"1.5", b"2", b"3"]


def test_bfloat16_goes_in_and_comes_out_in_binary(ask: Ask, request: pytest.FixtureRequest) -> None:
    x = np.array([[1.5, 2, -3], [0, 0.25, 256]], ml_dtypes.bfloat16)
    if "http-json" in request.node.name:
        with pytest.raises(triton_error, match=r"(?i)bf16|bfloat16"):
            ask("squares", {"x": (x, "BF16")})
        return
    assert np.array_equal(ask("squares", {"x": (x, "BF16")}).as_numpy("y"), x * x)


def test_metadata_and_configuration_name_the_dtypes(special: Server) -> None:
    assert [t["datatype"] for t in special.ask("GET", "/v2/models/words").json["inputs"]] == ["BYTES", "FP32"]
    assert special.ask("GET", "/v2/models/squares").json["outputs"][0]["datatype"] == "BF16"
    assert special.ask("GET", "/v2/models/words/config").json["input"][0]["data_type"] == "TYPE_STRING"
    assert special.ask("GET", "/v2/models/squares/config").json["input"][0]["data_type"] == "TYPE_BF16"


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ({"datatype": "BYTES", "shape": [1, 2], "data": ["a", 1]}, "must hold strings only, for BYTES"),
        ({"datatype": "BYTES", "shape": [1, 2], "data": ["a"]}, "'shape' says [1, 2]"),
        ({"datatype": "FP32", "shape": [1, 2], "data": [1, 2]}, "has dtype float32; it must be object"),
    ],
)
def test_what_is_no_text_is_refused(special: Server, tensor: dict[str, Any], why: str) -> None:
    number = {"name": "number", "datatype": "FP32", "shape": [1], "data": [1]}
    answer = special.ask("POST", "/v2/models/words/infer", {"inputs": [{"name": "text", **tensor}, number]})
    assert (answer.status, why in answer.error) == (400, True), answer.error


def test_bytes_that_are_no_utf8_are_refused_by_a_model_of_text(special: Server) -> None:
    with http.InferenceServerClient(special.netloc) as client:
        wanted = [http.InferInput("text", [1, 2], "BYTES"), http.InferInput("number", [1], "FP32")]
        wanted[0].set_data_from_numpy(np.array([[b"\xff", b"a"]], object))
        wanted[1].set_data_from_numpy(np.zeros(1, np.float32))
        with pytest.raises(triton_error, match=r"input .text. holds b.*xff.*, and the model takes text as UTF-8"):
            client.infer("words", wanted)


def test_numbers_for_bfloat16_in_json_are_refused_both_ways(special: Server) -> None:
    tensor = {"name": "x", "datatype": "BF16", "shape": [1, 3], "data": [1, 2, 3]}
    answer = special.ask("POST", "/v2/models/squares/infer", {"inputs": [tensor]})
    assert (answer.status, "BF16, which JSON has no numbers for" in answer.error) == (400, True)
    raw = np.zeros((1, 3), np.uint16).tobytes()
    head = (
        b'{"inputs":[{"name":"x","datatype":"BF16","shape":[1,3],"parameters":{"binary_data_size":6}}],'
        b'"outputs":[{"name":"y"}]}'
    )
    answer = special.ask(
        *("POST", "/v2/models/squares/infer", head + raw, {"Inference-Header-Content-Length": str(len(head))})
    )
    assert (answer.status, "output 'y' is BF16" in answer.error) == (400, True)


@given(texts=st.lists(st.binary(max_size=40), max_size=12))
def test_elements_of_bytes_survive_the_wire(texts: list[bytes]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    assert list(from_bytes("x", memoryview(text_bytes(array)), "object", (len(texts),))) == texts


@given(data=st.binary(max_size=64), count=st.integers(0, 8))
def test_any_bytes_are_elements_or_refused(data: bytes, count: int) -> None:
    with suppress(RequestError):
        assert text_bytes(from_bytes("x", memoryview(data), "object", (count,))) == data


@given(
    dtype=st.sampled_from(sorted(set(SERVED_DTYPES) - {"object", "bool"})),
    start=st.integers(0, 80),
    count=st.integers(1, 9),
)
def test_bytes_that_begin_anywhere_are_an_array_that_is_aligned(dtype: str, start: int, count: int) -> None:
    sent = np.arange(count).astype(dtype)
    found = from_bytes("x", memoryview(bytes(start) + sent.tobytes())[start:], dtype, (count,))
    assert found.flags.aligned
    assert found.tobytes() == sent.tobytes()


def test_more_elements_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 1048576"):
        from_bytes("x", memoryview(b""), "object", (2**40,))
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        from_json("data", ["\ud800"], "object", (1,))


def test_the_human_road_takes_and_gives_both_in_json(special: Server) -> None:
    body = {"inputs": {"text": [["a", "ß"]], "number": [1.5]}}
    answer = special.ask("POST", "/predict/words", body)
    assert (answer.status, answer.json["outputs"]) == (200, {"same": [["a", "ß"]], "said": ["1.5"]})
    answer = special.ask("POST", "/predict/squares", {"inputs": [[1.5, -2, 0.25]]})
    assert (answer.status, answer.json["outputs"]) == (200, {"y": [[2.25, 4, 0.0625]]})
    answer = special.ask("POST", "/predict/squares", {"inputs": [[1e39, 0, 0]]})
    assert (answer.status, "out of BF16's range" in answer.error) == (400, True)
    assert special.ask("POST", "/predict/squares", {"inputs": [[1e30, 0, 0]]}).status == 422  # its square is infinite


def test_the_description_has_examples_that_are_answered(special: Server) -> None:
    paths = special.ask("GET", "/openapi.json").json["paths"]
    shown = paths["/v2/models/{name}/infer"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert special.ask("POST", "/v2/models/words/infer", shown["words"]["value"]).status == 200
    assert shown["squares"]["value"]["inputs"][0]["parameters"] == {"binary_data_size": 6}

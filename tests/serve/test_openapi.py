"""OpenAPI: valid, and every example in it is answered as it stands."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.openapi.models import OpenAPI

from penstock.serve import examples
from penstock.signature import Dim, Signature, Tensor

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

INFER = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")


@pytest.fixture(scope="module")
def described(forms: Server) -> Any:
    return forms.ask("GET", "/openapi.json").json


def content(described: Any, path: str) -> Any:
    return described["paths"][path]["post"]["requestBody"]["content"]


def test_the_description_is_openapi_3_1(described: Any) -> None:
    assert described["openapi"].startswith("3.1")
    OpenAPI.model_validate(described)
    for item in described["paths"].values():
        for operation in item.values():
            for held in operation.get("requestBody", {}).get("content", {}).values():
                assert {"schema"} <= set(held) <= {"schema", "examples"}
                for example in held.get("examples", {}).values():
                    assert set(example) <= {"summary", "description", "value"}
                    assert "value" in example


def test_predict_s_examples_are_of_each_model_by_the_forms_that_it_takes(described: Any) -> None:
    assert set(content(described, "/predict/{name}")["application/json"]["examples"]) == {
        *("digits-onnx-fp32.image", "digits-onnx-fp32.inputs"),
        *("colours.image", "colours.inputs"),
        *("price.row", "price.inputs"),
        *("people.row", "people.inputs"),
        "pair.inputs",
    }
    assert set(content(described, "/predict/{name}")["text/csv"]["examples"]) == {"price", "people"}


def test_every_example_of_predict_is_answered(forms: Server, described: Any) -> None:
    held = content(described, "/predict/{name}")
    for key, example in held["application/json"]["examples"].items():
        answer = forms.ask("POST", f"/predict/{key.rpartition('.')[0]}", example["value"])
        assert answer.status == 200, (key, answer.body)
    for name, example in held["text/csv"]["examples"].items():
        answer = forms.ask("POST", f"/predict/{name}", example["value"].encode(), {"Content-Type": "text/csv"})
        assert answer.status == 200, (name, answer.body)
    picture = held["application/json"]["examples"]["digits-onnx-fp32.image"]["value"]["image"]
    assert forms.ask("POST", "/predict/digits-onnx-fp32", base64.b64decode(picture)).status == 200


@pytest.mark.parametrize("path", INFER)
def test_every_example_of_infer_is_answered_with_names_shapes_and_datatypes_of_its_own_model(
    forms: Server, described: Any, path: str
) -> None:
    examples = content(described, path)["application/json"]["examples"]
    assert set(examples) == {"digits-onnx-fp32", "colours", "price", "people", "pair"}
    for name, example in examples.items():
        metadata = forms.ask("GET", f"/v2/models/{name}").json
        assert [(entry["name"], entry["datatype"]) for entry in example["value"]["inputs"]] == [
            (entry["name"], entry["datatype"]) for entry in metadata["inputs"]
        ]
        answer = forms.ask("POST", path.format(name=name, version=1), example["value"])
        assert answer.status == 200, (name, answer.body)


def test_the_form_says_how_pictures_are_read(described: Any) -> None:
    said = content(described, "/predict/{name}")["multipart/form-data"]["schema"]["description"]
    assert "digits-onnx-fp32 takes images, read as 8 x 8 pixels in grey." in said
    assert "colours takes images, read as 6 x 4 pixels in RGB." in said


def test_the_paths_names_are_those_of_the_models(described: Any) -> None:
    for path in ("/predict/{name}", *INFER):
        (named,) = [held for held in described["paths"][path]["post"]["parameters"] if held["name"] == "name"]
        assert set(named["examples"]) == {"digits-onnx-fp32", "colours", "price", "people", "pair"}


def test_loading_and_unloading_shows_in_the_next_description(
    tmp_path: Path, start_server: StartServer, fake_artifact: Callable[..., Any]
) -> None:
    fake_artifact(tmp_path, "one")
    server = start_server(tmp_path)

    def shown() -> set[str]:
        held = content(server.ask("GET", "/openapi.json").json, INFER[0])["application/json"]
        return set(held["examples"])

    assert shown() == {"one"}
    fake_artifact(tmp_path, "two")
    assert server.ask("POST", "/v2/repository/models/two/load").status == 200
    assert shown() == {"one", "two"}
    assert server.ask("POST", "/v2/repository/models/one/unload").status == 200
    assert shown() == {"two"}
    shutil.rmtree(tmp_path / "one")


def one_input(dtype: str, *shape: int | str) -> Signature:
    dims = {size: Dim(min=2, opt=4, max=8) for size in shape if isinstance(size, str)}
    output = Tensor(name="y", shape=("batch",))
    return Signature(inputs=(Tensor(name="x", dtype=dtype, shape=shape),), outputs=(output,), dims=dims)


def test_a_model_of_many_numbers_is_shown_by_the_json_that_its_bytes_follow() -> None:
    signature = one_input("float32", "batch", 3, 224, 224)
    assert examples.example_inputs(signature) is None
    example = examples.infer_example(signature)
    size = 2 * 3 * 224 * 224 * 4
    assert str(size) in example["summary"]
    assert example["value"] == {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [2, 3, 224, 224],
                "parameters": {"binary_data_size": size},
            }
        ]
    }


def test_float16_which_json_has_no_numbers_for_is_shown_in_binary_too() -> None:
    (entry,) = examples.infer_example(one_input("float16", "batch", 2))["value"]["inputs"]
    assert entry["parameters"] == {"binary_data_size": 8}


def test_examples_keep_to_the_smallest_sizes_and_the_ranges() -> None:
    inputs = examples.example_inputs(one_input("int64", "batch", "tokens"))
    assert inputs is not None
    assert [len(row) for row in inputs["x"]] == [2, 2]
    json.dumps(inputs)


def test_every_operation_says_what_an_error_is_and_none_says_what_never_comes(described: Any) -> None:
    for path, item in described["paths"].items():
        for operation in item.values():
            assert "422" not in operation["responses"], path
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema["required"] == ["error"]
    assert "HTTPValidationError" not in str(described)

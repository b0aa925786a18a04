"""OpenAPI of a server: its routes, with examples of the models that it serves at the moment."""

from __future__ import annotations

import copy
import re
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.serve import answers, examples, predict, recorded, rights
from penstock.serve.model import Model
from penstock.serve.repository import Repository
from penstock.tabular import TablePreprocess
from penstock.textual import TextPreprocess

_BINARY_STRING = {"type": "string", "format": "binary"}
_TIMING = {"Server-Timing": {"description": "decode, queue, compute and total, in ms", "schema": {"type": "string"}}}
_TENSORS = {"type": "array", "items": {"type": "object"}}

PREDICT: dict[str, Any] = {
    "parameters": [
        {
            "name": "top_k",
            "in": "query",
            "description": "How many labels to answer for each row of a classifier.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 3},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "array", "items": _BINARY_STRING}},
                }
            },
            "image/png": {"schema": _BINARY_STRING},
            "image/jpeg": {"schema": _BINARY_STRING},
            "text/csv": {"schema": {"type": "string"}},
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": f"One of {', '.join(predict.FORMS)}; images in base64 or as data: URLs.",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "properties": {
                        "inputs": {"description": "Rows, or an object of rows by the input's name."},
                        "image": {"type": "string"},
                        "images": {"type": "array", "items": {"type": "string"}},
                        "text": {"type": "string"},
                        "texts": {"type": "array", "items": {"type": "string"}},
                        "row": {"type": ["object", "array"]},
                        "rows": {"type": "array", "items": {"type": ["object", "array"]}},
                    },
                    "additionalProperties": False,
                }
            },
        },
    },
    "responses": {
        "200": {
            "description": "Labels with scores, class maps, values or outputs.",
            "headers": _TIMING,
            "content": {
                answers.JSON: {"schema": {"type": "object"}},
                answers.BINARY: {"schema": _BINARY_STRING},
                answers.PNG: {"schema": _BINARY_STRING},
            },
        }
    },
}
INFER: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string"},
                        "inputs": _TENSORS,
                        "outputs": _TENSORS,
                        "parameters": {"type": "object"},
                    },
                }
            }
        },
    }
}


_ERROR: dict[str, Any] = {
    "description": (
        "What is wrong, in one sentence: 400 the request, 403 not for clients to change (--mode), 404 no such model or "
        "path, 405 the method, 406 Accept, 408 it did not become whole, 413 its size, 415 its coding, 422 an "
        "answer that the form has no words for, 503 busy, late or not there (with Retry-After)."
    ),
    "content": {
        "application/json": {
            "schema": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        }
    },
}
_REFUSALS = {
    "401": {"description": "No API key, or one that is unknown or has expired."},
    "403": {"description": "The API key lacks the right."},
    "429": {"description": "The API key is over its rate; Retry-After says when to ask again."},
}
_INFER_PATHS = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")


def describe(app: FastAPI, repository: Repository, *, keyed: bool = False) -> dict[str, Any]:
    """The description of `app`, with examples of the models in `repository`: bodies that they answer as they stand.

    With `keyed` it says which routes want an API key, and with which rights.
    """
    schema = get_openapi(title=app.title, version=app.version, openapi_version=app.openapi_version, routes=app.routes)
    schema["paths"] |= {path: {"post": _infer(path)} for path in _INFER_PATHS}
    models = sorted(repository.models.values(), key=lambda model: model.name)
    schema.pop("components", None)  # of the framework's own errors, which never come
    for item in schema["paths"].values():
        for operation in item.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = _ERROR
    for path, item in schema["paths"].items():
        operation = item.get("post", {})
        if path == "/predict/{name}":
            _show_predict(operation, models)
        elif path.endswith("/infer"):
            made = {model.name: examples.infer_example(model.signature) for model in models}
            shown = {name: example for name, example in made.items() if example is not None}
            operation["requestBody"]["content"]["application/json"]["examples"] = shown
        else:
            continue
        named = next(parameter for parameter in operation["parameters"] if parameter["name"] == "name")
        named["examples"] = {model.name: {"value": model.name} for model in models}
    if keyed:
        _ask_for_keys(schema)
    return schema


def _ask_for_keys(schema: dict[str, Any]) -> None:
    bearer = {"type": "http", "scheme": "bearer", "description": "An API key, of `penstock keys add`."}
    schema["components"] = {"securitySchemes": {"key": bearer}}
    for path, item in schema["paths"].items():
        needed = rights.of_path(path)
        for operation in item.values():
            # Any one right of them is enough.
            operation["security"] = [] if needed is None else [{"key": [right]} for right in needed]
            operation["responses"] |= {} if needed is None else _REFUSALS


def _infer(path: str) -> dict[str, Any]:
    """An infer route, which is no route of the application: see `penstock.serve.wire`."""
    names = re.findall(r"\{(\w+)\}", path)
    return {
        "tags": ["inference"],
        "summary": "Infer",
        "operationId": "_".join(["infer", *names]),
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "The outputs, in JSON or behind it in binary."}},
        **copy.deepcopy(INFER),
    }


def _show_predict(operation: dict[str, Any], models: list[Model]) -> None:
    content = operation["requestBody"]["content"]
    content["application/json"]["examples"] = {
        f"{model.name}.{form}": {"summary": f"{model.name} by {form}", "value": {form: value}}
        for model in models
        for form, value in examples.predict_examples(model).items()
    }
    tables = {model.name: {"value": text} for model in models if (text := examples.csv_example(model))}
    if tables:
        content["text/csv"]["examples"] = tables
    readings = {model.name: reading(held) for model in models if (held := predict.of(model)) is not None}
    pictures = {model.name for model in models if isinstance(predict.of(model), ImagePreprocess)}
    form, held = content["multipart/form-data"]["schema"], content["application/json"]["schema"]
    form["description"] = " ".join(
        [
            "One image file or several, each answered in order.",
            *(f"{name} takes {text}." for name, text in readings.items() if name in pictures),
        ]
    )
    others = [f"{name} takes {text}." for name, text in readings.items() if name not in pictures]
    held["description"] = " ".join([held["description"], *others])


def reading(held: Preprocess) -> str:
    """What a model takes, in words: of pictures their size, of texts their length, of table rows their columns."""
    if isinstance(held, TextPreprocess):
        return f"texts, of which it reads the first {held.length} tokens"
    if isinstance(held, TablePreprocess):
        return f"table rows, {recorded.columns_of(held)}"
    colour = "grey" if held.mode == "L" else "RGB"
    cut = f", cut from the centre of a shorter side of {held.resize_shorter}" if held.resize_shorter else ""
    return f"images, read as {held.width} x {held.height} pixels in {colour}{cut}"

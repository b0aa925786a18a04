"""The human road out: labels with scores, class maps, values, or the outputs themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock import predictions
from penstock.predictions import Kind
from penstock.runtimes import rows_of
from penstock.serve import accept, replies
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.protocol import InferRequest, Wanted
from penstock.serve.times import Times, header
from penstock.signature import Arrays

JSON, BINARY, PNG = "application/json", "application/octet-stream", "image/png"


def kind(model: Model) -> Kind:
    """What a model answers, by the task that its receipt records and the shape of its first output."""
    return predictions.kind(model.receipt.task if model.receipt else None, model.signature)


def wanted(model: Model, accepted: str, inputs: Arrays) -> str:
    """The media type to answer in, of those that there are for these inputs.

    Raises:
        RequestError: 406, the client takes none of them. SignatureMismatch: the inputs are not the model's.
    """
    offers, rows = [JSON, BINARY], 1
    if maps := kind(model) == "segmentation":
        model.signature.check(inputs, limit_batch=False)
        fixed = model.signature.outputs[0].shape[0]
        rows = fixed if isinstance(fixed, int) else rows_of(inputs)
        offers += [PNG] * (rows == 1)
    form = accept.best(accepted, offers)
    if form is not None:
        return form
    if accept.best(accepted, [PNG]) is not None:
        why = (
            f"a PNG holds one map, and the request has {rows} rows" if maps else f"model {model.name!r} answers no maps"
        )
    else:
        why = "there is none of that kind"
    raise RequestError(f"Accept is {accepted[:80]!r}, and {why}; it must take one of {', '.join(offers)}", 406)


async def encode(
    model: Model, outputs: dict[str, Any], form: str, top_k: int, times: Times
) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer.

    Raises:
        RequestError: an output holds NaN or infinity, and the answer is not in binary.
    """
    if form == BINARY:
        call = InferRequest({}, dict.fromkeys(outputs, Wanted(binary=True)), None, None, 0)
        parts, headers = replies.encode(model.name, model.version, call, outputs)
        return b"".join(parts), {**headers, "Server-Timing": header(times.stages_ms())}
    if form == PNG:
        content = await asyncio.to_thread(_only_map, model, outputs)
        return content, {"Content-Type": PNG, "Server-Timing": header(times.stages_ms())}
    if kind(model) == "segmentation":  # counting and packing pixels takes milliseconds
        said = await asyncio.to_thread(answer, model, outputs, top_k)
    else:
        said = answer(model, outputs, top_k)
    stages = times.stages_ms()
    said["timing"] = {f"{name}_ms": duration for name, duration in stages.items()}
    return orjson.dumps(said), {"Content-Type": JSON, "Server-Timing": header(stages)}


def _only_map(model: Model, outputs: dict[str, Any]) -> bytes:
    _refuse_nan(outputs)
    return predictions.map_png(predictions.class_maps(outputs[model.signature.outputs[0].name])[0])


def answer(model: Model, outputs: dict[str, Any], top_k: int) -> dict[str, Any]:
    """What is said to the caller in JSON.

    Raises:
        RequestError: an output holds NaN or infinity, which JSON has no numbers for. NoMap: a class has no place.
    """
    _refuse_nan(outputs)
    said: dict[str, Any] = {"model": model.name, "version": model.version}
    first = outputs[model.signature.outputs[0].name]
    answers = kind(model)
    if answers == "outputs":
        return {**said, "outputs": {name: _listed(name, array) for name, array in outputs.items()}}
    return {**said, **predictions.of(answers, first, model.labels, top_k)}


def _listed(name: str, array: NDArray[np.generic]) -> Any:
    """Nested lists of an output's numbers or texts."""
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32).tolist()
    if array.dtype != object:
        return array.tolist()
    return np.array(replies.texts(name, array.reshape(-1)), object).reshape(array.shape).tolist()


def _refuse_nan(outputs: dict[str, Any]) -> None:
    for name, array in outputs.items():
        if array.dtype.kind in "fV" and not np.isfinite(array).all():
            raise RequestError(f"the model answers NaN or Inf in output {name!r} for these inputs", 422)

"""Models as the page shows them: what is loaded, what vouches for it, and which forms a request may have."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import Any

from penstock.receipt import Receipt, Verification
from penstock.serve import answers, examples, openapi, predict, rows
from penstock.serve.model import Model
from penstock.serve.tensors import kind_of
from penstock.signature import SERVED_DTYPES, Tensor
from penstock.tabular import TablePreprocess
from penstock.textual import TextPreprocess

_MOST_CHOICES = 1000
"""Categories of a column that are listed; of more, any may be typed."""
_KINDS = {"f": "number", "V": "number", "i": "whole", "u": "whole", "b": "truth"}


def described(model: Model) -> dict[str, Any]:
    """One model, as JSON may have it."""
    receipt = model.receipt
    return {
        "name": model.name,
        "version": model.version,
        "format": receipt.format if receipt else "onnx",
        "precision": receipt.precision if receipt else None,
        "runtime": receipt.runtime if receipt else "onnxruntime",
        "bytes": model.file_bytes,
        "ready": model.ready,
        "accuracy": _accuracy(receipt.verification) if receipt else None,
        "receipt": _facts(receipt) if receipt else None,
        "task": answers.kind(model),
        "inputs": [_tensor(tensor) for tensor in model.signature.inputs],
        "outputs": [_tensor(tensor) for tensor in model.signature.outputs],
        "max_batch": model.signature.max_batch,
        "forms": {name: {**form, "like": _like(model, name, form)} for name, form in _forms(model).items()},
    }


def _like(model: Model, name: str, form: dict[str, Any]) -> str:
    """A word that is the same of two models where one request in this form suits both, and their answers compare."""
    columns = [(column["name"], column["kind"]) for column in form.get("columns", ())]
    tensors = [_tensor(tensor) for tensor in model.signature.inputs] if name == "inputs" else []
    outputs = [_tensor(tensor) for tensor in model.signature.outputs]
    told = repr([name, columns, tensors, outputs, answers.kind(model)])
    return hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": SERVED_DTYPES[tensor.dtype], "shape": list(tensor.shape)}


def _forms(model: Model) -> dict[str, Any]:
    """What `/predict` takes of this model, by the field's name: what is to be said of it, and an example."""
    made, held = examples.predict_examples(model), predict.of(model)
    forms: dict[str, Any] = {}
    if "image" in made:
        assert held is not None
        forms["image"] = {"hint": f"It takes {openapi.reading(held)}."}
    if "text" in made:
        length = f"It reads the first {held.length} tokens." if isinstance(held, TextPreprocess) else ""
        forms["text"] = {"hint": length, "example": made["text"]}
    if isinstance(held, TablePreprocess):
        forms["row"] = {
            "columns": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "choices": column.categories if len(column.categories) <= _MOST_CHOICES else [],
                    "example": made["row"][column.name],
                    "needed": False,
                }
                for column in held.columns
            ]
        }
    elif "row" in made:
        forms["row"] = {"columns": _columns(model, made["row"])}
    forms["inputs"] = {"example": made.get("inputs")}
    return forms


def _columns(model: Model, example: Any) -> list[dict[str, Any]]:
    """The columns of a model that records none; those without a name have null."""
    held = rows.columns(model.signature)
    assert held is not None
    found = []
    for number in range(held.count):
        name = held.names[number] if held.names else None
        kind = _KINDS.get(kind_of(held.tensor(number).dtype), "text")
        value = example[number if name is None else name]
        found.append({"name": name, "kind": kind, "choices": [], "example": value, "needed": True})
    return found


def _accuracy(checked: Verification) -> dict[str, Any] | None:
    """Accuracy on labelled samples where that was measured; else how often the answers are the source's."""
    if (kept := checked.accuracy) is not None:
        return {"of": "labels", "share": kept.export, "source": kept.source, "samples": kept.samples}
    agreed = [distance.agreement for distance in checked.distances if distance.agreement is not None]
    return {"of": "source", "share": min(agreed), "samples": checked.samples} if agreed else None


def _facts(receipt: Receipt) -> list[tuple[str, str]]:
    """What the receipt says, in words; paths of the machine that it was written on are not told."""
    source, checked, calibrated = receipt.source, receipt.verification, receipt.calibration
    real = "real" if checked.real else "synthetic"
    ran = "" if checked.engine_run else "; the graph alone was run, its own kernels not yet"
    worst = max((distance.rel_l2 for distance in checked.distances), default=None)
    facts = {
        "Made": f"{receipt.created:%Y-%m-%d %H:%M} UTC",
        "Source": f"{PurePath(source.checkpoint).name}, {source.architecture.rpartition('/')[2]}, "
        f"{source.loaded} of {source.expected} tensors loaded",
        "Source's SHA-256": source.sha256,
        "Verified": f"{'passed' if checked.passed else 'failed'} on {checked.samples} {real} samples, by "
        f"{checked.runtime}{ran}",
        "Largest error": "" if worst is None else f"{worst:.1e} of the source's outputs (relative L2)",
        "Calibrated": f"{calibrated.method}, {calibrated.samples} {'real' if calibrated.real else 'random'} samples"
        if calibrated is not None and calibrated.samples
        else "",
        "Runs on": receipt.hardware,
        "Model's SHA-256": receipt.files[receipt.model_file].sha256,
    }
    return [(name, fact) for name, fact in facts.items() if fact]

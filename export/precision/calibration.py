"""Calibration: how large the tensors of a graph get on real samples, in one pass whose memory does not grow."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock import cache
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError, last_line, require
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.precision.histogram import BINS, Histogram
from penstock.files import sha256
from penstock.progress import bar
from penstock.receipt import Calibration
from penstock.signature import Arrays

METHODS = ("entropy", "max", "percentile")
_KIND = "calibration"


@dataclass(frozen=True)
class Scales:
    """How large each tensor gets: `[low, high]`, clipped at the threshold of a method; and the record of it.

    `unbounded` are tensors that have no range, as a mask of -Inf has none: they get NaN or Inf.
    """

    ranges: dict[str, tuple[float, float]]
    record: Calibration
    unbounded: frozenset[str] = frozenset()


def check_method(method: str) -> None:
    """See that a method is one of `METHODS`, or `percentile=SHARE`.

    Raises:
        PenstockError: with those there are.
    """
    name, equals, share = method.partition("=")
    if name not in METHODS or (equals and name != "percentile"):
        raise PenstockError(
            f"--calibration {method!r}: must be one of {', '.join(METHODS)}, percentile=99.9, or dynamic"
        )
    if equals:
        try:
            within = 50 < float(share) <= 100
        except ValueError:
            within = False
        if not within:
            raise PenstockError(f"--calibration {method!r}: the share must be over 50 and 100 at most, as in 99.99")


def calibrate(
    graph: Any, tensors: Sequence[str], rows: Rows, method: str, least: int, work: Path, *, bounded: bool = True
) -> Scales:
    """Run every row through a graph, and find the range of each tensor; the graph's own outputs are never clipped.

    Args:
        graph: a float32 `onnx.ModelProto`; left as it is.
        tensors: names of float tensors in it, its inputs among them.
        rows: the samples, run as few at a time as the graph takes, so that nothing hangs on how many those are.
        method: `entropy`, `max`, `percentile` or `percentile=SHARE`.
        least: the fewest rows that the graph takes.
        work: a folder for the graph.
        bounded: whether each of the tensors must have a range; inputs must in any case.

    Raises:
        PenstockError: the graph cannot be run, or a tensor that must have a range gets NaN or Inf.
    """
    check_method(method)
    data = digest(rows)
    found = _observed(graph, tensors, rows, data, least, work)
    ranges, answers = {}, {value.name for value in graph.graph.output}
    inputs = {value.name for value in graph.graph.input}
    unbounded = {name: seen.unbounded for name, seen in found.items() if seen.unbounded is not None}
    for name, row in unbounded.items():
        if name in inputs:
            raise PenstockError(f"calibration: input {name!r} holds NaN or Inf in sample {row}; leave it out of --data")
        if bounded:
            raise PenstockError(
                f"calibration: tensor {name!r} gets NaN or Inf on sample {row}, and no scale fits that; fp16 and bf16 "
                "keep such tensors in float32"
            )
    for name, seen in found.items():
        if name in unbounded:
            continue
        clip = seen.most if name in answers else seen.threshold(method)
        ranges[name] = (max(seen.low, -clip), min(seen.high, clip))
    record = Calibration(method=method, samples=len(rows), digest=data, real=rows.real)
    return Scales(ranges, record, frozenset(unbounded))


def digest(rows: Rows) -> str:
    """The sha256 of rows: names, dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for name, array in rows.inputs.items():
        found.update(f"{name}{array.dtype}{array.shape}".encode())
        for start in range(0, len(array), 64):
            found.update(np.ascontiguousarray(array[start : start + 64]).tobytes())
    return found.hexdigest()


def floating(graph: Any) -> list[str]:
    """The names of float32 tensors that the graph is given or computes, in its order."""
    onnx = protos.onnx_package()
    light, _ = protos.unloaded(graph)
    inferred = onnx.shape_inference.infer_shapes(light).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    named = [*(value.name for value in graph.graph.input), *(name for n in graph.graph.node for name in n.output)]
    kinds.update({value.name: value.type.tensor_type.elem_type for value in graph.graph.input})
    return [name for name in dict.fromkeys(named) if kinds.get(name) == onnx.TensorProto.FLOAT]


def largest(graph: Any, tensors: Sequence[str], inputs: Arrays, least: int, work: Path, what: str) -> dict[str, float]:
    """The largest magnitude of each tensor over rows; Inf where one is NaN or Inf.

    Args:
        graph: a float32 `onnx.ModelProto`; left as it is.
        tensors: names of float tensors in it.
        inputs: rows of each input, by name.
        least: the fewest rows that the graph takes.
        work: a folder for the graph.
        what: the work in words, for the progress bar.
    """
    path = _write(_showing(graph, tensors), work)
    found = dict.fromkeys(tensors, 0.0)
    for _, answer in _each(path, tensors, inputs, least, what):
        for name, array in answer.items():
            most = float(np.abs(array).max(initial=0.0))
            found[name] = max(found[name], most if np.isfinite(most) else np.inf)
    return found


def shapes(graph: Any, tensors: Sequence[str], inputs: Arrays, least: int, work: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that tensors of a graph get for its inputs; arguments as for `largest`."""
    path = _write(_showing(graph, tensors), work)
    _, answer = next(iter(_each(path, tensors, inputs, least, "shapes")))
    return {name: array.shape for name, array in answer.items()}


def _observed(
    graph: Any, tensors: Sequence[str], rows: Rows, data: str, least: int, work: Path
) -> dict[str, Histogram]:
    """The histogram of each tensor: from the cache, or by running the rows."""
    onnxruntime = require("onnxruntime", "export", "calibration")
    path = _write(_showing(graph, tensors), work)
    files = [sha256(file) for file in sorted(path.parent.iterdir())]
    # The method comes after: it is applied to the histograms, which hold for all of them.
    key = cache.key(onnxruntime.__version__, *files, data, str(least), str(BINS))
    kept = cache.read(_KIND, key)
    found = None if kept is None else _unpacked(kept, tensors)
    if found is None:
        found = _run(path, tensors, rows, least)
        cache.write(_KIND, key, _packed(found))
    return found


def _showing(graph: Any, tensors: Sequence[str]) -> Any:
    """A copy of the graph that answers with the tensors too."""
    onnx = protos.onnx_package()
    shown = protos.copied(graph)
    there = {value.name for value in (*shown.graph.output, *shown.graph.input)}
    kind = onnx.TensorProto.FLOAT
    shown.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, kind, None) for name in tensors if name not in there
    )
    return shown


def _write(graph: Any, work: Path) -> Path:
    folder = work / "calibration"
    folder.mkdir(exist_ok=True)
    return graphs.write(graph, folder)[0]


def _run(path: Path, tensors: Sequence[str], rows: Rows, least: int) -> dict[str, Histogram]:
    found = {name: Histogram() for name in tensors}
    for row, answer in _each(path, tensors, rows.inputs, least, "calibrating"):
        for name, array in answer.items():
            if found[name].unbounded is None:
                try:
                    found[name].add(array)
                except ValueError:
                    found[name].unbounded = row
    return found


def _each(
    path: Path, tensors: Sequence[str], inputs: Arrays, least: int, what: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each row, or of the first of `least`, and the tensors that it makes."""
    onnxruntime = require("onnxruntime", "export", "calibration")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Buffers kept for the next run would be the peak of every run together.
    options.enable_mem_pattern = False
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class of its own for each status code
        raise PenstockError(f"calibration: onnxruntime refuses the float32 graph: {last_line(error)}") from None
    inside = [name for name in tensors if name not in inputs]
    count = len(next(iter(inputs.values())))
    with bar(what, -(-count // least)) as advance:
        for row in range(0, count, least):
            feeds = take(inputs, np.arange(row, row + least) % count)
            try:
                answer = dict(zip(inside, session.run(inside, feeds), strict=True)) if inside else {}
            except Exception as error:
                raise PenstockError(f"calibration: the graph fails on sample {row}: {last_line(error)}") from None
            made = {name: answer[name] if name in answer else feeds[name] for name in tensors}
            yield row, {name: _real_rows(array, count - row, least) for name, array in made.items()}
            advance()


def _real_rows(array: Any, left: int, least: int) -> Any:
    """The rows of a tensor that are samples; where fewer than `least` were left they came over again.

    A tensor that has no axis of rows is the same for all of them.
    """
    return array[:left] if left < least and array.ndim and len(array) == least else array


def _packed(found: dict[str, Histogram]) -> bytes:
    ends = [(name, item.low, item.high, item.top, item.zeros, item.unbounded) for name, item in found.items()]
    file = io.BytesIO()
    counts = np.stack([item.counts for item in found.values()]) if found else np.zeros((0, BINS), np.int64)
    np.savez_compressed(file, ends=np.frombuffer(json.dumps(ends).encode(), np.uint8), counts=counts)
    return file.getvalue()


def _unpacked(kept: bytes, tensors: Sequence[str]) -> dict[str, Histogram] | None:
    """The histograms, or None where the file is damaged or of other tensors."""
    try:
        with np.load(io.BytesIO(kept), allow_pickle=False) as archive:
            ends, counts = json.loads(bytes(archive["ends"])), archive["counts"]
        found = {
            name: Histogram(float(low), float(high), float(top), int(zeros), row, None if where is None else int(where))
            for (name, low, high, top, zeros, where), row in zip(ends, counts, strict=True)
        }
    except Exception:  # whatever stands in that file
        return None
    whole = all(item.counts.shape == (BINS,) and item.counts.dtype == np.int64 for item in found.values())
    return found if whole and list(found) == list(tensors) else None

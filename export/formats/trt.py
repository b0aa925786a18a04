"""TensorRT engines, by TensorRT or by TensorRT for RTX (which builds without a GPU), or all that builds one later."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock import engines
from penstock.errors import PenstockError, require
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.engine.build import NEW, build, hardware, refuse_new
from penstock.export.engine.old_parser import OLD_OPSET, for_old_parser
from penstock.export.engine.recipe import GRAPH_FILE, LATER_FILE, MODEL_FILE, Recipe, profiles
from penstock.export.formats import Built, Options, Source
from penstock.export.limits import WHOLE
from penstock.export.opsets import at_opset
from penstock.export.precision import qdq
from penstock.export.precision.emulation import stand_in
from penstock.export.precision.half import for_half
from penstock.export.quiet import quiet
from penstock.export.sharing import share_weights

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16", "fp8")


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.plan, and beside it model.onnx: the typed graph that it was built from, or is to be built from.

    What is built later may meet TensorRT 8 or another: int8 beside fp16 is written for both, since 8 wants the scales
    of its pairs in float32, and the others take all else in their type.

    Raises:
        PenstockError: no TensorRT is installed, it refuses the graph, or the opset that was asked for is not its own.
    """
    trt = None if options.defer else engines.flavor_of(options.engine.flavor, build=True)[1]
    old = trt is None or not engines.strongly_typed(trt)
    _check(trt, old, options)
    recipe = Recipe.of(options.engine, options.precision, profiles(source.contract, options.narrower))
    kept: set[str] | None = None
    if options.precision == "int8-fp16" and (options.defer or not old):
        kept = _too_large(source, work)
        options = _judged_in_half(options, kept)
    lowered = None if options.precision in WHOLE else source.lowered(options, "tensorrt", work)
    plain = protos.copied(source.graph) if lowered is None else lowered.graph
    graph, half = source.finished(plain), None
    if kept is not None:
        half = source.finished(rest_in_half(plain, kept))
        if options.defer:
            _write(half, folder, LATER_FILE)
        else:
            graph = half
    if old and options.precision not in NEW:
        graph = for_old_parser(graph)
    elif options.opset is not None:
        graph = at_opset(graph, options.opset)
    written = _write(graph, folder, GRAPH_FILE)
    facts = _deferred(recipe) if options.defer else build(written, recipe, folder / MODEL_FILE, work, source.contract)
    return Built(
        runtime="tensorrt",
        model_file=GRAPH_FILE if options.defer else MODEL_FILE,
        hardware=hardware(facts),
        build={"opset": graphs.opset(graph), **_later(half, options), **facts, **(lowered.notes if lowered else {})},
        calibration=lowered.calibration if lowered else None,
        plan=lowered.plan if lowered else None,
        stand_in=stand_in(graph if half is None else half, work) or ("onnxruntime", folder / GRAPH_FILE),
    )


def _write(graph: Any, folder: Path, name: str) -> Path:
    share_weights(graph)
    graphs.ir_version(graph)
    return graphs.save(graph, folder, name)[0]


def _check(trt: Any, old: bool, options: Options) -> None:
    """See that this TensorRT takes the opset and holds the precision; where none is asked yet, it may be an old one."""
    if trt is None:
        if options.opset not in (None, OLD_OPSET) and options.precision not in NEW:
            raise PenstockError(
                f"--opset {options.opset}: what --defer leaves may meet TensorRT 8, which reads opset {OLD_OPSET} alone"
            )
        return
    if old and options.opset not in (None, OLD_OPSET):
        raise PenstockError(f"--opset {options.opset}: TensorRT {trt.__version__} reads opset {OLD_OPSET} alone")
    refuse_new(trt, options.precision)


def rest_in_half(graph: Any, without: Collection[str] = ()) -> Any:
    """An int8 graph in which all else, the scales of its pairs too, is fp16, as strong typing wants it.

    Inputs and outputs stay float32.

    Args:
        graph: with pairs; left as it is.
        without: types of operators that stay float32.
    """
    convert = require("modelopt.onnx.autocast.convert", "export", "int8-fp16")
    with quiet():
        return convert.convert_to_f16(protos.copied(graph), keep_io_types=True, op_block_list=sorted(without))


def _judged_in_half(options: Options, without: Collection[str]) -> Options:
    """Options whose plan is judged with the rest in fp16, as it will be."""
    wish = options.wish
    if wish is None:
        return options
    judge, quick = wish.judge, wish.quick
    half = f", the rest in fp16 but {sorted(without)}"
    changed = replace(
        wish,
        judge=lambda graph: judge(rest_in_half(graph, without)),
        quick=lambda graph: quick(rest_in_half(graph, without)),
        budget=wish.budget + half,
        ranking=wish.ranking + half,
    )
    return replace(options, wish=changed)


def _too_large(source: Source, work: Path) -> set[str]:
    """The types of operators of which one gets or makes what fp16 does not hold."""
    if source.samples is None:
        return set()
    graph = qdq.named(source.graph)
    unsafe = for_half(graph, "fp16", source.signature, source.calibration or source.samples, work).unsafe
    return {node.op_type for node in graph.graph.node if node.name in unsafe}


def _later(half: Any | None, options: Options) -> dict[str, Any]:
    return {"later_opset": graphs.opset(half)} if half is not None and options.defer else {}


def _deferred(recipe: Recipe) -> dict[str, Any]:
    return {"tool": "none yet", "deferred": True, "recipe": json.loads(recipe.model_dump_json(exclude_defaults=True))}

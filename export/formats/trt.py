"""TensorRT engines, by TensorRT or by TensorRT for RTX (which builds without a GPU)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.formats import Built, Options, Source
from penstock.export.opsets import at_opset
from penstock.export.precision.emulation import stand_in
from penstock.export.sharing import share_weights
from penstock.runtimes import tensorrt as runtime
from penstock.signature import Signature

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
_NEW = ("bf16", "fp8")
MODEL_FILE, GRAPH_FILE = "model.plan", "model.onnx"
# The last that TensorRT 8's parser reads whole.
OLD_OPSET = 17


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.plan, and beside it model.onnx: the typed graph that it was built from.

    Raises:
        PenstockError: no TensorRT is installed, it refuses the graph, or the opset that was asked for is not its own.
    """
    flavor, trt = runtime.flavor()
    if not strongly_typed(trt) and options.opset not in (None, OLD_OPSET):
        raise PenstockError(f"--opset {options.opset}: TensorRT {trt.__version__} reads opset {OLD_OPSET} alone")
    if not strongly_typed(trt) and options.precision in _NEW:
        raise PenstockError(f"--precision {options.precision}: TensorRT {trt.__version__} has none; 10.12 and later do")
    lowered = None if options.precision == "fp32" else source.lowered(options, "tensorrt", work)
    graph = protos.copied(source.graph) if lowered is None else lowered.graph
    if not strongly_typed(trt):
        graph = for_old_parser(graph)
    elif options.opset is not None:
        graph = at_opset(graph, options.opset)
    share_weights(graph)
    graphs.ir_version(graph)
    graphs.save(graph, folder, GRAPH_FILE)
    started = time.perf_counter()
    plan = build_engine(trt, graph.SerializeToString(), source.signature, options.precision)
    (folder / MODEL_FILE).write_bytes(plan)
    build = {
        "tool": f"{flavor} {trt.__version__}",
        "flavor": flavor,
        "version": trt.__version__,
        "opset": graphs.opset(graph),
        "seconds": round(time.perf_counter() - started, 3),
        **_target(flavor),
        **(lowered.notes if lowered else {}),
    }
    return Built(
        runtime="tensorrt",
        model_file=MODEL_FILE,
        hardware=_hardware(flavor, trt.__version__, build),
        build=build,
        calibration=lowered.calibration if lowered else None,
        plan=lowered.plan if lowered else None,
        stand_in=stand_in(graph, work) or ("onnxruntime", folder / GRAPH_FILE),
    )


def strongly_typed(trt: Any) -> bool:
    """Whether this TensorRT takes each tensor's type from the graph; 8 takes only permission, by builder flags."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def for_old_parser(graph: Any) -> Any:
    """The graph at `OLD_OPSET`.

    A later ReduceMean has its axes in an input, which that parser passes over: it would reduce every axis.
    """
    return at_opset(graph, OLD_OPSET)


def build_engine(trt: Any, graph: bytes, signature: Signature, precision: str) -> bytes:
    """Build a serialized engine from a typed ONNX graph, with one profile that spans the signature's ranges.

    Strongly typed where TensorRT can (10.12 and later only can); before that with the builder flags that allow the
    types the graph already holds.

    Args:
        trt: the Python module of TensorRT or TensorRT for RTX.
        graph: a serialized `onnx.ModelProto`.
        signature: its inputs and their ranges.
        precision: one of `PRECISIONS`.

    Raises:
        PenstockError: the parser or the builder refuses the graph.
    """
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    creation = trt.NetworkDefinitionCreationFlag
    flags = [name for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED") if hasattr(creation, name)]
    network = builder.create_network(sum(1 << int(getattr(creation, name)) for name in flags))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(graph):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise PenstockError(f"TensorRT {trt.__version__} cannot read the graph: {errors}")
    config = builder.create_builder_config()
    if not strongly_typed(trt):
        _allow_types(trt, config, precision)
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32: TF32 keeps 10 bits of the mantissa
    profile = builder.create_optimization_profile()
    for tensor in signature.inputs:
        profile.set_shape(tensor.name, *(_shape(signature, tensor.shape, end) for end in ("min", "opt", "max")))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise PenstockError(f"TensorRT {trt.__version__} cannot build an engine from the graph; its log says why")
    return bytes(plan)


def _allow_types(trt: Any, config: Any, precision: str) -> None:
    for name in {"fp32": [], "fp16": ["FP16"], "int8": ["INT8"]}[precision]:
        config.set_flag(getattr(trt.BuilderFlag, name))
    # cuBLAS and cuDNN tactics need libraries that TensorRT 8 does not bring itself.
    sources = (1 << int(trt.TacticSource.EDGE_MASK_CONVOLUTIONS)) | (1 << int(trt.TacticSource.JIT_CONVOLUTIONS))
    config.set_tactic_sources(sources)


def _shape(signature: Signature, shape: tuple[int | str, ...], end: str) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else getattr(signature.dims[size], end) for size in shape)


def _target(flavor: str) -> dict[str, Any]:
    """The GPU that an engine is tied to: TensorRT's to the one it was built on, TensorRT for RTX's to none."""
    return (runtime.gpu() or {}) if flavor == "tensorrt" else {}


def _hardware(flavor: str, version: str, build: dict[str, Any]) -> str:
    if flavor == "tensorrt_rtx":
        return f"NVIDIA GPUs of compute capability 8.0, 8.6, 8.9, 12.0 and later, with TensorRT for RTX {version}"
    return f"{build.get('gpu')} (compute capability {build.get('compute_capability')}), with TensorRT {version}"

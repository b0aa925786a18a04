"""What is tried in a process of its own, since it may crash, hang or take long: `python -m penstock.doctor.tries NAME`.

Each trial is a function that tells facts, as a line of JSON, or fails with an error whose last line says why.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock import cuda, engines, parents, runtimes
from penstock.doctor.tinymodel import WIDTH, identity
from penstock.errors import first_line
from penstock.signature import Dim, Signature, Tensor

_CONTRACT = Signature(
    inputs=(Tensor(name="x", shape=("batch", WIDTH)),),
    outputs=(Tensor(name="y", shape=("batch", WIDTH)),),
    dims={"batch": Dim(min=1, opt=2, max=4)},
)
_ROWS = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
# What the command of a stage imports before it does anything.
_STAGES = {
    "train": ("penstock.train.loop",),
    "export": ("penstock.export.pipeline", "onnxscript"),
    "serve": ("penstock.serve.server", "penstock.serve.rpcserver", "penstock.runtimes.onnxruntime"),
    "bench": ("penstock.bench.measure", "penstock.bench.server", "penstock.bench.report"),
    "modelopt": ("modelopt.onnx.quantization", "modelopt.onnx.autocast"),
}


def onnxruntime(device: str) -> dict[str, Any]:
    """Which precisions give the right numbers on a device, and why the others do not; which provider computed them."""
    module = importlib.import_module("onnxruntime")
    provider = "CPUExecutionProvider" if device == "cpu" else "CUDAExecutionProvider"
    if provider not in module.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}")
    ran, failed = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "fp16", "bf16", "int8"):
            path = Path(folder) / f"{precision}.onnx"
            path.write_bytes(identity(precision))
            try:
                with runtimes.load("onnxruntime", path, _CONTRACT, device=device, threads=1) as runner:
                    _see(runner.run({"x": _ROWS}))
                ran.append(precision)
            except Exception as error:  # a provider has errors of many kinds
                failed[precision] = str(error).removeprefix(f"{path}: ")[:200]
        if device != "cpu" and "fp32" in ran:  # onnxruntime takes the CPU without a word where CUDA does not start
            held = module.InferenceSession(str(Path(folder) / "fp32.onnx"), providers=[provider]).get_providers()
            if provider not in held:
                raise RuntimeError(f"{provider} does not start: its libraries of CUDA or cuDNN do not load")
    if "fp32" not in ran:
        raise RuntimeError(failed["fp32"])
    return {"version": module.__version__, "ran": ran, "failed": failed}


def torch(device: str) -> dict[str, Any]:
    """The precisions that torch computes in on a device, by a layer and by its TorchScript."""
    module = importlib.import_module("torch")
    if device != "cpu" and not module.cuda.is_available():
        raise RuntimeError(f"PyTorch {module.__version__} finds no CUDA device")
    ran = []
    for precision, dtype in (("fp32", module.float32), ("fp16", module.float16), ("bf16", module.bfloat16)):
        layer = module.nn.Linear(WIDTH, WIDTH, bias=False).to(device, dtype).eval()
        layer.weight.data = module.eye(WIDTH, device=device, dtype=dtype)
        rows = module.from_numpy(_ROWS).to(device, dtype)
        with warnings.catch_warnings(), module.inference_mode():
            warnings.simplefilter("ignore")
            for held in (layer, module.jit.trace(layer, rows)):
                _see({"y": held(rows).float().cpu().numpy()})
        ran.append(precision)
    return {"version": module.__version__, "cuda": module.version.cuda, "ran": ran}


def gpu() -> dict[str, Any]:
    """The GPUs that CUDA finds; without one, why."""
    if (why := cuda.problem()) is not None:
        raise RuntimeError(why)
    return {"gpus": [cuda.facts(number) for number in range(cuda.count())]}


def tensorrt(flavor: str) -> dict[str, Any]:
    """Builds a tiny engine, and runs it where there is a GPU for it."""
    _, trt = engines.flavor_of(flavor, build=True)
    log = engines.log(trt)
    builder = trt.Builder(log)
    wanted = [name for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED") if hasattr(trt.NetworkDefinitionCreationFlag, name)]
    flags = sum(1 << int(getattr(trt.NetworkDefinitionCreationFlag, name)) for name in wanted)
    network = builder.create_network(flags)
    if not trt.OnnxParser(network, log).parse(identity("fp32")):
        raise RuntimeError(f"it does not read a graph: {log.reason()}")
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    engines.prepare_config(trt, config)
    profile.set_shape("x", (1, WIDTH), (2, WIDTH), (4, WIDTH))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError(f"it builds no engine: {log.reason()}")
    facts = {"version": trt.__version__, "built": True, "ran": False}
    if cuda.problem() is None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.plan"
            path.write_bytes(bytes(engine))
            with runtimes.load("tensorrt", path, _CONTRACT, device="cuda:0") as runner:
                _see(runner.run({"x": _ROWS}))
        facts["ran"] = True
    return facts


def stage(name: str) -> dict[str, Any]:
    """Imports what a stage does; of exporting, the precisions of each format."""
    for module in _STAGES[name]:
        importlib.import_module(module)
    if name != "export":
        return {}
    formats = importlib.import_module(f"penstock.{name}.formats")
    return {"formats": {each: list(formats.precisions(each)) for each in formats.names()}}


def _see(answer: Any) -> None:
    if not np.array_equal(answer["y"], _ROWS):
        raise RuntimeError(f"it answers wrongly: {np.asarray(answer['y']).tolist()} for {_ROWS.tolist()}"[:200])


TRIES: dict[str, Callable[[], dict[str, Any]]] = {
    "onnxruntime on the CPU": lambda: onnxruntime("cpu"),
    "onnxruntime on CUDA": lambda: onnxruntime("cuda:0"),
    "torch on the CPU": lambda: torch("cpu"),
    "torch on CUDA": lambda: torch("cuda:0"),
    "GPU": gpu,
    **{f"TensorRT, {flavor}": lambda flavor=flavor: tensorrt(flavor) for flavor in engines.FLAVORS},  # type: ignore[misc]
    **{name: lambda name=name: stage(name) for name in _STAGES},  # type: ignore[misc]
}


def _main(name: str) -> None:
    try:
        told: dict[str, Any] = {"facts": TRIES[name]()}
    except Exception as error:  # whatever a library that is half installed raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        told = {"error": str(error) if isinstance(error, RuntimeError) else first_line(error), "missing": missing}
    print(f"\n{json.dumps(told)}", flush=True)


if __name__ == "__main__":
    parents.end_with_parent()
    _main(sys.argv[1])

"""Runs ONNX files through onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from penstock import onnxfile, ortvalues
from penstock.errors import PenstockError, require
from penstock.operators import operators
from penstock.runtimes import BaseRunner, RejectedInput
from penstock.signature import V2_DTYPES, Arrays, Dim, ServedTensor, Signature, Tensor

# onnxruntime's type names -> numpy's.
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
    "tensor(bfloat16)": "bfloat16",
    **{f"tensor({name})": name for name in ("float16", "int8", "int16", "int32", "int64")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64")},
}
# A bare ONNX file says which dimensions move, not how far.
OPEN_ENDED = Dim(min=1, opt=8, max=64)
OPEN_ENDED_INNER = Dim(min=1, opt=128, max=2**31 - 1)
# Operators that take as long as the values say; "If" runs one branch or another, and others make sizes of values.
_LOOPS = {
    *("Loop", "Scan", "If", "SequenceMap"),
    *("Range", "ConstantOfShape", "Expand", "Tile", "OneHot", "Resize", "Upsample", "Pad"),
    *("NonZero", "NonMaxSuppression", "Compress", "Unique"),
}


def unavailable(build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Why a model cannot run here: onnxruntime is missing, or its CUDA provider where the model needs that."""
    try:
        onnxruntime = require("onnxruntime", "serve", "running an ONNX model")
    except PenstockError as error:
        return str(error)
    if build.get("needs") == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "bf16 needs a GPU, and onnxruntime's CUDA provider: pip install onnxruntime-gpu"
    return None


class OnnxRunner(BaseRunner):
    """One onnxruntime session."""

    def __init__(self, session: Any, signature: Signature, *, steady: bool = False, light: bool = False) -> None:
        super().__init__(signature)
        self.steady, self.light = steady, light
        self._names = [tensor.name for tensor in signature.outputs]
        self._run: Any = partial(ortvalues.run, session) if ortvalues.needed(signature) else session.run

    def run(self, feeds: Arrays) -> dict[str, Any]:
        if self._run is None:
            raise RuntimeError("the runner is closed")
        try:
            return dict(zip(self._names, self._run(self._names, feeds), strict=True))
        except RejectedInput:
            raise
        except Exception as error:  # onnxruntime raises a class of its own for each status code
            if "alloc" in str(error) or "CUDA" in str(error):
                raise
            raise RejectedInput(f"the model rejects these inputs: {_reason(error)}") from None

    def close(self) -> None:
        self._run = None


def load(
    path: Path, signature: Signature, *, device: str = "cpu", threads: int | None = None, careful: bool = False
) -> OnnxRunner:
    """Load an ONNX file; on `cuda:N` through the CUDA provider, which must be installed."""
    session = _session(path, device, threads, careful=careful)
    has = [item.name for item in session.get_inputs()], [item.name for item in session.get_outputs()]
    wants = [item.name for item in signature.inputs], [item.name for item in signature.outputs]
    if has != wants:
        raise PenstockError(f"{path}: inputs and outputs are {has}, but its signature says {wants}")
    return OnnxRunner(session, signature, steady=_steady(path, signature), light=device == "cpu")


def read_signature(path: Path, *, careful: bool = False) -> Signature:
    """The signature that an ONNX file itself declares, with a default range for each dimension that moves."""
    session = _session(path, "cpu", 1, careful=careful)
    dims: dict[str, Dim] = {}
    tensors = []
    for group in (session.get_inputs(), session.get_outputs()):
        tensors.append(tuple(_tensor(item, path, dims) for item in group))
    # A dimension of an output alone is computed by the model; only those of inputs have a range to keep.
    moving = {size for tensor in tensors[0] for size in tensor.shape if isinstance(size, str)}
    return Signature(inputs=tensors[0], outputs=tensors[1], dims={k: v for k, v in dims.items() if k in moving})


def _tensor(item: Any, path: Path, dims: dict[str, Dim]) -> Tensor:
    if item.type not in _DTYPES:
        raise PenstockError(f"{path}: {item.name!r} is of type {item.type}, which is not served")
    shape: list[int | str] = []
    for axis, size in enumerate(item.shape):
        if isinstance(size, int) and size > 0:
            shape.append(size)
            continue
        unnamed = "batch" if axis == 0 else f"{item.name}_{axis}"
        name = (
            size
            if isinstance(size, str) and size.isidentifier()
            else "".join(c if c.isalnum() else "_" for c in unnamed)
        )
        dims.setdefault(name, OPEN_ENDED if axis == 0 else OPEN_ENDED_INNER)
        shape.append(name)
    kind = Tensor if _DTYPES[item.type] in V2_DTYPES else ServedTensor
    return kind(name=item.name, dtype=_DTYPES[item.type], shape=tuple(shape))


def _steady(path: Path, signature: Signature) -> bool:
    """Whether a model's shapes tell how long it takes: it has no loops, and no value becomes a size."""
    if any(tensor.dtype in ("int32", "int64", "uint32", "uint64", "object") for tensor in signature.inputs):
        return False
    try:
        return not operators(path) & _LOOPS
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    """What onnxruntime complains of, without its codes and source lines."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.split(r"Status Message: |\] : \d+ : \w+ : ", line)[-1].strip()[:300]


def _session(path: Path, device: str, threads: int | None, *, careful: bool = False) -> Any:
    onnxruntime = require("onnxruntime", "serve", "running an ONNX model")
    options = onnxruntime.SessionOptions()
    # What goes wrong is raised, and said once by whoever asked.
    options.log_severity_level = 4
    onnxruntime.set_default_logger_severity(4)
    if threads is not None:
        options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads burn the cores that a server needs for its sockets.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.startswith("cuda"):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise PenstockError(
                f"--device {device}: this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"
            )
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()
        # fp32 means fp32: the provider would round convolutions' inputs to TF32, 10 bits of mantissa, by itself.
        facts = {"device_id": int(device.partition(":")[2] or 0), "use_tf32": 0}
        providers.insert(0, ("CUDAExecutionProvider", facts))
    # In some float16 graphs this optimiser reads what is not there, and the process dies. Convolutions want it.
    dropped = ["NchwcTransformer"] if careful else None
    onnxfile.examine(path)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, disabled_optimizers=dropped)
    except Exception as error:  # onnxruntime raises a class of its own for each status code
        raise PenstockError(f"{path}: onnxruntime refuses it: {_reason(error)}") from None
    if device.startswith("cuda") and "CUDAExecutionProvider" not in session.get_providers():
        raise PenstockError(
            f"--device {device}: onnxruntime's CUDA provider does not start here, and would leave all to the CPU; it "
            "needs NVIDIA's driver (a container: --gpus all), CUDA and cuDNN: pip install 'penstock[serve-gpu]'"
        )
    return session

"""Inspection of programs: TorchScript archives and .pt2 files."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.inspection.findings import Inspection, command, first_line, millions_of_each, shapes_of, stated
from penstock.inspection.tensors import INPUTS, Tensors, listed, weighed


class _Nothing:
    """Stands in for everything that a TorchScript archive's pickle names."""

    def __new__(cls, *_: Any) -> _Nothing:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


class _Program(pickle.Unpickler):
    """Reads the data of a TorchScript archive to nothing: notes the program's class and its storages."""

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data))
        self.names: list[str] = []
        self.storages: dict[str, tuple[str, int]] = {}

    def find_class(self, module: str, name: str) -> Any:
        self.names.append(f"{module}.{name}")
        return type(name, (_Nothing,), {})

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, count = pid
        self.storages[key] = (kind.__name__.removesuffix("Storage").lower(), int(count))
        return _Nothing()


_SCRIPT_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}


def of_torchscript(path: Path) -> Inspection:
    """A TorchScript archive: its code is read as text."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = {name.partition("/")[2]: name for name in archive.namelist()}
            program = _Program(archive.read(held["data.pkl"]))
            program.load()
            home, _, name = program.names[0].rpartition(".")
            code = archive.read(held[f"code/{home.replace('.', '/')}.py"]).decode()
            version = archive.read(held["version"]).decode().strip() if "version" in held else ""
    except Exception as error:  # zipfile, zlib and pickle have errors of many kinds for a damaged file
        raise PenstockError(f"{path}: truncated, damaged, or not TorchScript: {first_line(error)}") from None
    arguments, answer = _forward(code, name)
    inputs = [argument.partition(":")[0] for argument in arguments if argument.endswith(": Tensor")]
    counts: Counter[str] = Counter()
    for kind, count in program.storages.values():
        counts[_SCRIPT_DTYPES.get(kind, kind)] += count
    words = [word for argument in inputs for word in ("--input", f"{argument}:float32[batch,SIZES]")]
    return Inspection(
        path=path,
        kind="TorchScript program",
        bytes=path.stat().st_size,
        facts=stated(
            {
                "class": name,
                "forward": f"({', '.join(arguments)}) -> {answer}" if answer else "",
                "tensors": f"{len(program.storages)}: {millions_of_each(counts)}",
                "archive version": f"{version}; TorchScript does not record which PyTorch wrote it" if version else "",
            }
        ),
        needs=(INPUTS,),
        next=(command("export", "--format", "onnx", *words, path),),
        details={"forward": arguments, "elements": dict(counts)},
    )


def _forward(code: str, name: str) -> tuple[list[str], str]:
    """The arguments of a TorchScript class's forward, as `x: Tensor`, and what it answers."""
    body = re.search(rf"^class {re.escape(name)}\(Module\):(.*?)(?=^class |\Z)", code, re.DOTALL | re.MULTILINE)
    head = body and re.search(r"def forward\(\w+: [\w.]+,?(.*?)\) -> (.*?):\n", body[1], re.DOTALL)
    if not head:
        return [], ""
    arguments = re.split(r",\s*(?=\w+: )", head[1].strip())
    return [" ".join(argument.split()) for argument in arguments if argument], " ".join(head[2].split())


def of_exported(path: Path) -> Inspection:
    """A .pt2 file of torch.export's, opened only if it holds tensors and operators alone."""
    from penstock import programs

    reason = programs.beyond_tensors(path)
    facts: dict[str, str] = {}
    tensors: Tensors = {}
    if reason is None:
        program = programs.open_exported(path)
        tensors = listed(program.state_dict)
        ranges = [f"{symbol} from {held.lower} to {held.upper}" for symbol, held in program.range_constraints.items()]
        facts = {**_program_inputs(program), "captured for": ", ".join(ranges), **weighed(tensors)}
    trust = [] if reason is None else ["--allow-pickle"]
    return Inspection(
        path=path,
        kind="exported program (.pt2)",
        bytes=path.stat().st_size,
        facts=stated({**facts, "written by": _writer(path)}),
        needs=() if reason is None else (f"--allow-pickle, and your trust: it {reason}, which may run anything",),
        promises=("holds tensors and operators alone: opening it runs no code",) if reason is None else (),
        next=(command("export", "--format", "onnx", *trust, path),),
        details={"tensors": tensors},
    )


def _program_inputs(program: Any) -> dict[str, str]:
    from penstock import programs

    try:
        return shapes_of(programs.signature(program))
    except Exception as error:  # inputs that are no tensors, or of dtypes that a signature has not
        return {"inputs": f"not such as penstock takes: {first_line(error)}"}


def _writer(path: Path) -> str:
    """The PyTorch that a .pt2 file names as its writer, or nothing."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if re.search(r"(/models/[\w.-]+|serialized_exported_program)\.json$", name):
                found = re.search(rb'"torch_version": *"([\w.+-]+)"', archive.read(name))
                return f"torch {found[1].decode()}" if found else ""
    return ""

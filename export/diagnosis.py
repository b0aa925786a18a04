"""Diagnoses: what an exporter's error means: which module and source line, which cause, and what helps."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from penstock import adapter

_HERE, _TORCH = Path(__file__).parent, Path(torch.__file__).parent
# What exporters say, and what it means. The first that matches names the cause.
_CAUSES = (
    (
        r"data-dependent|GuardOnDataDependent|Could not guard on|Dynamic control flow|_local_scalar_dense|item\(\)",
        "a branch or a number that depends on the input's values",
        "--format torchscript --script auto keeps the branch",
    ),
    (
        r"No ONNX function found|No decompositions registered|not supported for opset|UnsupportedOperator|"
        r"Exporting the operator .* is not supported|not supported in ONNX",
        "an operator that ONNX has no translation for",
        "--format pt2 or --format torchscript keep PyTorch's own operators (a higher --opset may have it)",
    ),
    (
        r"Constraints violated|ConstraintViolation|specializ|_validate_constraint|not in range|guards generated|"
        r"ShapeEnv|dimension .* was fixed|marked as dynamic but",
        "a size that the model fixes, or ties to another, while it is given as dynamic",
        "write that size as a number in --input, or narrow its range with --batch or --dim",
    ),
)
_SCRIPTING = (
    (
        r"TorchScript|torch\.jit\.|compile|Compiled functions|Unsupported|keyword-arg|varargs|\*args|"
        r"Python type cannot|frontend|could not get source code",
        "Python that TorchScript cannot compile",
        "--trace takes models without branches on values; --format onnx or pt2 need no TorchScript",
    ),
)


@dataclass(frozen=True)
class Cause:
    """Why a road failed. `where` is the innermost module and source line of the user's model, where it is known."""

    what: str
    detail: str
    where: str
    help: str

    def __str__(self) -> str:
        at = f" in {self.where}" if self.where else ""
        return f"{self.what}{at}: {self.detail}; {self.help}"


def diagnose(error: BaseException, module: nn.Module, *, scripting: bool = False) -> Cause:
    """What an exporter's error says, in one sentence's parts.

    Args:
        error: as raised; its causes are looked through.
        module: the model that was being exported.
        scripting: whether TorchScript's compiler may be what failed.
    """
    chain = list(_chain(error))
    text = "\n".join(f"{type(item).__name__}: {item}" for item in chain)
    what, help = "PyTorch cannot capture it", "try another --format"
    for pattern, cause, advice in (*_CAUSES, *(_SCRIPTING if scripting else ())):
        if re.search(pattern, text):
            what, help = cause, advice
            break
    return Cause(what, _detail(chain), _where(chain, text, module), help)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, from the outside in."""
    seen: set[int] = set()
    item: BaseException | None = error
    while item is not None and id(item) not in seen:
        seen.add(id(item))
        yield item
        item = item.__cause__ or item.__context__


def _detail(chain: list[BaseException]) -> str:
    """The first telling line of the innermost error."""
    for item in reversed(chain):
        lines = [line.strip(" -") for line in str(item).splitlines() if line.strip(" \n:-=")]
        if lines:
            told = lines[1] if lines[0].startswith("Constraints violated") and lines[1:] else lines[0]
            return f"{type(item).__name__}: {re.sub(r'0x[0-9a-f]+', '0x…', told)[:200]}"
    return type(chain[0]).__name__


def _where(chain: list[BaseException], text: str, module: nn.Module) -> str:
    """The innermost place in the model's own code that an error passed through or names: `encoder.gate (net.py:12)`."""
    root, prefix = module, ""
    while isinstance(inner := getattr(root, "inner", None), nn.Module) and _is_ours(inspect.getfile(type(root))):
        root, prefix = inner, f"{prefix}inner."  # an adapter's
    return _frame(chain, root) or _node(chain, root, prefix) or _said(text, root)


def _frame(chain: list[BaseException], root: nn.Module) -> str:
    """The innermost frame that ran a forward of the model's own modules."""
    paths = {id(item): name for name, item in root.named_modules()}
    for item in chain:
        found = ""
        for frame, line in traceback.walk_tb(item.__traceback__):
            owner, file = _owner(frame), frame.f_code.co_filename
            if id(owner) in paths and not _is_machinery(file):
                found = _place(paths[id(owner)], root, file, line)
        if found:
            return found
    return ""


def _node(chain: list[BaseException], root: nn.Module, prefix: str) -> str:
    """Where the node of a captured program comes from that was being translated."""
    for item in chain:
        for frame, _ in traceback.walk_tb(item.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and node.meta.get("nn_module_stack"):
                path = str(list(node.meta["nn_module_stack"].values())[-1][0])
                lines = _mine(str(node.meta.get("stack_trace")))
                return _place(path.removeprefix(prefix), root, *lines[-1]) if lines else ""
    return ""


def _said(text: str, root: nn.Module) -> str:
    """The last line of the model's own code that an error's text names."""
    lines = _mine(text)
    if not lines:
        return ""
    file, line = lines[-1]
    for name, item in root.named_modules():
        code = getattr(type(item).forward, "__code__", None)
        if code is not None and code.co_filename == file and line in {place[2] for place in code.co_lines()}:
            return _place(name, root, file, line)
    return f"{Path(file).name}:{line}"


def _mine(text: str) -> list[tuple[str, int]]:
    said = re.findall(r'File "([^"]+)", line (\d+)', text)
    return [(file, int(line)) for file, line in said if not _is_machinery(file)]


def _place(path: str, root: nn.Module, file: str, line: int) -> str:
    return f"{path or type(root).__name__} ({Path(file).name}:{line})"


def _owner(frame: FrameType) -> Any:
    """What a frame's method was called on: the first argument, whatever it is named."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _is_machinery(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH) or "<" in file or _is_ours(file)


def _is_ours(file: str) -> bool:
    return Path(file).parent in (_HERE, _HERE / "formats") or file == adapter.__file__

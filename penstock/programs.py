"""Programs: TorchScript archives and torch.export's .pt2 files, opened as they are.

Both hold a program beside their weights. TorchScript's own loader runs no Python. torch.export's trusts its file: it
unpickles entries, evaluates shape expressions and compiles guards as Python, so those are read here first, and a file
that asks for more than tensors and operators is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from penstock.errors import PenstockError, Say, first_line
from penstock.files import COMPRESSED, see_unpacked, unpacked_bytes
from penstock.signature import BATCH, V2_DTYPES, Dim, Signature, Tensor

_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|torchvision|quantized_decomposed)"
    r"\.(_?[A-Za-z]\w*|__i?(and|or|xor|lshift|rshift)__)(\.[A-Za-z]\w*)?|torch\.ops\.higher_order\.[A-Za-z]\w*|"
    r"_operator\.(getitem|eq|ne|le|ge|lt|gt|neg|pos|abs|add|sub|mul|truediv|floordiv|mod|pow|and_|or_|not_|[lr]shift)|"
    r"math\.(ceil|floor|trunc|sqrt)|torch\.sym_\w+|torch\._sym_\w+|torch\._check\w*",
    re.ASCII,
)
# Operators that reach for files.
_REACHING = re.compile(r"\b(from_file|read_file|write_file|save)\b")
_WORDS = re.compile(
    r"[suz]u?f?\d+|Symbol|Integer|Float|Rational|Add|Mul|Pow|(Python)?Mod|FloorDiv|CleanDiv|CeilDiv|IntTrueDiv|"
    r"FloatTrueDiv|Max|Min|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Where|ModularIndexing|CeilToInt|FloorToInt|TruncToInt|"
    r"TruncToFloat|ToFloat|Abs|FloatPow|PowByNatural|RoundToInt|floor|ceiling|sqrt|(Strict)?(Less|Greater)Than|"
    r"Equality|Unequality|[Tt]rue|[Ff]alse|None|positive|integer|(non)?negative|nonnegative|real|and|or|not|L|size|"
    r"stride|storage_offset|int_oo|oo|IntInfinity|math|precision|LShift|RShift|RoundDecimal|Identity|trunc|ceil|"
    r"max|min|int|float|abs|round|IsNonOverlappingAndDenseIndicator"
)
_ENTRIES = re.compile(
    r"archive_format|archive_version|version|byteorder|\.data/\w+|\.format_version|\.storage_alignment|models/[\w.-]+\.json|"
    r"data/(weights|constants)/(weight_\d+|tensor_\d+|[\w.-]+_config\.json)|data/sample_inputs/[\w.-]+\.pt|extra/.*"
)
# Texts that are kept and never looked into: where a node comes from, and what an operator takes as text.
_KEPT = {
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "from_node",
    "torch_fn",
    "custom",
    "as_string",
    "as_strings",
}
# All others are names of nodes, weights and arguments, which torch writes into the Python source of the program.
_NAME = re.compile(r"[\w .:/+-]*", re.ASCII)


def kind(path: Path) -> str | None:
    """`torchscript`, `exported`, or None for a file that is neither."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] or name for name in archive.namelist()]
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "exported" if "archive_format" in names or "serialized_exported_program.json" in names else None


def open_torchscript(path: Path) -> torch.jit.ScriptModule:
    """Load a TorchScript archive on the CPU, in eval mode.

    Raises:
        PenstockError: it is damaged, or reads or writes files.
    """
    try:
        refuse_reaching(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
            return module.eval()
    except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
        raise PenstockError(f"{path}: cannot be read as TorchScript: {first_line(error)}") from None


def refuse_reaching(path: Path) -> None:
    """Refuse a TorchScript archive whose code reads or writes files; loading it may run code of its own.

    Raises:
        PenstockError: it does, or its entries are not those of an archive that torch writes.
        OSError, RuntimeError, zipfile.BadZipFile: it cannot be read.
    """
    see_unpacked(path)
    with zipfile.ZipFile(path) as archive:
        listed = archive.namelist()
    # torch looks entries up whatever the case of their letters.
    if len({name.lower() for name in listed}) < len(listed) or len({name.partition("/")[0] for name in listed}) > 1:
        raise PenstockError(f"{path}: its entries are not those of one archive; save it anew with torch.jit.save")
    reader = torch._C.PyTorchFileReader(str(path))
    for name in reader.get_all_records():
        # Beside the code lies its source, comments and all.
        code = name.lower().startswith("code/") and name.lower().endswith(".py")
        if code and _REACHING.search(reader.get_record(name).decode(errors="replace")):
            raise PenstockError(f"{path}: its code in {name} reads or writes files, which a model has no need to")


def open_exported(path: Path, *, trusted: bool = False, say: Say = lambda _: None) -> Any:
    """Load a `torch.export.ExportedProgram`.

    Args:
        path: a .pt2 file.
        trusted: load it all the same if it holds what would run as Python; the user has asked for that.
        say: told what that is.

    Raises:
        PenstockError: it is damaged, of a torch before 2.8, or holds more than tensors and operators.
    """
    reason = beyond_tensors(path)
    if reason is not None and trusted:
        say(f"{path}: {reason}; torch loads it because --allow-pickle says so")
    elif reason is not None:
        raise PenstockError(
            f"{path}: {reason}, which may run anything when loaded; penstock opens programs of tensors and operators: "
            "if you trust the file, --allow-pickle loads it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # torch's deserializer raises whatever it meets
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise PenstockError(f"{path}: torch {torch.__version__} cannot load it: {line[:200]}") from None


def beyond_tensors(path: Path) -> str | None:
    """What in a .pt2 file torch would run or unpickle as Python, or None."""
    try:
        see_unpacked(path)
        with zipfile.ZipFile(path) as archive:
            names = [full.partition("/")[2] or full for full in archive.namelist()]
        for name in names:
            if name.startswith("serialized_") or name == "version":
                return "was written by torch 2.7 or earlier, whose files hold pickles"
            if not _ENTRIES.fullmatch(name) or names.count(name) > 1:
                return f"holds the entry {name!r}{' twice' if names.count(name) > 1 else ''}"
        # As torch reads it: a zip file can be made that two readers take for different files.
        reader = torch._C.PyTorchFileReader(str(path))
        if sorted(reader.get_all_records()) != sorted(names):
            return "holds other entries for torch than it lists"
        for name in names:
            looked_into = name.startswith(("models/", "data/sample_inputs/")) or name.endswith("_config.json")
            reason = _in_entry(name, reader.get_record(name)) if looked_into else None
            if reason is not None:
                return reason
    except PenstockError:
        raise
    except Exception as error:  # a damaged or crafted file surfaces as an error of any kind
        raise PenstockError(f"{path}: truncated or damaged ({first_line(error)})") from None
    return None


def _in_entry(name: str, data: bytes) -> str | None:
    if name.endswith("_config.json"):
        for key, item in json.loads(data)["config"].items():
            if item.get("use_pickle") is not False or not re.fullmatch(r"(weight|tensor)_\d+", item["path_name"]):
                return f"holds {key!r} as a pickle"
    elif name.startswith("data/sample_inputs/"):
        held = io.BytesIO(data)
        if zipfile.is_zipfile(held) and (size := unpacked_bytes(held)) > len(data) + COMPRESSED:
            return f"holds sample inputs that unpack to {size} bytes"
        try:
            torch.load(io.BytesIO(data), weights_only=True)
        except Exception:  # anything that weights-only loading refuses
            return "holds sample inputs that are more than tensors"
    elif name.startswith("models/"):
        return next((reason for reason in (_in_text(*found) for found in _texts(json.loads(data), "")) if reason), None)
    return None


def _in_text(key: str, text: str) -> str | None:
    """What is wrong with one text of a program's description, by the key that it stands under."""
    shown = repr(text[:60])
    if key in ("expr_str", "guards_code"):
        return None if _is_arithmetic(text) else f"holds the expression {shown}"
    if key in ("target", "as_operator"):
        return None if _OPERATORS.fullmatch(text) and not _REACHING.search(text) else f"calls {shown}"
    if key in ("in_spec", "out_spec"):
        return None if _is_tree(json.loads(text)[1]) else f"holds the structure {shown}"
    return None if key in _KEPT or _NAME.fullmatch(text) else f"holds the name {shown}"


def _is_tree(spec: Any) -> bool:
    """Whether inputs or outputs are nested in this way by names and numbers alone, without anything to import."""
    context = spec["context"]
    with contextlib.suppress(ValueError):
        context = json.loads(context) if isinstance(context, str) else context
    return _is_plain(context) and all(_is_tree(child) for child in spec["children_spec"])


def _is_plain(item: Any) -> bool:
    if isinstance(item, list):
        return all(_is_plain(part) for part in item)
    return item is None or isinstance(item, int) or (isinstance(item, str) and bool(_NAME.fullmatch(item)))


def _texts(item: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(item, dict):
        for name, value in item.items():
            yield from _texts(value, name)
    elif isinstance(item, list):
        for value in item:
            yield from _texts(value, key)
    elif isinstance(item, str):
        yield key, item


def _is_arithmetic(text: str) -> bool:
    """Whether a text holds sizes, names of them and functions of sympy's alone."""
    # Names of symbols and arguments, numbers written as text, and torch's own functions of sizes.
    text = re.sub(r"'[\w.+-]*'|\btorch\._?sym_\w+", "", text, flags=re.ASCII)
    # ASCII alone: Python reads letters of other scripts as Latin ones.
    if re.search(r"[^\w\s+\-*/%()\[\],.<>=!&|]|__", text, re.ASCII):
        return False
    return all(_WORDS.fullmatch(word) for word in re.findall(r"[A-Za-z_]\w*", text))


def refuse_training(program: Any) -> None:
    """Refuse a program whose norms take the statistics of the batch, as they do when it is captured before `.eval()`.

    Args:
        program: a `torch.jit.ScriptModule`, or a `torch.export.ExportedProgram`.

    Raises:
        PenstockError: it has such a norm.
    """
    if isinstance(program, torch.jit.ScriptModule):
        graph: Any = program.inlined_graph
        trains = [list(node.inputs())[5].toIValue() is True for node in graph.findAllNodes("aten::batch_norm")]
    else:
        trains = [len(node.args) > 5 and node.args[5] is True for node in program.graph.nodes if _is_norm(node.target)]
    if any(trains):
        raise PenstockError(
            f"{sum(trains)} of its BatchNorms were captured in training mode, so that its answers depend on what else "
            "is in the batch: call .eval() and capture it again"
        )


def _is_norm(target: Any) -> bool:
    return "batch_norm" in str(target)


def signature(program: Any) -> Signature:
    """The inputs that an exported program was captured for; a size that all of them begin with is the batch.

    Raises:
        PenstockError: one of them is of a dtype that no request can have.
    """
    wanted = set(program.graph_signature.user_inputs)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.name in wanted}
    firsts = {str(value.shape[0]) if value.ndim else "" for value in values.values()}
    names: dict[str, str] = {}
    for value in values.values():
        for size in value.shape:
            if isinstance(size, torch.SymInt):
                names.setdefault(str(size), "batch" if firsts == {str(size)} else f"size_{len(names)}")
    for name, value in values.items():
        if (dtype := str(value.dtype).removeprefix("torch.")) not in V2_DTYPES:
            raise PenstockError(f"the program's input {name} is of dtype {dtype}, which no request can have")
    tensors = [
        Tensor(
            name=name,
            dtype=str(value.dtype).removeprefix("torch."),
            shape=tuple(names[str(size)] if isinstance(size, torch.SymInt) else int(size) for size in value.shape),
        )
        for name, value in values.items()
    ]
    dims = {}
    for symbol, held in program.range_constraints.items():
        if str(symbol) in names:
            low = max(1, int(held.lower))
            high = BATCH.max if not held.upper.is_number or held.upper > 1e6 else int(held.upper)
            dims[names[str(symbol)]] = Dim(min=low, opt=max(low, min(BATCH.opt, high)), max=max(low, high))
    return Signature(inputs=tuple(tensors), outputs=(), dims=dims)

"""Inspection of .safetensors files, and of folders that transformers wrote around them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.inspection.findings import Inspection, command, first_line, labelled, read_json, settings, sized, stated
from penstock.inspection.tensors import DATA_ALONE, INPUTS, export_road, weighed

# The dtypes of a .safetensors header that are not numpy's in short.
_SAFE_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"}


def of_safetensors(path: Path) -> Inspection:
    """Tensors under a header of JSON, and only the header is read."""
    tensors, metadata = _safe_header(path)
    beside = path.with_name("config.json")
    config = read_json(beside) if beside.is_file() else {}
    if "architectures" in config and path.name == "model.safetensors":
        return of_transformers(path.parent, config)
    hint = config.get("architecture")  # where timm has it
    road = export_road(path, tensors, hint if isinstance(hint, str) else "", ordered=False)
    said = f"{beside} says {hint!r}{f', and it fits: {road.model}' if road.model else ''}" if hint else ""
    return Inspection(
        path=path,
        kind="safetensors weights",
        bytes=path.stat().st_size,
        facts=stated({"metadata": settings(metadata), "architecture": said, **weighed(tensors, ordered=False)}),
        needs=road.needs,
        promises=(DATA_ALONE,),
        next=(road.command,),
        details={"metadata": metadata, "tensors": tensors},
    )


def _safe_header(path: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, Any]]:
    """The tensors of a .safetensors file, and what it says of itself."""
    total = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= total - 8:
                raise ValueError(f"its header would have {length} bytes, the file has {total}")
            header = json.loads(file.read(length))
        metadata = dict(sorted((header.pop("__metadata__", None) or {}).items()))  # written in any order
        end = 8 + length + max((int(item["data_offsets"][1]) for item in header.values()), default=0)
        tensors = {name: (_safe_dtype(item["dtype"]), tuple(map(int, item["shape"]))) for name, item in header.items()}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise PenstockError(f"{path}: not a safetensors file, or a damaged one: {error}") from None
    if end != total:
        raise PenstockError(f"{path}: truncated or damaged: it has {total} bytes, and {end} by its header")
    return tensors, metadata


def _safe_dtype(name: str) -> str:
    match = re.fullmatch(r"([IU])(\d+)", name)
    return f"{'u' if match[1] == 'U' else ''}int{match[2]}" if match else _SAFE_DTYPES.get(name, name.lower())


FOLDER_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # penstock.weights has it too, and needs torch


def of_transformers(folder: Path, config: dict[str, Any]) -> Inspection:
    """A folder that save_pretrained of transformers wrote."""
    files = [folder / name for name in FOLDER_WEIGHTS if (folder / name).is_file()]
    if not {"architectures", "model_type"} & config.keys():
        raise PenstockError(f"{folder / 'config.json'}: names no architecture; {folder} is no folder of transformers")
    needs = []
    if "auto_map" in config:
        needs.append("code of its own (auto_map in config.json), which is never run: a class of transformers' instead")
    if not files:
        shards = any(folder.glob("*.index.json"))
        needs.append(f"{' or '.join(FOLDER_WEIGHTS)} in one file{': its weights are in shards' if shards else ''}")
    inputs, trouble = ("", "") if needs else _transformers_inputs(folder)
    needs += [f"torch and transformers, which here say: {trouble}"] if trouble else []
    tensors = _safe_header(files[0])[0] if files and files[0].suffix == ".safetensors" else {}
    labels = config.get("id2label")
    given = [] if inputs else ["--input", "INPUT:int64[batch,SIZES]"]
    return Inspection(
        path=folder,
        kind="transformers model folder",
        bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        facts=stated(
            {
                "architectures": _named(config.get("architectures")),
                "model_type": str(config.get("model_type", "")),
                "weights": f"{files[0].name}, {sized(files[0].stat().st_size)}" if files else "",
                "inputs": inputs,
                "labels": labelled(list(labels.values())) if isinstance(labels, Mapping) else "",
                "dtype": str(config.get("dtype") or config.get("torch_dtype") or ""),
                "written by": _after("transformers ", config.get("transformers_version")),
                **(weighed(tensors, ordered=False) if tensors else {}),
            }
        ),
        needs=(*needs, *(() if inputs or needs else (INPUTS,))),
        next=() if needs and not trouble else (command("export", "--format", "onnx", *given, folder),),
        details={"config": config, "tensors": tensors},
    )


def _after(words: str, value: Any) -> str:
    return f"{words}{value}" if value else ""


def _named(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _transformers_inputs(folder: Path) -> tuple[str, str]:
    """The inputs that transformers knows for the class in a folder's config, in lines, and why it knows none."""
    try:
        import torch

        from penstock import zoo

        with torch.device("meta"):
            module = zoo.make("transformers", str(folder))()
        known = zoo.known(f"transformers:{folder}", {}, module)
    except Exception as error:  # transformers is not here, or refuses the config
        return "", first_line(error)
    return "\n".join(known.inputs), ""

"""Inspection of states: what their tensors come to, and the command that exports them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.inspection.findings import command, millions, some

# Tensor name -> numpy's name of its dtype, and its shape.
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def weighed(tensors: Tensors, *, ordered: bool = True) -> dict[str, str]:
    """What a state's tensors come to, and what their names and shapes tell; `ordered` as they are in the model."""
    if not tensors:
        return {"tensors": "none"}
    kinds = Counter(dtype for dtype, _ in tensors.values())
    sizes: Counter[str] = Counter()
    for dtype, shape in tensors.values():
        sizes[dtype] += math.prod(shape)
    parameters = sum(
        math.prod(shape)
        for name, (dtype, shape) in tensors.items()
        if "float" in dtype and not name.endswith(("running_mean", "running_var"))
    )
    prefix = _prefix(tensors)
    parts = Counter(name.removeprefix(prefix).partition(".")[0] for name in tensors)
    named = [f"{name} {list(shape)}" for name, (_, shape) in tensors.items()]
    last = _last_layer(tensors, ordered=ordered)
    return {
        "tensors": f"{len(tensors)}: " + ", ".join(f"{kinds[kind]} {kind} ({millions(sizes[kind])})" for kind in kinds),
        "parameters": f"{millions(parameters)}, without running statistics",
        "prefix": _about_prefix(prefix) if prefix else "",
        "parts": some([f"{name} {count}" for name, count in parts.items()], 16),
        "first tensor": named[0],
        "last tensor": named[-1],
        "last layer": f"{last}: {tensors[last][1][0]} outputs, if it is what its name or place says" if last else "",
    }


def _prefix(names: Iterable[str]) -> str:
    """The parts that all names begin with."""
    prefix, left = "", list(names)
    while len(heads := {name.partition(".")[0] for name in left}) == 1 and all("." in name for name in left):
        prefix += f"{heads.pop()}."
        left = [name.partition(".")[2] for name in left]
    return prefix


# What export takes off by itself: penstock.proof.PREFIXES, which a machine without torch cannot import.
STRIPPED = ("module.", "_orig_mod.", "model.", "backbone.")


def _about_prefix(prefix: str) -> str:
    alone = all(f"{part}." in STRIPPED for part in prefix.removesuffix(".").split("."))
    way = "export takes it off by itself" if alone else f"--prefix {prefix} takes it off"
    return f"all names begin with {prefix}; {way} where the architecture is without it"


_HEADS = re.compile(r"(.*\.)?(fc\d*|classifier|heads?|last_linear|logits|lm_head|out|output|cls)(\.\w+)*\.weight")

_STEMS = re.compile(r"stem|patch_embed|embedding|(^|\.)(conv_?1|features\.0|layers?\.0|0)\.")


def _last_layer(tensors: Tensors, *, ordered: bool = True) -> str | None:
    """The last weight of a layer by its name, or else by its place."""
    weights = [n for n, (_, shape) in tensors.items() if len(shape) > 1 and n.endswith("weight")]
    heads = [name for name in weights if _HEADS.fullmatch(name)]
    last = [*weights[-1:], *heads[-1:]] if ordered else heads[-1:]
    return last[-1] if last else None


def _guessed_input(tensors: Tensors, *, ordered: bool = True) -> str:
    """An input as the first layer wants it, with what cannot be known in capitals."""
    for name, (dtype, shape) in tensors.items():
        if "float" not in dtype or len(shape) < 2 or not (ordered or _STEMS.search(name)):
            continue
        if len(shape) == 2:
            return "ids:int64[batch,seq]" if "emb" in name else f"INPUT:float32[batch,{shape[1]}]"
        sizes = {3: "LENGTH", 4: "HEIGHT,WIDTH", 5: "FRAMES,HEIGHT,WIDTH"}.get(len(shape), "SIZES")
        return f"INPUT:float32[batch,{shape[1]},{sizes}]"
    return "INPUT:float32[batch,SIZES]"


def _library_model(name: str, tensors: Tensors) -> tuple[list[str], bool]:
    """The options that name a library's model which these very tensors fit, and whether its inputs are known too."""
    prefix = _prefix(tensors)
    held = _shapes((name.removeprefix(prefix), shape) for name, (_, shape) in tensors.items())
    layer = _last_layer(tensors)
    classes = tensors[layer][1][0] if layer else 0
    for library in ("torchvision", "timm"):
        for arguments in ({}, {"num_classes": classes}):
            shapes, known = _expected(f"{library}:{name}", arguments)
            if shapes == held:
                given = ["--model-args", f"num_classes={classes}"] if arguments else []
                return ["--model", f"{library}:{name}", *given], known
    return [], False


def _expected(target: str, arguments: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]] | None, bool]:
    """The tensors of a library's model, made without memory for them, and whether the library knows its inputs."""
    try:
        import torch

        from penstock import zoo

        library, _, name = target.partition(":")
        with torch.device("meta"):
            module = zoo.make(library, name)(**arguments)
        known = bool(zoo.known(target, arguments, module).inputs)
        return _shapes((name, tuple(tensor.shape)) for name, tensor in module.state_dict().items()), known
    except Exception:  # the library is not here, has no such model, or makes none of these arguments
        return None, False


def _shapes(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    # Counters of batches came to PyTorch later than many a checkpoint.
    return {name: shape for name, shape in tensors if not name.endswith("num_batches_tracked")}


class _Road(NamedTuple):
    """The command that exports a file, what it lacks, and the options in it that name a model which fits, if any."""

    command: str
    needs: tuple[str, ...]
    model: str


INPUTS = "the inputs as the model was trained with them: words in capitals are yours to fill in"

_MODEL = "the architecture: --model torchvision:NAME, timm:NAME, package.nets:Net or ./net.py:Net"


# What classifiers of torchvision and timm make unless they are told: ImageNet's.
_USUAL_CLASSES = 1000


def _other_classes(tensors: Tensors) -> list[str]:
    """The option that has a library's classifier made with as many classes as a state's head has, if it needs one."""
    layer = _last_layer(tensors, ordered=False)
    classes = tensors[layer][1][0] if layer else _USUAL_CLASSES
    return [] if classes == _USUAL_CLASSES else ["--model-args", f"num_classes={classes}"]


def export_road(
    path: Path, tensors: Tensors, hint: str = "", options: Sequence[str] = (), *, ordered: bool = True
) -> _Road:
    """How to export a state for which somebody wrote down the model's name `hint`, or no name."""
    model, known = _library_model(hint, tensors) if hint else ([], False)
    inputs = [] if known else ["--input", _guessed_input(tensors, ordered=ordered)]
    pictures = not model and "HEIGHT" in inputs[-1]
    classes = _other_classes(tensors) if pictures else []
    words = [*options, *(model or ["--model", "MODEL"]), *classes, *inputs]
    wanted = f"{INPUTS}; no --input is needed for image classifiers of torchvision: and timm:" if pictures else INPUTS
    if classes:
        wanted += f", which make {_USUAL_CLASSES} classes without {' '.join(classes)}; your own code may not take that"
    needs = (*(() if model else (_MODEL,)), *(() if known else (wanted,)))
    return _Road(command("export", "--format", "onnx", *words, path), needs, " ".join(model))


DATA_ALONE = "holds tensors and plain values alone: opening it runs no code"


def listed(state: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a state by name, with dtypes and shapes."""
    return {name: (str(item.dtype).removeprefix("torch."), tuple(item.shape)) for name, item in state.items()}

"""Inspection of checkpoints: ours, anybody's, and those that are code as much as weights."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.inspection.findings import Inspection, called, command, contract_of, settings, some, stated
from penstock.inspection.tensors import DATA_ALONE, INPUTS, Tensors, export_road, listed, weighed


def of_ours(path: Path, content: dict[str, Any], card: Any) -> Inspection:
    """A checkpoint of penstock's own, by its card (`penstock.card.Card`)."""
    from penstock import card as cards

    held = content.get("state_dict")
    tensors = listed(held) if isinstance(held, Mapping) else {}
    rows = {part: cards.samples(path, content, part, card.signature) for part in ("calibration", "golden")}
    samples = ", ".join(f"{part} {len(held)}" for part, held in rows.items() if held is not None)
    target = card.architecture.target
    trusted = cards.trusted(target)
    named = [] if trusted else ["--model", target]
    precisions = "fp32,fp16,int8" if rows["calibration"] is not None else "fp32,fp16"
    return Inspection(
        path=path,
        kind="penstock checkpoint",
        bytes=path.stat().st_size,
        facts=stated(
            {
                "name": card.name,
                "architecture": called(target, card.architecture.kwargs),
                **contract_of(card),
                "metrics": settings(card.metrics),
                "samples": f"{samples}, real" if samples else "none inside",
                **weighed(tensors),
                "made with": settings(card.versions),
            }
        ),
        needs=() if trusted else (f"your word that {target} may be imported, since that runs its code: --model",),
        promises=(DATA_ALONE,),
        next=(
            command("export", "--format", "onnx", "--precision", precisions, *named, path),
            *((command("eval", *named, path),) if card.dataset is not None else ()),
        ),
        details={**card.model_dump(mode="json"), "tensors": tensors},
    )


def of_foreign(path: Path, content: dict[Any, Any]) -> Inspection:
    """Somebody else's checkpoint: a state_dict, or a dictionary that holds one or more."""
    from penstock import state

    whole = state.is_state(content)
    states = {} if whole else {str(name): listed(item) for name, item in content.items() if state.is_state(item)}
    said, hint = _hint(content)
    try:
        found = state.find(content)
    except PenstockError as error:
        trouble, tensors, weights = str(error), {}, ""
        roads = [export_road(path, held, hint, ["--key", name]) for name, held in states.items() if "optim" not in name]
    else:
        trouble, tensors = "", listed(found.value)
        weights = f"in {found.wrapper!r}{f': {found.why}' if found.why else ''}" if found.wrapper else ""
        roads = [export_road(path, tensors, hint)]
        if found.wrapper.split(".")[-1] in state.EMA and len(states) > 1:
            roads.append(export_road(path, tensors, hint, ["--no-ema"]))
    fitting = next((road.model for road in roads if road.model), "")
    facts = {"weights": weights, "architecture": f"{said}{f', and it fits: {fitting}' if fitting else ''}"}
    if not whole:
        facts = {"keys": _keys(content, states), **facts, **_beside(content, states)}
    return Inspection(
        path=path,
        kind="state_dict" if whole else "PyTorch checkpoint, a dictionary",
        bytes=path.stat().st_size,
        facts=stated({**facts, **(weighed(tensors) if tensors else {})}),
        needs=(*filter(None, [trouble]), *dict.fromkeys(need for road in roads for need in road.needs)),
        promises=(DATA_ALONE,),
        next=tuple(road.command for road in roads),
        details={"keys": [] if whole else list(content), "tensors": tensors},
    )


def _keys(content: Mapping[Any, Any], states: Mapping[str, Tensors]) -> str:
    held = {name: f"{name} (tensors: {len(tensors)})" for name, tensors in states.items()}
    return some([held.get(str(name), str(name)) for name in content], 40)


def _beside(content: Mapping[Any, Any], states: Mapping[str, Tensors]) -> dict[str, str]:
    """The plain values in a checkpoint, and those one level down; Lightning's version."""
    values = _plain(content)
    facts = {"Lightning": str(values.pop("pytorch-lightning_version", "")), "values": settings(values)}
    for name, value in content.items():
        if str(name) not in states and not re.search("optim|sched|scaler|loops|callbacks", str(name)):
            facts[f"in {name}"] = settings(_plain(_mapping(value)))
    return facts


def _mapping(value: Any) -> Mapping[Any, Any]:
    """A mapping, or a script's options as one; an empty one of anything else."""
    inner = vars(value) if isinstance(value, argparse.Namespace) else value
    return inner if isinstance(inner, Mapping) else {}


def _plain(content: Mapping[Any, Any]) -> dict[str, Any]:
    """The numbers and short texts in a mapping."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
            value = value.item()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 200):
            found[str(name)] = value
    return found


def _hint(content: Mapping[Any, Any]) -> tuple[str, str]:
    """What a training script wrote down of the model's name: a sentence on where, and the name."""
    for place in ("", "args", "hyper_parameters", "config", "cfg"):
        held = _mapping(content.get(place)) if place else content
        for key in ("arch", "model_name", "architecture", "model"):
            name = held.get(key)
            if isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,99}", name):
                return f"its {f'{place}.' if place else ''}{key} says {name!r}", name
    return "", ""


# Modules that no model has a use for, and builtins that run or open things.
_REACHING = re.compile(
    r"(sys|shutil|socket|runpy|importlib|pty|ctypes|webbrowser|code|urllib|requests|http)\..*|"
    r"(.*\.)?(os|posix|nt|subprocess)\..*|"
    r"(builtins|__builtin__)\.(eval|exec|execfile|compile|open|__import__|input)"
)


def of_pickled(path: Path) -> Inspection:
    """A file that is code as much as weights: every name that it would import, and none imported."""
    from penstock import pickles

    names = pickles.names(path)
    reaching = [name for name in names if _REACHING.fullmatch(name)]
    mine = [name.removeprefix("__main__.") for name in names if name.startswith("__main__.")]
    model = ["--model", f"./FILE.py:{mine[0]}"] if mine else []
    needs = [f"--allow-pickle, and your trust: opening it imports the {len(names)} names above and may run anything"]
    needs += [f"the file that defines {', '.join(mine)}: --model ./FILE.py:{mine[0]}"] if mine else []
    words = ["--allow-pickle", *model, "--input", "INPUT:float32[batch,SIZES]"]
    warning = f"never to be opened: a model has no use for {', '.join(reaching)}"
    return Inspection(
        path=path,
        kind="pickled code",
        bytes=path.stat().st_size,
        facts={"imports": "\n".join(names)},
        needs=(warning,) if reaching else (*needs, INPUTS),
        next=() if reaching else (command("export", "--format", "onnx", *words, path),),
        details={"imports": names},
    )

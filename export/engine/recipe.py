"""Recipes: how an engine is to be built from the typed graph beside it, here or on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import PenstockError
from penstock.signature import Dim, Signature, first_message

# The files of an engine's artifact: the engine, the typed graph that it is built from, and where TensorRT 8 and later
# ones need two, that of the later.
MODEL_FILE, GRAPH_FILE, LATER_FILE = "model.plan", "model.onnx", "model.later.onnx"
Shape = tuple[int, ...]
# Of each input the least, the usual and the largest shape.
Profile = dict[str, tuple[Shape, Shape, Shape]]
MOST_WORKSPACE_MB, MOST_PROFILES = 2**20, 32
Compatibility = Literal["none", "ampere+", "same-cc"]


class Wishes(BaseModel):
    """What a user may ask of a builder.

    `flavor` is the TensorRT to use, None the first that can; `workspace_mb` its scratch memory in MiB and `level` its
    effort, 0 to 5, None for TensorRT's own choice; `limit_s` is how long it may take.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    flavor: Literal["tensorrt", "tensorrt_rtx"] | None = None
    workspace_mb: int | None = Field(default=None, ge=1, le=MOST_WORKSPACE_MB)
    level: int | None = Field(default=None, ge=0, le=5)
    hardware_compat: Compatibility = "none"
    limit_s: float = Field(default=3600.0, gt=0, le=86_400, allow_inf_nan=False)


def wishes(**given: Any) -> Wishes:
    """The wishes in the command line's options.

    Raises:
        PenstockError: a value is none of its choices.
    """
    if given.get("flavor"):
        given["flavor"] = given["flavor"].replace("-", "_")
    for option, field, choices in (
        ("--trt-flavor", "flavor", (None, "tensorrt", "tensorrt_rtx")),
        ("--hardware-compat", "hardware_compat", ("none", "ampere+", "same-cc")),
    ):
        if field in given and given[field] not in choices:
            named = ", ".join(choice.replace("_", "-") for choice in choices if choice)
            raise PenstockError(f"{option} {given[field]!r}: must be one of {named}")
    return Wishes(**given)


def check(wishes: Wishes, flavor: str | None) -> None:
    """See that a flavor takes the wishes.

    Raises:
        PenstockError: it does not.
    """
    if flavor == "tensorrt_rtx" and wishes.hardware_compat != "none":
        raise PenstockError(
            f"--hardware-compat {wishes.hardware_compat}: engines of TensorRT for RTX run on all its GPUs as they are; "
            "leave it out"
        )


class Recipe(Wishes):
    """What a builder is told beside the graph: the precision that it holds, profiles, and what the user asked for."""

    precision: str
    profiles: tuple[Profile, ...] = Field(min_length=1, max_length=MOST_PROFILES + 1)

    @classmethod
    def of(cls, wishes: Wishes, precision: str, shapes: Sequence[Profile]) -> Recipe:
        return cls(**wishes.model_dump(), precision=precision, profiles=tuple(shapes))


def profiles(signature: Signature, narrower: Sequence[Mapping[str, Dim]] = ()) -> tuple[Profile, ...]:
    """The profiles of an engine: one for each set of narrower ranges, and the last for all that the signature takes.

    Args:
        signature: inputs and their ranges.
        narrower: ranges that tactics are chosen for beside the whole one; a dimension left out has its whole range.

    Raises:
        PenstockError: a range is of no dimension, or leaves the signature's.
    """
    if len(narrower) > MOST_PROFILES:
        raise PenstockError(
            f"--profile: is given {len(narrower)} times; an engine has {MOST_PROFILES} profiles at most"
        )
    for ranges in narrower:
        if all(signature.dims.get(name) == dim for name, dim in ranges.items()):
            named = ";".join(f"{name}={dim.min},{dim.opt},{dim.max}" for name, dim in ranges.items())
            raise PenstockError(f"--profile {named}: is the whole range, which every engine is tuned for; leave it out")
        for name, dim in ranges.items():
            if name not in signature.dims:
                raise PenstockError(
                    f"--profile {name}: is no dimension; there are {', '.join(signature.dims) or 'none'}"
                )
            whole = signature.dims[name]
            if not whole.min <= dim.min <= dim.max <= whole.max:
                raise PenstockError(
                    f"--profile {name}={dim.min},{dim.opt},{dim.max}: leaves the range of {name}, {whole.min} to "
                    f"{whole.max}; --batch and --dim widen that"
                )
    return tuple(_profile(signature, {**signature.dims, **ranges}) for ranges in (*narrower, {}))


def _profile(signature: Signature, dims: Mapping[str, Dim]) -> Profile:
    def shape(sizes: Sequence[int | str], end: str) -> Shape:
        return tuple(size if isinstance(size, int) else getattr(dims[size], end) for size in sizes)

    return {
        tensor.name: (shape(tensor.shape, "min"), shape(tensor.shape, "opt"), shape(tensor.shape, "max"))
        for tensor in signature.inputs
    }


def of_build(build: Mapping[str, Any]) -> Recipe | None:
    """The recipe in a receipt's build facts, if there is one.

    Raises:
        PenstockError: it is damaged.
    """
    if "recipe" not in build:
        return None
    try:
        return Recipe.model_validate(build["recipe"])
    except ValueError as error:
        raise PenstockError(
            f"the receipt's build recipe is damaged: {first_message(error)}; export the model again"
        ) from None

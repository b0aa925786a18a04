"""Recipes: what to train, on what, and how, read from a TOML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from penstock.architecture import Architecture
from penstock.datasets import DatasetSpec
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, first_message

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).parent / "recipes"


class Augment(BaseModel):
    """Random changes to a training image: a shift of up to `shift` pixels each way."""

    model_config = ConfigDict(extra="forbid")
    shift: int = Field(default=0, ge=0)


class Optim(BaseModel):
    """AdamW under a one-cycle schedule that peaks at `lr`, with gradients clipped to norm `clip`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    lr: float = Field(gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0)


class Recipe(BaseModel):
    """One training job."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    task: str
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    dataset: DatasetSpec
    model: Architecture
    preprocess: ImagePreprocess
    augment: Augment = Augment()
    optim: Optim
    batch: Dim

    @model_validator(mode="after")
    def _trains_on_numbers(self) -> Recipe:
        if self.preprocess.dtype != "float32":
            raise ValueError(
                f"preprocess.dtype is {self.preprocess.dtype}; training takes float32, and `penstock export --input "
                "uint8` puts the rest into the graph"
            )
        return self

    @model_validator(mode="after")
    def _shift_leaves_a_picture(self) -> Recipe:
        side = min(self.preprocess.height, self.preprocess.width)
        if self.augment.shift >= side:
            raise ValueError(f"augment.shift is {self.augment.shift}; it must be under the picture's side, {side}")
        return self


def load(recipe: str, **overrides: Any) -> Recipe:
    """Read a shipped recipe by name, or a .toml file by path.

    Args:
        recipe: `digits`, or `my/recipe.toml`.
        overrides: top-level fields to replace; those that are None are left alone.

    Raises:
        PenstockError: no such recipe, or a field that breaks its rule.
    """
    shipped = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    path = SHIPPED / f"{recipe}.toml" if recipe in shipped else Path(recipe)
    if not path.is_file():
        raise PenstockError(f"recipe {recipe!r}: neither a file nor one of the shipped recipes: {', '.join(shipped)}")
    try:
        content = tomllib.loads(path.read_text())
        content.update({key: value for key, value in overrides.items() if value is not None})
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise PenstockError(f"recipe {recipe}: {first_message(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise PenstockError(f"recipe {path}: cannot be read as TOML: {error}") from None

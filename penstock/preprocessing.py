"""Preprocessing of any kind, as checkpoints and receipts record it: of pictures, texts or table rows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from penstock.preprocess import ImagePreprocess
from penstock.signature import Signature
from penstock.tabular import TablePreprocess
from penstock.textual import TextPreprocess


def _pictures_unless_told(value: Any) -> Any:
    """What lacks `kind` is of before there were others."""
    return {"kind": "image", **value} if isinstance(value, dict) else value


Preprocess = Annotated[
    Annotated[ImagePreprocess | TextPreprocess | TablePreprocess, Field(discriminator="kind")],
    BeforeValidator(_pictures_unless_told),
]
ITEMS = {"image": "pictures", "text": "texts", "table": "table rows"}
"""What each kind is of."""


def of_pictures(preprocess: Preprocess | None) -> ImagePreprocess | None:
    """The preprocessing, if it is one of pictures."""
    return preprocess if isinstance(preprocess, ImagePreprocess) else None


def fits(preprocess: Preprocess, signature: Signature) -> bool:
    """Whether a signature has the inputs that a preprocessing makes."""
    inputs = {tensor.name: (tensor.dtype, tensor.shape[1:]) for tensor in signature.inputs}
    return all(inputs.get(made.name) == (made.dtype, made.shape[1:]) for made in preprocess.tensors())

"""Preprocessing of any kind, as checkpoints and receipts record it: of pictures, texts or table rows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from penstock.preprocess import ImagePreprocess, decode_image
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
# A PNG of one black pixel.
_DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c636000000002000148afa4710000000049454e44ae426082"
)
ITEMS = {"image": "pictures", "text": "texts", "table": "table rows"}
"""What each kind is of."""


def fits(preprocess: Preprocess, signature: Signature) -> bool:
    """Whether a signature has the inputs that a preprocessing makes."""
    inputs = {tensor.name: (tensor.dtype, tensor.shape[1:]) for tensor in signature.inputs}
    return all(inputs.get(made.name) == (made.dtype, made.shape[1:]) for made in preprocess.tensors())


def warm(preprocess: Preprocess) -> None:
    """Have read what the first picture or text would be kept waiting by: Pillow's decoders, a tokenizer.

    Raises:
        PenstockError: a package is not installed, or the tokenizer is damaged.
    """
    if isinstance(preprocess, ImagePreprocess):
        preprocess.apply(decode_image(_DOT))
    elif isinstance(preprocess, TextPreprocess):
        preprocess.rows([""])

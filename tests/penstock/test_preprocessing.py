"""Preprocessing of any kind in cards and receipts: old ones are read, and what does not fit the model is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from penstock import card as cards
from penstock import preprocessing, tabular, textual
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.errors import PenstockError
from penstock.inspection import findings
from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.receipt import Receipt
from penstock.signature import Dim, Range, Signature, Tensor

PICTURES = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))
TEXTS = textual.fit(["the pump runs"], size=10, least=1, length=4)
ROWS = tabular.fit([{"age": 1, "city": "Rome"}, {"age": 2, "city": "Oslo"}], ["age", "city"])
EACH = pytest.mark.parametrize("held", [PICTURES, TEXTS, ROWS], ids=lambda held: held.kind)


def card(held: Preprocess | None, **told: Any) -> Card:
    inputs = (Tensor(name="x", shape=("batch", 2)),) if held is None else held.tensors()
    outputs = (Tensor(name="logits", shape=("batch", 2)),)
    signature = Signature(inputs=inputs, outputs=outputs, dims={"batch": Dim(opt=2, max=4)}, **told)
    return Card(name="x", architecture=Architecture(target="a:b"), signature=signature, preprocess=held)


@EACH
def test_a_card_comes_back_as_it_was_written(held: Preprocess) -> None:
    assert cards.read(Path("x.pth"), json.loads(card(held).model_dump_json())) == card(held)


def test_what_lacks_its_kind_is_of_pictures() -> None:
    told = json.loads(PICTURES.model_dump_json())
    del told["kind"]
    assert TypeAdapter(Preprocess).validate_python(told) == PICTURES
    content = json.loads(card(PICTURES).model_dump_json())
    del content["preprocess"]["kind"]
    read = cards.read(Path("x.pth"), content)
    assert read is not None
    assert read.preprocess == PICTURES


def test_a_receipt_of_before_is_read(repository: Path) -> None:
    path = repository / "digits-onnx-fp32" / "1" / "penstock.json"
    content = json.loads(path.read_bytes())
    del content["preprocess"]["kind"]
    assert Receipt.model_validate(content) == Receipt.model_validate_json(path.read_bytes())


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValidationError, match="'sound'"):
        TypeAdapter(Preprocess).validate_python({"kind": "sound"})


@EACH
def test_a_card_whose_model_takes_what_is_made_passes(held: Preprocess) -> None:
    cards.check(Path("x.pth"), card(held))
    assert preprocessing.fits(held, card(held).signature)


@pytest.mark.parametrize(
    ("held", "made"),
    [(PICTURES, "makes 'image' of float32"), (TEXTS, r"makes 'ids' of int64\[4\]"),
     (ROWS, r"makes 'row' of float32\[3\]")],
)  # fmt: skip
def test_a_card_whose_model_takes_something_else_is_refused(held: Preprocess, made: str) -> None:
    wrong = card(None).model_copy(update={"preprocess": held})
    with pytest.raises(PenstockError, match=rf"its preprocessing {made}.*the inputs are x:float32\[batch,2\]"):
        cards.check(Path("x.pth"), wrong)


def test_tokens_beyond_the_model_s_table_are_refused() -> None:
    cards.check(Path("x.pth"), card(TEXTS, ranges={"ids": Range(low=0, high=4)}))
    with pytest.raises(PenstockError, match="makes tokens 0 to 4; the model's 'ids' takes 0 to 3"):
        cards.check(Path("x.pth"), card(TEXTS, ranges={"ids": Range(low=0, high=3)}))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (TEXTS, "text as its first 4 tokens, as ids"),
        (TEXTS.model_copy(update={"mask": "mask"}), "text as its first 4 tokens, as ids, with mask"),
        (ROWS, "table row of numbers age; categories city (2), as row"),
    ],
)
def test_an_inspection_says_how_they_are_read(held: Preprocess, said: str) -> None:
    assert findings.contract_of(card(held))["preprocessing"] == said

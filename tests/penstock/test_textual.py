"""Texts as tensors: words counted and numbered the same everywhere, a BERT's own tokenizer, rows of one length."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock import textual
from penstock.errors import PenstockError
from penstock.textual import CHARACTERS, BadText, TextPreprocess

pytest.importorskip("tokenizers")
TEXTS = ("The pump runs; the valve is shut.", "the VALVE leaks!", "Pump and valve, valve and pump.")
# Nothing that lower-casing or normal forms make longer, and nothing that is punctuation.
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=4), max_size=12)


def words_of(held: TextPreprocess) -> dict[str, int]:
    found: dict[str, int] = json.loads(held.tokenizer)["model"]["vocab"]
    return found


def test_the_most_frequent_words_are_numbered_first_and_ties_by_alphabet() -> None:
    held = textual.fit(TEXTS, size=6, least=1, length=8)
    # valve 4; pump and the 3; and 2; then those of one by alphabet.
    assert words_of(held) == {"[PAD]": 0, "[UNK]": 1, "valve": 2, "pump": 3, "the": 4, "and": 5, "!": 6, ",": 7}
    assert held.tokens == 8


def test_a_text_is_its_words_in_order_then_padding() -> None:
    held = textual.fit(TEXTS, size=100, least=1, length=6)
    numbers = words_of(held)
    rows = held.rows(["Valve, PUMP", "", "the stranger"])["ids"]
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        [numbers["valve"], numbers[","], numbers["pump"], 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [numbers["the"], 1, 0, 0, 0, 0],
    ]


def test_rare_words_are_unknown() -> None:
    held = textual.fit(TEXTS, size=100, least=2, length=4)
    assert held.rows(["leaks valve"])["ids"].tolist() == [[1, words_of(held)["valve"], 0, 0]]


def test_words_beyond_the_row_are_not_counted() -> None:
    held = textual.fit(["a b c d", "a b x y"], size=10, least=1, length=2)
    assert set(words_of(held)) == {"[PAD]", "[UNK]", "a", "b"}


def test_a_mask_tells_tokens_from_padding() -> None:
    held = textual.fit(TEXTS, size=100, least=1, length=4).model_copy(update={"mask": "mask"})
    rows = held.rows(["the pump", "a b c d e"])
    assert rows["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert [tensor.name for tensor in held.tensors()] == ["ids", "mask"]


@given(st.lists(WORDS, min_size=1, max_size=8), st.integers(1, 10), st.integers(1, 6))
def test_known_words_come_back_by_their_numbers_and_no_row_depends_on_another(
    texts: list[list[str]], size: int, length: int
) -> None:
    counts = Counter(word for words in texts for word in words[:length])
    if not counts:
        with pytest.raises(PenstockError, match="least is 1"):
            textual.fit([" ".join(words) for words in texts], size, 1, length)
        return
    held = textual.fit([" ".join(words) for words in texts], size, 1, length)
    kept = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    numbers = {word: number for number, word in enumerate(kept, 2)}
    expected = [([numbers.get(word, 1) for word in words] + [0] * length)[:length] for words in texts]
    together = held.rows([" ".join(words) for words in texts])["ids"]
    assert together.tolist() == expected
    alone = np.concatenate([held.rows([" ".join(words)])["ids"] for words in texts])
    assert np.array_equal(together, alone)


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.integers(1, 8))
def test_any_unicode_is_taken_and_a_recorded_tokenizer_makes_the_same_rows(texts: list[str], length: int) -> None:
    held = textual.fit([*texts, "a"], size=20, least=1, length=length)
    read_back = TextPreprocess.model_validate_json(held.model_dump_json())
    rows = held.rows(texts)["ids"]
    assert rows.shape == (len(texts), length)
    assert rows.min() >= 0
    assert rows.max() < held.tokens
    assert np.array_equal(rows, read_back.rows(texts)["ids"])


def test_two_fits_of_the_same_texts_are_the_same_to_the_byte() -> None:
    first, again = (textual.fit(TEXTS, size=5, least=1, length=4) for _ in range(2))
    assert first == again
    assert first.model_dump_json() == again.model_dump_json()


def test_only_so_many_characters_of_a_text_are_read() -> None:
    held = textual.fit(["pump valve"], size=10, least=1, length=2)
    far = " " * (2 * CHARACTERS - 4)
    assert held.rows([far + "pump valve"])["ids"].tolist() == held.rows(["pump"])["ids"].tolist()
    assert held.rows([far + " pump"])["ids"].tolist() == [[1, 0]]  # "pum" is no word


def test_half_of_a_surrogate_pair_is_refused_with_its_place() -> None:
    held = textual.fit(TEXTS, size=10, least=1, length=4)
    with pytest.raises(BadText, match="text 1 holds half of a surrogate pair") as caught:
        held.rows(["fine", "\ud800"])
    assert caught.value.index == 1
    with pytest.raises(BadText):
        textual.fit(["\udfff"], size=10, least=1, length=4)


def test_a_changed_copy_has_rows_of_its_own_length() -> None:
    held = textual.fit(TEXTS, size=100, least=1, length=6)
    held.rows(["the pump runs"])
    assert held.model_copy(update={"length": 2}).rows(["the pump runs"])["ids"].shape == (1, 2)


def test_a_damaged_tokenizer_is_refused_in_one_sentence() -> None:
    with pytest.raises(PenstockError, match="the recorded tokenizer cannot be read"):
        TextPreprocess(tokenizer="{}", length=4).rows(["a"])


def test_ids_and_mask_must_have_different_names() -> None:
    with pytest.raises(ValidationError, match="must have names of their own"):
        TextPreprocess(tokenizer="{}", length=4, mask="ids")


PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "pump", "##s", "run", "##ning", ",", "valve", "é", "e")
SPOKEN = ("The pumps, running", "valves", "", "é E\u0301 e", "the [SEP] pump", "the " * 20, "水 pump\tvalve")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """The folder of a BERT's tokenizer: its pieces alone, and the model's settings."""
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 32}))
    return tmp_path


def of_transformers(folder: Path, length: int) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    return tokenizer(list(SPOKEN), padding="max_length", truncation=True, max_length=length, return_tensors="np")


@pytest.mark.parametrize("length", [2, 3, 8, 32])
def test_a_bert_s_word_pieces_are_numbered_as_transformers_does(bert: Path, length: int) -> None:
    held = textual.from_folder(bert, length)
    rows, expected = held.rows(SPOKEN), of_transformers(bert, length)
    assert np.array_equal(rows["ids"], expected["input_ids"])
    assert np.array_equal(rows["mask"], expected["attention_mask"])


def test_a_tokenizer_that_transformers_saved_gives_the_same_rows(bert: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    saved = tmp_path / "saved"
    transformers.BertTokenizerFast.from_pretrained(bert).save_pretrained(saved)
    assert (saved / "tokenizer.json").is_file()
    rows, expected = textual.from_folder(saved, 8).rows(SPOKEN), textual.from_folder(bert, 8).rows(SPOKEN)
    assert np.array_equal(rows["ids"], expected["ids"])
    assert np.array_equal(rows["mask"], expected["mask"])


def test_settings_beside_the_pieces_are_kept(bert: Path) -> None:
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert textual.from_folder(bert, 3).rows(["The"])["ids"].tolist() == [[2, 1, 3]]


def test_a_folder_s_faults_are_named(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"length is 33; the model in .* takes 32 tokens at most"):
        textual.from_folder(bert, 33)
    with pytest.raises(PenstockError, match="length is 1; the tokenizer alone adds 2 tokens"):
        textual.from_folder(bert, 1)
    with pytest.raises(PenstockError, match=r"holds neither tokenizer\.json nor a BERT's vocab\.txt"):
        textual.from_folder(tmp_path / "nowhere", 4)
    (bert / "vocab.txt").write_text("[PAD]\n[UNK]\n[SEP]\nthe\n")
    with pytest.raises(PenstockError, match=r"lacks \[CLS\]"):
        textual.from_folder(bert, 4)
    (bert / "tokenizer.json").write_text("{")
    with pytest.raises(PenstockError, match="its tokenizer cannot be read"):
        textual.from_folder(bert, 4)


def test_a_tokenizer_without_padding_is_refused(bert: Path, tmp_path: Path) -> None:
    held = json.loads(textual.from_folder(bert, 4).tokenizer)
    held["model"]["vocab"] = {"[UNK]": 0, "the": 1}
    held["added_tokens"], held["post_processor"] = [], None
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(PenstockError, match="has no padding token"):
        textual.from_folder(other, 4)
    (other / "tokenizer_config.json").write_text('{"pad_token": {"content": "the"}}')
    assert textual.from_folder(other, 3).rows([""])["ids"].tolist() == [[1, 1, 1]]

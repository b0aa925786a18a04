"""Texts as a model takes them: the recorded way from a string to its row of token numbers.

Training and the torch-free server call this one implementation, so that a text gives the same tensors bit for bit
wherever it is read. The `tokenizers` library is imported on use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.errors import PenstockError, first_line, require
from penstock.signature import Tensor

PAD, UNKNOWN = "[PAD]", "[UNK]"
CHARACTERS = 64
"""Of a text, so many characters are read for each token that its row has room for; what follows is passed over."""
_SPECIAL = (PAD, UNKNOWN, "[CLS]", "[SEP]", "[MASK]")
# What a tokenizer's settings say for "no limit" is 10^30.
_NO_LIMIT = 10**9


class BadText(PenstockError):
    """A string that is no text; `index` is its place among those given."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"text {index} {why}")
        self.index, self.why = index, why


class TextPreprocess(BaseModel):
    """A text becomes int64 `[length]` token numbers: the tokenizer's first ones, then `pad` up to `length`.

    `tokenizer` is the `tokenizers` library's own JSON, whole; the special tokens that it adds are among the `length`.
    With `mask` there is a second input of that name, 1 where a token stands and 0 where `pad` was filled in. Only the
    first `CHARACTERS` x `length` characters of a text are read, in training as in serving.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["text"] = "text"
    ids: str = "ids"
    mask: str | None = None
    tokenizer: str = Field(repr=False)
    length: int = Field(ge=1, le=2**16)
    pad: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _two_names(self) -> TextPreprocess:
        if self.mask == self.ids:
            raise ValueError(f"mask is {self.mask!r}, the name of ids; the two inputs must have names of their own")
        return self

    @property
    def tokens(self) -> int:
        """How many token numbers there are: rows hold 0 to one less.

        Raises:
            PenstockError: as `rows`.
        """
        return int(max([self.pad, *_opened(self.tokenizer, self.length).get_vocab(True).values()])) + 1

    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs that texts become."""
        names = [self.ids] if self.mask is None else [self.ids, self.mask]
        return tuple(Tensor(name=name, dtype="int64", shape=("batch", self.length)) for name in names)

    def rows(self, texts: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Texts -> the model's inputs by name, int64 `[n, length]` each.

        Raises:
            BadText: one holds half of a surrogate pair.
            PenstockError: the recorded tokenizer is damaged, or the library is not installed.
        """
        held = _opened(self.tokenizer, self.length)
        ids = np.full((len(texts), self.length), self.pad, np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(texts):
            # One by one: a batch would start threads, beside those of whoever runs the model, and forbid to fork.
            found = held.encode(_read(row, text, self.length)).ids
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        return {self.ids: ids} if self.mask is None else {self.ids: ids, self.mask: mask}


def _library() -> Any:
    return require("tokenizers", "text", "a model that takes texts")


@lru_cache(maxsize=128)
def _opened(tokenizer: str, length: int) -> Any:
    """The library's tokenizer of its JSON, which cuts to so many tokens, and does not pad."""
    library = _library()
    try:
        held = library.Tokenizer.from_str(tokenizer)
        held.no_padding()
        held.enable_truncation(length)
    except Exception as error:  # the library raises bare Exceptions
        raise PenstockError(f"the recorded tokenizer cannot be read: {first_line(error)}") from None
    own = held.num_special_tokens_to_add(False)
    if own > length:
        raise PenstockError(f"length is {length}; the tokenizer alone adds {own} tokens to each text")
    return held


def _read(index: int, text: str, length: int) -> str:
    """What is read of the `index`-th text for a row of so many tokens.

    Raises:
        BadText: it holds half of a surrogate pair there.
    """
    found = text[: CHARACTERS * length]
    try:
        found.encode()
    except UnicodeEncodeError:
        raise BadText(index, "holds half of a surrogate pair, which is no text") from None
    return found


def fit(texts: Iterable[str], size: int, least: int, length: int) -> TextPreprocess:
    """The words that stand in texts, each with a number: 2 on, the most frequent first, those of one count by alphabet.

    Words are lower-cased, and end at white space and at punctuation, each sign of which is a word too. [PAD] is 0, and
    every word that is not known is [UNK], 1. Only the words that would come into a row are counted.

    Args:
        texts: of the training part.
        size: the most words that are known.
        least: how often a word must be found to be known.
        length: tokens in a row.

    Raises:
        PenstockError: no word is found so often, a text is none, or the library is not installed.
    """
    library = _library()
    made = library.Tokenizer(library.models.WordLevel({PAD: 0, UNKNOWN: 1}, unk_token=UNKNOWN))
    made.normalizer = library.normalizers.Sequence([library.normalizers.NFC(), library.normalizers.Lowercase()])
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for row, text in enumerate(texts):
        words = made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(_read(row, text, length)))
        counts.update(word for word, _ in words[:length])
    often = [word for word, count in counts.items() if count >= least]
    if not often:
        raise PenstockError(
            f"least is {least}; none of the {len(counts)} words in the training texts is found so often: lower it"
        )
    known = sorted(often, key=lambda word: (-counts[word], word))[:size]
    numbers = {word: number for number, word in enumerate([PAD, UNKNOWN, *known])}
    made.model = library.models.WordLevel(numbers, unk_token=UNKNOWN)
    return TextPreprocess(tokenizer=made.to_str(), length=length, pad=0)


def from_folder(folder: Path, length: int, ids: str = "ids", mask: str = "mask") -> TextPreprocess:
    """The tokenizer of a transformers folder: its tokenizer.json or, of a BERT, its vocab.txt; with an attention mask.

    Args:
        folder: as `save_pretrained` of transformers writes it.
        length: tokens in a row, with the special ones that the tokenizer adds.
        ids: the name of the input of token numbers.
        mask: the name of the input that tells them from padding.

    Raises:
        PenstockError: there is no tokenizer there, it is damaged or has no padding token, or the model takes no rows of
            that length.
    """
    settings = _settings(folder / "tokenizer_config.json")
    limits = (settings.get("model_max_length"), _settings(folder / "config.json").get("max_position_embeddings"))
    most = min((limit for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT), default=length)
    if length > most:
        raise PenstockError(f"length is {length}; the model in {folder} takes {most} tokens at most")
    held = _of_folder(folder, settings)
    pad = _pad(folder, held, settings)
    held.no_padding()
    held.no_truncation()
    made = TextPreprocess(ids=ids, mask=mask, tokenizer=held.to_str(), length=length, pad=pad)
    made.rows([""])  # which refuses a length that the special tokens alone pass
    return made


def _of_folder(folder: Path, settings: dict[str, Any]) -> Any:
    """The library's tokenizer of a folder."""
    library = _library()
    file, words = folder / "tokenizer.json", folder / "vocab.txt"
    if not file.is_file() and not words.is_file():
        raise PenstockError(
            f"{folder}: holds neither tokenizer.json nor a BERT's vocab.txt; save its fast tokenizer there: "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    try:
        whole = file.is_file()
        held = library.Tokenizer.from_str(file.read_text("utf-8")) if whole else _word_pieces(words, settings)
    except PenstockError:
        raise
    except OSError as error:
        raise PenstockError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except Exception as error:  # the library raises bare Exceptions
        raise PenstockError(f"{folder}: its tokenizer cannot be read: {first_line(error)}") from None
    return held


def _settings(file: Path) -> dict[str, Any]:
    """A JSON file of settings, or nothing where there is none.

    Raises:
        PenstockError: it is damaged.
    """
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise PenstockError(f"{file}: cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _pad(folder: Path, held: Any, settings: dict[str, Any]) -> int:
    """The number of the padding token, as the tokenizer's own file or its settings name it."""
    if held.padding is not None:
        return int(held.padding["pad_id"])
    named = settings.get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    for token in (named, PAD, "<pad>"):
        number = held.token_to_id(token) if isinstance(token, str) else None
        if number is not None:
            return int(number)
    raise PenstockError(f"{folder}: its tokenizer has no padding token; name one as pad_token in tokenizer_config.json")


def _word_pieces(file: Path, settings: dict[str, Any]) -> Any:
    """A BERT's tokenizer of its word pieces, one a line, as transformers makes it."""
    library = _library()
    lines = file.read_text("utf-8").split("\n")
    numbers = {piece: number for number, piece in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    lacking = [token for token in _SPECIAL[:-1] if token not in numbers]
    if lacking:
        raise PenstockError(f"{file}: lacks {lacking[0]}; a BERT's has {', '.join(_SPECIAL)}")
    made = library.Tokenizer(library.models.WordPiece(numbers, unk_token=UNKNOWN, max_input_chars_per_word=100))
    made.normalizer = library.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.post_processor = library.processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    made.add_special_tokens([token for token in _SPECIAL if token in numbers])
    return made

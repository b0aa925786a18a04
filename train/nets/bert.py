"""BERT's encoder under a head of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from penstock.errors import PenstockError, require
from penstock.train.nets.arguments import see_counts, see_share
from penstock.train.nets.sequences import CELLS, Recurrent, Windows

# What an encoder is made from of transformers' BertConfig. Others, as attn_implementation, may name code on a hub.
FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)
_HEADS = ("linear", "cnn", *CELLS)


class Bert(nn.Module):
    """Token numbers and mask int64 `[batch, length]` -> logits `[batch, classes]` (Devlin et al., "BERT", 2018).

    The mask is 1 for tokens and 0 for the padding after them, which changes no answer, but for rounding.

    Args:
        config: fields of transformers' BertConfig, those of `FIELDS`.
        head: "linear" reads the first token, as BertForSequenceClassification does; the others read all of them.
        classes: how many answers.
        dropout: share of the head's features that training leaves out.
        width: filters for each size of window, or the state of each direction, of the heads that have them.

    Raises:
        PenstockError: transformers is not installed, or the config has fields of other kinds.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        head: Literal["linear", "cnn", "lstm", "gru"] = "linear",
        classes: int = 2,
        dropout: float = 0.1,
        width: int = 128,
    ) -> None:
        super().__init__()
        if head not in _HEADS:
            raise ValueError(f"head is {head!r}; it must be one of {', '.join(_HEADS)}")
        see_counts(classes=classes, width=width)
        see_share(dropout=dropout)
        strangers = [name for name in config if name not in FIELDS]
        if strangers:
            raise PenstockError(f"Bert: config has {strangers[0]!r}; its fields may be {', '.join(FIELDS)}")
        transformers = require("transformers", "models", "Bert")
        held = transformers.BertConfig(**config)
        self.bert: nn.Module = transformers.BertModel(held, add_pooling_layer=head == "linear")
        self.head: Windows | Recurrent | None = None
        if head == "cnn":
            self.head = Windows(held.hidden_size, (2, 3, 4), width)
        elif head in CELLS:
            self.head = Recurrent(head, held.hidden_size, width, layers=1, bidirectional=True, dropout=0.0)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(held.hidden_size if self.head is None else self.head.width, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        answer = self.bert(input_ids=ids, attention_mask=mask)
        features = answer.pooler_output if self.head is None else self.head(answer.last_hidden_state, mask)
        logits: Tensor = self.classifier(self.dropout(features))
        return logits

"""BERT under its heads: transformers' own answers, padding that changes nothing, and no code by its config."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock import architecture, card
from penstock.architecture import Architecture
from penstock.errors import PenstockError
from penstock.train.nets import Bert

transformers = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
HEADS = ["linear", "cnn", "lstm", "gru"]


def small(head: Any) -> Bert:
    torch.manual_seed(0)
    return Bert(SMALL, head, classes=3, width=8).eval()


def test_under_a_linear_head_it_is_bert_for_sequence_classification() -> None:
    ours = small("linear")
    theirs = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=3)).eval()
    theirs.load_state_dict(ours.state_dict())
    ids, mask = torch.randint(0, 48, (4, 9)), (torch.arange(9) < torch.tensor([[9], [4], [1], [7]])).long()
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(ours(ids, mask), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_padding_changes_no_answer_whatever_its_tokens(head: str) -> None:
    net, ids, mask = (
        small(head),
        torch.randint(1, 48, (3, 6)),
        torch.tensor([[1] * 6, [1] * 3 + [0] * 3, [1] + [0] * 5]),
    )
    more = torch.randint(1, 48, (3, 4))
    with torch.inference_mode():
        narrow = net(ids, mask)
        wide = net(torch.cat((ids, more), 1), torch.cat((mask, torch.zeros_like(more)), 1))
    torch.testing.assert_close(wide, narrow, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_a_token_that_is_seen_changes_the_answer(head: str) -> None:
    net, mask = small(head), torch.ones(1, 3, dtype=torch.int64)
    with torch.inference_mode():
        one, other = (net(torch.tensor([[1, 2, last]]), mask) for last in (3, 4))
    assert not torch.allclose(one, other, atol=1e-5)


def refused(**kwargs: Any) -> str:
    with pytest.raises(PenstockError) as caught:
        architecture.build(Architecture(target=f"{card.TRUSTED}:Bert", kwargs=kwargs))
    return str(caught.value)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "auto_map", "is_decoder", "dtype"])
def test_a_field_that_may_name_code_or_another_kind_of_model_is_refused(name: str) -> None:
    message = refused(config={**SMALL, name: "kernels-community/x"})
    assert message.startswith(f"Bert: config has {name!r}; its fields may be vocab_size, hidden_size, ")


def test_a_head_that_there_is_not_is_refused() -> None:
    assert "head is 'rnn'; it must be one of linear, cnn, lstm, gru" in refused(config=SMALL, head="rnn")

"""Networks for texts: padding changes nothing, and recurrent ones are torch's own on packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from penstock import architecture, card
from penstock.architecture import Architecture
from penstock.errors import PenstockError
from penstock.train.nets import TextCnn, TextRnn
from penstock.train.nets.sequences import Recurrent, Windows

NETS: list[nn.Module] = [
    TextCnn(30, 3, width=8, filters=6),
    TextRnn(30, 3, "lstm", 8, layers=2),
    TextRnn(30, 3, "gru", 8, bidirectional=False),
    TextRnn(30, 3, "gru", 8, layers=3),
]
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU}
texts = st.lists(st.lists(st.integers(1, 29), min_size=1, max_size=9), min_size=1, max_size=5)


def padded(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])


@settings(deadline=None)
@given(texts, st.integers(0, 7))
def test_padding_changes_no_answer(rows: list[list[int]], more: int) -> None:
    longest = max(map(len, rows))
    for net in NETS:
        with torch.inference_mode():
            narrow, wide = (net.eval()(padded(rows, longest + extra)) for extra in (0, more))
            alone = torch.cat([net(torch.tensor([row])) for row in rows])
        torch.testing.assert_close(wide, narrow, rtol=0, atol=1e-6)
        torch.testing.assert_close(alone, narrow, rtol=0, atol=1e-6)


@pytest.mark.parametrize("net", NETS)
def test_a_text_without_tokens_has_one_answer_whatever_its_length(net: nn.Module) -> None:
    with torch.inference_mode():
        short, long = (net.eval()(torch.zeros(1, length, dtype=torch.int64)) for length in (1, 9))
    assert torch.isfinite(short).all()
    torch.testing.assert_close(long, short, rtol=0, atol=1e-6)


@pytest.mark.parametrize("net", NETS)
def test_the_last_token_and_the_order_of_tokens_matter(net: nn.Module) -> None:
    rows = padded([[3, 4, 5, 6], [3, 4, 5, 7], [6, 5, 4, 3]], 6)
    with torch.inference_mode():
        first, other, turned = net.eval()(rows)
    assert not torch.allclose(first, other, atol=1e-4)
    assert not torch.allclose(first, turned, atol=1e-4)


# --- Convolutions ----------------------------------------------------------------------------------------------------


def test_a_filter_answers_its_largest_window_of_the_row_alone() -> None:
    windows = Windows(1, (2,), 1)
    with torch.no_grad():
        windows.convolutions[0].weight.copy_(torch.tensor([[[1.0, 10.0]]]))  # type: ignore[operator,union-attr]
        windows.convolutions[0].bias.fill_(0.5)  # type: ignore[operator,union-attr]
    features = torch.tensor([[3.0, 1.0, 2.0, 90.0], [-1.0, -2.0, 90.0, 90.0]]).unsqueeze(2)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    # Windows of the first row: 3 + 10 and 1 + 20 and 2; all of the second's are negative.
    assert windows(features, mask).tolist() == [[21.5], [0.0]]


# --- Recurrent layers ------------------------------------------------------------------------------------------------


def of_torch(layers: Recurrent, cell: str, inside: int, bidirectional: bool) -> Any:
    """torch's own layers with the same weights."""
    theirs = KINDS[cell](inside, layers.state, len(layers.layers), batch_first=True, bidirectional=bidirectional)
    weights = {}
    for number, layer in enumerate(layers.layers):
        for side, end in (("onward", ""), ("back", "_reverse")):
            for name, value in layer.state_dict().items():
                if name.startswith(side):
                    weights[f"{name.removeprefix(side + '.').removesuffix('0')}{number}{end}"] = value
    theirs.load_state_dict(weights)
    return theirs


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_answer_is_that_of_torchs_own_layers_on_packed_rows(cell: str, layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    ours = Recurrent(cell, 5, 16, layers, bidirectional, dropout=0.0)
    theirs = of_torch(ours, cell, 5, bidirectional)
    lengths = torch.tensor([7, 1, 11, 4, 11, 2])
    features, mask = torch.randn(6, 11, 5), torch.arange(11) < lengths[:, None]
    with torch.inference_mode():
        packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
        ends = theirs(packed)[1]
        ends = ends[0] if cell == "lstm" else ends
        expected = torch.cat((ends[-2], ends[-1]), 1) if bidirectional else ends[-1]
        torch.testing.assert_close(ours(features, mask), expected, rtol=0, atol=1e-5)
    assert ours.width == expected.shape[1]


def test_a_cell_that_there_is_not_is_refused() -> None:
    with pytest.raises(PenstockError, match="cell is 'rnn'; it must be one of lstm, gru"):
        architecture.build(Architecture(target=f"{card.TRUSTED}:TextRnn", kwargs={"tokens": 9, "cell": "rnn"}))

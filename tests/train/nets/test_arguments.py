"""Networks' arguments: what is none is refused in words that name it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.train import nets

LISTS: list[Any] = ["ab", [True], [0], [1.5], 8, None]


@pytest.mark.parametrize("value", LISTS)
@pytest.mark.parametrize(
    ("net", "name", "others"),
    [
        (nets.ResidualNet, "widths", {}),
        (nets.RepVggNet, "widths", {}),
        (nets.Mlp, "widths", {"features": 4}),
        (nets.TextCnn, "kernels", {"tokens": 9}),
    ],
)
def test_a_list_of_sizes_is_one_of_whole_numbers(net: Any, name: str, others: dict[str, Any], value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*; it must be a list of whole numbers, at least 1 each"):
        net(**{name: value}, **others)


@pytest.mark.parametrize("net", [nets.ResidualNet, nets.RepVggNet])
def test_a_picture_s_network_has_a_width(net: Any) -> None:
    with pytest.raises(ValueError, match=r"^widths is \[\]; it must be a list"):
        net(widths=[])


@pytest.mark.parametrize("value", ["8", True, 0, -1, 2.0, [8]])
@pytest.mark.parametrize(
    ("net", "name", "others"),
    [
        (nets.ResidualNet, "classes", {}),
        (nets.RepVggNet, "channels", {}),
        (nets.Mlp, "features", {}),
        (nets.TextCnn, "filters", {"tokens": 9}),
        (nets.TextRnn, "layers", {"tokens": 9}),
        (nets.Bert, "width", {"config": {}}),
    ],
)
def test_a_size_is_a_whole_number(net: Any, name: str, others: dict[str, Any], value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*; it must be a whole number, at least 1$"):
        net(**{name: value}, **others)


@pytest.mark.parametrize("value", ["x", True, 1.5, -0.1])
@pytest.mark.parametrize("net", [nets.TextCnn, nets.TextRnn])
def test_dropout_is_a_share(net: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^dropout is .*; it must be a number from 0 to 1$"):
        net(tokens=9, dropout=value)

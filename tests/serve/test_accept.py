"""The Accept header: what a client wants most of what there is, whatever it sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.accept import best

JSON, BINARY, PNG = OFFERS = ("application/json", "application/octet-stream", "image/png")


@pytest.mark.parametrize(
    ("accepted", "wanted"),
    [
        ("", JSON),
        ("  ", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("image/*", PNG),
        ("image/png", PNG),
        ("IMAGE/PNG", PNG),
        ("application/octet-stream", BINARY),
        ("image/png, application/json", PNG),
        ("application/json, image/png", JSON),
        ("image/png;q=0.5, application/json;q=0.9", JSON),
        ("image/png;q=0.9, application/json;q=0.5", PNG),
        ("image/png, */*", PNG),
        ("*/*, image/png", PNG),
        ("*/*;q=0.1, image/png;q=0.2", PNG),
        ("application/json;q=0, */*", BINARY),
        ("application/json;q=0.0, application/*;q=0.3, */*;q=0.2", BINARY),
        ("text/html, application/xhtml+xml, image/webp, */*;q=0.8", JSON),
        ("application/json;charset=utf-8", JSON),
        ("application/json ; q=0.4 , image/png ; Q=0.5", PNG),
        ("nonsense, image/png", PNG),
        ("image/png;q=2, application/json;q=0.1", JSON),
        (",,image/png,", PNG),
    ],
)
def test_the_weightiest_offer_is_taken_and_the_more_precisely_named_of_equals(accepted: str, wanted: str) -> None:
    assert best(accepted, OFFERS) == wanted


@pytest.mark.parametrize(
    "accepted", ["text/html", "image/jpeg", "application/json;q=0", "*/*;q=0", "*/png", "json", "a/b;q=1.5", ","]
)
def test_what_takes_no_offer_gets_none(accepted: str) -> None:
    assert best(accepted, OFFERS) is None


weights = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


@given(st.dictionaries(st.sampled_from(OFFERS), weights, min_size=1), st.randoms())
def test_of_exact_names_one_of_the_greatest_weight_is_taken_whatever_the_order(
    held: dict[str, float], random: st.randoms
) -> None:
    named = [f"{offer};q={weight:.3f}" for offer, weight in held.items()]
    random.shuffle(named)
    taken = best(",".join(named), OFFERS)
    if max(held.values()) == 0:
        assert taken is None
    else:
        assert taken is not None
        assert held[taken] == max(held.values())


@given(st.text())
def test_any_text_gives_an_offer_or_none(accepted: str) -> None:
    assert best(accepted, OFFERS) in (*OFFERS, None)

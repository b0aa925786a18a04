"""Overrides: names, values, and where they go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.train import overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        (".5", 0.5),
        ("7", 7),
        ("1_000", 1000),
        ("true", True),
        ("True", True),
        ("None", None),
        ("[8, 16]", [8, 16]),
        ("(8, 16)", (8, 16)),
        ("{ a = 1 }", {"a": 1}),
        ('"7"', "7"),
        ("'a b'", "a b"),
        ("photos/", "photos/"),
        ("best loss", "best loss"),
        ("cosine", "cosine"),
        ("2020-01-01", "2020-01-01"),
        ("12:30:00", "12:30:00"),
        ("1\nb = 2", "1\nb = 2"),
        ("[1, 2", "[1, 2"),
        ("{1, 2}", "{1, 2}"),
        ("b'7'", "b'7'"),
        ("9" * 5000, "9" * 5000),
        ("[" * 5000, "[" * 5000),
        ("", ""),
    ],
)
def test_a_value_is_toml_s_or_python_s_or_text(text: str, value: Any) -> None:
    found = overrides.value(text)
    assert (found, type(found)) == (value, type(value))


@given(st.text())
def test_any_text_has_a_value(text: str) -> None:
    overrides.value(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("lr=1", ("lr",)),
        ("optim.lr=1", ("optim", "lr")),
        (" optim . lr = 1", ("optim", "lr")),
        ('sweep.space."optim.lr"=1', ("sweep", "space", "optim.lr")),
        ("model.kwargs.0=1", ("model", "kwargs", "0")),
    ],
)
def test_a_name_is_a_path_by_toml_s_rules(text: str, path: tuple[str, ...]) -> None:
    found = overrides.parse(text)
    assert (found.path, found.value, found.text) == (path, 1, text)


@pytest.mark.parametrize("text", ["optim.lr", "=1", ".lr=1", "optim..lr=1", "a b=1", "[optim]\nlr=1", "lé=1"])
def test_what_is_no_name_and_value_is_refused(text: str) -> None:
    with pytest.raises(PenstockError) as caught:
        overrides.parse(text)
    assert str(caught.value).startswith(f"--set {text!r}: ")
    assert "as in --set optim.lr=3e-4" in str(caught.value)


def applied(content: dict[str, Any], *texts: str) -> dict[str, Any]:
    return overrides.apply(content, map(overrides.parse, texts))


def test_the_later_override_wins_and_the_content_itself_stays_as_it_was() -> None:
    content: dict[str, Any] = {"optim": {"lr": 1, "clip": 2}}
    assert applied(content, "optim.lr=3", "optim.lr=4", "keep.patience=5") == {
        "optim": {"lr": 4, "clip": 2},
        "keep": {"patience": 5},
    }
    assert content == {"optim": {"lr": 1, "clip": 2}}


def test_nothing_after_the_equals_sign_takes_a_field_out() -> None:
    assert applied({"a": 1, "optim": {"lr": 1}}, "optim.lr=", "a= ", "b=") == {"optim": {}}
    assert applied({"a": 1}, 'a=""') == {"a": ""}


def test_an_override_goes_through_sections_alone() -> None:
    with pytest.raises(
        PenstockError, match=r"^--set optim\.lr\.x=1: optim\.lr is 0\.5, which is set whole: --set optim\.lr=…$"
    ):
        applied({"optim": {"lr": 0.5}}, "optim.lr.x=1")
    with pytest.raises(PenstockError, match=r"mean is \[0\.3\], which is set whole"):
        applied({"mean": [0.3]}, "mean.0=1")


def test_a_name_that_is_very_long_or_deep_is_refused_at_once() -> None:
    with pytest.raises(PenstockError, match=r"--set 'a\.a\.a\..*…: a name has 1000 characters at most; .* 99,999"):
        overrides.parse("a." * 49_999 + "a=1")
    with pytest.raises(PenstockError, match="is no name of a field"):
        overrides.parse("a." * 100 + "a=1")
    deep = overrides.parse("dataset={" + "a." * 50_000 + "a=1}")
    assert isinstance(deep.value, str)  # no TOML, and no dataset either

"""Failures that cross between processes: the same there, or a RuntimeError, and never what cannot be written."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.preprocess import BadImage
from penstock.runtimes import InstanceDead, InstanceLost, RejectedInput
from penstock.serve.errors import RequestError
from penstock.serve.failures import described, raised
from penstock.signature import SignatureMismatch
from penstock.tables import BadTable


@pytest.mark.parametrize(
    "error",
    [
        *(RequestError("no \ud800", 413), BadImage("a"), BadTable("b"), SignatureMismatch("c"), PenstockError("d")),
        *(RejectedInput("e"), InstanceDead("f"), InstanceLost("g")),
    ],
)
def test_errors_are_the_same_on_both_sides(error: Exception) -> None:
    found = raised(orjson.loads(orjson.dumps(described(error))))
    assert type(found) is type(error)
    assert str(found) == str(error).replace("\ud800", "\\ud800")
    assert getattr(found, "status", 0) == getattr(error, "status", 0)


def test_any_other_is_a_runtime_error_that_names_it_and_its_traceback_stays(capsys: pytest.CaptureFixture[str]) -> None:
    found = raised(described(KeyError("x")))
    assert (type(found), str(found)) == (RuntimeError, "KeyError: 'x'")
    assert "KeyError" in capsys.readouterr().err


@given(st.text(st.characters(codec=None, categories=None)))
def test_whatever_it_quotes_can_be_written(text: str) -> None:
    orjson.dumps(described(PenstockError(text)))

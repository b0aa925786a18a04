"""What a client brings along to be let in."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.client.access import Access, access, header
from penstock.errors import PenstockError


def test_the_key_comes_from_a_file_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    assert access(None, None).headers == {}
    monkeypatch.setenv("PENSTOCK_API_KEY", "of-the-environment")
    assert access(None, None).headers == {"authorization": "Bearer of-the-environment"}
    file = tmp_path / "key"
    file.write_text("of-the-file\n")
    assert access(file, None).headers == {"authorization": "Bearer of-the-file"}


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "k\u00e9y", "k" * 513, "k\x00"])
def test_what_is_no_key_is_refused_and_not_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(PenstockError) as caught:
        access(file, None)
    assert str(caught.value) == f"--key-file {file}: must be one API key, up to 512 letters without a space"


def test_a_key_is_not_shown_with_what_holds_it() -> None:
    assert "secret" not in repr(Access("secret"))


def test_files_that_cannot_be_read_are_named_by_their_option(tmp_path: Path) -> None:
    none, text = tmp_path / "none", tmp_path / "text"
    text.write_text("no certificate")
    with pytest.raises(PenstockError, match=f"--key-file {none}: No such file"):
        access(none, None)
    with pytest.raises(PenstockError, match=f"--ca {none}: No such file"):
        _ = access(None, none).context
    with pytest.raises(PenstockError, match=f"--ca {text}: holds no certificates in PEM"):
        _ = access(None, text).context


def test_the_system_s_certificates_are_trusted_where_none_are_named() -> None:
    context = Access().context
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize("text", ["X: ünïcödé", "no colon", "X y: 1", "X: a\nb"])
def test_a_header_that_cannot_be_sent_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="must be NAME: VALUE in ASCII"):
        header(text)

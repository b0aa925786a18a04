"""Pictures seen before they are needed: heads, ends, and a full look where those do not tell."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.data import pictures
from penstock.preprocess import BadImage, decode_image


def encoded(kind: str) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, kind)
    return out.getvalue()


def refused(raw: bytes) -> str | None:
    """Why bytes cannot be decoded, or None."""
    try:
        decode_image(raw)
    except BadImage as error:
        return str(error)
    return None


KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_pictures_are_told_by_their_heads_and_ends(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(data: bytes) -> None:
        raise BadImage("it was decoded")

    (tmp_path / "a").write_bytes(encoded(kind))
    monkeypatch.setattr(pictures, "decode_image", never)
    assert pictures.faults({"a": tmp_path / "a"}) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_cut_off_anywhere_are_seen_as_decoding_sees_them(tmp_path: Path, kind: str) -> None:
    whole = encoded(kind)
    cuts = {str(length): whole[:length] for length in (0, 1, 5, 20, len(whole) // 2, len(whole) - 3, len(whole))}
    cuts["more"] = whole + bytes(100)
    for name, raw in cuts.items():
        (tmp_path / name).write_bytes(raw)
    faults = pictures.faults({name: tmp_path / name for name in cuts})
    assert faults == {name: reason for name, raw in cuts.items() if (reason := refused(raw)) is not None}
    assert {"0", "1", "5", "20", str(len(whole) // 2)} <= faults.keys()


def test_a_picture_of_too_many_pixels_is_named_by_its_head(tmp_path: Path) -> None:
    Image.new("1", (6000, 6000)).save(tmp_path / "a.png")
    assert "36000000 pixels; the limit is" in pictures.faults({"a": tmp_path / "a.png"})["a"]


def test_what_was_seen_is_kept_while_the_files_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.data.digests._SETTLED_S", -1e6)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    files = {name: tmp_path / name for name in ("good.png", "bad.png")}
    files["good.png"].write_bytes(encoded("PNG"))
    files["bad.png"].write_bytes(b"nothing")
    looked: list[Path] = []
    seen = pictures._fault
    monkeypatch.setattr(pictures, "_fault", lambda path, decoded: (looked.append(path), seen(path, decoded))[1])
    first = pictures.faults(files)
    assert list(first) == ["bad.png"]
    assert len(looked) == 2
    assert pictures.faults(files) == first
    assert len(looked) == 2
    files["bad.png"].write_bytes(encoded("JPEG"))
    assert pictures.faults(files) == {}
    assert len(looked) == 4

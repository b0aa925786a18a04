"""Features: kept once for all runs, and worked out all the same where the cache is no use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import datasets, textual
from penstock.data.samples import Samples
from penstock.train import features

TEXTS = ["the sea is blue", "a red house", "the house is by the sea"] * 4


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Samples:
    monkeypatch.setattr(features, "_FEW", 1)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return Samples(TEXTS, np.arange(len(TEXTS)) % 2, "text", ("a", "b"))


def check(samples: Samples) -> None:
    preprocess = textual.fit(TEXTS, 50, 1, 6)
    found, wanted = features.rows(samples, preprocess), datasets.rows(samples, preprocess)
    assert found.inputs.keys() == wanted.inputs.keys()
    assert all(np.array_equal(found.inputs[name], wanted.inputs[name]) for name in wanted.inputs)


def test_they_are_made_once(samples: Samples, tmp_path: Path) -> None:
    check(samples)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/features").glob("*.npy")}
    assert made
    check(samples)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/features").glob("*.npy")} == made


def test_a_cache_that_cannot_be_written_is_done_without(
    samples: Samples, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")
    check(samples)
    assert "features are not kept" in caplog.text


def test_features_that_were_cut_short_are_made_anew(samples: Samples, tmp_path: Path) -> None:
    check(samples)
    for path in (tmp_path / "cache/features").glob("*.npy"):
        path.write_bytes(path.read_bytes()[:100])
    check(samples)
    check(samples)
    assert all(path.stat().st_size > 100 for path in (tmp_path / "cache/features").glob("*.npy"))
    assert not list((tmp_path / "cache/features").glob(".*"))

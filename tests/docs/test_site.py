"""The site is whole, and asks nobody but its own host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a browser fetches unasked: not links, which a reader follows.
FETCHED = re.compile(
    r"""(?:<(?:script|img|iframe|source)\b[^>]*\bsrc=|<link\b(?![^>]*\brel="?canonical)[^>]*\bhref=|url\(|@import )"""
    r"""["']?((?:https?:)?//[^"')\s>]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a page that the navigation lacks, or a link or an anchor that leads nowhere, ends it."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    assert [str(path) for path in documents if not (site / path.with_suffix(".html")).is_file()] == []


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 20
    assert {found for page in pages for found in FETCHED.findall(page.read_text())} == set()


def test_the_look_for_what_is_fetched_finds_it() -> None:
    for fetched in (
        '<script src="https://cdn.example/a.js">',
        '<link href="//fonts.example/css" rel="stylesheet">',
        "src: url(https://fonts.example/a.woff2)",
    ):
        assert FETCHED.findall(fetched), fetched
    assert not FETCHED.findall('<a href="https://example.org">')


def test_search_knows_what_the_pages_say(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()
    assert "config.pbtxt" in index
    assert "proxy_request_buffering" in index

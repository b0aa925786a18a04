"""Reference pages are as the code is, and what is written by hand of errors speaks of errors that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs/reference/cli.md").read_text()
SENTENCES = (ROOT / "docs/reference/sentences.md").read_text()
ERRORS = (ROOT / "docs/errors.md").read_text()


def penstock_help(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", "NO_COLOR": "1"},
    )
    return ran.stdout


def test_the_reference_is_what_the_code_would_write_and_what_is_not_is_told() -> None:
    script = (
        "from docs.writers import __main__ as writers; stale = writers.main(check=True); "
        "writers.PAGES = {'cli.md': lambda: 'another'}; print(stale, writers.main(check=True))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    *told, statuses = ran.stdout.splitlines()
    assert statuses == "0 1", ran.stdout
    assert told == ["docs/reference/cli.md: not as the code has it now; run make reference, and commit what it writes"]


def test_what_help_lists_the_reference_has() -> None:
    for words in (("serve",), ("export",), ("keys", "add")):
        section = CLI.partition(f"## `penstock {' '.join(words)}`")[2].partition("\n## ")[0]
        listed = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", penstock_help(*words))) - {"--help", "--help-all"}
        assert len(listed) > 3
        assert {option for option in listed if option not in section} == set()


def test_ranges_and_defaults_are_told() -> None:
    (port,) = re.findall(r"^\| `--port` \|.*", CLI, re.MULTILINE)
    assert "0 to 65,535" in port
    assert "`8000`" in port


def test_what_the_page_of_errors_quotes_is_said() -> None:
    quoted = re.findall(r"^\*\*`+ ?(.+?) ?`+\*\*$", ERRORS, re.MULTILINE)
    said = set(re.findall(r"^- `+ ?(.+?) ?`+$", SENTENCES, re.MULTILINE))
    assert len(quoted) >= 30
    assert [text for text in quoted if text not in said] == []


def test_every_sentence_stands_below_what_it_means() -> None:
    families = SENTENCES.split("\n## ")[1:]
    assert len(families) > 30
    for family in families:
        assert re.search(r"^\*\*What to do\*\*: \S", family, re.MULTILINE), family[:60]
        assert "\n- `" in family, family[:60]


def test_every_status_that_a_server_answers_is_explained() -> None:
    codes = set(re.findall(r"^\| (\d{3}) \|", ERRORS, re.MULTILINE))
    sources = [path.read_text() for path in (ROOT / "serve").glob("*.py")]
    answered = {
        code
        for text in sources
        for code in re.findall(r"(?:RequestError|Refused|refuse|give_up)\(.*\b([45]\d\d)\b", text)
    }
    assert len(answered) > 8
    assert answered - codes == set()

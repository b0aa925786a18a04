"""The studies of a server under load, in small: what they hold a server to, it is held to here too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "bench" / "studies"


@pytest.mark.parametrize(
    ("study", "arguments", "part"),
    [
        ("reloads.py", ["--times", "5"], "5, 0 failed"),
        ("sigterm.py", ["--times", "1", "--connections", "16"], "0 failed, 0 wrong, 0 lost"),
    ],
)
def test_a_server_keeps_the_rules_of_a_study(study: str, arguments: list[str], part: str) -> None:
    pytest.importorskip("onnx")
    command = [sys.executable, str(STUDIES / study), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert part in found.stdout

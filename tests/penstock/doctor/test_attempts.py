"""Trials: one that crashes, hangs or talks nonsense is told in a sentence, and takes nothing along."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.doctor import attempts


def python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have the other process be a shell script."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))


@pytest.mark.parametrize("name", ["GPU", attempts.SERVING])
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo noise; echo 'ImportError: libcudnn.so.9' >&2; exit 1", "ImportError: libcudnn.so.9"),
        ("exit 3", "ends with 3 and says nothing"),
    ],
)
def test_what_ends_without_an_answer_says_its_last_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, script: str, why: str
) -> None:
    python(monkeypatch, tmp_path, script)
    assert attempts.attempt_all([name], 1)[name].error == why


@pytest.mark.parametrize("noise", ["bye", "5", '{"facts": 5}', '{"error": null}', "[]", ""])
def test_what_a_library_says_after_the_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noise: str
) -> None:
    python(monkeypatch, tmp_path, f"""echo '{{"facts": {{"version": "9"}}}}'; echo '{noise}'""")
    assert attempts.attempt_all(["GPU"], 1)["GPU"].facts == {"version": "9"}


def test_a_crash_is_told_by_its_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(monkeypatch, tmp_path, "ulimit -c 0; kill -SEGV $$")
    assert attempts.attempt_all(["GPU"], 1)["GPU"].error == "crashes (SIGSEGV)"


@pytest.mark.parametrize(
    ("name", "why"),
    [("GPU", "hangs: it was not done within 0.3 s"), (attempts.SERVING, "is not ready within 0.3 s")],
)
def test_what_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, why: str) -> None:
    python(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(attempts, "LIMIT_S", 0.3)
    assert attempts.attempt_all([name], 1)[name].error == why
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_server_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(monkeypatch, tmp_path, "echo 'ready at http://127.0.0.1:1  (POST /predict/identity)'; exec sleep 60")
    assert attempts.attempt_all([attempts.SERVING], 1)[attempts.SERVING].error.startswith(
        "is ready and does not answer: "
    )


def test_each_is_told_as_it_ends_and_found_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(monkeypatch, tmp_path, """for name; do :; done; echo "{\\"facts\\": {\\"name\\": \\"$name\\"}}\"""")
    ended: list[str] = []
    found = attempts.attempt_all(["GPU", "train", "bench"], 2, ended.append)
    assert {name: outcome.facts["name"] for name, outcome in found.items()} == {
        "GPU": "GPU",
        "train": "train",
        "bench": "bench",
    }
    assert sorted(ended) == ["GPU", "bench", "train"]


def test_a_module_that_is_missing_over_there_is_named() -> None:
    found = attempts.attempt_all(["TensorRT, tensorrt"], 1)["TensorRT, tensorrt"]
    assert found.error
    assert not found.facts


def test_a_server_is_tried_without_what_the_environment_tells_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_SERVE_KEYS", "PENSTOCK_SERVE_TLS_CERT"):
        monkeypatch.setenv(name, "/of/a/container")
    assert attempts.attempt_all([attempts.SERVING], 1)[attempts.SERVING].facts == {"answered": True}

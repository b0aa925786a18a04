"""Determinism: the same checkpoint gives the same float32 ONNX bytes in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pathlib import Path
from penstock.export import pipeline
request = pipeline.Request(Path(sys.argv[1]), output=Path(sys.argv[2]))
pipeline.export(request, lambda line: None)
"""


def test_the_same_checkpoint_gives_the_same_bytes_in_another_process(
    trained: Path, repository: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", CODE, str(trained), str(tmp_path / "elsewhere")]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    first, second = (
        folder / "digits-onnx-fp32" / "1" / "model.onnx" for folder in (repository, tmp_path / "elsewhere")
    )
    assert first.read_bytes() == second.read_bytes()

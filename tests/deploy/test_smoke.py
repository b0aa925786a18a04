"""deploy/smoke.py, tried on a server that is no image: it finds nothing wrong with a right one, and what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy/smoke.py"
SERVE = ("{python}", "-m", "penstock", "serve", "{{models}}", "--port", "{{port}}", "--grpc-port", "{{grpc_port}}")
# Ready, and nothing else.
FAKE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.send_error(404)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def smoke(repository: Path, *command: str) -> tuple[int, str]:
    words = [
        sys.executable,
        str(SCRIPT),
        str(repository),
        "--",
        *(word.format(python=sys.executable) for word in command),
    ]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=280)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_server_that_is_right_passes(repository: Path) -> None:
    status, told = smoke(repository, *SERVE)
    assert status == 0, told
    for name in ("digits-onnx-fp32", "digits-onnx-int8"):
        assert f"ok: {name} by tritonclient.http: at most 0.0e+00" in told
        assert f"ok: {name} by tritonclient.grpc: at most 0.0e+00" in told
        assert f"ok: {name}: an uploaded picture" in told
    assert "ok: SIGTERM: what had begun was answered, new clients were refused, and the exit status is 0" in told


def test_a_command_that_ends_is_told_with_its_status(repository: Path) -> None:
    status, told = smoke(repository, sys.executable, "-c", "import sys; sys.exit(3)")
    assert (status, "failed: the command ended with status 3" in told) == (1, True), told


def test_a_server_that_says_it_is_ready_and_answers_nothing_fails(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    status, told = smoke(repository, sys.executable, str(tmp_path / "fake.py"), "{{port}}")
    assert status == 1, told
    assert "ok: ready" in told
    assert "ok: digits" not in told

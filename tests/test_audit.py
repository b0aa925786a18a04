"""The audit: what a vulnerability service says fails it, and where there is none it does not say that all is well."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pip_audit")
ROOT = Path(__file__).parents[1]
FOUND = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2031-1"],
    "summary": "made up",
    "schema_version": "1.6.0",
    "affected": [
        {
            "package": {"name": "numpy", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999.1"}]}],
        }
    ],
}


class Service(http.server.ThreadingHTTPServer):
    """OSV's /v1/query: what is known of a package by its name and version."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.known: dict[str, list[dict[str, Any]]] = {}
        self.status = 200
        self.broken_for = ""
        self.asked: set[tuple[str, str]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/query"


class Answers(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = query["package"]["name"], query["version"]
        self.server.asked.add((name, version))
        found = self.server.known.get(name)
        body = json.dumps({"vulns": found} if found else {}).encode()
        self.send_response(500 if name == self.server.broken_for else self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def audit(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "audit.py", "--url", url, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)


def test_packages_without_a_vulnerability_pass_and_are_all_asked_for(service: Service) -> None:
    ran = audit(service.url)
    assert ran.returncode == 0, ran
    assert ran.stdout.endswith("0 vulnerabilities, 0 excepted\n")
    count = int(re.search(r"^installed: (\d+) packages audited", ran.stdout, re.MULTILINE)[1])  # type: ignore[index]
    assert count > 20
    assert ("numpy", metadata.version("numpy")) in service.asked
    assert ("numpy", "1.24") in service.asked


def test_a_vulnerability_fails_it_by_package_name_and_fix(service: Service, tmp_path: Path) -> None:
    service.known["numpy"] = [FOUND]
    ran = audit(service.url)
    assert ran.returncode == 1
    here = f"  numpy {metadata.version('numpy')}: CVE-2031-1, GHSA-aaaa-bbbb-cccc; fixed in 999.1\n"
    assert here in ran.stdout
    assert "  numpy 1.24: CVE-2031-1, GHSA-aaaa-bbbb-cccc; fixed in 999.1\n" in ran.stdout
    held = tmp_path / "exceptions.txt"
    held.write_text("# why not\nCVE-2031-1 numpy is not given anything of a stranger's\nCVE-2031-2 gone\n")
    excepted = audit(service.url, "--exceptions", str(held))
    assert excepted.returncode == 0
    assert "note: the exception CVE-2031-2 met nothing" in excepted.stdout
    held.write_text("CVE-2031-1\n")
    assert "line 1: CVE-2031-1 needs a reason" in audit(service.url, "--exceptions", str(held)).stderr


def test_where_no_service_is_reached_nothing_is_claimed() -> None:
    ran = audit("http://127.0.0.1:1/v1/query")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("not audited: http://127.0.0.1:1/v1/query cannot be reached (")
    assert "0 vulnerabilities" not in ran.stdout
    assert audit("http://127.0.0.1:1/v1/query", "--required").returncode == 2


def test_a_service_that_fails_is_none(service: Service) -> None:
    service.status = 503
    ran = audit(service.url)
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"not audited: {service.url} answers 503;")


def test_a_service_that_gives_out_on_the_way_is_no_audit(service: Service) -> None:
    service.broken_for = "numpy"
    ran = audit(service.url)
    assert ran.returncode == 1
    assert ran.stderr.startswith("not audited: pip-audit ended with 1: ")
    assert "vulnerabilities" not in ran.stdout


def test_every_exception_has_its_reason() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        import audit as audits
    finally:
        sys.path.remove(str(ROOT))
    audits.exceptions(audits.EXCEPTIONS)

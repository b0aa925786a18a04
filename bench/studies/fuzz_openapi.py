"""schemathesis against a server: `python fuzz_openapi.py SCHEMATHESIS SECONDS MODEL…`; pip installs schemathesis.

SCHEMATHESIS is its `st` command. Starts `penstock serve MODEL…` with every extension on, tries all that its OpenAPI
describes, right and wrong, and prints schemathesis' report, then how many requests ended with which status.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path

CHECKS = "not_a_server_error,content_type_conformance"


def main(schemathesis: str, seconds: str, models: list[str]) -> int:
    with tempfile.TemporaryDirectory() as home:
        extensions = ["--allow-shared-memory", "--trace-file", str(Path(home) / "traces.json")]
        command = [sys.executable, "-m", "penstock", "serve", *models, "--port", "0", *extensions]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            try:
                assert server.stdout is not None
                line = next((line for line in server.stdout if "http://" in line), "")
                url = next(word for word in line.split() if word.startswith("http://"))
                options = ["--max-time", seconds, "--phases", "examples,coverage,fuzzing", "--no-color"]
                fuzz = [schemathesis, "run", f"{url}/openapi.json", "-c", CHECKS, *options]
                ended = subprocess.run(fuzz, check=False, cwd=home).returncode  # noqa: S603
                with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: S310
                    text = answer.read().decode()
            finally:
                server.terminate()
    counts: Counter[str] = Counter()
    for code, number in re.findall(r'penstock_requests_total\{code="(\d+)".*\} ([\d.e+]+)', text):
        counts[code] += int(float(number))
    print("infer and predict requests by status:", ", ".join(f"{code}: {n}" for code, n in sorted(counts.items())))
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))

"""Known vulnerabilities among the packages that are installed, and among the oldest that penstock takes: `make audit`.

pip-audit asks OSV (osv.dev) for each package by name and version. Where OSV cannot be reached, nothing was audited:
that is said, and the exit code is 0, or 2 with --required. What is found ends it with 1. What is known and does not
apply stands in audit-exceptions.txt, an identifier and its reason on each line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from penstock.doctor import packages

URL = "https://api.osv.dev/v1/query"
EXCEPTIONS = Path(__file__).with_name("audit-exceptions.txt")
_TIMEOUT_S = 15


def main() -> int:
    """Audit, and print what was found; gives the exit code."""
    arguments = _arguments()
    known = exceptions(arguments.exceptions)
    if (why := unreachable(arguments.url)) is not None:
        print(f"not audited: {arguments.url} {why}; nothing is known of vulnerabilities")
        return 2 if arguments.required else 0
    with tempfile.TemporaryDirectory() as folder:
        oldest = Path(folder) / "oldest.txt"
        oldest.write_text("".join(f"{name}=={version}\n" for name, version in floors()))
        of_oldest = ["--requirement", str(oldest), "--no-deps", "--disable-pip"]
        asked = {"installed": ["--skip-editable", "--local"], "the oldest that pyproject.toml takes": of_oldest}
        found = {what: audited(words, arguments.url, Path(folder)) for what, words in asked.items()}
    return told(found, known)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=URL, help="a service that answers as OSV's /v1/query does")
    parser.add_argument("--exceptions", type=Path, default=EXCEPTIONS)
    parser.add_argument("--required", action="store_true", help="exit with 2 where nothing could be audited")
    return parser.parse_args()


def exceptions(path: Path) -> dict[str, str]:
    """Identifiers that are known and do not apply, with the reason of each."""
    held = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name, _, reason = line.strip().partition(" ")
        if name and not name.startswith("#"):
            if not reason.strip():
                sys.exit(f"{path.name}, line {number}: {name} needs a reason")
            held[name] = reason.strip()
    return held


def unreachable(url: str) -> str | None:
    """Why a vulnerability service cannot be asked, or None."""
    asked = json.dumps({"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "1.0"}).encode()
    try:
        with urlopen(Request(url, asked), timeout=_TIMEOUT_S) as answer:  # noqa: S310 (the user's own URL)
            json.loads(answer.read())
    except HTTPError as error:
        return f"answers {error.code}"
    except (URLError, OSError) as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
    except ValueError:
        return "answers no JSON"
    return None


def floors() -> list[tuple[str, str]]:
    """Each package that penstock asks for, with the oldest version that it takes."""
    return sorted(
        {
            (requirement.name, each.version)
            for requirement in packages.requirements() or ()
            for each in requirement.specifier
            if each.operator == ">="
        }
    )


def audited(words: list[str], url: str, folder: Path) -> list[dict[str, Any]]:
    """The packages that pip-audit has asked for, each with its vulnerabilities.

    Ends the process where pip-audit did not get through to the end: what it had by then is no audit.
    """
    command = [sys.executable, "-m", "pip_audit", *words, "--vulnerability-service", "osv", "--osv-url", url]
    command += ["--format", "json", "--progress-spinner", "off", "--cache-dir", str(folder / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        sys.exit(f"not audited: pip-audit ended with {done.returncode}: {last}")


def told(found: dict[str, list[dict[str, Any]]], known: dict[str, str]) -> int:
    """Print what was found, but for what is known not to apply; gives the exit code."""
    count, used = 0, set[str]()
    for what, dependencies in found.items():
        skipped = sum("skip_reason" in each for each in dependencies)
        print(f"{what}: {len(dependencies) - skipped} packages audited, {skipped} not (of no index)")
        for each in dependencies:
            for vulnerability in each.get("vulns", ()):
                names = {vulnerability["id"], *vulnerability.get("aliases", ())}
                if excepted := names & known.keys():
                    used |= excepted
                    continue
                count += 1
                fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
                print(f"  {each['name']} {each['version']}: {', '.join(sorted(names))}; fixed in {fixed}")
    for name in sorted(known.keys() - used):
        print(f"  note: the exception {name} met nothing")
    print(f"{count} vulnerabilities, {len(used)} excepted")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

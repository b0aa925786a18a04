"""`python -m docs.writers` writes the pages; with `--check` it says which are not as they would be, with status 1."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.writers import commands, environment, fields, routes, sentences

FOLDER = Path(__file__).parents[1] / "reference"
PAGES = {
    "cli.md": commands.page,
    "recipes.md": fields.recipes,
    "receipts.md": fields.receipts,
    "environment.md": environment.page,
    "routes.md": routes.page,
    "sentences.md": sentences.page,
}


def main(check: bool) -> int:
    """Write all pages, or compare them; gives the exit status."""
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if not path.is_file() or path.read_text() != text:
            stale.append(f"docs/reference/{name}")
            if not check:
                path.write_text(text)
    if stale and check:
        print(f"{', '.join(stale)}: not as the code has it now; run make reference, and commit what it writes")
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))

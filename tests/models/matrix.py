"""Every model of the zoo in every format, through the command line: measured, and written as docs/models.md.

python tests/models/matrix.py --output docs/models.md
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zoo

ROOT = Path(__file__).parents[2]
LIMIT_S = 560.0
PACKAGES = ("penstock", "torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "onnxruntime")
_SHORT = 60


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (None: it ran past its time), the end of its stderr, seconds."""

    code: int | None
    said: str
    wall_s: float

    @property
    def error(self) -> str | None:
        """What penstock says is wrong, in its one sentence; None where it said nothing of the kind."""
        lines = [line for line in self.said.splitlines() if line.startswith("error: ")]
        return lines[-1].removeprefix("error: ") if self.code == 2 and lines else None


def main() -> None:
    """Run what was asked for, keep the results after each cell, and exit with 1 if a cell failed."""
    asked = _arguments()
    models = [model for model in zoo.MODELS if asked.only is None or model.name in asked.only]
    held = _read(asked.json) if asked.resume else {"models": {}, "cells": {}}
    held.update(machine=machine(), versions=versions(), date=datetime.date.today().isoformat())
    can_verify = run(["verify", "--help"]).code == 0
    for row, model in enumerate(models):
        columns = [column for column in asked.formats if _wanted(held, model, column)]
        if not columns:
            continue
        with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as folder:
            path = _checkpoint(model, Path(folder), held)
            for column in columns:
                cell = measure(model, column, path, can_verify)
                held["cells"].setdefault(model.name, {})[column] = cell
                _write(asked.json, json.dumps(held, indent=1))
                place = f"[{row * len(asked.formats) + asked.formats.index(column) + 1}"
                print(
                    f"{place}/{len(models) * len(asked.formats)}] {model.name}, {column}: {_line(cell)}",
                    file=sys.stderr,
                )
    _write(asked.output, render(models, asked.formats, held))
    failed = [
        f"{model.name}, {column}"
        for model in models
        for column in asked.formats
        if held["cells"][model.name][column]["state"] == "failed"
    ]
    print(
        f"{asked.output}: {len(models)} models in {len(asked.formats)} formats, {len(failed)} failed", file=sys.stderr
    )
    sys.exit(1 if failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [model.name for model in zoo.MODELS]
    parser.add_argument("--output", type=Path, required=True, help="the table, as Markdown")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--formats", nargs="+", choices=list(zoo.COLUMNS), default=list(zoo.COLUMNS), metavar="FORMAT")
    parser.add_argument("--json", type=Path, help="the figures; default: beside the table")
    parser.add_argument("--resume", action="store_true", help="leave out what the figures hold and did not fail")
    asked = parser.parse_args()
    asked.json = asked.json or asked.output.with_suffix(".json")
    return asked


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {"models": {}, "cells": {}}


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: a run may be interrupted here too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text if text.endswith("\n") else f"{text}\n")
    beside.replace(path)


def _wanted(held: dict[str, Any], model: zoo.Model, column: str) -> bool:
    cell = held["cells"].get(model.name, {}).get(column)
    return cell is None or cell["state"] == "failed"


def _checkpoint(model: zoo.Model, folder: Path, held: dict[str, Any]) -> Path:
    started = time.perf_counter()
    module = zoo.build(model)
    path = zoo.save(model, module, folder)
    held["models"][model.name] = {
        "parameters": zoo.parameters(module),
        "build_s": round(time.perf_counter() - started, 3),
    }
    return path


def measure(model: zoo.Model, column: str, path: Path, can_verify: bool) -> dict[str, Any]:
    """Export one model in one format in a process of its own.

    Returns:
        `state`: passed, refused (for the reason that the zoo states) or failed; `reason` unless it passed; `wall_s`,
        and of a published model `load_s`, `export_s`, `verify_s`, `rel_l2` and `limits` where its receipt has them.
    """
    words = zoo.COLUMNS[column][2]
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as folder:
        output = Path(folder) / "models"
        ended = run(["export", *words, *zoo.options(model), "--output", str(output), str(path)])
        published = sorted(output.glob("*/*/penstock.json"))
        cell = {"wall_s": round(ended.wall_s, 1)}
        stated = model.reasons.get(column)
        if ended.code != 0 or len(published) != 1:
            reason = _reason(ended, len(published))
            # A stated reason excuses an error that penstock tells in its own words, and only if nothing was published.
            meant = stated and ended.error is not None and not published and re.search(stated, ended.error)
            return {**cell, "state": "refused" if meant else "failed", "reason": _plain(reason, folder, path)}
        if stated is not None:
            print(f"note: {model.name} has {column}: the zoo's reason against it is stale", file=sys.stderr)
        receipt = json.loads(published[0].read_text())
        cell.update(figures(receipt))
        if not receipt.get("verification", {}).get("passed"):
            return {**cell, "state": "failed", "reason": "its receipt does not say that verification passed"}
        names = tuple(tensor["name"] for tensor in receipt["signature"]["outputs"])
        if names != model.outputs:
            return {**cell, "state": "failed", "reason": f"outputs {', '.join(names)}, not {', '.join(model.outputs)}"}
        if can_verify:
            again = run(["verify", str(published[0].parent)])
            if again.code != 0:
                return {**cell, "state": "failed", "reason": f"penstock verify: {_reason(again, 1)}"}
        return {**cell, "state": "passed"}


def run(words: list[str]) -> Ended:
    """Run penstock; what it started is ended with it when the time is up."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code, said = None, ""
    try:
        said = process.communicate(timeout=LIMIT_S)[1]
        code = process.returncode
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Ended(code, said[-20_000:], time.perf_counter() - started)


def figures(receipt: dict[str, Any]) -> dict[str, Any]:
    """The figures of a receipt; those that it lacks are left out."""
    build, verification = receipt.get("build", {}), receipt.get("verification", {})
    held = {name: build.get(name) for name in ("load_s", "export_s", "verify_s")}
    held["rel_l2"] = max((item["rel_l2"] for item in verification.get("distances", [])), default=None)
    held["limits"] = verification.get("limits")
    return {name: value for name, value in held.items() if value is not None}


def _reason(ended: Ended, published: int) -> str:
    if ended.error is not None:
        return ended.error
    if ended.code is None:
        return f"ran past {LIMIT_S:.0f} s"
    if ended.code == 0:
        return f"ended well and published {published} models"
    lines = [line.strip(" ╭╰╮╯│─^~") for line in ended.said.splitlines()]
    last = " ".join([line for line in lines if line][-2:])  # a usage error is folded into a box
    return f"exit code {ended.code}: {last[:300] or 'without a word'}"


def _plain(reason: str, folder: str, path: Path) -> str:
    """The reason without the variant's name, and without those of temporary folders, which differ from run to run."""
    for place in (path.parent, folder, ROOT):
        reason = reason.replace(f"{place}/", "")
    return " ".join(re.sub(r"^[\w.-]+-(torchscript|onnx|pt2)-fp32: ", "", reason).split())


def _line(cell: dict[str, Any]) -> str:
    if cell["state"] == "passed":
        return f"{_times(cell)}, {cell['wall_s']} s in all"
    return textwrap.shorten(f"{cell['state']}: {cell['reason']}", 160, placeholder=" …")


def render(models: list[zoo.Model], columns: list[str], held: dict[str, Any]) -> str:
    """The results as Markdown: what they were measured on, the table, the reasons as notes."""
    notes: list[str] = []
    rows = []
    for model in models:
        count = held["models"][model.name]["parameters"] / 1e6
        cells = [_cell(held["cells"][model.name][column], notes) for column in columns]
        rows.append([_label(model), f"{count:.3g}" if count >= 0.001 else "< 0.001", *cells])
    table = [["model", "parameters, M", *columns], ["---"] * (2 + len(columns)), *rows]
    about = held["machine"]
    passed = sum(held["cells"][model.name][column]["state"] == "passed" for model in models for column in columns)
    parts = [
        "# Models",
        "Which models penstock exports in which format. `tests/models/matrix.py` writes this page: it runs "
        "`penstock export` on every model of `tests/models/zoo.py` in every format, precision fp32.",
        f"{held['date']}, {about['cpu']}, {about['cores']} cores; Python {about['python']}, "
        + ", ".join(f"{name} {version}" for name, version in held["versions"].items())
        + f". {passed} of {len(models) * len(columns)} exported.",
        "A cell gives the seconds to load the checkpoint / to export it / to verify the export, then the largest "
        "relative L2 error of an output against the source in float32; or `no`, with the error's words. Weights are "
        "random, and BatchNorm statistics near those of what reaches them, as training leaves them. "
        f"{_nearest(models, columns, held)}",
        "\n".join(f"| {' | '.join(row)} |" for row in table),
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _nearest(models: list[zoo.Model], columns: list[str], held: dict[str, Any]) -> str:
    """How near the largest error of all came to its limit."""
    cells = [held["cells"][model.name][column] for model in models for column in columns]
    limits = [
        (cell["rel_l2"], min(item["max_error"] for item in cell["limits"].values()))
        for cell in cells
        if cell["state"] == "passed" and cell.get("limits")
    ]
    return f"No error is over {max(error / limit for error, limit in limits):.0%} of its limit." if limits else ""


def _label(model: zoo.Model) -> str:
    owner = "" if model.library == "nets" else f"{model.library}:"
    sizes = ", ".join(f"`{text}`" for text in model.inputs)
    return f"{owner}{model.name}<br>{sizes}"


def _cell(cell: dict[str, Any], notes: list[str]) -> str:
    if cell["state"] == "passed":
        return _times(cell)
    reason = cell["reason"].replace("|", "\\|").replace("<", "&lt;")
    if reason not in notes:
        notes.append(reason)
    word = "**FAILED**" if cell["state"] == "failed" else "no"
    return f"{word}: {_short(reason)} ({notes.index(reason) + 1})"


def _short(reason: str) -> str:
    """The first words of a reason, past those that many begin with."""
    told = re.sub(r"^.*?(tried \w+|cannot capture the model): ", "", reason)
    return textwrap.shorten(told, _SHORT, placeholder=" …")


def _times(cell: dict[str, Any]) -> str:
    error = f"{cell['rel_l2']:.0e}" if "rel_l2" in cell else "error not in the receipt"
    parts = [cell.get(name) for name in ("load_s", "export_s", "verify_s")]
    if all(part is None for part in parts):
        return f"{cell['wall_s']} s in all, {error}"
    return f"{' / '.join('–' if part is None else f'{part:.1f}' for part in parts)} s, {error}"


def machine() -> dict[str, Any]:
    """The processor's name, the cores that this process may use, and Python's version."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else None
    cpu = named[1].strip() if named else platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": zoo.cores(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    """The versions of what takes part, without those that are not installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started and written is taken away
    main()

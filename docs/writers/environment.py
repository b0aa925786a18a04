"""Environment variables: those that options are read from, and the others, each of which must be told here."""

from __future__ import annotations

import re
from pathlib import Path

from docs.writers import commands
from docs.writers.markdown import WRITTEN, code, table
from penstock import variables
from penstock.commands.environment import variable_names
from penstock.errors import PenstockError

ROOT = Path(__file__).resolve().parents[2]
_OWN = re.compile(r"\bPENSTOCK_[A-Z]+(?:_[A-Z]+)*\b")
_STAGES = ("penstock", "train", "export", "serve", "bench")
# What one process of penstock's tells another, what names of variables begin with, and what Kubernetes makes.
NOT_SET = {"PENSTOCK_PARENT", variables.SERVE, variables.HEALTH, "PENSTOCK_PORT", "PENSTOCK_SERVICE_HOST"}
# Of other software, read by penstock or by what it runs.
FOREIGN = {
    "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_TRACES_EXPORTER": (
        "Whether and where `serve` sends spans, unless `--otel` or `--no-otel` says; the rest of the `OTEL_*` "
        "variables are the SDK's. [Traces](../observability.md#traces)."
    ),
    "OTEL_SDK_DISABLED": "`true`: no spans.",
    "OMP_NUM_THREADS": (
        "Threads of PyTorch on a CPU, when a checkpoint is run or trained; each process of a sweep is given its share "
        "of them. Of runners, `--threads` says."
    ),
    "CUDA_VISIBLE_DEVICES": (
        "GPUs that there are, for everything; `cuda:0` is the first of them. A sweep gives each of its processes one."
    ),
    "ORT_DISABLE_TELEMETRY": "Set to 1 by penstock unless it is set: onnxruntime reports nothing.",
}


def page() -> str:
    """All variables."""
    options = [
        (code(variable), f"[{code(name)}](cli.md#{name.replace(' ', '-')}) {code(item.opts[0])}", item.help or "")
        for name, command in commands.every()
        for variable, item in variable_names(command).items()
    ]
    _check({row[0].strip("`") for row in options})
    parts = ["# Environment\n", WRITTEN]
    if options:
        parts.append("What an option is read from where it is not given:\n")
        parts.append(table(("variable", "instead of", "what"), options))
    parts.append("Beside options, where a word of a command line would not do:\n")
    parts.append(table(("variable", "what"), ((code(name), what) for name, what in variables.OTHERS.items())))
    parts.append("Of other software:\n")
    rows = ((", ".join(map(code, names.split(", "))), what) for names, what in FOREIGN.items())
    parts.append(table(("variable", "what"), rows))
    return "\n".join(parts)


def _check(told: set[str]) -> None:
    """Every variable of penstock's that its code names is told.

    Raises:
        PenstockError: one is not.
    """
    sources = [path for stage in _STAGES for path in (ROOT / stage).glob("**/*.py")]
    named = {name for path in sources for name in _OWN.findall(path.read_text())}
    if missing := named - told - set(variables.OTHERS) - NOT_SET:
        raise PenstockError(f"{', '.join(sorted(missing))}: say in docs/writers/environment.py what it is for")

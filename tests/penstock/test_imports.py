"""The rules of DESIGN section 2: who may import whom, and where heavy packages may be imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
STAGES = ("train", "export", "serve", "bench")
HEAVY = (
    "torch", "torchvision", "onnx", "onnxruntime", "onnxscript", "modelopt", "lightning", "tensorrt", "tensorrt_rtx",
    "tensorrt_rtx_bindings", "sklearn", "PIL", "fastapi", "timm", "transformers", "huggingface_hub", "safetensors",
    "onnxslim", "pyarrow", "tokenizers", "optuna", "matplotlib",
)  # fmt: skip
# The one place that calls every stage.
COMMANDS = ("penstock.commands.",)
# Modules (or whole stages, ending in a dot) that are about a package, and so may import it at module level.
AT_MODULE_LEVEL = {
    "torch": (
        "penstock.adapter",
        "penstock.architecture",
        "penstock.card",
        "penstock.checkpoint",
        "penstock.decoding",
        "penstock.modules",
        "penstock.pickles",
        "penstock.probe",
        "penstock.programs",
        "penstock.proof",
        "penstock.runtimes.torch",
        "penstock.state",
        "penstock.weights",
        "penstock.bench.source",
        "penstock.train.",
        "penstock.export.",
    ),
    "lightning": tuple(
        f"penstock.train.{name}"
        for name in ("board", "keeper", "learner", "loop", "pace", "ranks", "stopping", "trackers", "worker")
    ),
    "optuna": ("penstock.train.strategy", "penstock.train.study"),
    "matplotlib": ("penstock.train.plots", "penstock.train.sweepcharts"),
    "fastapi": ("penstock.serve.",),
}
# These run where torch is not installed: none of their code reaches for it, at any depth.
TORCH_FREE = (
    "penstock",
    "penstock.arrayfiles",
    "penstock.arrays",
    "penstock.artifact",
    "penstock.buckets",
    "penstock.cache",
    "penstock.client.",
    "penstock.commands",
    "penstock.commands.completion",
    "penstock.commands.data",
    "penstock.commands.doctoring",
    "penstock.commands.environment",
    "penstock.commands.server",
    "penstock.commands.serving",
    "penstock.commands.stages",
    "penstock.commands.terminal",
    "penstock.contexts",
    "penstock.data",
    "penstock.data.",
    "penstock.cuda",
    "penstock.doctor",
    *(
        f"penstock.doctor.{name}"
        for name in ("attempts", "findings", "formats", "packages", "report", "server", "surroundings", "tinymodel")
    ),
    "penstock.datasets",
    "penstock.engines",
    "penstock.errors",
    "penstock.events",
    "penstock.evaluation",
    "penstock.evidence",
    "penstock.fields",
    "penstock.figures",
    "penstock.locks",
    "penstock.files",
    "penstock.interpreter",
    "penstock.laid",
    "penstock.health",
    "penstock.irheader",
    "penstock.lanes",
    "penstock.launches",
    "penstock.leases",
    "penstock.machine",
    "penstock.messages",
    "penstock.onnxfile",
    "penstock.operators",
    "penstock.options",
    "penstock.ortvalues",
    "penstock.pages",
    "penstock.pages.",
    "penstock.parity",
    "penstock.predictions",
    "penstock.preprocess",
    "penstock.preprocessing",
    "penstock.progress",
    "penstock.protofields",
    "penstock.recordio",
    "penstock.recordparts",
    "penstock.rows",
    "penstock.receipt",
    "penstock.replay",
    "penstock.scores",
    "penstock.screen",
    "penstock.sheets",
    "penstock.signature",
    "penstock.spool",
    "penstock.summaries",
    "penstock.synthetic",
    "penstock.tables",
    "penstock.tabular",
    "penstock.textual",
    "penstock.timing",
    "penstock.parents",
    "penstock.trial",
    "penstock.variables",
    "penstock.tritonconfig",
    "penstock.runtimes",
    "penstock.runtimes.fake",
    "penstock.runtimes.onnxruntime",
    "penstock.runtimes.tensorrt",
    "penstock.serve.",
)
# What brings torch along when it is imported.
TORCH_BRINGERS = ("torch", "torchvision", "lightning", "modelopt", "timm", "transformers")


class Import(NamedTuple):
    """One imported module, where it stands, and whether it runs with the module itself."""

    target: str
    line: int
    top: bool


def sources() -> dict[str, Path]:
    """Every module of the product by dotted name; the stage folders lie at the root, under their links' names.

    bench/studies holds scripts, which are no part of the package and may import all of it.
    """
    found = {}
    for stage in STAGES:
        for path in (ROOT / stage).rglob("*.py"):
            if "studies" in path.relative_to(ROOT).parts:
                continue
            found[dotted("penstock", path.relative_to(ROOT))] = path
    for path in (ROOT / "penstock").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] not in STAGES:
            found[dotted("", path.relative_to(ROOT))] = path
    return found


def dotted(parent: str, path: Path) -> str:
    parts = [part for part in (parent, *path.with_suffix("").parts) if part]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[Import]:
    return list(_walk(ast.parse(path.read_text()), top=True))


def _walk(node: ast.AST, top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for statement in child.orelse:
                yield from _walk(statement, top)
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield Import(base, child.lineno, top)
            if not child.level:
                yield from (Import(f"{base}.{alias.name}", child.lineno, top) for alias in child.names)
        elif isinstance(child, ast.Call) and child.args and isinstance(child.args[0], ast.Constant):
            name = ast.unparse(child.func).rpartition(".")[2]
            if name in ("require", "import_module", "__import__", "import_stage"):
                yield Import(str(child.args[0].value), child.lineno, top)
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, top and not inner)


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(
        name == place or name + "." == place or (place[-1] == "." and name.startswith(place)) for place in places
    )


def stage_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "penstock" and parts[1] in STAGES else None


SOURCES = sources()
each_module = pytest.mark.parametrize("name", sorted(SOURCES))
each_module_but_commands = pytest.mark.parametrize(
    "name", sorted(name for name in SOURCES if not within(name, COMMANDS))
)


def test_the_modules_are_found() -> None:
    assert {"penstock", "penstock.cli", "penstock.signature", "penstock.runtimes.torch"} <= SOURCES.keys()
    assert {"penstock.inspection", "penstock.inspection.findings"} <= SOURCES.keys()
    assert {"penstock.commands", "penstock.commands.serving"} <= SOURCES.keys()
    assert {f"penstock.{stage}" for stage in STAGES} <= SOURCES.keys()
    assert "penstock.export.formats.onnx" in SOURCES


def test_every_kind_of_import_is_seen(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        "import torch\nfrom onnx import save\nfrom . import near\nif TYPE_CHECKING:\n    import PIL\n"
        "def f():\n    import sklearn.svm\n    require('modelopt.onnx', 'export', 'x')\n"
        "    import_stage('penstock.serve.model', 'serve').load()\n"
        "class C:\n    import fastapi\n"
    )
    assert {(item.target, item.top) for item in imports(code)} == {
        ("torch", True),
        ("onnx", True),
        ("onnx.save", True),
        (".", True),
        ("sklearn.svm", False),
        ("modelopt.onnx", False),
        ("penstock.serve.model", False),
        ("fastapi", True),
    }


@each_module
def test_code_imports_penstock_by_its_absolute_name(name: str) -> None:
    for item in imports(SOURCES[name]):
        assert not item.target.startswith("."), f"{name}:{item.line} imports relatively"
        assert item.target.split(".")[0] not in STAGES, f"{name}:{item.line} imports {item.target} past penstock"


@each_module_but_commands
def test_no_module_imports_a_stage_that_is_not_its_own(name: str) -> None:
    own = stage_of(name)
    for item in imports(SOURCES[name]):
        other = stage_of(item.target)
        assert other is None or other == own, f"{name}:{item.line} imports {item.target}"


@each_module_but_commands
def test_the_commands_are_no_way_round_to_a_stage(name: str) -> None:
    for item in imports(SOURCES[name]):
        assert name == "penstock.cli" or not within(item.target, COMMANDS), f"{name}:{item.line}: {item.target}"


@each_module
def test_heavy_packages_are_imported_at_module_level_only_where_they_are_needed(name: str) -> None:
    for item in imports(SOURCES[name]):
        package = item.target.split(".")[0]
        if item.top and package in HEAVY:
            assert within(name, AT_MODULE_LEVEL.get(package, ())), f"{name}:{item.line} imports {item.target}"


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if within(name, TORCH_FREE)))
def test_nothing_that_serves_reaches_for_torch_even_lazily(name: str) -> None:
    for item in imports(SOURCES[name]):
        package = item.target.split(".")[0]
        assert package not in TORCH_BRINGERS, f"{name}:{item.line} imports {item.target}"
        assert item.target not in SOURCES or within(item.target, TORCH_FREE), f"{name}:{item.line}: {item.target}"


def loaded_by(code: str) -> set[str]:
    """The heavy packages that are loaded in a fresh interpreter after `code`."""
    tail = f"import sys\nprint(*sorted({set(HEAVY)!r} & set(sys.modules)))\n"
    ran = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_an_onnx_artifact_runs_without_torch(repository: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from penstock import artifact, datasets, errors, evaluation, options, parity, preprocess, receipt, replay\n"
        "from penstock import signature, tritonconfig\n"
        "import penstock.serve\n"
        f"found = artifact.read(Path({str(repository / 'digits-onnx-fp32')!r}))\n"
        "with found.load() as runner:\n"
        "    (distance,) = replay.replay(found, runner)\n"
        "assert distance.rel_l2 < 1e-4, distance\n"
    )
    assert loaded_by(code) == {"onnxruntime"}


def test_importing_all_that_serves_loads_no_heavy_package_but_its_own() -> None:
    told = ("penstock.cli", *COMMANDS, "penstock.inspection", "penstock.inspection.", "penstock.zoo")
    names = sorted(name for name in SOURCES if within(name, (*TORCH_FREE, *told)))
    assert loaded_by("".join(f"import {name}\n" for name in names)) <= {"fastapi"}

"""Building an engine: the builder's process watched from here, its cache, and what it refuses said in words."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock import cache, cuda, engines, onnxfile, parents
from penstock.errors import PenstockError
from penstock.export.engine import remedies
from penstock.export.engine.recipe import LATER_FILE, Recipe, check
from penstock.signature import Signature
from penstock.trial import python_command

_KIND = "timing"
# The precisions that TensorRT 8 does not have.
NEW = ("bf16", "fp8")


def refuse_new(trt: Any, precision: str) -> None:
    """See that a TensorRT has a precision.

    Raises:
        PenstockError: it is too old.
    """
    if precision in NEW and not engines.strongly_typed(trt):
        raise PenstockError(f"--precision {precision}: TensorRT {trt.__version__} has none; 10.12 and later do")


def build(graph: Path, recipe: Recipe, plan: Path, work: Path, signature: Signature) -> dict[str, Any]:
    """Build an engine in a process of its own.

    Args:
        graph: a typed ONNX file.
        recipe: how to build it.
        plan: the file to write.
        work: a folder for the timing cache in between.
        signature: what the engine is to take and give.

    Returns:
        Facts for the receipt: tool, flavor, version, the GPU that the engine is tied to, the recipe, flags, seconds.

    Raises:
        PenstockError: no TensorRT here can build, it refuses the graph, dies of it, or takes longer than allowed.
    """
    for each in (graph, graph.with_name(LATER_FILE)):
        if each.is_file():
            onnxfile.examine(each)
    flavor, trt = engines.flavor_of(recipe.flavor, build=True)
    refuse_new(trt, recipe.precision)
    check(recipe, flavor)
    wished, recipe = recipe, recipe.model_copy(update={"flavor": flavor})
    gpu = cuda.facts() or {}
    # All that a tactic's time may hang on; TensorRT itself refuses a cache of another version or GPU.
    key = cache.key(flavor, trt.__version__, json.dumps(gpu, sort_keys=True))
    cached = work / "timing.cache"
    if (held := cache.read(_KIND, key)) is not None:
        cached.write_bytes(held)
    with _killed_in_time(graph, recipe, cached, plan) as process, _shown() as show:
        told: dict[str, Any] = {}
        for line in process.stdout or ():
            told = _read(line) or told
            show(told)
    name = f"TensorRT {'for RTX ' if flavor == 'tensorrt_rtx' else ''}{trt.__version__}"
    if "done" not in told:
        raise PenstockError(_failure(told, process, name, graph, recipe))
    if (wrong := remedies.of_contract(told["done"].pop("tensors"), signature)) is not None:
        raise PenstockError(f"{name} reads {graph.name} as another model: {wrong}")
    if cached.is_file():
        cache.write(_KIND, key, cached.read_bytes())
    # TensorRT's engines are tied to the GPU they were built on, TensorRT for RTX's to none.
    tied = gpu if flavor == "tensorrt" else {}
    return {
        "tool": f"{flavor} {trt.__version__}",
        "flavor": flavor,
        "version": trt.__version__,
        **tied,
        "recipe": wished.model_dump(mode="json", exclude_defaults=True),
        **told["done"],
    }


def hardware(facts: dict[str, Any]) -> str:
    """Where an engine with these build facts may run, in words."""
    if facts.get("deferred"):
        recipe = facts["recipe"]
        kind = " for RTX" if recipe.get("flavor") == "tensorrt_rtx" else ""
        least = " 10.12 or later" if recipe.get("precision") in NEW and not kind else ""
        gpu = " of compute capability 8.9 or later" if recipe.get("precision") == "fp8" else ""
        return f"an NVIDIA GPU{gpu} with TensorRT{kind}{least}, once penstock build has built the engine there"
    if facts["flavor"] == "tensorrt_rtx":
        low = (facts.get("recipe") or {}).get("precision") == "fp8"
        which = "8.9, 12.0 and later" if low else "8.0, 8.6, 8.9, 12.0 and later"
        return f"NVIDIA GPUs of compute capability {which}, with TensorRT for RTX {facts['version']}"
    compat, version = facts["recipe"].get("hardware_compat"), facts["version"]
    capability = f"compute capability {facts.get('compute_capability')}"
    kinds = {"ampere+": "NVIDIA GPUs of compute capability 8.0 and later", "same-cc": f"GPUs of {capability}"}
    own = f"{facts.get('gpu')} ({capability})"
    return f"{kinds.get(compat, own)}, with TensorRT {version}"


class _Builder(subprocess.Popen[str]):
    """The process; `late` once it was killed for the time it took, `errors` is what it wrote on stderr."""

    late = False
    errors = ""


@contextmanager
def _killed_in_time(graph: Path, recipe: Recipe, cached: Path, plan: Path) -> Iterator[_Builder]:
    """The builder's process, killed where it takes too long or the block is left early, as ^C does."""
    words = (str(graph), recipe.model_dump_json(), str(cached), str(plan))
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = _Builder(
            python_command("penstock.export.engine.builder", *words),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )

        def late() -> None:
            process.late = True
            process.kill()

        timer = threading.Timer(recipe.limit_s, late)
        timer.daemon = True
        timer.start()
        try:
            yield process
            process.wait()
            errors.seek(0)
            process.errors = errors.read()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _read(line: str) -> dict[str, Any] | None:
    """A line of the builder's; what libraries print in between is none."""
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


@contextmanager
def _shown() -> Iterator[Any]:
    """Show the builder's phases on stderr, where a person may be looking."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("building the engine", total=None)

        def show(told: dict[str, Any]) -> None:
            if "steps" in told:
                progress.update(task, description=str(told["phase"]), total=told["steps"], completed=0)
            elif "step" in told:
                progress.update(task, completed=told["step"] + 1)

        yield show


def _failure(told: dict[str, Any], process: _Builder, name: str, graph: Path, recipe: Recipe) -> str:
    """Why there is no engine, in a sentence."""
    code = process.returncode
    if process.late:
        limit = f"--build-limit {recipe.limit_s:g} s"
        return f"{name} did not build the engine within {limit}; give it more, or a lower --builder-level"
    refused = told.get("refused", {})
    if "errors" in refused:
        return f"{name} cannot read the graph: {remedies.of_errors(refused['errors'], graph)}"
    if "message" in refused:
        return f"{name} cannot build the engine: {remedies.of_message(refused['message'])}"
    if code < 0:
        last = (process.errors.strip().splitlines() or [""])[-1][:300]
        died = parents.signal_name(code)
        if died == "SIGKILL":
            return f"{name}'s process was killed, as it is where memory runs out; --batch gives it less to hold"
        if died in ("SIGTERM", "SIGINT", "SIGHUP"):
            return f"{name}'s process was ended by {died} from outside"
        return f"{name} dies of the graph ({died}{': ' + last if last else ''}); {remedies.ELSEWHERE}"
    last = (process.errors.strip().splitlines() or [f"exit code {code}"])[-1][:300]
    return f"{name} cannot build the engine: {last}"

"""The doctor: what this machine can do, tried rather than guessed, and what to install for what it cannot.

Nothing heavy is imported here: what may crash or hang does so in a process of its own. Where only penstock itself is
installed, all of it runs too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from penstock import cuda, engines, machine
from penstock.doctor import packages, surroundings
from penstock.doctor.attempts import SERVING, Outcome, attempt_all
from penstock.doctor.findings import Finding
from penstock.doctor.formats import formats
from penstock.progress import bar

# By how long they take, the longest first, so that none is left to be waited for alone.
_ORDER = ("train", "modelopt", "export", SERVING, "torch on the CPU", "torch on CUDA", "bench")
_AT_ONCE = 4
_UNTRIED = "there; not tried"


def examine(*, quick: bool = False) -> list[Finding]:
    """Look at this machine, and try what penstock needs of it.

    Args:
        quick: only look; nothing is run.
    """
    driver = cuda.driver()
    names = [] if quick else _to_try(driver is not None)
    with bar("trying", len(names)) as step:
        tried = attempt_all(names, max(1, min(_AT_ONCE, int(machine.cores()))), lambda _: step())
    ran = _runtimes(tried, driver, quick=quick)
    stages = [_stage(name, extra, tried, quick=quick) for name, extra in packages.STAGES.items()]
    made = tried["export"].facts.get("formats", {}) if "export" in tried else {}
    return [
        *surroundings.look(),
        _gpu(tried, driver, quick=quick),
        *ran,
        *([] if quick else formats(made, tried)),
        *stages,
        *(_extra(name, purpose) for name, purpose in packages.EXTRAS.items()),
    ]


def _to_try(has_driver: bool) -> list[str]:
    """The trials whose package is there; of the rest it is known that they fail."""
    onnx, torch = _has("onnxruntime"), _has("torch")
    wanted = {
        "train": torch and _has("lightning"),
        "modelopt": torch and _has("modelopt"),
        "export": torch and _has("onnx"),
        SERVING: _has("fastapi") and _has("uvicorn") and onnx,
        "torch on the CPU": torch,
        "torch on CUDA": torch and has_driver,
        "bench": _has("sklearn") and onnx,
        "onnxruntime on the CPU": onnx,
        "onnxruntime on CUDA": onnx and (has_driver or packages.version("onnxruntime-gpu") is not None),
        "GPU": packages.version("cuda-bindings") is not None,
        **{f"TensorRT, {flavor}": any(map(_has, modules)) for flavor, modules in engines.FLAVORS.items()},
    }
    named = [name for name, there in wanted.items() if there]
    return sorted(named, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _gpu(tried: dict[str, Outcome], driver: str | None, *, quick: bool) -> Finding:
    if driver is None:
        seen = any(Path("/dev").glob("nvidia[0-9]*"))
        why = "there is a GPU and no driver of NVIDIA's" if seen else "no driver of NVIDIA's: no GPU can be used"
        return Finding("machine", "GPU", False if seen else None, "none", why, _GPU_FIX if seen else "")
    found, outcome = f"driver {driver}", tried.get("GPU")
    if outcome is None:
        if quick:
            return Finding("machine", "GPU", None, found, "not tried")
        return Finding("machine", "GPU", False, found, "cuda-bindings is not installed", "pip install cuda-bindings")
    if outcome.error:
        old = "Insufficient" in outcome.error
        why = f"the driver is older than the CUDA that is installed: {outcome.error}" if old else outcome.error
        return Finding("machine", "GPU", False, found, why, _GPU_FIX)
    told = [f"{gpu['gpu']}, compute capability {gpu['compute_capability']}" for gpu in outcome.facts["gpus"] if gpu]
    return Finding("machine", "GPU", True, f"{'; '.join(told)}; {found}")


_GPU_FIX = "nvidia-smi    # in a container: docker run --gpus all; on the machine: install or update NVIDIA's driver"


def _runtimes(tried: dict[str, Outcome], driver: str | None, *, quick: bool) -> list[Finding]:
    gpu = driver is not None
    swap = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime"
    rivals = packages.rivals()
    found = [
        _runtime("onnxruntime on the CPU", ("onnxruntime", "onnxruntime-gpu"), tried, packages.install("serve"), quick),
        _runtime("onnxruntime on CUDA", ("onnxruntime-gpu",), tried, f"{swap}-gpu" if gpu else "", quick, gpu),
        _runtime("torch on the CPU", ("torch",), tried, packages.install("export"), quick),
        _runtime("torch on CUDA", ("torch",), tried, "pip install torch" if gpu else "", quick, gpu, absent=not gpu),
        _runtime("modelopt", ("nvidia-modelopt",), tried, packages.install("export"), quick),
        _runtime("TensorRT, tensorrt", ("tensorrt",), tried, "pip install tensorrt" if gpu else "", quick, gpu),
        _runtime(
            "TensorRT, tensorrt_rtx", ("tensorrt-rtx-cu13-bindings",), tried, packages.install("trt-rtx"), quick, False
        ),
    ]
    if rivals:
        why = (
            f"{' and '.join(rivals)} hide each other: the one that was installed last is found, and updates break both"
        )
        fix = f"{swap}-gpu" if gpu else swap
        found.insert(0, Finding("runtimes", "onnxruntime twice", False, "", why, fix))
    return found


def _runtime(
    name: str,
    names: tuple[str, ...],
    tried: dict[str, Outcome],
    fix: str,
    quick: bool,
    wanted: bool = True,
    *,
    absent: bool = False,
) -> Finding:
    """What became of a runtime's trial; one that is not `wanted` here is not missed either."""
    version = next((held for each in names if (held := packages.version(each)) is not None), None)
    outcome = tried.get(name)
    if outcome is None:
        if absent or version is None:
            why = "no GPU" if absent else "not installed"
            return Finding("runtimes", name, False if wanted else None, "", why, fix)
        return Finding("runtimes", name, None, version, "not tried" if quick else "no GPU")
    if outcome.error:
        again = fix if version is None else _again(fix)
        return Finding("runtimes", name, False if wanted else None, version or "", outcome.error, again)
    return Finding("runtimes", name, True, _told(outcome, version))


def _told(outcome: Outcome, version: str | None) -> str:
    facts = outcome.facts
    words = [f"{facts.get('version', version)}:"]
    if isinstance(facts.get("ran"), list):
        words += [", ".join(facts["ran"]), "ran and answered rightly,"]
    elif "built" in facts:
        words += ["built and ran an engine," if facts["ran"] else "built an engine, which a GPU is to run,"]
    else:
        words += ["imports,"]
    return f"{' '.join(words)} {outcome.seconds:.1f} s"


def _stage(name: str, extra: str, tried: dict[str, Outcome], *, quick: bool) -> Finding:
    lacks = packages.needed(extra)
    if lacks:
        return Finding("stages", name, False, "", str(lacks), packages.install(extra))
    outcome = tried.get(SERVING if name == "serve" else name)
    if outcome is None:
        if quick:
            return Finding("stages", name, True, _UNTRIED)
        return Finding("stages", name, False, "", "its packages are not installed", packages.install(extra))
    if outcome.error:
        install = packages.install(extra)
        return Finding("stages", name, False, "", outcome.error, install if outcome.missing else _again(install))
    did: dict[str, Callable[[], str]] = {"serve": lambda: "a server began, answered over HTTP, and ended"}
    told = did.get(name, lambda: "all that it needs is there, and imports")()
    return Finding("stages", name, True, f"{told}, {outcome.seconds:.1f} s")


def _again(install: str) -> str:
    """The command that installs anew what is there and does not work; one that removes something first does so."""
    return (
        install.replace("pip install ", "pip install --force-reinstall ", 1) if install.startswith("pip i") else install
    )


def _extra(name: str, purpose: str) -> Finding:
    if packages.requirements() is None:
        return Finding(
            "extras", name, None, purpose, "penstock itself is not installed here, and so not what this needs"
        )
    lacks = packages.needed(name)
    if lacks:
        return Finding("extras", name, False if lacks.old else None, purpose, str(lacks), packages.install(name))
    return Finding("extras", name, True, purpose)

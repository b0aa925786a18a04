"""Inspection of artifacts, repositories, engines and samples."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact
from penstock.arrayfiles import npy_header
from penstock.artifact import Artifact
from penstock.errors import PenstockError, require
from penstock.files import sha256
from penstock.inspection import precisions
from penstock.inspection.findings import (
    Inspection,
    called,
    command,
    contract_of,
    first_line,
    settings,
    sized,
    some,
    stated,
)
from penstock.inspection.onnx import read_model
from penstock.receipt import Calibration, Choice, Receipt, Verification
from penstock.signature import NAME, V2_DTYPES, Tensor


def of_artifact(path: Path) -> Inspection:
    found = artifact.read(path)
    receipt = found.receipt
    broken = _broken(found)
    reason = found.unavailable()
    fit = not broken and reason is None
    misnamed = _misnamed(path, receipt)
    numbers = artifact.versions(path)
    checked = receipt.verification
    kind = "real" if checked.real else "SYNTHETIC"
    told = "it answered" if checked.engine_run else "the graph that it was built from answered"
    contract = ", ".join(map(str, receipt.signature.inputs))
    return Inspection(
        path=path,
        kind="penstock artifact",
        bytes=sum(digest.bytes for digest in receipt.files.values()),
        facts=stated(
            {
                **_made(receipt, numbers),
                **contract_of(receipt),
                **_verified(receipt),
                **_planned(receipt),
                **_precisions(found),
                **_kept(found, broken, reason),
            }
        ),
        needs=tuple(filter(None, (*broken.values(), reason, misnamed))),
        promises=(
            *(() if broken else ("its files are those that the receipt was written for",)),
            f"{told} as its float32 source does, on {checked.samples} {kind} samples, within the limits above",
            f"every variant and version of the model takes {contract}",
        ),
        next=_go_on(path, receipt, misnamed=bool(misnamed)) if fit else _elsewhere(path, found, whole=not broken),
        details={**receipt.model_dump(mode="json", by_alias=True), "broken": broken, "unavailable": reason},
    )


def _elsewhere(path: Path, found: Artifact, *, whole: bool) -> tuple[str, ...]:
    """What to do with an artifact that does not run here: built ones are verified where they do."""
    again = artifact.rebuild_command(found, whole=whole)
    if not whole or found.receipt.build.get("deferred"):
        return (again,)
    verify = command("verify", path)
    return (verify, again) if found.receipt.format == "trt" else (verify,)


def _misnamed(path: Path, receipt: Receipt) -> str:
    """Why `penstock serve` refuses a folder that is not named as its receipt has it, and what renames it, if so."""
    if (name := artifact.name_of(path)) == receipt.name:
        return ""
    home, named = _home(path), _named(path, receipt)
    taken = "another beside it has that name, so move it to a folder of its own first"
    way = taken if named.exists() else shlex.join(["mv", "--", str(home), str(named)])
    return f"a folder named {receipt.name}, as its receipt has it: penstock serve refuses it as {name}; {way}"


def _home(path: Path) -> Path:
    """The folder that an artifact is served under, from here: its own, or the one above a version's."""
    home, here = path.resolve(), Path().resolve()
    home = home if home.name == artifact.name_of(path) else home.parent
    return home.relative_to(here) if not path.is_absolute() and home != here and home.is_relative_to(here) else home


def _named(path: Path, receipt: Receipt) -> Path:
    return _home(path).with_name(receipt.name)


def _go_on(path: Path, receipt: Receipt, *, misnamed: bool) -> tuple[str, ...]:
    against, said = Path(receipt.source.checkpoint), receipt.source.options
    named = [said[said.index(option) :][:2] for option in ("--model", "--data") if option in said]
    words = [word for pair in named if pair[1] != "random" for word in pair]
    more = (command("verify", path, "--against", against, *words),) if against.exists() else ()
    renamed = _named(path, receipt) if misnamed else path
    serve = () if misnamed and renamed.exists() else (command("serve", renamed),)
    return *serve, command("verify", path), *more, command("bench", path)


def _broken(found: Artifact) -> dict[str, str]:
    """What is wrong with each file that is not as the receipt has it."""
    broken = {}
    for name, digest in found.receipt.files.items():
        file = found.folder / name
        if not file.is_file():
            broken[name] = f"{file} is missing: export the model again"
        elif file.stat().st_size != digest.bytes or sha256(file) != digest.sha256:
            broken[name] = f"{file} has changed since its receipt was written: export the model again"
    return broken


def _made(receipt: Receipt, versions: Sequence[int]) -> dict[str, str]:
    """Where an artifact comes from."""
    source = receipt.source
    words = [
        f"{source.checkpoint} (sha256 {source.sha256[:12]}…), {called(source.architecture, source.arguments)}",
        f"{source.loaded} of {source.expected} tensors loaded",
        f"from {source.wrapper!r}{f' ({source.why})' if source.why else ''}" if source.wrapper else "",
        f"prefix {source.prefix!r} taken off" if source.prefix else "",
        f"{source.tied} tied to others" if source.tied else "",
        f"{source.outside} outside the prefix left out" if source.outside else "",
        f"LEFT AT THEIR INITIAL VALUE: {some(list(source.initial), 8)}" if source.initial else "",
    ]
    others = ", ".join(str(number) for number in versions if number != receipt.version)
    return {
        "name": receipt.name,
        "version": f"{receipt.version}{f' (others here: {others})' if others else ''}",
        "format": f"{receipt.format} {receipt.precision}, run by {receipt.runtime}",
        "created": receipt.created.isoformat(sep=" ", timespec="seconds"),
        "source": ", ".join(word for word in words if word),
        "code": f"sha256 {source.code[:12]}…" if source.code else "",
        "build": settings({name: fact for name, fact in receipt.build.items() if name != "recipe"}),
        "recipe": _recipe(receipt.build),
    }


def _recipe(build: Mapping[str, Any]) -> str:
    """An engine's recipe in words: each profile's least, usual and largest shapes."""
    recipe = build.get("recipe")
    if not isinstance(recipe, Mapping):
        return ""

    def shapes(profile: Mapping[str, Any]) -> str:
        each = (f"{name} {'/'.join('x'.join(map(str, shape)) for shape in ends)}" for name, ends in profile.items())
        return " ".join(each)

    profiles = [shapes(profile) for profile in recipe.get("profiles", ())]
    rest = [f"{key} {value}" for key, value in recipe.items() if key not in ("profiles", "precision")]
    return "; ".join([*(f"profile {text}" for text in profiles), *rest])


def _verified(receipt: Receipt) -> dict[str, str]:
    """The gate's figures, a line for each output."""
    checked = receipt.verification
    calibration = receipt.calibration
    engine = "; the graph alone was run, the engine not yet"
    emulated = "; a float32 graph that rounds as it does was run, its own kernels not yet"
    ran = "" if checked.engine_run else engine if receipt.runtime == "tensorrt" else emulated
    return {
        "verified": (
            f"{'passed' if checked.passed else 'FAILED'} on {checked.samples} "
            f"{'real' if checked.real else 'SYNTHETIC'} samples, batches {', '.join(map(str, checked.batches))}, by "
            f"{checked.runtime}{ran}"
        ),
        "figures": "\n".join(_figures(checked)),
        "calibration": (_calibrated(calibration) if calibration is not None else ""),
    }


def _calibrated(calibration: Calibration) -> str:
    if not calibration.samples:
        return f"{calibration.method}: scales are measured in each run"
    kind = "samples" if calibration.real else "RANDOM samples"
    return f"{calibration.method}, {calibration.samples} {kind}, sha256 {calibration.digest[:12]}…"


def _planned(receipt: Receipt) -> dict[str, str]:
    """What a budget left in float32."""
    plan, kept = receipt.plan, receipt.verification.accuracy
    lost = None if kept is None else f"{kept.source:.2%} -> {kept.export:.2%} on {kept.samples} labelled samples"
    chosen = {} if receipt.choice is None else {"chosen": _chosen(receipt.choice)}
    if plan is None:
        return chosen
    nodes = f"{len(plan.kept)} nodes ({some(list(plan.kept), 6)})" if plan.kept else "no node"
    return {
        **chosen,
        "kept in float32": f"{nodes}; {plan.lowered_operations:.0%} of multiply-adds are lowered",
        "accuracy": lost or "",
    }


def _chosen(choice: Choice) -> str:
    timed = [f"{item.name} {1e3 * item.median_s:.3f} ms" for item in choice.candidates if item.median_s is not None]
    return f"{choice.reason}; at batch {choice.batch} on {choice.device}: {', '.join(timed)}"


def graph_of(found: Artifact) -> Any | None:
    """The ONNX graph of an artifact, which an engine has beside it; None where there is none, or no onnx package."""
    beside = found.receipt.build.get("graph", "model.onnx")
    if beside not in found.receipt.files:
        beside = "model.onnx"
    file = found.model_path if found.model_path.suffix == ".onnx" else found.folder / beside
    try:
        return read_model(require("onnx", "export", "reading the graph"), file).graph if file.is_file() else None
    except PenstockError:
        return None


def _precisions(found: Artifact) -> dict[str, str]:
    graph = graph_of(found)
    return {} if graph is None else {"precision map": precisions.summary(graph)}


def _figures(checked: Verification) -> Iterator[str]:
    for item in checked.distances:
        limits, noise = checked.limits.get(item.output), checked.noise.get(item.output)
        error = f" (limit {limits.max_error:.1e})" if limits else ""
        least = f" (limit {limits.min_agreement:.2%})" if limits else ""
        agreement = "" if item.agreement is None else f", top-1 agreement {item.agreement:.2%}{least}"
        own = "" if noise is None else f", the source's own error {noise:.1e} by {checked.noise_by}"
        yield (
            f"{item.output}: relative L2 error {item.rel_l2:.1e}{error}, largest absolute {item.max_abs:.1e}, cosine "
            f"{item.cosine:.7f}{agreement}{own}"
        )


def _kept(found: Artifact, broken: Mapping[str, str], reason: str | None) -> dict[str, str]:
    """An artifact's files, and where it runs."""
    files = found.receipt.files.items()
    listed = [
        f"{n}: {sized(d.bytes)}, {'NOT as in the receipt' if n in broken else 'as in the receipt'}" for n, d in files
    ]
    here = "can run it" if reason is None else "cannot run it"
    return {"files": "\n".join(listed), "hardware": found.receipt.hardware, "this machine": here}


def of_repository(folder: Path, models: Sequence[Path]) -> Inspection:
    """A line for each model."""
    facts, needs, names, total = {}, [], [], 0
    for model in models:
        try:
            found = artifact.read(model)
        except PenstockError as error:
            facts[model.name] = "DAMAGED"
            needs.append(str(error))
            continue
        receipt = found.receipt
        total += sum(digest.bytes for digest in receipt.files.values())
        worst = max(item.rel_l2 for item in receipt.verification.distances)
        reason = found.unavailable()
        facts[model.name] = (
            f"version {receipt.version}, {receipt.format} {receipt.precision} by {receipt.runtime}, {found.size}, "
            f"relative error {worst:.1e}, {'runs here' if reason is None else 'does not run here'}"
        )
        troubles = [trouble for trouble in (reason, _misnamed(model, receipt)) if trouble]
        needs += [f"{model.name}: {trouble}" for trouble in troubles]
        names += [] if troubles else [model]
    return Inspection(
        path=folder,
        kind=f"model repository of {len(models)}",
        bytes=total,
        facts=facts,
        needs=tuple(needs),
        next=(
            *((command("serve", *names), command("bench", *names)) if names else ()),
            command("inspect", models[0]),
        ),
        details={"models": [str(model) for model in models]},
    )


# The first bytes of engines, and whose they are; a version of four numbers stands at byte 24, as trtexec
# --getPlanVersionOnly reads it.
ENGINES = {b"ftrt": "TensorRT", b"vtrt": "TensorRT for RTX"}


def of_engine(path: Path, start: bytes) -> Inspection:
    """An engine, which says little of itself."""
    maker = ENGINES.get(start[:4])
    version = f"{maker} {'.'.join(map(str, start[24:28]))}" if maker and len(start) >= 28 else ""
    return Inspection(
        path=path,
        kind="TensorRT engine",
        bytes=path.stat().st_size,
        facts=stated({"by its header": version}),
        needs=(
            "the TensorRT and the kind of GPU that it was built for, which only its receipt (penstock.json) tells",
            "a receipt: penstock serve takes the artifact's folder, never a bare engine",
        ),
        next=(command("export", "--format", "trt", "CHECKPOINT"),),
        details={"header": start.hex()},
    )


def of_samples(path: Path) -> Inspection:
    """Named arrays: only their headers are read."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as file:
                    arrays[entry.removesuffix(".npy")] = _array_header(file)
    except Exception as error:  # zipfile, zlib and numpy have errors of many kinds for a damaged file
        raise PenstockError(f"{path}: damaged .npz file: {first_line(error)}") from None
    trouble = _no_samples(arrays)
    golden = all(re.match("(in|out)put:", name) for name in arrays)
    inputs = [word for name, (dtype, shape) in arrays.items() for word in _as_input(name, dtype, shape)]
    labelled = () if "labels" not in arrays else (command("eval", "--data", path, "models/NAME"),)
    usable = (*labelled, command("export", *inputs, "--data", path, "--model", "MODEL", "CHECKPOINT"))
    return Inspection(
        path=path,
        kind="golden samples of an artifact (.npz)" if golden else "samples (.npz)",
        bytes=path.stat().st_size,
        facts={name: f"{dtype} {list(shape)}" for name, (dtype, shape) in arrays.items()},
        needs=(trouble,) if trouble and not golden else (),
        promises=() if trouble or golden else ("may be given as --data to export, eval, bench and verify --against",),
        next=() if trouble or golden else usable,
        details={"arrays": arrays},
    )


def _array_header(file: Any) -> tuple[str, tuple[int, ...]]:
    shape, _, dtype = npy_header(file)
    return str(dtype), shape


def _no_samples(arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """Why these arrays are no rows that --data takes, or nothing."""
    for name, (dtype, shape) in arrays.items():
        if np.dtype(dtype).kind not in "biuf":
            return f"numbers in {name!r}: it holds {dtype}, which --data does not take"
        if not shape or not shape[0]:
            return f"rows in {name!r}: it holds none"
    if len(lengths := {shape[0] for _, shape in arrays.values()}) > 1:
        return f"one number of rows in all arrays: they have {', '.join(map(str, sorted(lengths)))}"
    return "" if arrays.keys() - {"labels"} else "an array for each input beside the labels"


def _as_input(name: str, dtype: str, shape: tuple[int, ...]) -> list[str]:
    if name == "labels" or dtype not in V2_DTYPES or not NAME.fullmatch(name) or not all(shape):
        return []
    return ["--input", str(Tensor(name=name, dtype=dtype, shape=("batch", *shape[1:])))]

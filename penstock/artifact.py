"""Artifacts: one exported model as a version folder of a model repository, with its receipt.

models/digits-onnx-fp16/config.pbtxt       Triton's description of the model
models/digits-onnx-fp16/1/model.onnx       the model (model.pt, model.plan)
models/digits-onnx-fp16/1/golden.npz       real inputs, and the source model's outputs for them
models/digits-onnx-fp16/1/penstock.json    the receipt, which makes the folder an artifact
"""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import re
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import locks, runtimes, tritonconfig
from penstock.errors import PenstockError, Say
from penstock.files import nearby, sha256, writing
from penstock.receipt import SCHEMA, FileDigest, Receipt
from penstock.runtimes import Runner
from penstock.signature import Signature, first_message

RECEIPT, GOLDEN, CONFIG = "penstock.json", "golden.npz", "config.pbtxt"
# A receipt with many labels, a long plan and every distance is far from that.
_MOST_RECEIPT_BYTES, _LAST_VERSION = 64 * 2**20, 999_999_999
_MOST_TOLD = 8
_GOLDEN_BYTES = 1 << 30
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Artifact:
    """A receipt and the version folder that it lies in."""

    folder: Path
    receipt: Receipt

    @property
    def model_path(self) -> Path:
        return self.folder / self.receipt.model_file

    @property
    def size(self) -> str:
        """The size of the model file alone, for people."""
        count = self.receipt.files[self.receipt.model_file].bytes
        return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"

    def golden(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
        """The stored real inputs, and the source model's outputs for them, by name.

        Raises:
            PenstockError: the file is damaged, holds no rows, or unpacks to more than a golden sample ever does.
        """
        path = self.folder / GOLDEN
        try:
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > _GOLDEN_BYTES:
                raise PenstockError(f"{path}: unpacks to {unpacked} bytes; the limit is {_GOLDEN_BYTES}")
            with np.load(path, allow_pickle=False) as arrays:
                inputs = {t.name: arrays[f"input:{t.name}"] for t in self.receipt.signature.inputs}
                outputs = {t.name: arrays[f"output:{t.name}"] for t in self.receipt.signature.outputs}
        except PenstockError:
            raise
        except Exception as error:  # zip and zlib have errors of many kinds for a damaged file
            raise PenstockError(f"{path}: cannot be read: {error}") from None
        held = (*inputs.values(), *outputs.values())
        if any(not isinstance(array, np.ndarray) or array.ndim == 0 or len(array) == 0 for array in held):
            raise PenstockError(f"{path}: holds no rows")
        return inputs, outputs

    def check_digests(self) -> None:
        """See that the artifact passed the gate, and that every file is the one the receipt was written for.

        Raises:
            PenstockError: it did not, a file is missing, or its bytes have changed.
        """
        if not self.receipt.verification.passed:
            raise PenstockError(f"{self.folder}: by its receipt it did not pass the gate: export the model again")
        for name, digest in self.receipt.files.items():
            path = self.folder / name
            if not path.is_file():
                raise PenstockError(f"{path}: missing; the receipt lists it: export the model again")
            if path.stat().st_size != digest.bytes or sha256(path) != digest.sha256:
                raise PenstockError(
                    f"{path}: its bytes are not those that the receipt vouches for "
                    f"(sha256 {digest.sha256[:12]}…): export the model again"
                )

    def unavailable(self, device: str = "cpu") -> str | None:
        """Why this machine cannot run the artifact, with what to do about it, or None."""
        reason = runtimes.unavailable(self.receipt.runtime, self.receipt.build, device)
        if reason is None:
            return None
        if self.receipt.runtime != "tensorrt":
            return f"{reason}; it was made for {self.receipt.hardware}: copy it there, and penstock verify proves it"
        if self.receipt.build.get("deferred"):
            return f"{reason}; on the machine that is to run it: {rebuild_command(self)}"
        if self.receipt.build.get("flavor") == "tensorrt_rtx":
            return (
                f"{reason}; it was made for {self.receipt.hardware}: copy the folder to a machine that has one, and "
                f"run there: {verify_command(self)}; for another GPU, run there: {rebuild_command(self)}"
            )
        number = device.partition(":")[2]
        first = f"CUDA_VISIBLE_DEVICES={number} " if number not in ("", "0") else ""
        return (
            f"{reason}; it was made for {self.receipt.hardware}; to build it for another GPU, copy the folder to that "
            f"machine, and run there: {first}{rebuild_command(self)}"
        )

    def load(self, *, device: str = "cpu", threads: int | None = None, callers: int | None = None) -> Runner:
        """Preflight (digests, then compatibility), and only then hand the file to its runtime; arguments as there.

        Raises:
            PenstockError: a check fails, or the runtime refuses the file.
        """
        self.check_digests()
        reason = self.unavailable(device)
        if reason is not None:
            raise PenstockError(reason)
        receipt = self.receipt
        return runtimes.load(
            receipt.runtime,
            self.model_path,
            receipt.signature,
            device=device,
            threads=threads,
            callers=callers,
            careful=bool(receipt.build.get("careful")),
        )


def rebuild_command(found: Artifact, whole: bool = True) -> str:
    """The command that makes an artifact anew: an engine from the graph beside it, all else from its checkpoint."""
    receipt = found.receipt
    if whole and receipt.format == "trt" and "recipe" in receipt.build:
        return shlex.join(["penstock", "build", str(_home(found))])
    words = ["penstock", "export", "--format", receipt.format, "--precision", receipt.precision]
    return shlex.join([*words, *receipt.source.options, receipt.source.checkpoint])


def verify_command(found: Artifact) -> str:
    """The command that runs an artifact against what its source answered."""
    return shlex.join(["penstock", "verify", str(_home(found))])


def _home(found: Artifact) -> Path:
    """The model's folder, of which an artifact is a version."""
    return found.folder.parent if found.folder.name == str(found.receipt.version) else found.folder


def read(folder: Path) -> Artifact:
    """Read the artifact in a version folder, or the highest version of a model folder.

    Raises:
        PenstockError: there is none, or its receipt is damaged or of another schema.
    """
    if not folder.is_dir():
        if folder.is_file():
            raise PenstockError(f"{folder}: is a file, and an artifact is a folder; see penstock inspect {folder}")
        raise PenstockError(f"{folder}: no such folder{nearby(folder) or '; penstock export writes one'}")
    if not (folder / RECEIPT).is_file():
        numbers = versions(folder)
        if not numbers:
            raise PenstockError(
                f"{folder}: not an artifact: it holds neither {RECEIPT} nor a version folder such as 1/{_held(folder)}"
            )
        folder = folder / str(numbers[-1])
    path = folder / RECEIPT
    if path.exists() and not path.is_file():  # a pipe or a device would be read without end
        raise PenstockError(f"{path}: damaged receipt: it is no regular file")
    try:
        if path.stat().st_size > _MOST_RECEIPT_BYTES:
            raise PenstockError(f"{path}: damaged receipt: it is over {_MOST_RECEIPT_BYTES} bytes")
        content = json.loads(path.read_bytes())
        schema = content.get("schema") if isinstance(content, dict) else None
        if isinstance(schema, int) and schema != SCHEMA:
            raise PenstockError(f"{path}: receipt schema {schema}; this penstock reads {SCHEMA}")
        receipt = Receipt.model_validate(content)
    except FileNotFoundError:
        raise PenstockError(f"{path}: missing; the folder was not written by penstock export, or is damaged") from None
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # pydantic's and json's own errors are ValueErrors
        raise PenstockError(f"{path}: damaged receipt: {first_message(error)}") from None
    for name in (receipt.model_file, *receipt.files):
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise PenstockError(f"{path}: damaged receipt: file name {name!r} leaves the artifact's folder")
    for name in (receipt.model_file, GOLDEN):
        if name not in receipt.files:
            raise PenstockError(f"{path}: damaged receipt: {name!r} has no digest among its files")
    for tensor in receipt.signature.outputs:
        if tensor.name not in receipt.verification.limits:
            raise PenstockError(f"{path}: damaged receipt: output {tensor.name!r} has no limits")
    return Artifact(folder, receipt)


def _held(folder: Path) -> str:
    """Of a repository, its models."""
    models = sorted(str(child) for child in folder.iterdir() if not child.name.startswith(".") and _is_model(child))
    more = ", …" if len(models) > _MOST_TOLD else ""
    return f"; it is a repository, name one of its models: {', '.join(models[:_MOST_TOLD])}{more}" if models else ""


def versions(folder: Path) -> list[int]:
    """The version numbers of a model folder, in ascending order."""
    return sorted(int(p.name) for p in folder.iterdir() if re.fullmatch(r"[1-9][0-9]{0,8}", p.name) and p.is_dir())


def find(paths: list[Path], *, none_yet: bool = False) -> list[Path]:
    """The model folders and files under `paths`: each a repository, a model or version folder, or an .onnx file.

    Raises:
        PenstockError: a path is missing, or holds no model; with `none_yet` it may hold none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file() or _is_model(path):
            found.append(path)
            continue
        if not path.is_dir():
            raise PenstockError(f"{path}: no such file or folder{nearby(path) or '; penstock export writes models'}")
        models = sorted(child for child in path.iterdir() if not child.name.startswith(".") and _is_model(child))
        if not models and not none_yet:
            raise PenstockError(f"{path}: holds no models; make one with penstock export --output {path} CHECKPOINT")
        found.extend(models)
    return found


def name_of(path: Path) -> str:
    """The name that a model is served under: its file's, or that of its folder, or of the folder above a version's."""
    if path.is_file():
        return path.stem
    resolved = path.resolve()
    return resolved.parent.name if (resolved / RECEIPT).is_file() and resolved.name.isdigit() else resolved.name


def _is_model(path: Path) -> bool:
    try:
        return path.is_dir() and ((path / RECEIPT).is_file() or (path / CONFIG).is_file() or bool(versions(path)))
    except FileNotFoundError:  # it was taken away between two of these questions
        return False


def write_golden(folder: Path, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Write golden.npz: a few inputs, and the source model's outputs for them."""
    arrays = {f"input:{name}": array for name, array in inputs.items()}
    arrays.update({f"output:{name}": array for name, array in outputs.items()})
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    (folder / GOLDEN).write_bytes(buffer.getvalue())


def digests(folder: Path) -> dict[str, FileDigest]:
    """The digest of each file in a folder."""
    return {path.name: FileDigest(sha256=sha256(path), bytes=path.stat().st_size) for path in sorted(folder.iterdir())}


@contextmanager
def draft(output: Path, option: str = "--output") -> Iterator[Path]:
    """An empty folder inside `output` to build an artifact in; gone when the block is left, however it is left.

    Args:
        output: the model repository.
        option: what the user gave it with, for errors.

    Raises:
        PenstockError: `output` cannot be written to, or the disk is full.
    """
    with ExitStack() as stack, writing(option, output, "nothing was published"):
        output.mkdir(parents=True, exist_ok=True)
        _sweep(output)
        temporary = _locked(output, stack)
        try:
            temporary.chmod(0o755)
            folder = temporary / "1"
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _locked(output: Path, stack: ExitStack) -> Path:
    """A new folder for a draft, and a lock on it that says that somebody is at work, until the stack is left."""
    while True:
        temporary = Path(tempfile.mkdtemp(dir=output, prefix=f"{_draft_prefix()}{os.getpid()}-"))
        stack.enter_context(locks.held(temporary))
        if temporary.exists():  # else it was swept before it was locked
            return temporary


def _draft_prefix() -> str:
    return f".draft-{re.sub(r'[^A-Za-z0-9]+', '_', platform.node())}-"


def _sweep(output: Path) -> None:
    """Take away the drafts of exports on this machine that were killed before they could.

    A lock tells them from those of living ones: numbers of processes say nothing across containers.
    """
    for path in output.glob(f"{_draft_prefix()}*-*"):
        with suppress(OSError), locks.held(path, wait=False):
            shutil.rmtree(path, ignore_errors=True)


def publish(folder: Path, output: Path, receipt: Receipt, say: Say = lambda line: None) -> Artifact:
    """Give a finished draft its place, by one rename: a new model, or the next version of one that is there.

    Args:
        folder: the draft, without its receipt.
        output: the model repository.
        receipt: its version and time are set here.
        say: told where its labels are others than those of the version before it.

    Raises:
        PenstockError: the model there keeps another contract.
    """
    home, model = output / receipt.name, folder.parent
    config = tritonconfig.render(receipt.name, receipt.runtime, receipt.model_file, receipt.signature)
    foreign = {"pt2": "programs of torch.export", "tensorrt_rtx": "engines of TensorRT for RTX"}
    kind = foreign.get(receipt.build.get("flavor", receipt.format))
    if receipt.build.get("deferred"):
        config = f"# There is no engine yet: penstock build makes it, and another configuration.\n{config}"
    if kind is not None:
        config = f"# Triton has no backend for {kind}: penstock serve runs this one.\n{config}"
    (model / CONFIG).write_text(config)
    while True:
        version = check_contract(home, receipt.signature)
        receipt = receipt.model_copy(update={"version": version, "created": datetime.now(timezone.utc)})
        text = receipt.to_json()
        Receipt.model_validate_json(text)  # what cannot be read again is no receipt
        (folder / RECEIPT).write_text(text)
        _sync(model)
        try:
            if version == 1:
                model.rename(home)
            else:
                folder.rename(home / str(version))
                (model / CONFIG).replace(home / CONFIG)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and check_contract(home, receipt.signature) != version:
                continue  # another export took the number in between
            raise
        if (note := _relabelled(home, receipt)) is not None:
            say(note)
        return Artifact(home / str(version), receipt)


def _relabelled(home: Path, receipt: Receipt) -> str | None:
    """How a version's labels differ from those of the newest before it, which clients get until now; or None."""
    earlier = [number for number in versions(home) if number < receipt.version]
    try:
        held = read(home / str(earlier[-1])).receipt.labels if earlier else receipt.labels
    except PenstockError:  # nobody serves a damaged version
        return None
    for number, (old, new) in enumerate(zip_longest(held or (), receipt.labels or ())):
        if old != new:
            was, now = ("without a label" if label is None else repr(label) for label in (old, new))
            return (
                f"{receipt.name}: note: labels differ from version {earlier[-1]}'s, first of class {number}: it was "
                f"{was} and is {now} now; clients of penstock serve get the new ones as soon as it is served"
            )
    return None


def check_contract(home: Path, signature: Signature) -> int:
    """The number that the next version of a model would have.

    Args:
        home: the model's folder, which need not be there.
        signature: the new version's.

    Raises:
        PenstockError: the folder is no model's, or its newest version keeps another contract.
    """
    if not home.exists():
        return 1
    numbers = versions(home) if home.is_dir() else []
    if not numbers:
        raise PenstockError(f"{home}: exists and is not a model folder; choose another --name or --output")
    try:
        held = read(home / str(numbers[-1])).receipt.signature
    except PenstockError:
        return _after(home, numbers[-1])  # a damaged version keeps no contract
    if (held.inputs, held.outputs) != (signature.inputs, signature.outputs):
        raise PenstockError(
            f"{home}: version {numbers[-1]} takes {_text(held)}; the new one takes {_text(signature)}: "
            "versions of one model keep one contract, so choose another --name"
        )
    for name, dim in held.dims.items():
        if name != held.batch and not (signature.dims[name].min <= dim.min and dim.max <= signature.dims[name].max):
            raise PenstockError(
                f"{home}: version {numbers[-1]} takes {name!r} from {dim.min} to {dim.max}, and the new one from "
                f"{signature.dims[name].min} to {signature.dims[name].max}: versions of one model keep what clients "
                "may send, so widen the range (--dim) or choose another --name"
            )
    return _after(home, numbers[-1])


def _after(home: Path, version: int) -> int:
    if version >= _LAST_VERSION:
        raise PenstockError(f"{home / str(version)}: the last number that a version can have; move that folder away")
    return version + 1


def _text(signature: Signature) -> str:
    return f"{', '.join(map(str, signature.inputs))} -> {', '.join(map(str, signature.outputs))}"


def _sync(folder: Path) -> None:
    """Push a folder's files to the disk, so that the rename that publishes them cannot arrive first."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

"""From a file or an artifact to a runner of it, here or in a process of its own: what is to be opened, as data."""

from __future__ import annotations

import logging
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_serializer, field_validator

from penstock import artifact, runtimes, timing
from penstock.errors import PenstockError
from penstock.files import sha256
from penstock.machine import cpu_name
from penstock.replay import replay
from penstock.runtimes import Runner
from penstock.serve import rowwise, tuning
from penstock.signature import Signature, served

log = logging.getLogger(__name__)
# Runtimes that the number of threads means something to.
_THREADED = ("onnxruntime", "torch")
_USUAL_ROWS = 8


class Opening(BaseModel):
    """A model to be opened: an artifact's version folder, or a bare .onnx file.

    `threads` are of each runner; where none are given, as many of `most_threads` as are measured to be best. `callers`
    are in it at once where its runtime takes several. Of a bare file: `careful` if onnxruntime is to leave out what it
    may die of, and the signature once it has been read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: Path
    device: str = "cpu"
    threads: int | None = None
    most_threads: int | None = None
    callers: int | None = None
    careful: bool = False
    signature: Signature | None = None

    @field_validator("signature", mode="before")
    @classmethod
    def _served(cls, given: Any) -> Any:
        """Tensors of text and of bfloat16 are of a class of their own, which JSON does not tell."""
        return served(given) if isinstance(given, dict) else given

    @field_serializer("signature")
    def _plain(self, signature: Signature | None) -> Any:
        return None if signature is None else signature.model_dump(mode="json")

    def open(self) -> tuple[Runner, Signature]:
        """The runner, which has answered as its receipt says, and the signature that it keeps.

        Raises:
            PenstockError: what is to be opened is damaged, cannot run here, or does not answer as it should.
        """
        if self.threads is None and self.most_threads is not None and self.device == "cpu":
            return self.model_copy(update={"threads": self._tuned(self.most_threads)}).open()
        runner, signature = self._open_file() if self.path.is_file() else self._open_artifact()
        runner.threads = self.threads
        return runner, signature

    def _tuned(self, most: int) -> int:
        """The number of threads that is measured to be best; all, where nothing can be measured."""
        if most == 1:
            return most
        try:
            if self.path.is_file():
                return self._tuned_file(most)
            found = artifact.read(self.path)
            receipt = found.receipt
            if receipt.runtime not in _THREADED:
                return most
            rows = receipt.signature.dims[receipt.signature.batch].opt if receipt.signature.batch else 1
            key = (receipt.name, receipt.files[receipt.model_file].sha256, *_machine(receipt.runtime))
            return tuning.threads(
                key, most, lambda count: found.load(threads=count), lambda: timing.feeds(found.golden()[0], rows)
            )
        except Exception as error:  # what is wrong with it shows where it is opened
            log.debug("%s: its threads are not measured: %s", self.path, error)
            return most

    def _tuned_file(self, most: int) -> int:
        from penstock.runtimes.onnxruntime import read_signature

        @cache
        def signature() -> Signature:
            return self.signature or read_signature(self.path, careful=self.careful)

        def load(count: int) -> Runner:
            return runtimes.load("onnxruntime", self.path, signature(), threads=count, careful=self.careful)

        def feed() -> dict[str, Any]:
            with load(1) as runner:
                for fed in filter(partial(_runs, runner), rowwise.drawn(signature(), _USUAL_ROWS)):
                    return fed
            raise PenstockError("it runs on no inputs that were drawn")

        return tuning.threads((self.path.stem, sha256(self.path), *_machine("onnxruntime")), most, load, feed)

    def _open_artifact(self) -> tuple[Runner, Signature]:
        found = artifact.read(self.path)
        runner = found.load(device=self.device, threads=self.threads, callers=self.callers)
        try:
            replay(found, runner)
        except BaseException:
            runner.close()
            raise
        return runner, found.receipt.signature

    def _open_file(self) -> tuple[Runner, Signature]:
        from penstock.runtimes.onnxruntime import read_signature

        signature = self.signature or read_signature(self.path, careful=self.careful)
        runner = runtimes.load(
            "onnxruntime", self.path, signature, device=self.device, threads=self.threads, careful=self.careful
        )
        # Nobody vouches for a bare file: whether its rows are independent is tried.
        if self.signature is None and signature.batch is not None and not rowwise.independent(runner, signature):
            signature = rowwise.unbatched(signature)
        return runner, signature


def _machine(runtime: str) -> tuple[str, str]:
    """What the best number of threads depends on beside the model."""
    return cpu_name(), f"{runtime} {import_module(runtime).__version__}"


def _runs(runner: Runner, feeds: dict[str, Any]) -> bool:
    try:
        runner.run(feeds)
    except Exception:  # whatever a runtime raises for inputs that do not suit
        return False
    return True

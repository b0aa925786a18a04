"""From a file or an artifact to a runner of it, here or in a process of its own: what is to be opened, as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_serializer, field_validator

from penstock import artifact, runtimes
from penstock.replay import replay
from penstock.runtimes import Runner
from penstock.serve import rowwise
from penstock.signature import V2_DTYPES, ServedTensor, Signature, Tensor


class Opening(BaseModel):
    """A model to be opened: an artifact's version folder, or a bare .onnx file.

    `threads` are of each runner, `callers` are in it at once where its runtime takes several. Of a bare file:
    `careful` if onnxruntime is to leave out what it may die of, and the signature once it has been read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: Path
    device: str = "cpu"
    threads: int | None = None
    callers: int | None = None
    careful: bool = False
    signature: Signature | None = None

    @field_validator("signature", mode="before")
    @classmethod
    def _served(cls, given: Any) -> Any:
        """Tensors of text and of bfloat16 are of a class of their own, which JSON does not tell."""
        if not isinstance(given, dict):
            return given
        return {**given, **{group: [_tensor(tensor) for tensor in given[group]] for group in ("inputs", "outputs")}}

    @field_serializer("signature")
    def _plain(self, signature: Signature | None) -> Any:
        return None if signature is None else signature.model_dump(mode="json")

    def open(self) -> tuple[Runner, Signature]:
        """The runner, which has answered as its receipt says, and the signature that it keeps.

        Raises:
            PenstockError: what is to be opened is damaged, cannot run here, or does not answer as it should.
        """
        return self._open_file() if self.path.is_file() else self._open_artifact()

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


def _tensor(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return (Tensor if given.get("dtype") in V2_DTYPES else ServedTensor).model_validate(given)

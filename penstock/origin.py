"""Origins: the checkpoint that an artifact was made of, opened as it was then, by the words in its receipt."""

from __future__ import annotations

from pathlib import Path

from penstock import architecture, card, checkpoint, options
from penstock.artifact import Artifact
from penstock.checkpoint import Checkpoint, Override
from penstock.errors import PenstockError, Say
from penstock.files import sha256
from penstock.preprocess import ImagePreprocess
from penstock.receipt import Source
from penstock.signature import Signature
from penstock.state import Choice


def opened(
    found: Artifact, path: Path, say: Say, *, option: str, model: str | None = None, allow_pickle: bool = False
) -> Checkpoint:
    """A checkpoint, loaded as it was when the artifact was made of it.

    Args:
        found: the artifact.
        path: the checkpoint's.
        say: told what is found, a line at a time.
        option: by which the user gave the path.
        model: the architecture, where it is the user's own code: a receipt alone does not get it imported.
        allow_pickle: run the code that the checkpoint holds, whatever the receipt says of it.

    Raises:
        PenstockError: it does not load, or is of another contract.
    """
    source = found.receipt.source
    origin = checkpoint.load(path, override(source, model, allow_pickle), say)
    say(f"{path}: {origin.card.architecture.target}, {origin.proof}")
    if origin.sha256 != source.sha256:
        say(f"note: {path} is not the file that the artifact was made of ({source.checkpoint}); its answers decide")
    code = architecture.code(origin.card.architecture.target)
    if code is not None and source.code is not None and sha256(code) != source.code:
        say(f"note: {code} has changed since")
    ours, theirs, image = found.receipt.signature, origin.card.signature, found.receipt.preprocess
    if isinstance(image, ImagePreprocess) and image.dtype == "uint8":
        theirs = image.contract(theirs)
    if (ours.inputs, ours.outputs, ours.dims) != (theirs.inputs, theirs.outputs, theirs.dims):
        raise PenstockError(
            f"{option} {path}: {_text(theirs)}; the artifact takes {_text(ours)}: it is of another model"
        )
    return origin


def override(source: Source, model: str | None, allow_pickle: bool) -> Override:
    """What the user said when the artifact was made, from the receipt's words."""
    target = model or first(source, "--model")
    library = (target or "").partition(":")[0] in architecture.LIBRARIES
    if target is not None and model is None and not library and not card.trusted(target):
        raise PenstockError(
            f"the artifact was made of the architecture {target!r}, whose import would run its code; if you trust it, "
            f"give it yourself: --model {target}"
        )
    batch = first(source, "--batch")
    ema = True if "--ema" in source.options else False if "--no-ema" in source.options else None
    return Override(
        model=target,
        model_args=architecture.parse_arguments(_all(source, "--model-args")),
        inputs=options.inputs(_all(source, "--input"))[0],
        dims=options.size_ranges(_all(source, "--dim")),
        batch=None if batch is None else options.size_range(batch, "--batch"),
        ranges=options.value_ranges(_all(source, "--range")),
        keep=tuple(_all(source, "--keep")),
        allow_pickle=allow_pickle,
        choice=Choice(ema, first(source, "--key"), first(source, "--prefix"), tuple(_all(source, "--allow-partial"))),
    )


def _all(source: Source, option: str) -> list[str]:
    return [source.options[place + 1] for place, word in enumerate(source.options[:-1]) if word == option]


def first(source: Source, option: str) -> str | None:
    """What the user gave an option, the first time."""
    return next(iter(_all(source, option)), None)


def _text(signature: Signature) -> str:
    dims = ", ".join(f"{name} {dim.min} to {dim.max}" for name, dim in signature.dims.items())
    return f"{', '.join(map(str, signature.inputs))} -> {', '.join(map(str, signature.outputs))} ({dims})"

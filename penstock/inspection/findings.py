"""Findings: what an inspection tells, and the words it tells it in."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from penstock.errors import PenstockError, printable
from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.signature import Signature
from penstock.tabular import TablePreprocess

Text = Annotated[str, BeforeValidator(lambda text: printable(text) if isinstance(text, str) else text)]


class Inspection(BaseModel):
    """What was found out about a file or folder, in words.

    `bytes`: of the file, or of the files that make the model. `facts`: name -> text, of one line or several. `needs`:
    what it takes to use it, and what is wrong with it. `promises`: what is proven or recorded of it. `next`: commands,
    quoted for a shell, in which words in capitals are the reader's to fill in. `details`: the same in full, for JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: Path
    kind: Text
    bytes: int
    facts: dict[Text, Text] = {}
    needs: tuple[Text, ...] = ()
    promises: tuple[Text, ...] = ()
    next: tuple[Text, ...] = ()
    details: dict[str, Any] = {}


def contract_of(about: Any) -> dict[str, str]:
    """What a card or a receipt says of inputs, outputs and what they mean."""
    labels, task, dataset = about.labels, about.task, about.dataset
    return {
        **shapes_of(about.signature),
        "preprocessing": "" if about.preprocess is None else _reading(about.preprocess),
        "labels": "" if labels is None else labelled(labels),
        "task": task or "",
        "data set": "" if dataset is None else settings(dataset.model_dump()),
    }


def shapes_of(signature: Signature) -> dict[str, str]:
    return {
        "inputs": "\n".join(map(str, signature.inputs)),
        "outputs": "\n".join(map(str, signature.outputs)),
        "sizes": ", ".join(f"{n} from {dim.min} to {dim.max}, usually {dim.opt}" for n, dim in signature.dims.items()),
        "values": ", ".join(f"{name} from {held.low} to {held.high}" for name, held in signature.ranges.items()),
    }


def _reading(held: Preprocess) -> str:
    if isinstance(held, ImagePreprocess):
        return _looking(held)
    if isinstance(held, TablePreprocess):
        numbers = [column.name for column in held.columns if column.kind == "number"]
        named = [f"{column.name} ({len(column.categories)})" for column in held.columns if column.kind == "category"]
        parts = [f"numbers {some(numbers, 6)}"] if numbers else []
        parts += [f"categories {some(named, 6)}"] if named else []
        return f"table row of {'; '.join(parts)}, as {held.input}"
    mask = "" if held.mask is None else f", with {held.mask}"
    return f"text as its first {held.length} tokens, as {held.ids}{mask}"


def _looking(image: ImagePreprocess) -> str:
    size = f"{image.height} x {image.width}"
    way = f"shorter side to {image.resize_shorter}, {size} from the centre" if image.resize_shorter else f"to {size}"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (image.mean, image.std))
    where = ", which its own graph computes of the pixels" if image.dtype == "uint8" else ""
    return f"{image.mode} picture {way} ({image.resample}), less {mean}, by {std}{where}, as {image.input}"


def labelled(labels: Sequence[Any]) -> str:
    return f"{len(labels)}: {some([str(label) for label in labels], 6)}"


def called(target: str, arguments: Mapping[str, Any]) -> str:
    return f"{target}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def settings(values: Mapping[str, Any]) -> str:
    texts = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()]
    return some([text if len(text) <= 100 else f"{text[:100]}…" for text in texts], 16)


def some(texts: Sequence[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def stated(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that there is something to say of."""
    return {name: text for name, text in facts.items() if text}


def millions(number: int) -> str:
    return f"{number / 1e6:.2f} million" if number >= 1e5 else f"{number:,}"


def millions_of_each(numbers: Counter[str]) -> str:
    return ", ".join(f"{millions(number)} {kind}" for kind, number in numbers.most_common())


def sized(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def command(*words: str | Path) -> str:
    """A command of penstock's as a shell takes it; a path that would be an option gets its folder."""
    texts = [f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words]
    return shlex.join(["penstock", *texts])


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"{path}: damaged: {error}") from None
    if not isinstance(content, dict):
        raise PenstockError(f"{path}: holds a {type(content).__name__}; it must hold a mapping")
    return content


def first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]

"""Models by precisions for docs/precision.md: `python precision_table.py TRAINED DIGITS.pth OUTPUT [NAME …]`.

TRAINED is what mobilenet_data.py wrote, DIGITS.pth what `penstock train digits` did. Models with trained weights are
judged by their accuracy on pictures that nothing else has seen; the others have random weights, which cost the same and
round alike, and are judged by their error and agreement on real pictures and text. Prints Markdown.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock import artifact, timing
from penstock.timing import Cell

HERE = Path(__file__).parent
PRECISIONS, BATCHES, SECONDS = ("fp32", "fp16", "int8"), (1, 8), 2.0
TEXT = Path("/usr/share/common-licenses")
# The scores of random weights lie so near each other that the largest changes with any rounding.
RANDOM = ("--min-agreement", "0")


@dataclass(frozen=True)
class Model:
    """A model: what penstock is told of it, its samples, and labelled pictures to score it on."""

    name: str
    words: tuple[str, ...]
    checkpoint: Path
    data: Path | None = None
    test: Path | None = None


def pictures(trained: Path, output: Path) -> Path:
    """64 real pictures at 224 pixels."""
    with np.load(trained / "calibration.npz") as held:
        images = held["x"][:64].repeat(7, axis=2).repeat(7, axis=3)
    np.savez(output / "pictures.npz", image=images)
    return output / "pictures.npz"


def text(output: Path, name: str) -> Path:
    """64 pieces of 128 bytes of real text, as numbers."""
    raw = b"".join(file.read_bytes() for file in sorted(TEXT.iterdir()) if file.is_file() and not file.is_symlink())
    ids = np.frombuffer(raw[: 64 * 128], np.uint8).reshape(64, 128).astype(np.int64)
    np.savez(output / f"{name}.npz", **{name: ids})  # type: ignore[arg-type]
    return output / f"{name}.npz"


def models(trained: Path, digits: Path, output: Path) -> list[Model]:
    made = [Model("digits", (), digits)]
    small = ("--input", "x:float32[batch,3,32,32]", "--batch", "1,8,64")
    for name in ("mobilenet_v3_small", "Separable"):
        if (file := trained / f"{name}.pth").is_file():
            words: tuple[str, ...] = ("--model", f"{HERE / 'mobilenet_data.py'}:{name}", *small)
            made.append(Model(f"{name}, 32 pixels", words, file, trained / "calibration.npz", trained / "test.npz"))
    large = pictures(trained, output)
    torch.manual_seed(0)
    for target in (
        "torchvision:resnet18",
        "torchvision:resnet50",
        "torchvision:mobilenet_v2",
        "timm:convnext_atto",
        "timm:deit_tiny_patch16_224",
    ):
        file, name = output / f"{target.partition(':')[2]}.pth", target.partition(":")[2]
        torch.save(library(target).state_dict(), file)
        words = ("--model", target, "--batch", "1,8,16", *RANDOM)
        made.append(Model(name, words, file, large))
    for name, argument in (("Encoder", "ids"), ("Tagger", "ids")):
        file = output / f"{name}.pth"
        torch.save(getattr(nets(), name)().state_dict(), file)
        words = ("--model", f"{HERE / 'text_nets.py'}:{name}", "--input", f"{argument}:int64[batch,seq]")
        made.append(Model(name, (*words, "--dim", "seq=2,128,128", *RANDOM), file, text(output, argument)))
    return made


def library(target: str) -> Any:
    kind, _, name = target.partition(":")
    if kind == "timm":
        import timm

        return timm.create_model(name)
    import torchvision

    return getattr(torchvision.models, name)()


def nets() -> Any:
    sys.path.insert(0, str(HERE))
    return importlib.import_module("text_nets")


def penstock(*words: str | Path) -> str:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    print(f"$ penstock {' '.join(map(str, words))}\n{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
    return done.stdout


def rows(model: Model, output: Path) -> list[str]:
    data = ("--data", model.data) if model.data else ()
    where = ("--output", output / "models", "--name", model.checkpoint.stem)
    for precision in PRECISIONS:
        penstock("export", "--precision", precision, *model.words, *data, *where, model.checkpoint)
    found = [output / "models" / f"{model.checkpoint.stem}-onnx-{precision}" for precision in PRECISIONS]
    held = [artifact.read(folder) for folder in found if folder.is_dir()]
    cells = {(item.receipt.precision, batch): Cell(batch) for item in held for batch in BATCHES}
    runners = [(item, item.load()) for item in held]
    inputs, _ = held[0].golden()
    timing.measure(
        [
            (runner, timing.feeds(inputs, batch), cells[item.receipt.precision, batch])
            for item, runner in runners
            for batch in BATCHES
        ],
        SECONDS,
    )
    return [row(model, item, cells) for item in held]


def row(model: Model, item: Any, cells: dict[tuple[str, int], Cell]) -> str:
    receipt = item.receipt
    found = receipt.verification.distances
    agreed = [held.agreement for held in found if held.agreement is not None]
    score = penstock("eval", *(("--data", model.test) if model.test else ()), item.folder.parent)
    accuracy = score.partition(": ")[2].split(" ")[0] if "correct" in score else "-"
    plan, lowered = receipt.plan, receipt.build.get("lowered_nodes")
    kept = f"{len(plan.kept)} of {len(plan.kept) + lowered}" if plan else "-"
    speeds = []
    for batch in BATCHES:
        middle, low, high = cells[receipt.precision, batch].speedup(cells["fp32", batch])
        speeds.append("1" if receipt.precision == "fp32" else f"{middle:.2f} ({low:.2f} to {high:.2f})")
    method = receipt.calibration.method if receipt.calibration else "-"
    size = receipt.files[receipt.model_file].bytes / 1e6
    error = max(held.rel_l2 for held in found)
    texts = (
        *(model.name, receipt.precision, method, f"{size:.2f}", f"{error:.1e}"),
        *(f"{min(agreed):.2%}" if agreed else "-", accuracy, kept, *speeds),
    )
    return f"| {' | '.join(texts)} |"


def main(trained: Path, digits: Path, output: Path, *names: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    head = ("model", "precision", "scales", "MB", "relative error", "top-1 agreement", "accuracy", "kept in fp32")
    print(f"| {' | '.join((*head, *(f'speed, batch {batch}' for batch in BATCHES)))} |")
    print(f"|{' --- |' * (len(head) + len(BATCHES))}")
    wanted = [model for model in models(trained, digits, output) if not names or model.name in map(str, names)]
    for model in wanted:
        for line in rows(model, output):
            print(line, flush=True)
    (output / "done.json").write_text(json.dumps({"models": len(list((output / "models").iterdir()))}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

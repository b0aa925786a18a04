"""Engines that are built without a GPU, by TensorRT for RTX: `python rtx_engines.py OUTPUT`.

Exports several models in every precision through `penstock export --format trt --trt-flavor tensorrt-rtx`. Prints a row
for each: how long the builder took, the engine's size beside fp32's, what of the graph is lowered, and how far the
typed graph, run by onnxruntime, is from its source. Weights are random, but for the digits net, which it trains.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
import torchvision
import transformers

from penstock import artifact
from penstock.errors import PenstockError

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16", "fp8")


def models(output: Path) -> dict[str, list[str]]:
    """The words that export each model."""
    torch.manual_seed(0)
    subprocess.run(  # noqa: S603
        [sys.executable, "-m", "penstock", "train", "digits", "--output", str(output / "runs")], check=True
    )
    words = {"digits": [str(output / "runs/digits/best.pth")]}
    for name in ("resnet18", "mobilenet_v3_small"):
        path = output / f"{name}.pth"
        torch.save(torchvision.models.get_model(name).state_dict(), path)
        words[name] = ["--model", f"torchvision:{name}", "--batch", "1,8,32", "--data", "random", str(path)]
    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    )
    transformers.BertForSequenceClassification(config).eval().save_pretrained(output / "bert_mini")
    sizes = ["--batch", "1,8,32", "--dim", "seq=16,64,128", "--data", "random"]
    return {**words, "bert_mini": [*sizes, str(output / "bert_mini")]}


def main(output: Path) -> None:
    output.mkdir(exist_ok=True)
    for name, words in models(output).items():
        whole = None
        for precision in PRECISIONS:
            command = [
                "penstock",
                "export",
                "--format",
                "trt",
                "--trt-flavor",
                "tensorrt-rtx",
                "--precision",
                precision,
            ]
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", *command, "--name", name, "--output", str(output / "models"), *words],
                capture_output=True,
                text=True,
                check=False,
            )
            try:
                receipt = artifact.read(output / "models" / f"{name}-trt-{precision}").receipt
            except PenstockError:
                print(f"{name:20} {precision:10} refused: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            size = receipt.files[receipt.model_file].bytes
            whole = whole or size
            error = max(item.rel_l2 for item in receipt.verification.distances)
            print(
                f"{name:20} {precision:10} built in {receipt.build['seconds']:6.2f} s by {receipt.build['tool']}, "
                f"{size / 1e6:7.2f} MB, {size / whole:5.1%} of fp32, {receipt.build.get('lowered_nodes', 0):3} nodes "
                f"lowered of {receipt.build['layers']} layers, graph's relative error {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

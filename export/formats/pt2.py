"""torch.export's own program: the successor of TorchScript."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from penstock.decoding import before
from penstock.export import capture
from penstock.export.formats import Built, Options, Source
from penstock.export.quiet import quiet

PRECISIONS = ("fp32",)
MODEL_FILE = "model.pt2"


def export(source: Source, options: Options, folder: Path, work: Path) -> Built:
    """Write model.pt2.

    Raises:
        PenstockError: torch.export cannot capture the module.
    """
    program = source.program if source.image is None else _behind_pictures(source)
    with quiet(), _without_paths(program):
        torch.export.save(program, folder / MODEL_FILE)
    version = torch.__version__.split("+")[0]
    return Built(
        runtime="torch",
        model_file=MODEL_FILE,
        hardware=f"any machine with PyTorch {version}; later ones say whether they read it",
        build={"tool": f"torch {torch.__version__}"},
    )


def _behind_pictures(source: Source) -> Any:
    return capture.program(before(source.module, source.signature, source.image), source.contract)


@contextmanager
def _without_paths(program: Any) -> Iterator[None]:
    """While the block runs, a program does not say in which files of this machine its lines are."""
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    held = {node: node.meta.pop("stack_trace", None) for graph in graphs for node in graph.nodes}
    try:
        yield
    finally:
        for node, trace in held.items():
            if trace is not None:  # some nodes share what is known of them
                node.meta["stack_trace"] = trace

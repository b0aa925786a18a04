"""Judging: how far a lowered graph is off its source, and whether that is within the budget."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from penstock import evaluation, trial
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import last_line
from penstock.export import gate
from penstock.export import graph as graphs
from penstock.export.limits import Budget
from penstock.export.precision import emulation
from penstock.export.precision.budget import Judgement
from penstock.export.reference import Reference
from penstock.parity import compare
from penstock.runtimes import Runner, onnxruntime

_FEW = 32
_LEAST = 1e-9


class Judge:
    """Judges graphs as the gate will, on a reference's samples.

    Args:
        reference: the float32 source, samples and its answers.
        budget: what is asked.
        precision: of the graphs. One in float16 that is not emulated is tried in a process of its own first:
            onnxruntime may die of it.
        few: look at `_FEW` rows in one batch size alone, and at no labels: for rankings.
    """

    def __init__(self, reference: Reference, budget: Budget, precision: str, *, few: bool = False) -> None:
        self._reference, self._budget, self._precision, self._few = reference, budget, precision, few

    def __call__(self, graph: Any) -> Judgement:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            try:
                emulate = emulation.tells_more(graph)
                runnable = emulation.emulated(graph) if emulate else graph
                path = graphs.write(runnable, Path(folder))[0]
                signature = self._reference.signature
                fragile = self._precision == "fp16" and not emulate
                careful = fragile and trial.needs_care("onnxruntime", path, signature)
                with onnxruntime.load(path, signature, careful=careful) as runner:
                    return self._ranked(runner) if self._few else self._judged(runner)
            except (MemoryError, OSError):  # of the machine, and not the graph's fault
                raise
            except Exception as error:  # a graph that a rewriter broke is one that is no good
                return Judgement(float("inf"), None, f"it cannot be run: {last_line(error)}")

    def _ranked(self, runner: Runner) -> Judgement:
        """The error as a share of what is allowed: of the output, or the small columns, that it is largest for."""
        reference, signature = self._reference, self._reference.signature
        part = slice(max(_FEW, signature.min_batch))
        rows = Rows(take(reference.rows.inputs, part), None)
        expected = take(reference.outputs, part)
        got = evaluation.outputs(runner, rows, signature.max_batch, signature.min_batch)
        budget = self._budget
        shares = [item.rel_l2 / max(budget.limits[item.output].max_error, _LEAST) for item in compare(expected, got)]
        for group, limit in budget.columns:
            shares.append((group.error(expected[group.output], got[group.output]) or 0.0) / limit)
        return Judgement(max(shares), None, None)

    def _judged(self, runner: Runner) -> Judgement:
        found, failure = gate.examine(runner, self._reference, self._budget)
        accuracy, lost = self._budget.accuracy, None
        if accuracy is not None:
            lost = accuracy.lost(evaluation.evaluate(runner, accuracy.rows, self._reference.signature))
            failure = accuracy.failure(lost) or failure
        return Judgement(max(item.rel_l2 for item in found), lost, failure and failure.partition("; nothing")[0])

"""What is made of two models' answers: figures, limits, the worst cases."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from penstock.artifact import Artifact
from penstock.parity import Limits
from penstock.serve.drift import Drift, compare, families, limits_between
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits as Serving
from penstock.serve.model import load

LIMITS = {"y": Limits(max_error=0.1, min_agreement=1.0)}


def compared(reference: Any, actual: Any) -> Any:
    return compare({"y": np.asarray(reference)}, {"y": np.asarray(actual)}, LIMITS)


def test_answers_within_the_limits_agree_and_others_say_what_leaves_them() -> None:
    near = compared([[1.0, 2.0]], [[1.0, 2.1]])
    assert (near.why, near.rows) == (None, 1)
    assert near.error == pytest.approx(0.1 / math.sqrt(5))
    assert compared([[1.0, 2.0]], [[1.0, 3.0]]).why.startswith("output 'y': relative L2 error 0.447 is over")
    assert "top-1 agreement 50.00%" in compared([[1.0, 0.99], [0.0, 9.0]], [[0.99, 1.0], [0.0, 9.0]]).why


@pytest.mark.parametrize(
    ("reference", "actual", "words"),
    [
        ([[1.0, 2.0]], [[math.nan, 2.0]], "relative L2 error inf"),
        ([[1.0, 2.0]], [[1.0, 2.0, 3.0]], "shape"),
        (np.array([[b"a", b"b"]], object), np.array([[b"a", b"c"]], object), "50.00% of its entries differ"),
        ([1, 2], [1, 3], "50.00% of its entries differ"),
        ([True, False], [True, True], "50.00% of its entries differ"),
    ],
    ids=["nan", "shape", "text", "classes", "flags"],
)
def test_every_kind_of_output_is_compared(reference: Any, actual: Any, words: str) -> None:
    assert compared(reference, reference).why is None
    assert words in compared(reference, actual).why


def test_bfloat16_is_compared_as_the_numbers_that_it_stands_for() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([[1.0, 2.0]], ml_dtypes.bfloat16)
    assert compared(x, x).error == 0
    assert compared(x, 2 * x).error == 1


def test_two_models_may_be_as_far_apart_as_the_looser_receipt_allows(
    tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    tight, loose = (load(fake_artifact(tmp_path, name).folder, Serving(), Metrics()) for name in ("a", "b"))
    receipt = loose.receipt
    assert receipt is not None
    wide = {name: Limits(max_error=0.5, min_agreement=0.9) for name in receipt.verification.limits}
    loose.receipt = receipt.model_copy(
        update={"verification": receipt.verification.model_copy(update={"limits": wide})}
    )
    assert limits_between(tight, loose) == limits_between(loose, tight) == wide
    tight.receipt = loose.receipt = None
    assert limits_between(tight, loose)["total"] == Limits(max_error=1e-3, min_agreement=1.0)


def test_the_worst_cases_are_kept_and_no_more() -> None:
    drift = Drift()
    for error in [*np.linspace(0.0, 1.0, 41), math.inf]:
        drift.found(compared([[1.0, 0.0]], [[1.0, error]]), {"id": f"{error:g}"})
    told = drift.as_dict()
    assert [case["id"] for case in told["worst"]] == ["inf", *(f"{1 - step / 40:g}" for step in range(9))]
    assert told["worst"][0]["outputs"][0]["rel_l2"] is None
    json.dumps(told, allow_nan=False)
    assert (told["agreed"], told["differed"], told["top1_rows"]) == (5, 37, 42)
    assert told["top1_agreement"] == pytest.approx(41 / 42)  # but for the one that is no number


class Held(Collector):
    def __init__(self, drift: Drift) -> None:
        self.drift = drift

    def collect(self) -> Any:
        return families([("digits", "small", self.drift)])


def test_figures_are_written_as_prometheus_has_them() -> None:
    drift = Drift()
    drift.found(compared([[1.0, 0.0]], [[1.0, 0.03]]), {})
    drift.found(compared([[1.0, 0.0]], [[1.0, math.nan]]), {})
    drift.failed("why")
    registry = CollectorRegistry()
    registry.register(Held(drift))
    text = generate_latest(registry).decode()
    labels = 'model="small",name="digits"'
    for sample in (
        f'penstock_shadow_requests_total{{{labels},result="agreed"}} 1.0',
        f'penstock_shadow_requests_total{{{labels},result="differed"}} 1.0',
        f'penstock_shadow_requests_total{{{labels},result="failed"}} 1.0',
        f'penstock_shadow_requests_total{{{labels},result="dropped"}} 0.0',
        f'penstock_shadow_difference_bucket{{le="0.02",{labels},output="y"}} 0.0',
        f'penstock_shadow_difference_bucket{{le="0.05",{labels},output="y"}} 1.0',
        f'penstock_shadow_difference_count{{{labels},output="y"}} 2.0',
        f"penstock_shadow_rows_total{{{labels}}} 2.0",
        f"penstock_shadow_rows_agreed_total{{{labels}}} 1.0",
    ):
        assert sample in text, text
    assert "inf" not in text.lower().replace("+inf", "")

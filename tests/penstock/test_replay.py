"""Replay: an artifact answers its stored inputs as its source did, within the limits of its receipt, or says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import artifact, replay
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.parity import Distance, Limits
from penstock.receipt import Receipt, Source, Verification
from penstock.runtimes import BaseRunner
from penstock.runtimes.fake import FakeRunner
from penstock.signature import Arrays, Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="scores", shape=("batch", 3)), Tensor(name="total", shape=("batch",))),
    dims={"batch": Dim(min=2, opt=3, max=4)},
)
ROWS = np.arange(1.0, 11.0, dtype=np.float32).reshape(5, 2)
TIGHT, LOOSE = Limits(max_error=1e-6, min_agreement=1.0), Limits(max_error=0.5, min_agreement=0.5)


class Altered(BaseRunner):
    """Answers as the fake runtime does, changed by a function, and counts the rows of each run."""

    def __init__(self, change: Callable[[dict[str, Any]], Any] = lambda answer: answer) -> None:
        super().__init__(SIGNATURE)
        self.change = change
        self.runs: list[int] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        self.runs.append(len(feeds["x"]))
        answer = FakeRunner(SIGNATURE).run(feeds)
        return self.change(answer) or answer


@pytest.fixture
def published(tmp_path: Path) -> Artifact:
    """An artifact of the fake runtime, whose second output has wide limits."""
    with artifact.draft(tmp_path) as folder:
        (folder / "model.bin").write_bytes(b"weights")
        artifact.write_golden(folder, {"x": ROWS}, FakeRunner(SIGNATURE).run({"x": ROWS}))
        limits = {"scores": TIGHT, "total": LOOSE}
        distances = tuple(Distance(output=name, max_abs=0, rel_l2=0, cosine=1) for name in limits)
        receipt = Receipt(
            name="small",
            version=1,
            created=datetime(2000, 1, 1, tzinfo=timezone.utc),
            format="onnx",
            precision="fp32",
            runtime="fake",
            model_file="model.bin",
            files=artifact.digests(folder),
            source=Source(
                checkpoint="a.pth", sha256=hashlib.sha256().hexdigest(), architecture="a:B", loaded=1, expected=1
            ),
            signature=SIGNATURE,
            verification=Verification(
                runtime="fake",
                engine_run=True,
                samples=5,
                real=False,
                batches=(2, 3, 4),
                distances=distances,
                limits=limits,
                passed=True,
            ),
            hardware="any",
        )
        return artifact.publish(folder, tmp_path, receipt)


def test_the_right_answers_pass_and_their_distances_are_given(published: Artifact) -> None:
    distances = replay.replay(published, Altered())
    assert [item.output for item in distances] == ["scores", "total"]
    assert all((item.rel_l2, item.max_abs, item.agreement) == (0, 0, None) for item in distances)


def test_all_rows_are_run_in_batches_that_the_model_takes(published: Artifact) -> None:
    runner = Altered()
    replay.replay(published, runner)
    assert runner.runs == [4, 2]  # the last row alone is fewer than it takes


@pytest.mark.parametrize("output", ["scores", "total"])
def test_each_output_is_held_to_its_own_limits(published: Artifact, output: str) -> None:
    def shift(answer: dict[str, Any]) -> None:
        answer[output] = answer[output] * np.float32(1.01)

    runner = Altered(shift)
    if output == "total":
        (_, distance) = replay.replay(published, runner)
        assert distance.rel_l2 == pytest.approx(0.01, rel=1e-3)
        return
    said = r"small: output 'scores' for its own golden inputs is wrong on this machine: relative L2 error 0\.01 is over"
    with pytest.raises(PenstockError, match=said):
        replay.replay(published, runner)


def test_a_few_rows_are_not_held_to_a_share_of_them(published: Artifact) -> None:
    def tip(answer: dict[str, Any]) -> None:
        answer["scores"] = answer["scores"].copy()
        answer["scores"][:, 0] += np.float32(1e-6)  # every row's largest entry is another, by nearly nothing

    assert replay.replay(published, Altered(tip))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_that_is_no_number_is_never_right(published: Artifact, value: float) -> None:
    def spoil(answer: dict[str, Any]) -> None:
        answer["total"] = np.full_like(answer["total"], value)

    with pytest.raises(PenstockError, match="output 'total' for its own golden inputs is wrong on this machine"):
        replay.replay(published, Altered(spoil))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda answer: {"scores": answer["scores"]}, "outputs are scores; they must be scores, total"),
        (lambda answer: {**answer, "scores": answer["scores"][:, :2]}, r"output 'scores' has shape \[5, 2\]"),
        (lambda answer: {**answer, "total": answer["total"][:1]}, r"output 'total' has shape \[1\] for 4 rows"),
    ],
    ids=["names", "shape", "rows"],
)
def test_an_answer_of_another_form_is_told_with_the_artifact(
    published: Artifact, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with pytest.raises(PenstockError, match=f"small: its answer to its own golden inputs is wrong: {said}"):
        replay.replay(published, Altered(change))


def test_verifying_says_what_was_seen(published: Artifact) -> None:
    said: list[str] = []
    replay.verify(published.folder, said.append)
    assert said == [
        f"{published.folder}: 2 files, digests as in the receipt",
        "  scores: relative L2 error 0.00e+00 (limit 1.00e-06), largest absolute 0.00e+00, cosine 1.000000000",
        "  total: relative L2 error 0.00e+00 (limit 5.00e-01), largest absolute 0.00e+00, cosine 1.000000000",
        "verified: small version 1 answers as its source does",
    ]


def test_agreement_is_shown_where_it_was_measured(published: Artifact) -> None:
    said: list[str] = []
    item = Distance(output="scores", max_abs=0.5, rel_l2=0.25, cosine=1.0, agreement=0.995)
    replay.show(published, [item], published.receipt.verification.limits, said.append)
    assert said[0].endswith("cosine 1.000000000, top-1 agreement 99.50%")


def test_a_changed_file_is_found_before_anything_is_loaded(
    published: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Artifact, "load", lambda *_, **__: pytest.fail("it was loaded"))
    (published.folder / "model.bin").write_bytes(b"weighty")
    said: list[str] = []
    with pytest.raises(PenstockError, match=r"model\.bin: its bytes are not those that the receipt vouches for"):
        replay.verify(published.folder, said.append)
    assert said == []


def test_a_runtime_that_is_not_here_is_told_with_the_folder(
    published: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtimes.fake.unavailable", lambda build, device: "there is no such GPU here")
    with pytest.raises(PenstockError) as caught:
        replay.verify(published.folder, lambda line: None)
    assert str(caught.value).startswith(f"{published.folder}: there is no such GPU here; it was made for any")


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="not an artifact"):
        replay.verify(tmp_path, lambda line: None)

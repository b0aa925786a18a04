"""Measuring: every variant at every batch, in whole interleaved rounds, with its accuracy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import data, evaluation, timing
from penstock.artifact import Artifact, read
from penstock.bench import measure as module
from penstock.bench.figures import as_dict
from penstock.bench.measure import Plan, Setting, measure
from penstock.errors import PenstockError
from penstock.files import sha256
from penstock.launches import Parts
from penstock.timing import ROUNDS


@pytest.fixture(scope="session")
def result(repository: Path) -> module.Result:
    return measure([repository], Plan(batches=(1, 4), seconds=0.05))


def test_every_variant_that_runs_here_is_measured_at_every_batch(result: module.Result) -> None:
    measured = {row.name: list(row.cells) for row in result.rows if row.unavailable is None}
    assert measured == {
        name: [Setting(1), Setting(4)]
        for name in ("digits-onnx-fp16", "digits-onnx-fp32", "digits-onnx-int8", "digits-torchscript-fp32")
    }
    for row in result.rows:
        for cell in row.cells.values():
            assert len(cell.rounds) == ROUNDS
            assert all(len(part) >= 3 and min(part) > 0 for part in cell.rounds)


def test_every_row_has_a_footprint_of_a_process_of_its_own(result: module.Result) -> None:
    for row in result.rows:
        if row.unavailable is None:
            assert row.footprint is not None, result.notes
            assert 0 < row.footprint.load_s < 60
            assert 0 < row.footprint.first_call_s < 60
            assert 0 < (row.footprint.host_bytes or 0) < (row.footprint.process_bytes or 0) < 4e9


def test_the_machine_s_clock_is_read_in_every_round(result: module.Result) -> None:
    assert len(result.ticks) == ROUNDS
    assert all(0 < tick < 1 for tick in result.ticks)


def test_a_control_of_as_many_threads_is_read_around_each_turn_of_several(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    found = measure([repository / "digits-onnx-fp32"], Plan(batches=(2,), seconds=0.02, threads=(1, 2)))
    one, two = found.rows[0].cells.values()
    assert one.controls == []
    assert len(two.controls) == ROUNDS
    assert all(0 < tick < 1 for ticks in two.controls for tick in ticks)


def test_threads_and_streams_make_settings_of_their_own(repository: Path) -> None:
    plan = Plan(batches=(2,), seconds=0.02, threads=(1, 2), streams=(1, 2))
    found = measure([repository / "digits-onnx-fp32"], plan)
    cells = found.rows[0].cells
    assert list(cells) == [Setting(2, threads, streams) for threads in (1, 2) for streams in (1, 2)]
    assert all(len(cell.rounds) == ROUNDS and cell.failure is None for cell in cells.values())
    assert all(len(part) >= 6 for cell in cells.values() if cell.streams == 2 for part in cell.rounds)


class Breaking:
    """A runner that fails, or is interrupted, in batches of some rows once it has made some runs."""

    def __init__(self, runner: Any, rows: int, error: BaseException, after: int) -> None:
        self._runner, self._rows, self._error, self._left = runner, rows, error, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self, feeds: Any) -> Any:
        if len(feeds["image"]) == self._rows:
            self._left -= 1
            if self._left < 0:
                raise self._error
        return self._runner.run(feeds)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException, int], None]:
    """Has the int8 variant fail in batches of so many rows, after so many of them."""

    def make(rows: int, error: BaseException, after: int) -> None:
        load = Artifact.load

        def loaded(self: Artifact, **options: Any) -> Any:
            runner = load(self, **options)
            return Breaking(runner, rows, error, after) if self.receipt.precision == "int8" else runner

        monkeypatch.setattr(Artifact, "load", loaded)

    return make


def test_a_variant_that_kills_its_process_is_not_loaded_beside_the_others(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footprint, loaded = module.footprint.measure, []

    def dies(found: Artifact, *rest: Any) -> Any:
        if found.receipt.precision == "int8":
            raise module.footprint.Died("it died of SIGSEGV")
        return footprint(found, *rest)

    def load(self: Artifact, **options: Any) -> Any:
        loaded.append(self.receipt.name)
        return original(self, **options)

    original = Artifact.load
    monkeypatch.setattr(module.footprint, "measure", dies)
    monkeypatch.setattr(Artifact, "load", load)
    paths = [repository / "digits-onnx-fp32", repository / "digits-onnx-int8"]
    found = measure(paths, Plan(batches=(1, 4), seconds=0.02))
    assert loaded == ["digits-onnx-fp32"]
    with pytest.raises(PenstockError, match="nothing could be measured: digits-onnx-int8: it died of SIGSEGV"):
        measure(paths[1:], Plan(batches=(1,), seconds=0.02))
    died = "it died of SIGSEGV"
    assert found.failures == [("digits-onnx-int8", Setting(1), died), ("digits-onnx-int8", Setting(4), died)]


def test_a_batch_that_fails_says_why_and_the_rest_is_measured(
    repository: Path, broken: Callable[[int, BaseException, int], None]
) -> None:
    broken(4, RuntimeError("no memory left"), 0)
    paths = [repository / "digits-onnx-fp32", repository / "digits-onnx-int8"]
    found = measure(paths, Plan(batches=(1, 4), seconds=0.02))
    assert found.failures == [("digits-onnx-int8", Setting(4), "RuntimeError: no memory left")]
    rounds = [[len(cell.rounds) for cell in row.cells.values()] for row in found.rows]
    assert rounds == [[ROUNDS, ROUNDS], [ROUNDS, 0]]


def test_artifacts_that_are_damaged_or_answer_wrongly_fail_alone(repository: Path, tmp_path: Path) -> None:
    for name in ("digits-onnx-fp32", "digits-onnx-fp16"):
        shutil.copytree(repository / name, tmp_path / name)
    (tmp_path / "digits-onnx-fp32/1/golden.npz").unlink()
    _answer_wrongly(tmp_path / "digits-onnx-fp16/1")
    found = measure([tmp_path, repository / "digits-onnx-int8"], Plan(batches=(1, 4), seconds=0.02))
    damaged = f"{tmp_path}/digits-onnx-fp32/1/golden.npz: missing; the receipt lists it: export the model again"
    why = {name: why for name, _, why in found.failures}
    assert why.pop("digits-onnx-fp32") == damaged
    assert "digits-onnx-fp16: output 'logits' for its own golden inputs is wrong" in why.pop("digits-onnx-fp16")
    assert (why, len(found.failures)) == ({}, 4)
    assert [[len(cell.rounds) for cell in row.cells.values()] for row in found.rows][-1] == [ROUNDS, ROUNDS]
    assert found.reference == "digits-onnx-int8"
    assert [row["name"] for row in as_dict(found)["rows"] if row["cells"]] == ["digits-onnx-int8"]


def _answer_wrongly(folder: Path) -> None:
    """Turn the golden answers over, and have the receipt vouch for them."""
    with np.load(folder / "golden.npz") as held:
        arrays = {name: -array if "logits" in name else array for name, array in held.items()}
    np.savez(folder / "golden.npz", **arrays)
    receipt = json.loads((folder / "penstock.json").read_text())
    size = (folder / "golden.npz").stat().st_size
    receipt["files"]["golden.npz"] = {"sha256": sha256(folder / "golden.npz"), "bytes": size}
    (folder / "penstock.json").write_text(json.dumps(receipt))


def test_a_runner_that_fails_where_accuracy_is_measured_fails_alone(
    repository: Path, broken: Callable[[int, BaseException, int], None]
) -> None:
    broken(64, RuntimeError("no memory left"), 0)
    paths = [repository / "digits-onnx-fp32", repository / "digits-onnx-int8"]
    found = measure(paths, Plan(batches=(1,), seconds=0.02))
    assert found.failures == [("digits-onnx-int8", Setting(1), "RuntimeError: no memory left")]


@pytest.mark.parametrize(("runs", "rounds"), [(1, 0), (3 + 10 + 5, 1)], ids=["in the warm-up", "in the second round"])
def test_an_interrupt_keeps_whole_rounds_and_marks_the_result(
    repository: Path,
    broken: Callable[[int, BaseException, int], None],
    monkeypatch: pytest.MonkeyPatch,
    runs: int,
    rounds: int,
) -> None:
    monkeypatch.setattr("penstock.timing.WINDOW_S", 0.0)
    monkeypatch.setattr("penstock.timing.WARMUP_MOST_S", 0.0)
    monkeypatch.setattr("penstock.timing._slice", short)
    broken(3, KeyboardInterrupt(), runs)
    found = measure([repository / "digits-onnx-fp32", repository / "digits-onnx-int8"], Plan(batches=(3,), seconds=0.1))
    assert found.interrupted
    assert {len(cell.rounds) for row in found.rows for cell in row.cells.values()} == {rounds}
    assert found.failures == []


def short(one: timing.Work, threads: Any, seconds: float, watch: timing.Watch) -> tuple[list[float], float]:
    """A part of a round of exactly ten runs."""
    watch.before(one)
    found = [one.runners[0].run(one.feeds) and 1.0 for _ in range(10)]
    watch.after(one)
    return found, 10.0


class Parted(Breaking):
    """A runner on a GPU that tells what its copies take, as that of TensorRT does."""

    def __init__(self, runner: Any) -> None:
        super().__init__(runner, 0, RuntimeError(), 0)

    def parts(self, feeds: Any) -> Parts:
        return Parts(0.001 * len(feeds["image"]), 0.1, 0.002)


def test_copies_are_told_of_runners_that_tell_them(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Artifact.load
    monkeypatch.setattr(Artifact, "load", lambda self, **options: Parted(load(self, **options)))
    found = measure([repository / "digits-onnx-fp32"], Plan(batches=(1, 4), seconds=0.02))
    assert found.rows[0].parts == {Setting(1): Parts(0.001, 0.1, 0.002), Setting(4): Parts(0.004, 0.1, 0.002)}


class Meter:
    """A meter by which every look at it costs a joule."""

    source = "RAPL"

    def __init__(self, device: str) -> None:
        assert device == "cpu"
        self.looks = 0

    def joules(self) -> float:
        self.looks += 1
        return float(self.looks)


def test_joules_are_those_of_the_rounds_that_count(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Meter", Meter)
    found = measure([repository / "digits-onnx-fp32"], Plan(batches=(1, 4), seconds=0.02))
    assert found.energy == "RAPL"
    assert [cell.joules for cell in found.rows[0].cells.values()] == [ROUNDS, ROUNDS]


def test_an_engine_that_cannot_run_here_is_listed_with_its_reason(result: module.Result) -> None:
    engine = next(row for row in result.rows if row.name == "digits-trt-fp16")
    if engine.unavailable is None:
        pytest.skip("this machine runs the engine")
    assert "TensorRT" in engine.unavailable
    assert engine.cells == {}


def test_accuracy_is_the_runner_s_own_on_the_held_out_split(result: module.Result, repository: Path) -> None:
    found = read(repository / "digits-onnx-int8")
    rows = evaluation.held_out(found.receipt.dataset, found.receipt.preprocess)
    with found.load() as runner:
        logits = np.concatenate(
            [runner.run({"image": rows.inputs["image"][i : i + 1]})["logits"] for i in range(len(rows))]
        )
    expected = int((logits.argmax(1) == rows.labels).sum())
    score = next(row.score for row in result.rows if row.name == "digits-onnx-int8")
    assert score is not None
    assert (score.correct, score.samples) == (expected, len(rows))


def test_accuracy_on_a_folder_of_pictures_is_that_on_the_same_scans(repository: Path, tmp_path: Path) -> None:
    found = read(repository / "digits-onnx-fp32")
    scans = data.load(found.receipt.dataset)["test"]
    for place, (pixels, label) in enumerate(zip(scans.items[:60], scans.labels, strict=False)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / str(label) / f"{place}.png")
    result = measure([repository / "digits-onnx-fp32"], Plan(batches=(1,), seconds=0.05, data=tmp_path))
    rows = evaluation.held_out(found.receipt.dataset, found.receipt.preprocess)
    with found.load() as runner:
        logits = evaluation.outputs(runner, rows, 8)["logits"][:60]
    score = result.rows[0].score
    assert score is not None
    assert (score.correct, score.samples) == (int((logits.argmax(1) == rows.labels[:60]).sum()), 60)


def test_the_first_fp32_row_is_the_reference_unless_another_is_named(result: module.Result, repository: Path) -> None:
    assert result.reference == "digits-onnx-fp32"
    named = measure([repository / "digits-onnx-int8"], Plan(batches=(1,), seconds=0.01), "digits-onnx-int8")
    assert named.reference == "digits-onnx-int8"


def test_an_unknown_reference_is_refused_with_the_choices(repository: Path) -> None:
    with pytest.raises(
        PenstockError, match=r"--reference 'best': must be one of those that run here: digits-onnx-int8"
    ):
        measure([repository / "digits-onnx-int8"], Plan(), "best")


def test_a_reference_that_cannot_run_here_is_refused_with_those_that_can(repository: Path) -> None:
    if read(repository / "digits-trt-fp16").unavailable() is None:
        pytest.skip("this machine runs the engine")
    with pytest.raises(PenstockError) as caught:
        measure([repository / "digits-trt-fp16", repository / "digits-onnx-int8"], Plan(), "digits-trt-fp16")
    said = "--reference 'digits-trt-fp16': must be one of those that run here: digits-onnx-int8"
    assert str(caught.value) == said


def test_a_bare_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.onnx").write_bytes(b"x")
    with pytest.raises(
        PenstockError, match=r"some\.onnx: a file; bench measures artifacts.*serve it \(penstock serve "
    ):
        measure([tmp_path / "some.onnx"], Plan())
    (tmp_path / "best.pth").write_bytes(b"x")
    with pytest.raises(PenstockError, match=r"penstock export makes one of it, and --source"):
        measure([tmp_path / "best.pth"], Plan())


def test_only_batches_that_the_signature_takes_are_measured(repository: Path) -> None:
    both = measure([repository / "digits-onnx-fp32"], Plan(batches=(2, 100_000), seconds=0.01))
    assert list(both.rows[0].cells) == [Setting(2)]
    assert both.notes[0].startswith("digits-onnx-fp32 not measured at batch 100000: it takes 1 to ")
    with pytest.raises(PenstockError, match=r"--batch 100000: every size is over the artifacts' largest batch"):
        measure([repository / "digits-onnx-fp32"], Plan(batches=(100_000,)))


def test_artifacts_that_all_cannot_run_are_an_error_with_the_reasons(repository: Path) -> None:
    if read(repository / "digits-trt-fp16").unavailable() is None:
        pytest.skip("this machine runs the engine")
    with pytest.raises(PenstockError, match=r"no artifact given runs on this machine: .*TensorRT"):
        measure([repository / "digits-trt-fp16"], Plan())


def test_a_damaged_artifact_is_refused_before_anything_is_measured(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "digits-onnx-fp32", tmp_path / "digits-onnx-fp32")
    with (tmp_path / "digits-onnx-fp32/1/model.onnx").open("ab") as file:
        file.write(b"x")
    with pytest.raises(PenstockError, match=r"model\.onnx: its bytes are not those") as caught:
        measure([tmp_path], Plan(batches=(1, 8), seconds=0.01))
    assert str(caught.value).count("its bytes are not those") == 1


def test_labelled_data_of_the_user_s_replaces_the_held_out_split(repository: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", image=np.zeros((10, 1, 8, 8), np.float32), labels=np.arange(10))
    found = measure([repository / "digits-onnx-fp32"], Plan(batches=(1,), seconds=0.01, data=tmp_path / "few.npz"))
    score = found.rows[0].score
    assert score is not None
    assert (score.correct, score.samples) == (1, 10)  # one answer for ten equal rows, one of them labelled so


def test_an_artifact_that_is_given_twice_is_measured_once(repository: Path) -> None:
    folder = repository / "digits-onnx-fp32"
    result = measure([folder, folder / "1", folder], Plan(batches=(1,), seconds=0.01))
    assert [row.name for row in result.rows] == ["digits-onnx-fp32"]


def test_data_without_labels_is_refused(repository: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", image=np.zeros((5, 1, 8, 8), np.float32))
    with pytest.raises(PenstockError, match="accuracy needs labels"):
        measure([repository / "digits-onnx-fp32"], Plan(batches=(1,), seconds=0.01, data=tmp_path / "few.npz"))


def test_two_artifacts_of_one_name_are_told_with_their_folders(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "digits-onnx-fp32", tmp_path / "digits-onnx-fp32")
    paths = [repository / "digits-onnx-fp32", tmp_path / "digits-onnx-fp32"]
    with pytest.raises(PenstockError) as caught:
        measure(paths, Plan(batches=(1,), seconds=0.05))
    assert "two artifacts are named 'digits-onnx-fp32': " in str(caught.value)
    assert all(str(path) in str(caught.value) for path in paths)

"""Training: one real short run, its checkpoints, its score, and that it can be repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from penstock import checkpoint, data, datasets
from penstock.data import arrays
from penstock.errors import PenstockError
from penstock.figures import Classification
from penstock.train import jobs, loop, recipe
from penstock.train.loop import Trained
from penstock.train.recipe import Recipe


@pytest.fixture(scope="module")
def job() -> Recipe:
    return recipe.load("digits", epochs=1)


@pytest.fixture(scope="module")
def run(job: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return loop.train(job, tmp_path_factory.mktemp("run") / "new" / "digits", progress=False)


def test_a_run_leaves_its_checkpoints_and_logs_and_nothing_else(run: Trained) -> None:
    folder = run.best.parent
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.pth",
        "confusion.png",
        "curves.png",
        "history.jsonl",
        "last.pth",
        "logs",
        "reliability.png",
        "report.html",
        "right.png",
        "state.pt",
        "wrong.png",
    ]
    assert (run.best, run.last, run.logs) == (folder / "best.pth", folder / "last.pth", folder / "logs")
    assert list(run.logs.rglob("metrics.csv"))
    assert list(run.logs.rglob("events.out.tfevents.*"))
    assert run.seconds > 0


def test_a_checkpoint_is_weights_and_plain_data(run: Trained, job: Recipe) -> None:
    content = torch.load(run.best, weights_only=True)
    assert content["penstock"] == 1
    assert content["name"] == "digits"
    assert content["task"] == "classification"
    assert content["architecture"] == job.model.model_dump()
    assert content["labels"] == [str(number) for number in range(10)]
    assert content["dataset"] == {"name": "digits", "seed": 0, "val": 0.1, "test": 0.2}
    assert content["preprocess"]["mean"] == [0.3]
    assert content["signature"]["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert content["signature"]["outputs"] == [{"name": "logits", "dtype": "float32", "shape": ["batch", 10]}]
    assert content["signature"]["dims"] == {"batch": {"min": 1, "opt": 8, "max": 64}}
    assert content["versions"]["torch"] == torch.__version__
    assert content["metrics"]["epoch"] == 1.0
    assert all(tensor.device.type == "cpu" for tensor in content["state_dict"].values())


def test_a_checkpoint_carries_real_samples_of_the_right_parts(run: Trained, job: Recipe) -> None:
    held = checkpoint.load(run.best)
    parts = data.load(job.dataset)
    for rows, part, n in ((held.calibration, "train", loop.CALIBRATION), (held.golden, "test", loop.GOLDEN)):
        assert rows is not None
        expected = datasets.rows(parts[part], job.preprocess).take(n)
        assert len(rows) == n
        assert np.array_equal(rows.inputs["image"], expected.inputs["image"])
        assert np.array_equal(rows.labels, expected.labels)


def test_the_score_is_that_of_the_best_checkpoint_on_the_held_out_part(run: Trained, job: Recipe) -> None:
    part = data.load(job.dataset)["test"]
    module = checkpoint.load(run.best).module
    with torch.inference_mode():
        logits = module(torch.from_numpy(job.preprocess.normalize(part.items)))
    correct = int((logits.argmax(1).numpy() == part.labels).sum())
    assert isinstance(run.figures, Classification)
    assert (run.figures.correct, run.figures.samples) == (correct, len(part.labels))
    assert run.figures.accuracy > 0.5  # one epoch already beats the 10% of guessing by far


def test_the_recorded_metrics_are_those_of_the_weights_beside_them(run: Trained, job: Recipe) -> None:
    held = checkpoint.load(run.best)
    part = data.load(job.dataset)["val"]
    with torch.inference_mode():
        logits = held.module(torch.from_numpy(job.preprocess.normalize(part.items)))
    labels = torch.from_numpy(part.labels)
    accuracy = float((logits.argmax(1) == labels).double().mean())
    assert held.card.metrics["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert held.card.metrics["val_loss"] == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-4)


def test_the_best_checkpoint_is_no_worse_than_the_last(trained: Path) -> None:
    best, last = (checkpoint.load(trained.with_name(name)).card.metrics for name in ("best.pth", "last.pth"))
    assert last["epoch"] == 3.0
    assert (best["val_accuracy"], -best["val_loss"]) >= (last["val_accuracy"], -last["val_loss"])


def test_the_same_recipe_gives_the_same_weights_again(run: Trained, job: Recipe, tmp_path: Path) -> None:
    torch.manual_seed(999)  # what ran before must not matter
    again = loop.train(job, tmp_path, progress=False)
    first, second = (torch.load(path, weights_only=True)["state_dict"] for path in (run.last, again.last))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("classes", [1, 9])
def test_a_network_with_fewer_classes_than_the_data_is_refused_before_it_trains(
    job: Recipe, tmp_path: Path, classes: int
) -> None:
    model = job.model.model_copy(update={"kwargs": {**job.model.kwargs, "classes": classes}})
    with pytest.raises(PenstockError) as caught:
        loop.train(job.model_copy(update={"model": model}), tmp_path / "run", progress=False)
    said = (
        f"recipe digits: model.target penstock.train.nets:ResidualNet answers output:float32[batch,{classes}]; the "
        "labels of train go up to 9, and each class from 0 takes a number: it must answer [batch,10]: --set "
        "model.kwargs.classes=10"
    )
    assert str(caught.value) == said
    assert list(tmp_path.iterdir()) == []


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process says that gets ^C, once more where Python lost it: one raised in a destructor is ignored."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=25)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it goes on after three ^C")


def small(*changes: str) -> Recipe:
    return recipe.load("digits", ["epochs=2", "model.kwargs.widths=[8]", "track.tensorboard=false", *changes])


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_its_batch(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"the loss is nan in epoch 1; the batch is kept as .*optim.lr=1e\+29"):
        loop.train(small("optim.lr=1e30", "optim.clip=0"), tmp_path, progress=False)
    with np.load(tmp_path / "bad_batch.npz", allow_pickle=False) as kept:
        assert kept["image"].shape == (64, 8, 8, 1)
        assert kept["labels"].shape == (64,)
    assert not (tmp_path / "best.pth").exists()


def test_data_that_is_no_number_is_told_from_a_rate_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_see_finite", lambda *_: None)  # as from a reader that does not look
    rows = np.random.default_rng(0).random((100, 4)).astype(np.float32)
    rows[7, 2] = np.inf
    np.savez(tmp_path / "rows.npz", rows=rows, labels=np.arange(100) % 2)
    model = 'model={target="penstock.train.nets:Mlp", kwargs={features=4}}'
    dataset = f'dataset={{name="numpy", path="{tmp_path / "rows.npz"}"}}'
    with pytest.raises(PenstockError, match=r"the loss is nan in .*; 'rows' of it hold NaN or infinity"):
        loop.train(recipe.load("digits", [model, dataset, "preprocess=", "augment="]), tmp_path, progress=False)


def test_weights_that_are_no_numbers_after_an_epoch_are_not_kept(tmp_path: Path) -> None:
    one_step = small("optim.lr=1e30", "optim.clip=0", "batch_size=4096", 'schedule.name="constant"', 'optim.name="sgd"')
    with pytest.raises(PenstockError, match=r"val_loss is (nan|inf) after epoch 1, of which nothing is kept"):
        loop.train(one_step, tmp_path, progress=False)
    assert not list(tmp_path.glob("*.pth"))


@pytest.mark.parametrize(
    ("task", "labels", "told"),
    [
        ("classification", np.ones((30, 3), np.float32), r"labels of train are float32 of shape \[21, 3\]"),
        ("classification", np.linspace(0, 1, 30, dtype=np.float32), r"labels of train are float32 of shape \[21\]"),
        ("multilabel", np.arange(30) % 2, r"of shape \[21\], 0 to 1; they must be \[rows, labels\]"),
        ("multilabel", np.full((30, 2), 7, np.float32), r"7 to 7; they must be .* each from 0 to 1"),
    ],
)
def test_labels_of_another_task_are_refused(task: str, labels: Any, told: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", rows=np.ones((30, 4), np.float32), labels=labels)
    model = 'model={target="penstock.train.nets:Mlp", kwargs={features=4}}'
    dataset = f'dataset={{name="numpy", path="{tmp_path / "rows.npz"}"}}'
    plain = ["preprocess=", "augment=", "loss.label_smoothing=", f"task={task}"]
    with pytest.raises(PenstockError, match=told):
        jobs.prepare(recipe.load("digits", [model, dataset, *plain]))


def test_a_figure_that_there_is_none_of_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"keep.monitor is 'val_acuracy'; .*; the nearest is 'val_accuracy'"):
        loop.train(small('keep.monitor="val_acuracy"'), tmp_path, progress=False)


def test_a_last_batch_of_one_row_is_no_trouble_to_batchnorm(tmp_path: Path) -> None:
    rows = [f"{number},{number % 2}" for number in range(94)]  # 65 of them are trained on
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    table = recipe.load("csv-table", [f"dataset.train={tmp_path / 't.csv'}", "dataset.target=y", "epochs=1"])
    assert len(data.load(table.dataset)["train"]) % table.batch_size == 1
    loop.train(table, tmp_path / "run", progress=False)


def test_what_the_columns_of_a_table_became_is_told_first(tmp_path: Path) -> None:
    rows = [f"{number},{'abc'[number % 3]},{number % 2}" for number in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    table = recipe.load("csv-table", [f"dataset.train={tmp_path / 't.csv'}", "dataset.target=y", "epochs=1"])
    said: list[str] = []
    loop.train(table, tmp_path / "run", progress=False, say=said.append)
    assert said[0].endswith(" in train; numbers: a; categories: b (3)")


def test_a_cell_that_is_no_number_in_a_column_of_numbers_is_refused_by_its_line(tmp_path: Path) -> None:
    rows = [f"{'n/a' if number < 60 else number},{number % 2}" for number in range(700)]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    table = recipe.load("csv-table", [f"dataset.train={tmp_path / 't.csv'}", "dataset.target=y", "epochs=1"])
    rows_of_train = [int(place.split()[-1]) for place in data.load(table.dataset)["train"].places or ()]
    told = f"^dataset.train {tmp_path / 't.csv'}: t.csv line {min(rows_of_train)}, column 'a' is 'n/a', the first of "
    with pytest.raises(PenstockError, match=told):
        loop.train(table, tmp_path / "run", progress=False)


def test_a_cell_that_is_no_number_in_the_last_row_of_test_is_refused_before_training(tmp_path: Path) -> None:
    lines = ["a,y", *(f"{number},{number % 2}" for number in range(700))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    table = recipe.load("csv-table", [f"dataset.train={tmp_path / 't.csv'}", "dataset.target=y", "epochs=1"])
    last = data.load(table.dataset)["test"].place(139)
    lines[int(last.split()[-1]) - 1] = f"n/a,{int(last.split()[-1]) % 2}"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(PenstockError, match=f"{last}, column 'a' is 'n/a'; it must be a number"):
        loop.train(table, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_part_that_is_too_small_to_learn_from_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,1\n2,2\n3,3\n")
    table = recipe.load("regression", [f"dataset.train={tmp_path / 't.csv'}", "dataset.target=y"])
    with pytest.raises(PenstockError, match=r"the part train has 1 samples; 1 processes must have 2 each"):
        loop.train(table, tmp_path / "run", progress=False)


def test_a_full_disk_is_one_sentence_from_tensorboard_too(tmp_path: Path) -> None:
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000)); "
        "import sys; sys.argv = ['penstock', 'train', 'digits', '--no-progress']; "
        "from penstock.cli import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert ran.stderr.strip().splitlines() == [
        "error: --output runs/digits: cannot be written: File too large; checkpoints written before are whole"
    ]


def test_a_run_that_is_interrupted_keeps_its_checkpoints_and_says_so_in_a_word(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "train", "digits", "--epochs", "10000", "--output", "runs"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        best = tmp_path / "runs" / "digits" / "best.pth"
        give_up = time.monotonic() + 60
        while not best.is_file():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.05)
        try:
            out, err = interrupted(process)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert "trained" not in out
    assert sorted(path.name for path in best.parent.iterdir()) == [
        "best.pth",
        "history.jsonl",
        "last.pth",
        "logs",
        "state.pt",
    ]
    for name in ("best.pth", "last.pth"):
        held = checkpoint.load(best.with_name(name))
        assert held.proof.loaded == held.proof.expected
        assert held.card.metrics["epoch"] >= 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_told_before_the_data_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    wanted = recipe.load("image-folder", [f"dataset.path={tmp_path}/nowhere", f"track.{name}=true"])
    with pytest.raises(PenstockError, match=rf"track.{name} needs {name}, which is not installed.*penstock\[track\]"):
        loop.train(wanted, tmp_path / "run", progress=False)

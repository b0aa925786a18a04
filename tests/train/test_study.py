"""A sweep's database: what is asked of it and told to it, and that no end of a sweep loses or repeats a trial."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.train import study as studies
from penstock.train.space import Sweep
from penstock.train.study import Study

SPACE: dict[str, Any] = {
    "optim.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "batch_size": {"low": 16, "high": 128, "step": 16},
    "model.kwargs.widths": {"choices": [[8, 16], [16, 32]]},
}
GRID: dict[str, Any] = {"optim.lr": {"choices": [0.1, 0.2, 0.3]}, "batch_size": {"low": 2, "high": 4}}
CONTENT = {"name": "digits", "epochs": 9, "optim": {"lr": 0.01, "clip": 1.0}, "machine": {"device": "cpu"}}


def opened(folder: Path, **sweep: Any) -> AbstractContextManager[Study]:
    return studies.opened(folder, Sweep.model_validate({"space": SPACE, **sweep}), CONTENT, epochs=9)


def worth(values: dict[str, Any]) -> float:
    """Best at a rate of 1e-2, whatever the batch."""
    return -abs(math.log10(values["optim.lr"]) + 2)


def finish(study: Study, many: int = 10_000) -> list[dict[str, Any]]:
    """Ask and tell; what was tried."""
    tried = []
    while len(tried) < many and (trial := study.ask()) is not None:
        values = study.values(trial)
        tried.append(values)
        trial.report(worth(values), 1)
        study.tell(trial, {1: worth(values)}, 0.5)
    return tried


def test_values_are_of_their_kinds_and_within_their_ranges(tmp_path: Path) -> None:
    with opened(tmp_path, sampler="random", trials=30) as study:
        tried = finish(study)
    assert len(tried) == 30
    for values in tried:
        assert isinstance(values["optim.lr"], float)
        assert 1e-4 <= values["optim.lr"] <= 1e-1
        assert values["batch_size"] in range(16, 129, 16)
        assert type(values["batch_size"]) is int
        assert values["model.kwargs.widths"] in ([8, 16], [16, 32])
    assert sum(values["optim.lr"] < 10**-2.5 for values in tried) > 5  # drawn by the logarithm


def test_tpe_comes_nearer_to_the_best_than_drawing_at_random_does(tmp_path: Path) -> None:
    found = {}
    for sampler in ("tpe", "random"):
        (tmp_path / sampler).mkdir()
        with opened(tmp_path / sampler, sampler=sampler, trials=25) as study:
            found[sampler] = sorted(map(worth, finish(study)))[-10]
    assert found["tpe"] > found["random"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sweep_that_is_stopped_and_goes_on_tries_what_it_would_have_tried(tmp_path: Path, sampler: str) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    with opened(tmp_path / "whole", sampler=sampler, trials=16) as study:
        whole = finish(study)
    with opened(tmp_path / "stopped", sampler=sampler, trials=16) as study:
        before = finish(study, 12)
        assert study.ask() is not None  # and is never told: the process was killed
    with opened(tmp_path / "stopped", sampler=sampler, trials=16) as study:
        assert study.broken_off() == [12]
        assert study.broken_off() == []
        after = finish(study)
        assert len(study.trials()) == 16
    assert before + after == whole


def test_another_seed_draws_other_values(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    with opened(tmp_path / "0", seed=0) as one, opened(tmp_path / "1", seed=1) as other:
        assert finish(one, 1) != finish(other, 1)


def test_a_grid_is_covered_once_by_many_at_the_same_time_and_after_a_stop(tmp_path: Path) -> None:
    with opened(tmp_path, sampler="grid", space=GRID) as study:
        at_once = [study.ask() for _ in range(5)]
        for trial in at_once[:3]:
            assert trial is not None
            study.tell(trial, {1: 0.5}, 1.0)
    with opened(tmp_path, sampler="grid", space=GRID) as study:
        assert study.broken_off() == [3, 4]
        finish(study)
        tried = [tuple(one.values.values()) for one in study.trials() if one.state == "finished"]
        assert study.ask() is None
    assert sorted(tried) == [(lr, size) for lr in (0.1, 0.2, 0.3) for size in (2, 3, 4)]


def test_more_trials_may_be_asked_for_later(tmp_path: Path) -> None:
    with opened(tmp_path, trials=2) as study:
        assert len(finish(study)) == 2
    with opened(tmp_path, trials=5, sampler="random", pruner="median") as study:
        assert len(finish(study)) == 3


def test_a_trial_is_kept_as_it_went(tmp_path: Path) -> None:
    with opened(tmp_path, trials=2) as study:
        trial = study.ask()
        assert trial is not None
        for epoch, value in enumerate((0.5, 0.9, 0.8), 1):
            trial.report(value, epoch)
        study.tell(trial, {1: 0.5, 2: 0.9, 3: 0.8}, 4.5)
        failing = study.ask()
        assert failing is not None
        study.fail(failing, "val_loss is nan after epoch 1", 0.1)
    with opened(tmp_path, trials=2) as study:
        one, other = study.trials()
        assert study.ask() is None
    assert (one.state, one.value, one.curve, one.seconds) == ("finished", 0.9, {1: 0.5, 2: 0.9, 3: 0.8}, 4.5)
    assert one.epoch("maximize") == 2
    assert one.epoch("minimize") == 1
    assert (other.state, other.value, other.reason) == ("failed", None, "val_loss is nan after epoch 1")


def test_a_trial_whose_process_dies_is_tried_again_but_not_for_ever(tmp_path: Path) -> None:
    with opened(tmp_path, trials=1) as study:
        values = []
        for again in (True, True, False):
            trial = study.ask()
            assert trial is not None
            values.append(study.values(trial))
            assert study.died(trial, "its process died of SIGKILL", 1.0) is again
        assert values[0] == values[1] == values[2]
        (one,) = study.trials()
        assert study.ask() is None
    assert (one.state, one.reason) == ("failed", "its process died of SIGKILL, 3 times")


def ends(folder: Path, levels: list[float], **sweep: Any) -> list[int]:
    """The epoch after which each trial ends that stays at one level for nine."""
    reached = []
    with opened(folder, trials=len(levels), **sweep) as study:
        for level in levels:
            trial = study.ask()
            assert trial is not None
            last = 9
            for epoch in range(1, 10):
                trial.report(level, epoch)
                if trial.should_prune():
                    last = epoch
                    break
            study.tell(trial, {last: level}, 1.0, pruned=last < 9)
            reached.append(last)
        assert [one.state for one in study.trials()] == ["finished" if last == 9 else "pruned" for last in reached]
    return reached


def test_without_a_pruner_all_trials_come_to_their_end(tmp_path: Path) -> None:
    assert ends(tmp_path, [0.9, 0.1, 0.1]) == [9, 9, 9]


def test_halving_ends_what_is_not_among_the_best_third(tmp_path: Path) -> None:
    assert ends(tmp_path, [0.8, 0.1, 0.9, 0.2], pruner="halving") == [9, 1, 9, 1]
    (tmp_path / "loss").mkdir()
    assert ends(tmp_path / "loss", [0.8, 0.1, 0.9], pruner="halving", metric="val_loss") == [9, 9, 1]


def test_hyperband_ends_some_after_one_epoch_and_some_after_three(tmp_path: Path) -> None:
    reached = ends(tmp_path, [1 - place / 20 for place in range(12)], pruner="hyperband")
    assert reached[0] == 9
    assert set(reached) == {1, 3, 9}


def test_the_median_prunes_from_the_second_epoch_and_the_fifth_trial_on(tmp_path: Path) -> None:
    assert ends(tmp_path, [0.6, 0.1, 0.8, 0.9, 0.1, 0.95], pruner="median") == [9, 9, 9, 9, 2, 9]


def test_importance_is_that_of_the_field_which_the_metric_depends_on(tmp_path: Path) -> None:
    with opened(tmp_path, sampler="random", trials=40) as study:
        finish(study, 1)
        assert study.importance().shares == {}
        finish(study)
        found = study.importance()
    shares = found.shares
    assert (found.epoch, found.trials) == (None, 40)
    assert next(iter(shares)) == "optim.lr"
    assert shares["optim.lr"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)


def test_importance_of_pruned_trials_is_by_the_epoch_that_all_reached(tmp_path: Path) -> None:
    """Whoever is pruned is so by the rate alone, so that those that are left say nothing of it."""
    with opened(tmp_path, sampler="random", trials=40, pruner="halving") as study:
        while (trial := study.ask()) is not None:
            curve = {}
            for epoch in range(1, 10):
                curve[epoch] = worth(study.values(trial)) + epoch
                trial.report(curve[epoch], epoch)
                if trial.should_prune():
                    break
            study.tell(trial, curve, 1.0, pruned=len(curve) < 9)
        found = study.importance()
    assert (found.epoch, found.trials) == (1, 40)
    assert found.shares["optim.lr"] > 0.8


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"space": {**SPACE, "batch_size": {"low": 16, "high": 64, "step": 16}}},
            r"sweep\.space\.batch_size was .*128",
        ),
        ({"space": {"optim.lr": SPACE["optim.lr"]}}, r"sweep\.space\.batch_size was .* and is not given"),
        ({"metric": "val_loss"}, r'sweep\.metric was "val_accuracy" .* and is "val_loss"'),
        ({"direction": "minimize"}, r'sweep\.direction was "maximize"'),
    ],
)
def test_another_sweep_than_the_one_that_is_there_is_refused_with_what_to_do(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with opened(tmp_path) as study:
        finish(study, 1)
    with pytest.raises(PenstockError, match=said) as caught, opened(tmp_path, **changed):
        pass
    assert str(caught.value).endswith(f"give another --output, delete {tmp_path}, or put it back")
    with opened(tmp_path) as study:
        assert len(study.trials()) == 1


def test_another_recipe_is_refused_but_not_another_machine_or_a_field_that_is_swept(tmp_path: Path) -> None:
    sweep = Sweep.model_validate({"space": SPACE})
    with studies.opened(tmp_path, sweep, CONTENT, 9) as study:
        finish(study, 1)
    same = {**CONTENT, "machine": {"device": "cuda"}, "optim": {"lr": 0.5, "clip": 1.0}}
    with studies.opened(tmp_path, sweep, same, 9) as study:
        assert len(study.trials()) == 1
    other = {**CONTENT, "epochs": 10}
    with pytest.raises(PenstockError, match="epochs was 9"), studies.opened(tmp_path, sweep, other, 9):
        pass


def test_a_sweep_in_which_nothing_was_finished_gives_way(tmp_path: Path) -> None:
    with opened(tmp_path, metric="val_acc", direction="minimize") as study:
        trial = study.ask()
        assert trial is not None
        study.fail(trial, "there was no memory", 1.0)
        study.ask()
    with opened(tmp_path) as study:
        assert study.trials() == []
        assert len(finish(study)) == 20


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(PenstockError, match="another `penstock sweep` is at work there; wait for it"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path):
        pass


def test_a_folder_s_name_is_not_read_as_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "a b?x=1&y%20z#é"
    folder.mkdir()
    with opened(folder, trials=1) as study:
        finish(study)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "sweep.db"]
    assert list(tmp_path.iterdir()) == [folder]
    with opened(folder, trials=1) as study:
        assert len(study.trials()) == 1


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / studies.DATABASE).write_bytes(b"no database" * 1000)
    with (
        pytest.raises(PenstockError, match=r"sweep\.db: the sweep's database cannot be used: .*not a database"),
        opened(tmp_path),
    ):
        pass

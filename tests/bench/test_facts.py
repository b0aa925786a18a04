"""Facts of an environment: flat, and what differs."""

from __future__ import annotations

from penstock.bench import facts


def test_facts_are_flat_and_unknown_ones_are_left_out() -> None:
    told = {
        "cpu": "A",
        "gpu": {"name": "B", "driver": None},
        "threads": [1, None],
        "memory_bytes": 25276059648,
        "on": True,
        "peak": 1.9e11,
        "empty": "",
        "none": [],
    }
    assert facts.of(told) == {
        "cpu": "A",
        "gpu.name": "B",
        "threads": "1, not set",
        "memory_bytes": "25,276,059,648",
        "on": "True",
        "peak": "190,000,000,000",
    }


def test_what_passes_is_no_difference() -> None:
    old = {"started": "a", "load_1min": 1, "load_5min": 2, "clock_mhz": 3, "gpu": {"celsius_temperature": 1}}
    new = {"started": "b", "load_1min": 2, "load_5min": 3, "clock_mhz": 4, "gpu": {"celsius_temperature": 2}}
    assert facts.changes(old, new) == []


def test_the_machine_comes_first_and_what_is_not_told_is_a_difference() -> None:
    found = facts.changes(
        {"versions": {"numpy": "1"}, "cpu": "A"}, {"versions": {"numpy": "2"}, "gpu": {"driver": "5"}}
    )
    assert [(change.fact, change.of_machine) for change in found] == [
        ("cpu", True),
        ("gpu.driver", True),
        ("versions.numpy", False),
    ]
    assert str(found[0]) == "cpu: A → not told"


def test_a_payload_is_not_a_load() -> None:
    assert [change.fact for change in facts.changes({"payload": "a"}, {"payload": "b"})] == ["payload"]


def test_labels_are_words_and_not_keys() -> None:
    names = (
        "memory_bytes",
        "versions.numpy",
        "thread_variables.OMP_NUM_THREADS",
        "gpu.gpu",
        "gpu.power_limit_w",
        "a.b",
    )
    shown = ["memory bytes", "numpy", "OMP_NUM_THREADS", "GPU", "GPU power limit w", "a, b"]
    assert [facts.label(name) for name in names] == shown


def test_peaks_that_are_no_figures_are_passed_over() -> None:
    peaks = {"2": {"bytes_per_s": {"4": 1.0, "8": "x", "16": -1}}, "1": 3, "cuda:0": {"bytes_per_s": None}}
    assert list(facts.rates({"peaks": peaks}, "bytes_per_s")) == [("2", "4", 1.0)]
    assert list(facts.rates({"peaks": 7}, "bytes_per_s")) == []

"""Loads in words."""

from __future__ import annotations

from penstock.bench import loads


def test_a_load_is_named_by_its_rate_or_its_connections() -> None:
    assert loads.named("poisson", 5623.94, 8) == "poisson, 5,623.94/s"
    assert loads.named("closed", None, 1) == "closed, 1 connection"
    assert loads.named("loadgen offline", None, None) == "loadgen offline"


def test_what_sets_a_run_apart_stands_behind_its_name() -> None:
    assert loads.marked("constant, 200/s", "probe", "hopeless", "late") == "constant, 200/s (probe, hopeless, void)"
    assert loads.marked("closed, 8 connections", "sweep", "lost", None) == "closed, 8 connections (lost)"
    assert loads.marked("constant, 200/s", "confirm", None, None) == "constant, 200/s"

"""Results read back: what was written, and one sentence where it is something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import recorded
from penstock.bench.recorded import Engines, Server
from penstock.errors import PenstockError
from tests.bench import samples


def test_a_result_of_engines_is_read_with_its_rounds(tmp_path: Path) -> None:
    content = samples.engines()
    (tmp_path / "a.json").write_text(json.dumps(content))
    found = recorded.read(tmp_path / "a.json", "--from")
    assert isinstance(found, Engines)
    assert [(row.name, cell.batch) for row, cell in found.cells()] == [
        ("net-fp32", 1),
        ("net-fp32", 8),
        ("net-int8", 1),
        ("net-int8", 8),
    ]
    assert found.rows[0].cells[0].rounds_s[3] == tuple(content["rows"][0]["cells"][0]["rounds_s"][3])
    assert found.rows[0].cells[0].transfer_s is not None
    assert found.rows[0].cells[0].transfer_s.into == 1e-5


def test_a_result_of_a_server_is_read_with_its_runs() -> None:
    found = recorded.parse(samples.server())
    assert isinstance(found, Server)
    assert [run.load for run in found.runs] == ["closed, 1 connection", "closed, 8 connections", "poisson, 200/s"]


def test_keys_of_later_versions_do_no_harm() -> None:
    content = samples.engines()
    content["new"] = content["rows"][0]["new"] = content["rows"][0]["cells"][0]["new"] = {"a": [1]}
    assert recorded.parse(content) == recorded.parse(samples.engines())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"penstock_bench": None}, "has no penstock_bench"),
        ({"penstock_bench": 2}, "penstock_bench 2: this penstock reads 1"),
        ({"kind": "other"}, "kind 'other': must be one of engines, server"),
        ({"kind": ["engines"]}, "kind ['engines']: must be one of"),
        ({"rows": [{"name": "a", "cells": [{"batch": 0}]}]}, "rows.0.cells.0.batch: 0: "),
        ({"rows": [{"name": "a", "cells": [{"batch": 1, "rounds_s": [[0.0]]}]}]}, "rows.0.cells.0.rounds_s.0.0: 0.0: "),
        (
            {"rows": [{"name": "a", "cells": [{"batch": 1, "median_s": float("nan")}]}]},
            "rows.0.cells.0.median_s: nan: ",
        ),
        ({"rows": [{}]}, "rows.0.name: Field required"),
        ({"clock": {"rounds_s": [-1.0]}}, "clock.rounds_s.0: -1.0: "),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recorded.parse({**samples.engines(), **change}, "--from a.json")
    assert str(caught.value).startswith(f"--from a.json: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds no result"),
        (b"{}", "has no penstock_bench"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(PenstockError, match=f"--compare .*a.json: {said}"):
        recorded.read(tmp_path / "a.json", "--compare")


def test_no_such_file_and_a_folder_are_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(PenstockError, match="cannot be read: "):
            recorded.read(path, "--from")

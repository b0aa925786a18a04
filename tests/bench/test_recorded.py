"""Results read back: what was written, and one sentence where it is something else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import compare, comparison, page, recorded, table
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
        ({"clock": {"rounds_s": [10**400]}}, "clock.rounds_s.0: 1000"),
        ({"rows": [{"name": "a", "cells": [{"batch": 1, "rounds_s": [[]]}]}]}, "rows.0.cells.0.rounds_s.0: []: "),
        (
            {"rows": [{"name": "a", "cells": [{"batch": 1, "median_ci_s": [2e-3, 1e-3]}]}]},
            "rows.0.cells.0.median_ci_s: [0.002, 0.001]: the low end is above the high one",
        ),
        ({"environment": {"gpu": {"memory": 10**400}}}, "environment: gpu.memory: 1000"),
        ({"environment": {"a": [0.0, float("nan")]}}, "environment: a.1: nan: must be a number from "),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        recorded.parse({**samples.engines(), **change}, "--from a.json")
    assert str(caught.value).startswith(f"--from a.json: {said}")


def test_more_failures_than_requests_are_refused() -> None:
    content = samples.server([samples.run("closed", 1, 1e-3, failures={"wrong": 3000})])
    with pytest.raises(PenstockError, match=r"^the result: runs.0: 3000 failures of 2000 requests: "):
        recorded.parse(content)


@pytest.mark.parametrize("value", [0, -1, 5e-324, 1e-300, 1e15, 1e308, 10**30, 10**400, 4 * [1.0], []])
@pytest.mark.parametrize("kind", ["engines", "server"])
def test_what_is_not_refused_breaks_no_report_and_no_comparison(kind: str, value: Any) -> None:
    cells = [samples.cell(batch, 1e-3, rounds=5) for batch in (1, 8)]
    content = samples.engines([samples.row("a", cells), samples.row("b", cells)])
    if kind == "server":
        content = samples.server([samples.run("closed", 1, 1e-3)])
        content["runs"][0]["latencies_s"] = content["runs"][0]["latencies_s"][:50]
    whole = recorded.parse(content)
    for path in _places(content, ()):
        with contextlib.suppress(PenstockError):
            found = recorded.parse(_changed(content, path, value))
            table.text(found)
            page.text(found)
            for old, new in ((whole, found), (found, whole)):
                json.dumps(comparison.as_dict(compare.compare(old, new, 0.05)), allow_nan=False)


def _places(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Where everything is, of lists the last two only."""
    if path:
        yield path
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, each in list(inner)[-2:] if isinstance(part, list) else inner:
        yield from _places(each, (*path, key))


def _changed(part: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = part.copy()
    copied[path[0]] = _changed(part[path[0]], path[1:], value)
    return copied


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

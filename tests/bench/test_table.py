"""CSV: a line for each cell or run, which reads back as it was."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from penstock.bench import recorded, table
from penstock.errors import PenstockError
from tests.bench import samples


def read(content: dict[str, object]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.text(recorded.parse(content)), newline="")))


def test_a_line_for_each_cell_with_the_row_s_figures_beside_it() -> None:
    content = samples.engines()
    lines = read(content)
    assert [(line["name"], line["batch_rows"]) for line in lines] == [
        ("net-fp32", "1"),
        ("net-fp32", "8"),
        ("net-int8", "1"),
        ("net-int8", "8"),
    ]
    cell = content["rows"][0]["cells"][1]
    assert float(lines[1]["median_s"]) == cell["median_s"]
    assert [float(lines[1][f"median_{end}_s"]) for end in ("low", "high")] == cell["median_ci_s"]
    assert (lines[0]["reference"], lines[2]["reference"]) == ("True", "False")
    assert lines[0]["p99_s"] == lines[0]["transfer_out_s"] == ""
    assert float(lines[0]["transfer_in_s"]) == 1e-5
    assert lines[0]["accuracy_share"] == "0.99"


def test_a_variant_that_was_not_measured_has_a_line_with_the_reason() -> None:
    rows = [samples.row("a", [samples.cell(1, 1e-3)]), samples.row("b", [], unavailable="no GPU, no driver")]
    assert [(line["name"], line["unavailable"], line["batch_rows"]) for line in read(samples.engines(rows))] == [
        ("a", "", "1"),
        ("b", "no GPU, no driver", ""),
    ]


def test_a_line_for_each_run_of_a_server() -> None:
    runs = [samples.run("closed", 8, 1e-3), samples.run("poisson", 200, 2e-3, failures={"wrong": 2, "status 503": 1})]
    lines = read(samples.server(runs))
    assert [(line["mode"], line["failures"], line["failure_reasons"]) for line in lines] == [
        ("closed", "0", ""),
        ("poisson", "3", "wrong: 2; status 503: 1"),
    ]
    assert lines[1]["offered_requests_per_s"] == "200.0"
    assert float(lines[0]["queue_mean_s"]) == pytest.approx(3e-4)


def test_a_run_s_purpose_and_end_and_all_stages_are_told() -> None:
    stages = {"client": 1e-4, "network": 2e-4, "server": 5e-4, "queue": 3e-4, "compute": 4e-4}
    probe = samples.run("constant", 200, 2e-3, purpose="probe", ended="hopeless", stages_s=stages)
    payload = {"form": "v2-binary", "rows": 8}
    first, second = read(samples.server([probe, samples.run("closed", 8, 1e-3)], payload=payload))
    assert (first["purpose"], first["ended"], second["ended"]) == ("probe", "hopeless", "")
    assert float(first["server_mean_s"]) == 5e-4
    assert float(second["throughput_rows_per_s"]) == 8 * float(second["throughput_requests_per_s"])


def test_names_with_commas_quotes_and_newlines_read_back() -> None:
    name = 'a, "b"\nc'
    assert read(samples.engines([samples.row(name, [samples.cell(1, 1e-3)])]))[0]["name"] == name


def test_a_name_like_a_formula_is_text() -> None:
    rows = [samples.row("=1+1", [samples.cell(1, 1e-3)])]
    assert read(samples.engines(rows))[0]["name"] == "'=1+1"


def test_every_figure_tells_its_unit() -> None:
    bare = {"name", "version", "format", "precision", "reference", "unavailable", "threads", "streams", "samples"}
    units = ("_s", "_rows", "_bytes", "_share", "_samples", "_ratio", "_low", "_high", "_per_s", "_per_row")
    assert [name for name in read(samples.engines())[0] if name not in bare and not name.endswith(units)] == []


def test_a_table_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--csv .*gone/a\.csv: cannot be written: No such file"):
        table.write(recorded.parse(samples.engines()), tmp_path / "gone" / "a.csv")

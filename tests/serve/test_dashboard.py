"""The dashboard's queries are held to what a real server's /metrics has, and a real Prometheus answers them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.serve.gpus import Gpus
from tests.serve.test_gpus import FakeNvml

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/grafana.json").read_text())
QUERIES = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
# What Prometheus itself adds to all that it fetches from a server.
ADDED = {"instance", "job"}
NAME = "digits-onnx-fp32"
ANSWERED_S = 60

Series = dict[str, set[str]]


def filled_in(query: str) -> str:
    """A query with Grafana's variables as Grafana fills them in, but for a range that suits a test."""
    return query.replace("$__rate_interval", "30s").replace("$model", ".*")


def series_of(families: Iterator[Metric] | list[Metric]) -> Series:
    """The labels of each series, by its name."""
    found: Series = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def faults(query: str, legend: str, series: Series) -> list[str]:
    """What a query names that no series has."""
    parser = pytest.importorskip("promql_parser")
    return [*_named(parser, parser.parse(filled_in(query)), series, set())] + [
        f"legend {name}"
        for name in re.findall(r"{{(\w+)}}", legend)
        if name not in _labels(parser, parser.parse(filled_in(query)), series)
    ]


def _selectors(parser: Any, node: Any) -> list[Any]:
    if isinstance(node, parser.VectorSelector):
        return [node]
    if isinstance(node, parser.MatrixSelector):
        return [node.vector_selector]
    return [held for inner in _inner(node) for held in _selectors(parser, inner)]


def _inner(node: Any) -> list[Any]:
    fields = [getattr(node, name, None) for name in ("expr", "lhs", "rhs")]
    return [*(field for field in fields if field is not None), *(getattr(node, "args", None) or ())]


def _named(parser: Any, node: Any, series: Series, grouped: set[str]) -> Iterator[str]:
    if isinstance(node, parser.AggregateExpr) and node.modifier is not None:
        grouped = grouped | set(node.modifier.labels)
    if not (selectors := [node] if isinstance(node, parser.VectorSelector) else []) and isinstance(
        node, parser.MatrixSelector
    ):
        selectors = [node.vector_selector]
    for selector in selectors:
        labels = series.get(selector.name)
        if labels is None:
            yield f"metric {selector.name}"
            continue
        asked = {matcher.name for matcher in selector.matchers.matchers} | grouped
        yield from (f"label {label} of {selector.name}" for label in sorted(asked - labels - ADDED))
    for inner in _inner(node):
        yield from _named(parser, inner, series, grouped)


def _labels(parser: Any, node: Any, series: Series) -> set[str]:
    """The labels of a query's answer."""
    if isinstance(node, parser.AggregateExpr):
        return set(node.modifier.labels) if node.modifier is not None else set()
    inner = _inner(node)
    if not inner:
        (selector,) = _selectors(parser, node)
        return series.get(selector.name, set()) | ADDED
    found = [_labels(parser, each, series) for each in inner if not isinstance(each, parser.NumberLiteral)]
    less = {"le"} if getattr(getattr(node, "func", None), "name", "") == "histogram_quantile" else set()
    return set.intersection(*found) - less


def ask(server: Server, png: Any) -> None:
    """Traffic of each kind that a query tells apart: answered, refused, and failed by the server."""
    assert server.ask("POST", f"/predict/{NAME}", png([[0] * 8] * 8), {"Content-Type": "image/png"}).status == 200
    assert server.ask("POST", f"/predict/{NAME}", b"no picture", {"Content-Type": "image/png"}).status == 400
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [30_000]}
    assert server.ask("POST", "/v2/models/slow/infer", {"inputs": [entry]}).status == 503


@pytest.fixture(scope="module")
def watched(served_repository: Path, slow_onnx: Path, start_server: StartServer, png: Any) -> list[Server]:
    """A server of one process and one with front ends, after traffic."""
    servers = [
        start_server(
            served_repository / NAME, slow_onnx, "--timeout-s", "0.5", "--workers", workers, "--grpc-port", "-1"
        )
        for workers in ("0", "2")
    ]
    for server in servers:
        ask(server, png)
    return servers


@pytest.fixture(scope="module")
def series(watched: list[Server]) -> Series:
    """What the servers' pages have, and what they have on a machine with GPUs."""
    found: Series = {}
    pages = [text_string_to_metric_families(server.ask("GET", "/metrics").body.decode()) for server in watched]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", FakeNvml())
        gpus = asyncio.run(Gpus().families())
    for page in (*pages, gpus):
        for name, labels in series_of(page).items():
            found.setdefault(name, set()).update(labels)
    return found


@pytest.mark.parametrize(("title", "query", "legend"), QUERIES)
def test_every_metric_and_label_of_a_query_is_in_a_server_s_metrics(
    title: str, query: str, legend: str, series: Series
) -> None:
    assert faults(query, legend, series) == []


def test_every_panel_has_queries_and_the_models_to_choose_from_are_a_metric_s(series: Series) -> None:
    assert len(QUERIES) >= len(DASHBOARD["panels"]) > 10
    variable = next(held for held in DASHBOARD["templating"]["list"] if held["name"] == "model")
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
    assert label in series[name]


@pytest.mark.parametrize(
    ("query", "legend", "found"),
    [
        ("sum by (modle) (rate(penstock_requests_total[1m]))", "", ["label modle of penstock_requests_total"]),
        ('penstock_requests_total{status="200"}', "", ["label status of penstock_requests_total"]),
        ("rate(penstock_request_total[1m])", "", ["metric penstock_request_total"]),
        ("sum by (model) (penstock_pending_rows)", "{{version}}", ["legend version"]),
        ("penstock_pending_rows / on (model) penstock_model_ready", "{{model}}", []),
    ],
)
def test_what_no_series_has_is_found(query: str, legend: str, found: list[str], series: Series) -> None:
    assert faults(query, legend, series) == found


@pytest.fixture(scope="module")
def prometheus(watched: list[Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Prometheus that fetches the servers' metrics."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    targets = json.dumps([server.netloc for server in watched])
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: penstock, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log, cwd=folder)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def answered(url: str, query: str, again: Any) -> list[Any]:
    """The answer's series, once there are any; `again` makes traffic meanwhile, for rates."""
    give_up, asked = time.monotonic() + ANSWERED_S, urllib.parse.urlencode({"query": query})
    while time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=10) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                continue
            raise AssertionError(error.read().decode()) from None
        except ConnectionError:
            continue
        except urllib.error.URLError:
            time.sleep(0.1)
            continue
        assert told["status"] == "success"
        result: list[Any] = told["data"]["result"]
        if result and "NaN" not in {each["value"][1] for each in result}:
            return result
        again()
    raise AssertionError(f"{query}: no answer within {ANSWERED_S} s")


@pytest.mark.parametrize(("title", "query", "legend"), [query for query in QUERIES if "gpu" not in query[1]])
def test_a_real_prometheus_answers_every_query(
    title: str, query: str, legend: str, prometheus: str, watched: list[Server], png: Any
) -> None:
    def again() -> None:
        for server in watched:
            ask(server, png)

    for each in answered(prometheus, filled_in(query), again):
        assert set(re.findall(r"{{(\w+)}}", legend)) <= each["metric"].keys()

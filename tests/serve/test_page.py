"""The page at `/`: its files and what they are told, and the page itself in a real browser, headless."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from penstock import textual
from penstock.bench.studies.traffic import write_model
from penstock.preprocess import ImagePreprocess
from penstock.serve import keys, page, rights
from penstock.serve.metrics import SECONDS
from penstock.tabular import Column, TablePreprocess
from tests.serve.conftest import _signature, write_fake_artifact

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "serve/page"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(
    BROWSER is None or importlib.util.find_spec("playwright") is None,
    reason="needs playwright (extra dev) and a browser: apt-get install chromium",
)
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
LABELS = ("red", HOSTILE, "blue")
# A name that a shell and a program must be given in quotes.
FILE = 'it\'s a "red" one.png'
INFER = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}]}


def scored(kind: str, width: int, weights: Any) -> bytes:
    """A graph whose scores are a mean's products with `weights`: of a picture's colours, or of a row of numbers."""
    from onnx import TensorProto, helper, numpy_helper

    name, shape, dtype = {
        "image": ("image", ["batch", 3, 4, 6], TensorProto.FLOAT),
        "ids": ("ids", ["batch", width], TensorProto.INT64),
        "row": ("row", ["batch", width], TensorProto.FLOAT),
    }[kind]
    steps = [helper.make_node("Cast", [name], ["numbers"], to=TensorProto.FLOAT)]
    if kind == "image":
        steps += [helper.make_node("ReduceMean", ["numbers", "axes"], ["flat"], keepdims=0)]
    else:
        steps += [helper.make_node("Identity", ["numbers"], ["flat"])]
    steps += [helper.make_node("MatMul", ["flat", "weights"], ["scores"])]
    held = [numpy_helper.from_array(np.asarray(weights, np.float32), "weights")]
    held += [numpy_helper.from_array(np.array([2, 3], np.int64), "axes")]
    graph = helper.make_graph(
        steps,
        "scored",
        [helper.make_tensor_value_info(name, dtype, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", np.shape(weights)[1]])],
        held,
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of pictures whose scores differ by 0.5 of red, and one each of texts, of table rows and of tensors."""
    pytest.importorskip("onnx")
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("page") / "models"
    picture = _signature({"image": "float32[batch,3,4,6]"}, {"scores": "float32[batch,3]"})
    preprocess = ImagePreprocess(input="image", mode="RGB", height=4, width=6, mean=(0, 0, 0), std=(1, 1, 1))
    told: dict[str, Any] = {"task": "classification", "labels": LABELS, "preprocess": preprocess}
    for name, red in (("colour-a", 4.0), ("colour-b", 3.5)):
        graph = scored("image", 3, np.diag([red, 4, 4]))
        write_fake_artifact(folder, name, picture, graph=graph, **told)
    words = textual.fit(["the pump runs", "the valve leaks"], size=10, least=1, length=4)
    told = {"task": "classification", "labels": ("calm", "loud"), "preprocess": words}
    signature = _signature({"ids": "int64[batch,4]"}, {"scores": "float32[batch,2]"})
    graph = scored("ids", 4, [[1, 0], [0, 0], [0, 0], [0, 0]])
    write_fake_artifact(folder, "mood", signature, graph=graph, **told)
    columns = (
        Column(name="area", kind="number", mean=50, std=10),
        Column(name="heating", kind="category", categories=("gas", "oil")),
    )
    told = {"task": "regression", "preprocess": TablePreprocess(columns=columns)}
    signature = _signature({"row": "float32[batch,3]"}, {"scores": "float32[batch,1]"})
    write_fake_artifact(folder, "rent", signature, graph=scored("row", 3, [[100], [7], [9]]), **told)
    write_fake_artifact(folder, "pair")
    write_model(folder.parent / "line.onnx", 2.0, 1.0)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, start_server: StartServer) -> Server:
    return start_server(models, models.parent / "line.onnx")


@pytest.fixture(scope="module")
def family(models: Path, start_server: StartServer) -> Server:
    return start_server(models, models.parent / "line.onnx", "--workers", "2")


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file of keys, and the keys by their names."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return file, {
        name: keys.add(file, keys.make(name, (right,), None, None, None))
        for name, right in (("alice", rights.INFER), ("watcher", rights.METRICS))
    }


@pytest.fixture(scope="module")
def keyed(models: Path, secret: tuple[Path, dict[str, str]], start_server: StartServer) -> Server:
    return start_server(models, "--keys", secret[0])


@pytest.fixture
def red(tmp_path: Path, png: Callable[[Any], bytes]) -> Path:
    """A picture that is all red, whose scores are 4, 0 and 0."""
    path = tmp_path / FILE
    path.write_bytes(png(np.full((8, 8, 3), (255, 0, 0))))
    return path


# --- Without a browser -----------------------------------------------------------------------------------------------


def test_the_page_comes_with_a_strict_policy(server: Server) -> None:
    answer = server.ask("GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ") if " " in part)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' blob: data:"
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = server.ask("HEAD", "/")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(answer.body)))


@pytest.mark.parametrize("path", page.PATHS)
def test_every_file_is_served_with_its_type_and_only_once(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].partition(";")[0] == kinds.get(path.rpartition(".")[2], "text/html")
    again = server.ask("GET", path, headers={"If-None-Match": answer.headers["etag"]})
    assert (answer.status, again.status, again.body) == (200, 304, b"")


def test_what_lies_in_the_folder_is_what_is_served() -> None:
    lies = {path.name for path in FOLDER.iterdir() if path.suffix not in (".py", "") and path.is_file()}
    assert lies | {"base.css"} == {*page.FILES, "index.html"}


def test_no_file_names_another_server_or_holds_a_script_or_style_within_markup() -> None:
    for path in [*FOLDER.glob("*.*"), ROOT / "penstock/pages/page.css"]:
        text = path.read_text()
        assert set(re.findall(r"[a-z]+://[\w.]+|@import|\burl\(", text)) <= {"http://www.w3.org"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
    markup = (FOLDER / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", markup)


def test_a_wheel_holds_every_file(tmp_path: Path) -> None:
    """As it is built: setuptools copies what a wheel is packed of."""
    build = [
        "egg_info",
        "--egg-base",
        tmp_path,
        "build",
        "--build-base",
        tmp_path / "b",
        "--build-lib",
        tmp_path / "lib",
    ]
    command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", *map(str, build)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    held = {path.name for path in (tmp_path / "lib/penstock/serve/page").iterdir()}
    assert held >= {*page.FILES, "index.html", "routes.py"} - {"base.css"}
    assert (tmp_path / "lib/penstock/pages/page.css").is_file()


def test_models_are_told_with_what_vouches_for_them_and_how_they_are_asked(server: Server) -> None:
    told = server.ask("GET", page.MODELS)
    assert told.headers["cache-control"] == "no-store"
    found = {model["name"]: model for model in told.json["models"]}
    assert list(found) == ["colour-a", "colour-b", "line", "mood", "pair", "rent"]
    colour = found["colour-a"]
    assert (colour["format"], colour["precision"], colour["runtime"]) == ("onnx", "fp32", "onnxruntime")
    assert (colour["version"], colour["task"], colour["ready"]) == (1, "classification", True)
    assert colour["bytes"] > 100
    facts = dict(colour["receipt"])
    assert facts["Verified"].startswith("passed on 5 synthetic samples")
    assert re.fullmatch("[0-9a-f]{64}", facts["Model's SHA-256"])
    assert list(colour["forms"]) == ["image", "inputs"]
    assert "6 x 4 pixels in RGB" in colour["forms"]["image"]["hint"]
    assert found["mood"]["forms"]["text"]["hint"] == "It reads the first 4 tokens."
    assert [column["choices"] for column in found["rent"]["forms"]["row"]["columns"]] == [[], ["gas", "oil"]]
    assert [column["name"] for column in found["line"]["forms"]["row"]["columns"]] == [None] * 8
    assert found["line"]["receipt"] is None
    like = {name: {form: held["like"] for form, held in model["forms"].items()} for name, model in found.items()}
    assert like["colour-a"] == like["colour-b"]
    assert len({like[name]["inputs"] for name in ("colour-a", "mood", "rent", "line", "pair")}) == 5


def test_no_path_of_the_machine_that_a_receipt_was_written_on_is_told(
    tmp_path: Path, start_server: StartServer
) -> None:
    write_fake_artifact(tmp_path, "pair")
    receipt = tmp_path / "pair/1/penstock.json"
    held = json.loads(receipt.read_text())
    held["source"] |= {"checkpoint": "/home/somebody/secret/net.pth", "architecture": "/home/somebody/net.py:Net"}
    receipt.write_text(json.dumps(held))
    answer = start_server(tmp_path).ask("GET", page.MODELS)
    assert b"net.pth" in answer.body
    assert b"somebody" not in answer.body


def figures(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("GET", page.FIGURES).json["models"][name]
    return found


@pytest.mark.parametrize("topology", ["server", "family"])
def test_figures_count_every_request_wherever_it_was_answered(topology: str, request: pytest.FixtureRequest) -> None:
    asked: Server = request.getfixturevalue(topology)
    before = figures(asked, "line")
    for _ in range(6):  # each on a connection of its own, which front ends are dealt in turns
        assert asked.ask("POST", "/v2/models/line/infer", INFER).status == 200
    assert asked.ask("POST", "/predict/line", {"row": [1]}).status == 400
    after = figures(asked, "line")
    assert after["codes"].get("200", 0) - before["codes"].get("200", 0) == 6
    assert after["codes"].get("400", 0) - before["codes"].get("400", 0) == 1
    assert sum(after["seconds"]) - sum(before["seconds"]) == 7
    assert after["sizes"]["1"] - before["sizes"].get("1", 0) == 6
    assert sum(after["queue"]) - sum(before["queue"]) == 6
    assert (after["waiting"], after["ready"]) == (0, True)
    assert len(after["seconds"]) == len(SECONDS) + 1


def test_bounds_are_a_tenth_apart_at_most_and_hold_those_that_prometheus_is_told_of(server: Server) -> None:
    assert all(high <= 1.1 * low for low, high in itertools.pairwise(SECONDS))
    server.ask("POST", "/v2/models/line/infer", INFER)
    told = re.findall(r'penstock_request_seconds_bucket\{le="([\d.]+)"', server.ask("GET", "/metrics").body.decode())
    assert {float(bound) for bound in told} < set(SECONDS)
    assert len(set(told)) == 17


def test_a_model_that_cannot_be_loaded_or_was_unloaded_is_told(tmp_path: Path, start_server: StartServer) -> None:
    write_fake_artifact(tmp_path, "good")
    write_fake_artifact(tmp_path, "bad", expected={"total": np.full(5, 9.0)})
    server = start_server(tmp_path)
    first = server.ask("GET", page.FIGURES).json
    assert [problem[:31] for problem in first["problems"]] == ["model 'bad' failed to load: bad"]
    assert server.ask("POST", "/v2/repository/models/bad/unload", {}).status == 200
    second = server.ask("GET", page.FIGURES).json
    assert (second["loaded"] != first["loaded"], second["problems"]) == (True, [])
    assert server.ask("GET", page.MODELS).json["unloaded"] == ["bad"]


def test_without_a_key_there_is_the_page_and_nothing_of_the_models(
    keyed: Server, secret: tuple[Path, dict[str, str]]
) -> None:
    for path in page.PATHS:
        assert keyed.ask("GET", path).status == 200
    for path in (page.MODELS, page.FIGURES):
        assert keyed.ask("GET", path).status == 401
        said = [{"Authorization": f"Bearer {secret[1][name]}"} for name in ("watcher", "alice")]
        assert [keyed.ask("GET", path, headers=headers).status for headers in said] == [403, 200]


def test_there_is_no_page_where_none_is_wanted(models: Path, start_server: StartServer) -> None:
    for more in ([], ["--workers", "1"]):
        server = start_server(models / "pair", "--no-page", *more)
        assert "GET /," not in server.lines[-1]
        for path in ("/", "/page/main.js", page.MODELS, page.FIGURES):
            assert server.ask("GET", path).status == 404


# --- In a browser ----------------------------------------------------------------------------------------------------


@dataclass
class Visit:
    """A page, the addresses that it asked for, and what stood in the console."""

    page: Any
    asked: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)

    def choose(self, model: str) -> None:
        self.page.select_option("#model", model)

    def send(self) -> str:
        """Ask the model; the words of the outcome."""
        self.page.click("#try button[type=submit]")
        outcome = self.page.locator("#try .outcome")
        self.page.wait_for_function(
            "text => document.querySelector('#try .outcome').textContent !== text", arg="Asking …"
        )
        return str(outcome.inner_text())

    def label_bars(self) -> list[tuple[str, float]]:
        """Each label with its bar's share of the width there is."""
        found: list[list[Any]] = self.page.eval_on_selector_all(
            ".answer:first-of-type .bars li",
            """items => items.map((item) => [item.querySelector(".label").textContent,
              item.querySelector(".bar span").offsetWidth / item.querySelector(".bar").offsetWidth])""",
        )
        return [(label, share) for label, share in found]

    def commands(self) -> dict[str, str]:
        return {name: self.page.inner_text(f"pre[aria-label={name}]") for name in ("curl", "Python")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=BROWSER, args=arguments)
        yield opened
        opened.close()


Go = Callable[..., Visit]


@pytest.fixture
def visit(browser: Any) -> Iterator[Go]:
    """Opens a server's page. At the end nobody else was asked for anything, and no error stands in the console."""
    visits: list[tuple[Visit, str, tuple[str, ...]]] = []

    def go(server: Server, *expected: str, shown: str = "#content", **how: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **how})
        made = Visit(context.new_page())
        made.page.set_default_timeout(20_000)
        made.page.on("request", lambda request: made.asked.append(request.url))
        made.page.on("console", lambda message: made.console.append(message.text))
        made.page.on("pageerror", lambda error: made.console.append(f"uncaught: {error}"))
        visits.append((made, server.url, expected))
        made.page.goto(server.url)
        made.page.wait_for_selector(shown)
        return made

    yield go
    for made, url, expected in visits:
        made.page.context.close()
        assert [line for line in made.console if not any(part in line for part in expected)] == []
        assert [asked for asked in made.asked if not asked.startswith((f"{url}/", "blob:", "data:"))] == []


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """Clients that ask the line for answers, and now and then for what it does not take."""
    over = threading.Event()

    def ask(number: int) -> None:
        connection, body = server.connect(), json.dumps(INFER)
        for turn in itertools.count():
            if over.is_set():
                return
            path = "/v2/models/line/infer" if (turn + number) % 10 else "/v2/models/line/versions/9/infer"
            connection.request("POST", path, body)
            connection.getresponse().read()
            over.wait(0.005)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def legend(title: str) -> str:
    """Reads the values of a chart's legend by their names, as numbers."""
    return f"""() => Object.fromEntries([...document.querySelectorAll("figure")]
      .find((figure) => figure.querySelector("h3").textContent.startsWith("{title} "))
      .querySelector(".legend").textContent.split(/(?<=[\\d–])(?=[a-z])/).map((part) => part.trim())
      .map((part) => [part.split(" ").slice(0, -1).join(" "), Number(part.split(" ").at(-1).replace(",", ""))]))"""


@in_browser
def test_what_is_loaded_stands_in_a_table_with_its_receipt(server: Server, visit: Go) -> None:
    seen = visit(server).page
    assert seen.inner_text("#state") == "ready"
    row = seen.locator("table.models tr", has_text="colour-a").first
    cells = row.locator("td").all_inner_texts()
    assert cells[:2] == ["onnx fp32 by onnxruntime", "1"]
    assert cells[2].endswith("B")
    receipt = row.get_by_role("button", name="Receipt of colour-a")
    receipt.click()
    assert receipt.get_attribute("aria-expanded") == "true"
    facts = dict(server.ask("GET", page.MODELS).json["models"][0]["receipt"])
    assert facts["Model's SHA-256"] in seen.inner_text("#receipt-colour-a")
    assert "image FP32 [batch, 3, 4, 6]" in seen.inner_text("#receipt-colour-a")
    receipt.click()
    assert seen.is_hidden("#receipt-colour-a")
    assert "unverified" in seen.locator("table.models tr", has_text="line").first.inner_text()


@in_browser
def test_models_that_come_and_go_do_so_on_the_page(tmp_path: Path, start_server: StartServer, visit: Go) -> None:
    write_fake_artifact(tmp_path, "good")
    write_fake_artifact(tmp_path, "bad", expected={"total": np.full(5, 9.0)})
    server = start_server(tmp_path, "--route", "best=good")
    seen = visit(server).page
    assert seen.inner_text("#state") == "not ready"
    assert "model 'bad' failed to load: bad: output 'total'" in seen.inner_text("#problems")
    assert "Route best leads to good." in seen.inner_text("#models")
    server.ask("POST", "/v2/repository/models/bad/unload", {})
    seen.wait_for_selector("#state:text-is('ready')")
    assert "bad is not loaded." in seen.inner_text("#models")
    seen.fill("#tensors", '{"ids": [[7]], "weight": [1]}')
    shutil.copytree(tmp_path / "good", tmp_path / "new")
    receipt = tmp_path / "new/1/penstock.json"
    receipt.write_text(receipt.read_text().replace('"name": "good"', '"name": "new"'))
    assert server.ask("POST", "/v2/repository/models/new/load", {}).status == 200
    seen.wait_for_selector("#model option[value=new]", state="attached")
    assert seen.input_value("#tensors") == '{"ids": [[7]], "weight": [1]}'  # what somebody was typing stays


@in_browser
@pytest.mark.parametrize("topology", ["server", "family"])
def test_charts_move_while_traffic_flows(topology: str, request: pytest.FixtureRequest, visit: Go) -> None:
    asked: Server = request.getfixturevalue(topology)
    seen = visit(asked).page
    seen.select_option("#watched", "line")
    lines = "figure path.line[d]"
    with traffic(asked):
        seen.wait_for_function(
            f"() => {{ const held = ({legend('Requests')})(); return held.answered > 5 && held.failed > 0 }}"
        )
        before = seen.eval_on_selector_all(lines, "paths => paths.map((path) => path.getAttribute('d'))")
        seen.wait_for_function(
            f"""before => [...document.querySelectorAll("{lines}")].map((path) => path.getAttribute("d"))
              .some((d, place) => d.length > before[place].length)""",
            arg=before,
        )
        latency = seen.evaluate(legend("Latency"))
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
        assert seen.evaluate(legend("Waiting and computing"))["compute"] > 0
        assert seen.evaluate(legend("Batches"))["mean"] >= 1
        assert seen.locator("figure g.bars rect").count() >= 1
        now = seen.locator("figure", has_text="Requests").locator(".unseen").inner_text()
        assert re.search(r"answered [\d.,]+ a second, failed", now)
        seen.click("#readings summary")
        seen.wait_for_selector("#readings tbody tr")
        assert float(seen.locator("#readings tbody tr td").first.inner_text().replace(",", "")) > 0
    seen.wait_for_function(f"() => ({legend('Requests')})().answered === 0")


@in_browser
def test_nothing_is_asked_while_the_page_is_hidden_and_a_pause_stops_the_charts(server: Server, visit: Go) -> None:
    made = visit(server)
    seen = made.page
    polls = lambda: sum(url.endswith(page.FIGURES) for url in made.asked)  # noqa: E731
    seen.evaluate(
        """() => { Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
          document.dispatchEvent(new Event("visibilitychange")) }"""
    )
    seen.wait_for_timeout(300)  # what was under way has come
    held = polls()
    seen.wait_for_timeout(2500)
    assert polls() == held
    seen.evaluate("() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')) }")
    with seen.expect_response(f"**{page.FIGURES}"):
        pass
    seen.click("#pause")
    drawn = seen.eval_on_selector_all("#charts svg", "all => all.map((svg) => svg.innerHTML)")
    for _ in range(2):
        with seen.expect_response(f"**{page.FIGURES}"):
            pass
    assert seen.eval_on_selector_all("#charts svg", "all => all.map((svg) => svg.innerHTML)") == drawn
    assert seen.get_attribute("#pause", "aria-pressed") == "true"


@in_browser
def test_who_wants_little_motion_sees_the_charts_move_in_steps(server: Server, visit: Go) -> None:
    seen = visit(server, reduced_motion="reduce").page
    seen.wait_for_selector("figure path.line[d]", state="attached")
    seen.evaluate(
        """() => { globalThis.changes = []; new MutationObserver(() => { changes.push(performance.now()) })
          .observe(document.querySelector("#charts svg:not(.sample)"), { childList: true }) }"""
    )
    seen.wait_for_function("() => changes.length > 1")
    first, second, *_ = seen.evaluate("changes")
    assert second - first > 4000


@in_browser
def test_a_picture_is_answered_with_bars_times_and_commands_that_work(server: Server, visit: Go, red: Path) -> None:
    made = visit(server)
    made.choose("colour-a")
    made.page.set_input_files("#picture", red)
    assert made.page.get_attribute(".drop img", "src").startswith("blob:")
    assert made.send().startswith("colour-a: red, 96.5 %, in ")
    bars = made.label_bars()
    assert [label for label, _ in bars] == ["red", HOSTILE, "blue"]
    expected = np.exp([4, 0, 0]) / np.exp([4, 0, 0]).sum()
    assert np.allclose([share for _, share in bars], expected, atol=0.02)
    assert made.page.locator("img[src=x]").count() == 0
    assert made.page.title() == "penstock"
    times = made.page.locator(".times dd").all_inner_texts()
    parts = [float(text.removesuffix(" ms")) for text in times]
    assert len(parts) == 6
    assert sum(parts[:5]) == pytest.approx(parts[5], abs=0.05)
    name = made.page.inner_text(".times code")
    assert name in [held["request_id"] for held in server.ask("GET", "/debug/slow?limit=1000").json["requests"]]
    answer = server.ask("POST", "/predict/colour-a?top_k=5", red.read_bytes(), {"Content-Type": "image/png"}).json
    for said in ran(made.commands(), red.parent):
        assert said["predictions"] == answer["predictions"]


def ran(commands: dict[str, str], folder: Path, **more: str) -> list[Any]:
    """What the commands that the page shows print, run as they stand."""
    environment = {**os.environ, **more}
    words = [[sys.executable, "-c", commands["Python"]]]
    if shutil.which("curl"):
        words.append(["sh", "-c", commands["curl"].replace("curl ", "curl --silent --fail ", 1)])
    told = []
    for command in words:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (shlex.join(command), done.stderr)
        told.append(json.loads(done.stdout))
    return told


@in_browser
def test_a_picture_may_be_dropped_or_pasted(server: Server, visit: Go, red: Path) -> None:
    made = visit(server)
    made.choose("colour-a")
    give = """([bytes, kind]) => {
      const held = new DataTransfer();
      const name = kind === "paste" ? "" : `${kind.slice(1)}.png`;
      held.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
      const how = { bubbles: true, cancelable: true };
      const drop = new DragEvent("drop", { ...how, dataTransfer: held });
      if (kind !== "paste") {
        document.querySelector(kind).dispatchEvent(drop);
        if (!drop.defaultPrevented) throw new Error("the browser would open it");
      } else document.dispatchEvent(new ClipboardEvent("paste", { ...how, clipboardData: held }));
    }"""
    for kind, name in ((".drop", "drop.png"), ("#charts", "charts.png"), ("paste", "pasted.png")):
        made.page.evaluate(give, [list(red.read_bytes()), kind])
        made.page.wait_for_selector(f".drop span:has-text('{name}')")
        assert made.send().startswith("colour-a: red")


@in_browser
def test_what_is_wrong_is_told_in_a_sentence(server: Server, visit: Go, tmp_path: Path) -> None:
    made = visit(server, "400")
    made.choose("colour-a")
    assert made.send() == "There is no picture yet: drop one, paste one, or choose a file."
    (tmp_path / "no.png").write_bytes(b"no picture")
    made.page.set_input_files("#picture", tmp_path / "no.png")
    assert made.send() == "The 10 bytes sent are not an image; send a PNG, JPEG, WebP, BMP or GIF file."
    made.page.check("input[value=inputs]")
    made.page.fill("#tensors", '{"image": [')
    assert made.send().startswith("The text is no JSON: ")


@in_browser
def test_a_text_is_answered_and_its_commands_hold_it_whatever_it_is(server: Server, visit: Go, tmp_path: Path) -> None:
    made = visit(server)
    made.choose("mood")
    text = 'the "pump" isn\'t $HOME `at` rest \\ …\n@new line ✓'
    made.page.fill("#text", text)
    outcome = made.send()
    answer = server.ask("POST", "/predict/mood?top_k=5", {"text": text}).json
    (prediction,) = answer["predictions"]
    assert outcome.startswith(f"mood: {prediction['label']}, {100 * prediction['score']:.1f} %")
    for said in ran(made.commands(), tmp_path):
        assert said["predictions"] == answer["predictions"]


@in_browser
def test_a_table_row_has_a_field_for_each_column_of_its_kind(server: Server, visit: Go, tmp_path: Path) -> None:
    made = visit(server)
    made.choose("rent")
    assert made.page.get_attribute("label:text-is('area') + input", "type") == "number"
    choices = made.page.locator("label:text-is('heating') + select option").all_inner_texts()
    assert choices == ["(missing)", "gas", "oil"]
    made.page.fill("label:text-is('area') + input", "75")
    made.page.select_option("label:text-is('heating') + select", "oil")
    assert made.send().startswith("rent: 259, in ")
    for said in ran(made.commands(), tmp_path):
        assert said["values"] == [259.0]
    made.page.fill("label:text-is('area') + input", "")
    made.page.select_option("label:text-is('heating') + select", "")
    assert made.send().startswith("rent: 0, in ")


@in_browser
def test_rows_without_names_and_tensors_are_sent_as_they_are(server: Server, visit: Go) -> None:
    made = visit(server)
    made.choose("line")
    made.page.fill("label:text-is('Value 8') + input", "-2.5e-1")
    made.send()
    assert made.page.inner_text("pre[aria-label=Outputs]").endswith(",0.5]]")
    made.page.fill("label:text-is('Value 8') + input", "")
    assert made.send() == "Value 8 is empty, or no number; it must be one."
    made.choose("pair")
    assert made.page.locator(".kinds").is_hidden()
    made.page.fill("#tensors", '{"ids": [[9007199254740993]], "weight": [1]}')
    made.send()
    assert '"ids": [[9007199254740993]]' in made.commands()["curl"]


@in_browser
def test_two_variants_stand_side_by_side_with_their_difference(server: Server, visit: Go, red: Path) -> None:
    made = visit(server)
    made.choose("colour-a")
    assert made.page.locator("#other option").all_inner_texts() == ["no other model", "colour-b"]
    made.page.set_input_files("#picture", red)
    made.page.select_option("#other", "colour-b")
    outcome = made.send()
    assert "colour-a: red, 96.5 %" in outcome
    assert "colour-b: red, 94.3 %" in outcome
    assert outcome.endswith("The top label is the same. Largest difference: 0.5 in output scores, of values up to 4.")
    assert made.page.locator(".answer h3").all_inner_texts() == ["colour-a version 1", "colour-b version 1"]
    made.choose("mood")
    assert made.page.is_disabled("#other")


@in_browser
def test_a_key_is_asked_for_told_apart_from_a_wrong_one_and_never_shown(
    keyed: Server, secret: tuple[Path, dict[str, str]], visit: Go, tmp_path: Path
) -> None:
    made = visit(keyed, "401", "403", shown="#gate:visible")
    seen = made.page
    assert "colour-a" not in seen.content()
    assert seen.is_hidden("#content")
    for given, sentence in (
        ("penstock_wrong", "The API key is unknown"),
        (secret[1]["watcher"], "lacks the right infer"),
    ):
        seen.fill("#key", given)
        seen.click("#gate button")
        seen.wait_for_selector(f"#key-fault:has-text('{sentence}')")
        assert seen.input_value("#key") == ""
    alice = secret[1]["alice"]
    seen.fill("#key", alice)
    seen.press("#key", "Enter")
    seen.wait_for_selector("#content:visible")
    made.choose("mood")
    assert made.send().startswith("mood: ")
    assert "$PENSTOCK_API_KEY" in made.commands()["curl"]
    assert alice not in seen.content()
    assert [url for url in made.asked if "penstock_" in url] == []
    for said in ran(made.commands(), tmp_path, PENSTOCK_API_KEY=alice):
        assert said["model"] == "mood"
    seen.reload()
    seen.wait_for_selector("#content:visible")
    seen.click("#forget")
    seen.wait_for_selector("#gate:visible")
    assert "colour-a" not in seen.content()
    assert seen.evaluate("sessionStorage.length + localStorage.length + document.cookie.length") == 0


@in_browser
def test_a_key_s_rate_is_kept_to_and_the_page_goes_on(
    models: Path, tmp_path: Path, start_server: StartServer, visit: Go
) -> None:
    slow = keys.add(tmp_path / "keys.json", keys.make("slow", (rights.INFER,), 0.5, 1, None))
    made = visit(start_server(models / "pair", "--keys", tmp_path / "keys.json"), "401", "429", shown="#gate:visible")
    made.page.fill("#key", slow)
    made.page.press("#key", "Enter")
    made.page.wait_for_selector("#trouble:has-text('is over its rate')")
    with made.page.expect_response(lambda answer: answer.status == 429) as told:
        pass
    wait_s = int(told.value.headers["retry-after"])
    held = len(made.asked)
    made.page.wait_for_timeout(500 * wait_s)
    assert len(made.asked) == held
    made.page.wait_for_selector("#content:visible")


@in_browser
def test_everything_can_be_reached_and_done_by_keyboard(server: Server, visit: Go) -> None:
    made = visit(server)
    seen = made.page
    made.choose("mood")
    seen.evaluate("() => document.activeElement.blur()")
    # Of radio buttons the one that is checked stands for all; arrows lead to the others.
    wanted = seen.eval_on_selector_all(
        "a[href], button:not(:disabled), input:not([type=radio]), input:checked, select:not(:disabled), textarea, "
        "summary, [tabindex='0']",
        "all => all.filter((one) => one.checkVisibility()).map((one, place) => (one.dataset.place = place))",
    )
    reached, marks = [], []
    for _ in range(len(wanted) + 5):
        seen.keyboard.press("Tab")
        place, mark = seen.evaluate(
            "() => [document.activeElement.dataset.place, getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.append(place)
        if place is not None:
            marks.append(mark)
    assert {str(place) for place in wanted} <= set(reached)
    assert "none" not in marks
    seen.focus("#text")
    seen.keyboard.press("Control+A")
    seen.keyboard.type("the valve leaks")
    for _ in range(5):
        seen.keyboard.press("Tab")
        if seen.evaluate("document.activeElement.type") == "submit":
            break
    seen.keyboard.press("Enter")
    seen.wait_for_selector("#try .outcome:has-text('mood: ')")
    assert seen.get_attribute("#try .outcome", "role") == "status"


@in_browser
def test_a_screen_reader_is_given_landmarks_headings_and_names(server: Server, visit: Go) -> None:
    seen = visit(server).page
    seen.wait_for_function(f"() => ({legend('Requests')})().answered >= 0")
    tree = seen.locator("body").aria_snapshot()
    for part in ("banner", "main", "contentinfo", 'navigation "Sections"', 'heading "penstock" [level=1]'):
        assert part in tree, tree
    for part in ('region "Models"', 'region "Traffic"', 'region "Try it"', 'table "Models"', 'button "Ask the model"'):
        assert part in tree, tree
    assert re.search(r'img "Requests[^"]* answered [\d.,]+ a second, failed', tree), tree
    unnamed = seen.eval_on_selector_all(
        "input, select, textarea, button",
        "all => all.filter((one) => !one.labels?.length && !one.textContent.trim()).length",
    )
    assert unnamed == 0


# How much each text stands out from what is behind it, by the formula of WCAG 2.2.
CONTRASTS = """() => {
  const parts = (colour) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => parts(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    one.checkVisibility() && !one.disabled && !one.closest(".unseen, .skip, option, :disabled") &&
    [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((one) => {
    const style = getComputedStyle(one);
    const own = one.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const pair = [light(own), light(behind(one))].sort((a, b) => b - a);
    return [one.textContent.slice(0, 40), (pair[0] + 0.05) / (pair[1] + 0.05)];
  });
}"""


@in_browser
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_texts_stand_out_in_both_colours(server: Server, visit: Go, red: Path, colours: str) -> None:
    made = visit(server, "400", color_scheme=colours)
    made.choose("colour-a")
    made.page.set_input_files("#picture", red)
    made.page.select_option("#other", "colour-b")
    made.page.click("table.models button >> nth=0")
    made.page.click("#readings summary")
    made.send()
    told = made.page.evaluate(CONTRASTS)
    made.page.check("input[value=inputs]")
    made.page.fill("#tensors", "{}")
    made.send()
    told += made.page.evaluate(CONTRASTS)
    assert len(told) > 100
    assert [pair for pair in told if pair[1] < 4.5] == []
    ground = made.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (colours == "dark")


@in_browser
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(server: Server, visit: Go, red: Path, width: int) -> None:
    made = visit(server, viewport={"width": width, "height": 740})
    made.choose("colour-a")
    made.page.set_input_files("#picture", red)
    made.page.select_option("#other", "colour-b")
    for button in made.page.locator("table.models button").all():
        button.click()
    made.page.click("#readings summary")
    made.send()
    assert made.page.evaluate("document.scrollingElement.scrollWidth") <= width
    wide = made.page.eval_on_selector_all(
        "main *",
        """(all, width) => all.filter((one) => one.checkVisibility() && !one.closest(".scroll, pre, .unseen, .kinds"))
          .filter((one) => one.getBoundingClientRect().right > width + 0.5).map((one) => one.outerHTML.slice(0, 90))""",
        width,
    )
    assert wide == []


@in_browser
def test_a_server_that_has_ended_is_told_and_the_page_goes_on_once_it_is_back(
    models: Path, start_server: StartServer, visit: Go
) -> None:
    server = start_server(models / "pair")
    seen = visit(server, "net::ERR", "503").page
    server.stop()
    seen.wait_for_selector("#trouble:visible")
    assert "The server does not answer." in seen.inner_text("#trouble")
    again = [sys.executable, "-m", "penstock", "serve", str(models / "pair"), "--port", urlsplit(server.url).port]
    with subprocess.Popen([*map(str, again), "--grpc-port", "-1"], stdout=subprocess.DEVNULL) as process:
        try:
            seen.wait_for_selector("#trouble", state="hidden", timeout=60_000)
            assert seen.inner_text("#state") == "ready"
        finally:
            process.terminate()


@in_browser
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"body": '{"process": "'}, "The answer broke off, or is not this server's."),
        ({"body": "<h1>Back soon</h1>", "content_type": "text/html"}, "The answer broke off, or is not this server's."),
        (None, "The server does not answer."),
    ],
    ids=["cut off", "a proxy's", "none at all"],
)
def test_an_answer_that_is_none_is_told_and_the_page_goes_on(
    server: Server, visit: Go, answer: dict[str, str] | None, told: str
) -> None:
    seen = visit(server).page
    seen.evaluate("const full = AbortSignal.timeout; AbortSignal.timeout = (ms) => full.call(AbortSignal, ms / 15)")
    seen.route("**/page/figures", lambda route: route.fulfill(**answer) if answer else None)
    seen.wait_for_selector("#trouble:visible")
    assert told in seen.inner_text("#trouble")
    seen.unroute("**/page/figures")
    seen.wait_for_selector("#trouble", state="hidden")


@in_browser
def test_a_model_that_goes_while_it_is_asked_is_told(tmp_path: Path, start_server: StartServer, visit: Go) -> None:
    for name in ("one", "two"):
        write_fake_artifact(tmp_path, name)
    server = start_server(tmp_path)
    seen = visit(server, "404")
    held: list[Any] = []
    seen.page.route("**/predict/one", lambda route: held.append(route))
    seen.page.select_option("#other", "two")
    seen.page.click("#try button[type=submit]")
    server.ask("POST", "/v2/repository/models/two/unload", {})
    seen.page.wait_for_selector("#model option[value=two]", state="detached")
    held[0].continue_()
    seen.page.wait_for_selector("#try .outcome.bad")
    assert "two" in seen.page.inner_text("#try .outcome")


@in_browser
def test_a_model_called_as_what_every_object_has_is_counted_once_it_comes(server: Server, visit: Go) -> None:
    counted = {"codes": {"200": 3}, "seconds": [3], "queue": [3], "compute": [3], "sizes": {"1": 3}, "waiting": 0}
    looks = [
        {"process": "a", "now_s": now_s, "models": models, "unknown": {}}
        for now_s, models in enumerate([{}, {"constructor": counted}, {}])
    ]
    code = """async (looks) => {
      const held = new (await import("/page/figures.js")).Looks();
      looks.forEach((look) => held.add(look));
      return held.points("constructor", [1]).map(({ answered, waiting }) => [answered, waiting]);
    }"""
    assert visit(server).page.evaluate(code, looks) == [[3, 0], [0, 0]]


@in_browser
def test_whole_numbers_are_shown_as_the_model_answered_them(server: Server, visit: Go) -> None:
    seen = visit(server).page
    answer = '{"model":"m","outputs":{"y":[[9007199254740993,-9223372036854775808,0.1234567890123456789],["1"]]}}'
    code = """async (text) => JSON.stringify((await import("/page/tensors.js")).exact(text).outputs.y)"""
    assert seen.evaluate(code, answer) == '[[9007199254740993,-9223372036854775808,0.12345678901234568],["1"]]'
    assert seen.evaluate(code, answer.replace("9007199254740993", "7")).startswith("[[7,-9223372036854775808,")
    seen.evaluate("delete JSON.rawJSON")
    assert seen.evaluate(code, answer).startswith("[[9007199254740992,")


@in_browser
def test_percentiles_are_those_of_the_values_that_were_counted(server: Server, visit: Go) -> None:
    seconds = np.random.default_rng(0).lognormal(-6, 1, 5000)
    counts = np.bincount(np.searchsorted(SECONDS, seconds), minlength=len(SECONDS) + 1)
    code = "async ([counts, bounds, share]) => (await import('/page/figures.js')).percentile(counts, bounds, share)"
    seen = visit(server).page
    for share in (0.5, 0.95, 0.99):
        told = seen.evaluate(code, [counts.tolist(), list(SECONDS), share])
        assert told == pytest.approx(np.quantile(seconds, share), rel=0.03)
    assert seen.evaluate(code, [[0] * (len(SECONDS) + 1), list(SECONDS), 0.5]) is None


@in_browser
def test_tensors_of_every_datatype_are_compared_as_they_are(server: Server, visit: Go) -> None:
    seen = visit(server).page
    rng = np.random.default_rng(0)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {
        "BOOL": rng.integers(0, 2, 5).astype(bool),
        **{
            f"{'U' * (kind == 'u')}INT{8 * size}": rng.integers(0, 100, 5).astype(f"{kind}{size}")
            for kind in "iu"
            for size in (1, 2, 4, 8)
        },
        "FP16": np.array([0, 1e-7, 1.5, -65504, 0.1], np.float16),
        "BF16": np.array([0, 1e-30, 1.5, -3e38, 0.1], ml_dtypes.bfloat16),
        "FP32": rng.normal(size=5).astype(np.float32),
        "FP64": rng.normal(size=5),
    }
    for datatype, array in arrays.items():
        entry = {"name": "y", "datatype": datatype, "shape": [5], "parameters": {"binary_data_size": array.nbytes}}
        head = json.dumps({"outputs": [entry]}).encode()
        other = array.copy()
        other[3] = array[3] == 0
        code = """async ([one, other, length]) => {
          const { decode, difference } = await import("/page/tensors.js");
          const [a, b] = [one, other].map((bytes) => decode(new Uint8Array(bytes).buffer, length));
          return [a.get("y").values, difference(a, b).largest];
        }"""
        bodies = [list(head + each.tobytes()) for each in (array, other)]
        values, largest = seen.evaluate(code, [*bodies, len(head)])
        assert values == [float(value) for value in array], datatype
        assert largest == abs(float(array[3]) - float(other[3])), datatype

"""`penstock predict` as a user runs it, against real servers."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from penstock import health
from penstock.client import run
from penstock.client.connection import Patience

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

DIGITS = "/predict/digits-onnx-fp32"
LONG = 3000


class Ran:
    """A finished command."""

    def __init__(self, folder: Path, *words: str, stdin: bytes = b"", **environment: str) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", "penstock", "predict", *words],
            cwd=folder,
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            env={**os.environ, **environment},
        )
        self.code, self.out, self.err = ran.returncode, ran.stdout.decode().splitlines(), ran.stderr.decode()
        assert "Traceback" not in self.err, self.err


@pytest.fixture
def pictures(tmp_path: Path, scans: tuple[Any, Any], png: Callable[[Any], bytes]) -> Path:
    """A folder with 25 held-out scans in scans/, in two folders."""
    for number in range(25):
        path = tmp_path / "scans" / ("first" if number < 10 else "second") / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(scans[0][number]))
    return tmp_path


@pytest.fixture(scope="module")
def labels(server: Server, scans: tuple[Any, Any], png: Callable[[Any], bytes]) -> list[str]:
    """What the server says of the first 25 scans, each asked by itself."""
    return [
        server.ask("POST", DIGITS, png(scans[0][number]), {"Content-Type": "image/png"}).json["predictions"][0]["label"]
        for number in range(25)
    ]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("how", [("--batch", "1"), ("--batch", "4", "--concurrency", "3"), ("--batch", "1000")])
def test_a_folder_s_pictures_are_answered_in_the_order_of_their_paths(
    server: Server, pictures: Path, labels: list[str], how: tuple[str, ...]
) -> None:
    ran = Ran(pictures, server.url, "scans", "--model", "digits-onnx-fp32", *how)
    assert (ran.code, ran.err) == (0, "25 answered, 0 failed\n")
    assert [line.split()[:2] for line in ran.out] == [
        [f"scans/{'first' if number < 10 else 'second'}/{number:02}.png", label] for number, label in enumerate(labels)
    ]


def test_the_model_may_stand_in_the_url_and_files_be_patterns_or_standard_input(
    server: Server, pictures: Path, labels: list[str]
) -> None:
    picture = (pictures / "scans/first/03.png").read_bytes()
    ran = Ran(pictures, server.url + DIGITS, "scans/*/0[12].png", "-", "--json", "--top-k", "2", stdin=picture)
    assert ran.code == 0
    said = [json.loads(line) for line in ran.out]
    assert [entry["file"] for entry in said] == ["scans/first/01.png", "scans/first/02.png", "-"]
    assert [entry["label"] for entry in said] == labels[1:4]
    assert all(len(entry["top"]) == 2 for entry in said)


def test_a_table_is_written_whole_and_nothing_else_printed(server: Server, pictures: Path, labels: list[str]) -> None:
    ran = Ran(pictures, server.url + DIGITS, "scans", "--csv", "out.csv", "--top-k", "3")
    assert (ran.code, ran.out) == (0, [])
    rows = read(pictures / "out.csv")
    assert list(rows[0]) == ["file", "label", "score", "label_2", "score_2", "label_3", "score_3"]
    assert [row["label"] for row in rows] == labels
    assert sorted(path.name for path in pictures.iterdir()) == ["out.csv", "scans"]


def test_bad_files_fail_alone_with_their_reasons_and_exit_code_1(
    server: Server, pictures: Path, labels: list[str]
) -> None:
    for name in ("first/04.png", "second/17.png"):
        (pictures / "scans" / name).write_bytes(b"hello")
    ran = Ran(pictures, server.url + DIGITS, "scans", "--csv", "out.csv", "--batch", "10")
    assert ran.code == 1
    reason = "the 5 bytes sent are not an image; send a PNG, JPEG, WebP, BMP or GIF file"
    assert ran.err.splitlines() == [
        f"scans/first/04.png: {reason}",
        f"scans/second/17.png: {reason}",
        "23 answered, 2 failed",
    ]
    rows = read(pictures / "out.csv")
    assert [row["label"] for row in rows] == [label if n not in (4, 17) else "" for n, label in enumerate(labels)]
    assert [n for n, row in enumerate(rows) if row["error"] == reason] == [4, 17]


def test_class_maps_are_written_to_a_folder(forms: Server, tmp_path: Path, png: Callable[[Any], bytes]) -> None:
    (tmp_path / "street").mkdir()
    pixels = np.array([[0, 0, 1, 1, 1, 2]] * 4)
    (tmp_path / "street" / "a.png").write_bytes(png(np.eye(3)[pixels] * 255))
    (tmp_path / "street" / "b.png").write_bytes(png(np.eye(3)[pixels[:, ::-1]] * 255))
    ran = Ran(tmp_path, forms.url, "street", "--model", "colours", "--output", "maps", "--top-k", "2")
    assert ran.code == 0, ran.err
    assert ran.out == ["street/a.png  green 0.5000  red 0.3333", "street/b.png  green 0.5000  red 0.3333"]
    for name, expected in (("a", pixels), ("b", pixels[:, ::-1])):
        image = Image.open(tmp_path / "maps" / f"{name}.png")
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), expected)
    refused = Ran(tmp_path, forms.url + DIGITS, "street", "--output", "maps")
    assert (refused.code, refused.out) == (2, [])
    assert "--output maps: the model answers no class maps" in refused.err


def test_arrays_tables_and_requests_are_answered_by_the_row(forms: Server, tmp_path: Path) -> None:
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    np.save(tmp_path / "a.npy", rows)
    (tmp_path / "b.csv").write_text("p,q,r\n1,2,3\n4,5,6\n7,8,9\n")
    (tmp_path / "c.json").write_text('{"row": [1, 1, 1]}')
    ran = Ran(tmp_path, forms.url, "a.npy", "b.csv", "c.json", "--model", "price", "--batch", "4", "--csv", "out.csv")
    assert ran.code == 0, ran.err
    assert [(row["file"], row["row"], float(row["value"])) for row in read(tmp_path / "out.csv")] == [
        *[("a.npy", str(n + 1), float(rows[n].sum())) for n in range(10)],
        *[("b.csv", str(n + 1), value) for n, value in enumerate((6.0, 15.0, 24.0))],
        ("c.json", "", 3.0),
    ]


def test_a_bad_row_of_a_table_fails_alone(forms: Server, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,children,member\n1,2,true\nx,2,true\n3,2,false\n")
    ran = Ran(tmp_path, forms.url, "a.csv", "--model", "people")
    assert (ran.code, ran.out) == (1, ["a.csv:1  total=4.0", "a.csv:3  total=5.0"])
    assert ran.err.startswith("a.csv, line 3: column age is 'x'; it must be a number\n")


def test_arrays_by_name_reach_a_model_of_several_inputs(forms: Server, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array([[1, 2], [3, 4]]), weight=np.array([0.5, 0.25], np.float32))
    ran = Ran(tmp_path, forms.url, "a.npz", "--model", "pair", "--json")
    assert [json.loads(line)["total"] for line in ran.out] == [3.5, 7.25]
    np.savez(tmp_path / "a.npz", ids=np.array([[1, 2]]), weight=np.array([5]))
    ran = Ran(tmp_path, forms.url, "a.npz", "--model", "pair")
    assert ran.code == 1
    assert "a.npz:1: input 'weight' has dtype int64; it must be float32" in ran.err


def test_text_for_a_model_of_numbers_is_refused_for_each_line_told_once_and_not_in_halves(
    forms: Server, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    refusals = 'penstock_requests_total{code="415",model="pair"}'
    before = forms.metric(refusals)
    ran = Ran(tmp_path, forms.url, "a.txt", "--model", "pair")
    assert ran.code == 1
    assert ran.err.count("records no tokenizer") == 1
    assert forms.metric(refusals) - before == 1


def test_pictures_over_the_server_s_bound_go_in_smaller_requests(forms: Server, pictures: Path) -> None:
    ran = Ran(pictures, forms.url + DIGITS, "scans", "--batch", "25")  # it takes 4
    assert (ran.code, len(ran.out)) == (0, 25)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["nobody.png"], "nobody.png: there is no such file, folder or pattern"),
        (["scans"], "serves digits-onnx-fp16, digits-onnx-fp32, digits-onnx-int8, pair; name one: --model NAME"),
        (["scans", "--model", "nobody"], "model 'nobody' is not served; the models are digits-onnx-fp16"),
        (["scans", "--model", "pair", "--csv", "no/where.csv"], "--csv no/where.csv: there is no folder no"),
        (["scans", "--top-k", "0"], "--top-k"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence_with_exit_code_2(
    server: Server, pictures: Path, words: list[str], rule: str
) -> None:
    ran = Ran(pictures, server.url, *words)
    assert (ran.code, ran.out) == (2, [])
    assert rule in ran.err


def test_the_only_model_is_taken_unasked(forms_repository: Path, start_server: StartServer, pictures: Path) -> None:
    server = start_server(forms_repository / "digits-onnx-fp32")
    ran = Ran(pictures, server.url, "scans/first/00.png")
    assert (ran.code, len(ran.out)) == (0, 1)


def test_a_server_behind_its_files_is_told_where_it_stands(pictures: Path) -> None:
    ran = Ran(pictures, "scans", "http://127.0.0.1:9", "--retries", "0")
    assert ran.code == 2
    assert "the server comes first: penstock predict http://127.0.0.1:9 scans" in ran.err


def test_health_takes_the_addresses_that_predict_takes(server: Server) -> None:
    assert health.ready(server.url.removeprefix("http://"), 10) == (True, f"{server.url}: ready")
    assert health.ready("ftp://127.0.0.1:9", 10) == (False, "ftp://127.0.0.1:9: must begin with http:// or https://")


def test_nobody_there_is_told_after_the_retries(pictures: Path) -> None:
    ran = Ran(pictures, "http://127.0.0.1:9", "scans", "--retries", "1")
    assert ran.code == 2
    assert "http://127.0.0.1:9: nobody listens there" in ran.err


def test_a_full_queue_is_waited_for(narrow_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "short.npy", np.array([1], np.int64))
    refusals = 'penstock_requests_total{code="503",model="slow"}'
    before = narrow_server.metric(refusals)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(narrow_server.ask, "POST", "/predict/slow", {"inputs": [LONG]})
        narrow_server.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', 1)
        url, told = f"{narrow_server.url}/predict/slow", []
        failed = run.predict(url, [str(tmp_path / "short.npy")], run.Wishes(patience=Patience(30)), told.append)
    assert (failed, told) == (0, ["1 answered, 0 failed"])
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert narrow_server.metric(refusals) > before


def test_a_server_that_goes_away_ends_the_run_with_what_there_was(
    slow_onnx: Path, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(slow_onnx)
    for number in range(40):
        np.save(tmp_path / f"{number:02}.npy", np.array([1500], np.int64))

    def kill() -> None:
        answered = 'penstock_requests_total{code="200",model="slow"}'
        while server.metric(answered) < 3:
            time.sleep(0.05)
        server.process.kill()

    threading.Thread(target=kill).start()
    words = ("--csv", "out.csv", "--retries", "1", "--concurrency", "1")
    ran = Ran(tmp_path, f"{server.url}/predict/slow", "*.npy", *words)
    server.process.wait()
    rows = read(tmp_path / "out.csv")
    answered = [row for row in rows if not row.get("error")]
    assert ran.code == 1
    assert 0 < len(answered) < 40
    assert "nobody listens there" in ran.err
    assert ran.err.splitlines()[-1] == f"{len(answered)} answered, {40 - len(answered)} failed"


def test_what_there_was_until_an_interrupt_is_in_the_table(narrow_server: Server, tmp_path: Path) -> None:
    for number in range(60):
        np.save(tmp_path / f"{number:02}.npy", np.array([800], np.int64))
    words = (f"{narrow_server.url}/predict/slow", "*.npy", "--json", "--csv", "out.csv", "--concurrency", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "predict", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert (process.returncode, err.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in err
    lines = [json.loads(line) for line in [*printed, *rest.splitlines()]]
    assert 3 <= len(lines) < 60
    assert [row["file"] for row in read(tmp_path / "out.csv")] == [line["file"] for line in lines]


def on_a_terminal(folder: Path, *words: str, out: int | None = None) -> str:
    """What the command shows on a terminal's stderr, and stdout unless that goes elsewhere."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "predict", *words],
        cwd=folder,
        stdout=follower if out is None else out,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(follower)
    shown = b""
    while True:
        if select.select([leader], [], [], 60)[0]:
            try:
                shown += os.read(leader, 65536)
            except OSError:
                break
    assert process.wait(30) == 0
    os.close(leader)
    return shown.decode()


def test_a_terminal_shows_a_bar_while_rows_go_to_a_file(server: Server, pictures: Path) -> None:
    with (pictures / "out.jsonl").open("wb") as file:
        shown = on_a_terminal(pictures, server.url + DIGITS, "scans", "--json", out=file.fileno())
    assert "predicting" in shown
    assert "scans/" not in shown
    lines = (pictures / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines][:1] == ["scans/first/00.png"]
    assert len(lines) == 25


def test_a_terminal_that_shows_rows_has_no_bar_between_them(server: Server, pictures: Path) -> None:
    shown = on_a_terminal(pictures, server.url + DIGITS, "scans")
    assert "predicting" not in shown
    assert shown.count("scans/") == 25


def test_the_client_needs_neither_torch_nor_a_runtime_nor_the_server_s_packages(
    server: Server, pictures: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'onnxruntime', 'onnx', 'fastapi', 'orjson', 'PIL', 'uvicorn'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, No())\n"
    )
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = Ran(pictures, server.url + DIGITS, "scans/first", PYTHONPATH=path)
    assert (ran.code, len(ran.out)) == (0, 10)


def test_the_help_has_examples() -> None:
    ran = Ran(Path(), "--help")
    assert ran.code == 0
    assert "Examples" in "\n".join(ran.out)

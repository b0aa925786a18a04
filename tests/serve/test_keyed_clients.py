"""penstock's own clients, let in by a key to a server that they trust."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from penstock import cli
from tests.serve.conftest import write_fake_artifact
from tests.serve.test_access import add
from tests.serve.test_certificates import issued

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

Run = Callable[..., Result]


@dataclass
class Closed:
    """A server that asks for keys and speaks TLS; the file of its authority, and its keys."""

    server: Server
    ca: Path
    every: str
    infer: str
    metrics: str
    operate: str

    @property
    def grpc(self) -> str:
        return re.findall(r"gRPC at (\S+)", "\n".join(self.server.lines))[0]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Closed:
    folder = tmp_path_factory.mktemp("closed")
    write_fake_artifact(folder / "models", "pair")
    pair, file = issued(folder), folder / "keys.json"
    (folder / "ca.pem").write_bytes(pair.root)
    names = ("infer", "repository", "shared-memory", "metrics")
    held = [add(file, "every", *names), add(file, "infer"), add(file, "metrics", "metrics")]
    held.append(add(file, "operate", "repository"))
    options: Any = ("--keys", file, "--tls-cert", pair.cert, "--tls-key", pair.key)
    return Closed(start_server(folder / "models", *options, trusts=pair.trusts), folder / "ca.pem", *held)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Server:
    folder = tmp_path_factory.mktemp("plain")
    write_fake_artifact(folder, "pair")
    return start_server(folder)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def ran(*words: str | Path, key: str | None = None) -> Result:
        monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
        if key is not None:
            monkeypatch.setenv("PENSTOCK_API_KEY", key)
        return CliRunner().invoke(cli.app, [str(word) for word in words])

    return ran


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text('{"inputs": {"ids": [[1, 2]], "weight": [1]}}')
    return path


def test_health_needs_no_key_but_trust(closed: Closed, run: Run) -> None:
    assert run("health", closed.server.url, "--ca", closed.ca).exit_code == 0
    assert run("health", closed.server.url, "--ca", closed.ca, key=closed.infer).exit_code == 0
    untrusted = run("health", closed.server.url)
    assert untrusted.exit_code == 1
    assert "its certificate is not trusted" in untrusted.output
    assert "--ca" in untrusted.output


def test_predict_is_let_in_by_a_key_of_the_environment_or_a_file(
    closed: Closed, run: Run, request_file: Path, tmp_path: Path
) -> None:
    words = ("predict", closed.server.url, request_file, "--ca", closed.ca, "--json")
    answered = run(*words, key=closed.infer)
    assert answered.exit_code == 0, answered.output
    assert '"total"' in answered.output
    (tmp_path / "key").write_text(closed.infer + "\n")
    assert run(*words, "--key-file", tmp_path / "key").exit_code == 0


@pytest.mark.parametrize(("key", "why"), [(None, "an API key is needed"), ("nobody", "the API key is unknown")])
def test_predict_says_why_it_is_not_let_in(
    closed: Closed, run: Run, request_file: Path, key: str | None, why: str
) -> None:
    refused = run("predict", closed.server.url, request_file, "--ca", closed.ca, key=key)
    assert why in str(refused.exception)
    assert "key with --key-file FILE or PENSTOCK_API_KEY" in str(refused.exception)


def test_predict_without_the_right_is_told_how_another_key_is_given(
    closed: Closed, run: Run, request_file: Path
) -> None:
    refused = run("predict", closed.server.url, request_file, "--ca", closed.ca, key=closed.metrics)
    assert "lacks the right infer" in str(refused.exception)
    assert str(refused.exception).endswith("give another key with --key-file FILE or PENSTOCK_API_KEY")


@pytest.mark.parametrize("command", ["predict", "health", "check"])
def test_clients_that_ask_a_tls_port_by_http_are_told_to_ask_by_https(
    closed: Closed, run: Run, request_file: Path, command: str
) -> None:
    plain = closed.server.url.replace("https", "http")
    told = run(command, plain, *([request_file] if command == "predict" else []))
    assert told.exit_code != 0
    assert f"ask it as {closed.server.url} (--ca FILE" in f"{told.output} {told.exception}"


@pytest.mark.parametrize("command", ["predict", "health", "check"])
def test_clients_that_ask_a_plain_port_by_https_are_told_to_ask_by_http(
    plain: Server, run: Run, request_file: Path, command: str
) -> None:
    told = run(command, plain.url.replace("http", "https"), *([request_file] if command == "predict" else []))
    assert told.exit_code != 0
    assert f"it speaks no TLS there; ask it as {plain.url}" in f"{told.output} {told.exception}"


def test_predict_waits_where_it_asks_too_often(tmp_path: Path, start_server: StartServer, run: Run) -> None:
    write_fake_artifact(tmp_path / "models", "pair")
    key = add(tmp_path / "keys.json", "few", rate=4, burst=3)
    server = start_server(tmp_path / "models", "--keys", tmp_path / "keys.json")
    files = [tmp_path / f"{number}.json" for number in range(4)]
    for file in files:
        file.write_text('{"inputs": {"ids": [[1, 2]], "weight": [1]}}')
    done = run("predict", server.url, *files, "--json", key=key)  # two more ask for the model and its inputs
    server.stop()
    assert done.exit_code == 0, done.output
    assert "4 answered, 0 failed" in done.output


def test_every_check_passes_with_a_key_that_has_every_right(closed: Closed, run: Run) -> None:
    done = run("check", closed.server.url, "--grpc", closed.grpc, "--ca", closed.ca, key=closed.every)
    assert done.exit_code == 0, done.output
    assert ", 0 failed" in done.output.splitlines()[-1]
    assert "and gRPC at" in done.output
    assert int(re.findall(r"(\d+) checks passed, 0 failed, \d+ skipped", done.output)[0]) > 100


def test_check_says_what_it_lacks(closed: Closed, run: Run) -> None:
    without = run("check", closed.server.url, "--ca", closed.ca)
    assert "the server answers 401; what it wants to see goes in --key-file FILE, PENSTOCK_API_KEY" in str(
        without.exception
    )


def test_check_says_which_right_its_key_lacks(closed: Closed, run: Run) -> None:
    words = ("check", closed.server.url, "--ca", closed.ca)
    outside = str(run(*words, key=closed.metrics).exception)
    said = "the server answers 403 to the key that was given: the API key 'metrics' lacks the right infer"
    assert said in outside
    assert "speaks no Open Inference Protocol" not in outside
    done = run(*words, "--grpc", closed.grpc, key=closed.infer)
    assert "403 to the key that was given: the API key 'infer' lacks the right repository" in done.output
    assert "PERMISSION_DENIED to the key that was given: the API key 'infer' lacks the right" in done.output
    assert "what it wants to see" not in done.output


def test_check_with_a_key_that_may_not_infer_says_so(closed: Closed, run: Run) -> None:
    told = run("check", closed.server.url, "--ca", closed.ca, key=closed.operate)
    assert "the API key 'operate' lacks the right infer" in str(told.exception)

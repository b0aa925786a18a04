"""A server that asks for API keys, over HTTP's two roads and gRPC; what it says in the log; keys that change."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.serve import keys
from penstock.serve.access import Access, AccessFiles
from tests.serve.conftest import write_fake_artifact
from tests.serve.test_connection import answers, chunked, connected, infer

if TYPE_CHECKING:
    from tests.serve.conftest import Answer, Server, StartServer

BODY = {
    "inputs": [
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]},
        {"name": "weight", "shape": [1], "datatype": "FP32", "data": [1]},
    ]
}
# The same models, by uvicorn and the framework, and by the connection itself.
INFER, PREDICT = "/v2/models/pair/infer", "/predict/pair"
ROADS = [pytest.param(INFER, BODY, id="infer"), pytest.param(PREDICT, {"inputs": {"ids": [[1]], "weight": [1]}})]
WITHIN_S = 2.0


@dataclass
class Keyed:
    """A server, its file of keys, and each key by its name."""

    server: Server
    file: Path
    keys: dict[str, str] = field(default_factory=dict)

    def headers(self, name: str | None) -> dict[str, str]:
        return {} if name is None else {"Authorization": f"Bearer {self.keys.get(name, name)}"}

    def line(self, name: str) -> str:
        return f"Authorization: Bearer {self.keys[name]}"

    def ask(self, name: str | None, method: str, path: str, body: Any = None) -> Answer:
        return self.server.ask(method, path, body, self.headers(name))

    def wait(self, path: str, name: str, status: int) -> None:
        """Until a key is answered so; no longer than is promised."""
        give_up = time.monotonic() + WITHIN_S
        while self.ask(name, "GET", path).status != status:
            assert time.monotonic() < give_up, f"{name} was not answered {status} within {WITHIN_S} s"
            time.sleep(0.02)


def add(file: Path, name: str, *asked: str, rate: float | None = None, burst: float | None = None) -> str:
    return keys.add(file, keys.make(name, asked or ("infer",), rate, burst, None))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keyed") / "models"
    write_fake_artifact(folder, "pair")
    return folder


@pytest.fixture(scope="module")
def keyed(models: Path, tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Keyed:
    """A server of alice (infer), ops (repository), watcher (metrics), all, and slow, which may ask twice."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    held = {
        "alice": add(file, "alice"),
        "ops": add(file, "ops", "repository"),
        "watcher": add(file, "watcher", "metrics"),
        "all": add(file, "all", "infer", "repository", "metrics", "shared-memory"),
        "slow": add(file, "slow", rate=0.01, burst=2),
    }
    return Keyed(start_server(models, "--keys", file), file, held)


@pytest.fixture
def own(models: Path, tmp_path: Path, start_server: StartServer) -> Iterator[Keyed]:
    """A server of a test's own, whose keys it changes."""
    file = tmp_path / "keys.json"
    held = {"alice": add(file, "alice"), "bob": add(file, "bob")}
    server = start_server(models, "--keys", file)
    yield Keyed(server, file, held)
    server.stop()


@pytest.mark.parametrize(("path", "body"), ROADS)
def test_a_key_with_the_right_is_answered(keyed: Keyed, path: str, body: Any) -> None:
    assert keyed.ask("alice", "POST", path, body).status == 200


@pytest.mark.parametrize(("path", "body"), ROADS)
@pytest.mark.parametrize("name", [None, "a-key-that-nobody-made"])
def test_without_a_known_key_there_is_a_401_with_a_challenge(
    keyed: Keyed, path: str, body: Any, name: str | None
) -> None:
    answer = keyed.ask(name, "POST", path, body)
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith('Bearer realm="penstock"')
    assert answer.error == ("an API key is needed; send it as Authorization: Bearer KEY" if name is None else
                            "the API key is unknown")  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ROADS)
def test_a_key_without_the_right_gets_a_403_that_names_it(keyed: Keyed, path: str, body: Any) -> None:
    answer = keyed.ask("ops", "POST", path, body)
    assert (answer.status, answer.error) == (403, "the API key 'ops' lacks the right infer, which this needs")


def test_the_roads_share_a_key_s_rate(keyed: Keyed) -> None:
    asked = [keyed.ask("slow", "POST", *road.values).status for road in (*ROADS, *ROADS)]
    assert asked == [200, 200, 429, 429]
    answer = keyed.ask("slow", "POST", INFER, BODY)
    assert 90 <= int(answer.headers["retry-after"]) <= 100
    assert "over its rate of 0.01 requests/s" in answer.error


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_is_open(keyed: Keyed, method: str, path: str) -> None:
    assert keyed.ask(None, method, path).status == 200


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Keyed:
    """A keyed server that is not ready: `secret` cannot be loaded."""
    folder = tmp_path_factory.mktemp("failing")
    write_fake_artifact(folder / "models", "pair")
    (folder / "secret.onnx").write_bytes(b"nonsense")
    file = folder / "keys.json"
    held = {
        "alice": add(file, "alice"),
        "ops": add(file, "ops", "repository"),
        "watcher": add(file, "watcher", "metrics"),
    }
    return Keyed(start_server(folder / "models", folder / "secret.onnx", "--keys", file), file, held)


@pytest.mark.parametrize(
    ("name", "told"), [(None, False), ("nobody", False), ("watcher", False), ("alice", True), ("ops", True)]
)
def test_only_who_may_list_the_models_is_told_why_the_server_is_not_ready(
    failing: Keyed, name: str | None, told: bool
) -> None:
    answer = failing.ask(name, "GET", "/v2/health/ready")
    assert answer.status == 503
    assert ("'secret' failed to load" in answer.error) if told else (answer.error == "not ready")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2", ("alice", "ops")),
        ("GET", "/v2/models/pair", ("alice",)),
        ("GET", "/v2/models/pair/ready", ("alice",)),
        ("GET", "/v2/models/stats", ("alice",)),
        ("POST", "/v2/repository/index", ("alice", "ops")),
        ("POST", "/v2/repository/models/pair/load", ("ops",)),
        ("GET", "/v2/logging", ("ops",)),
        ("POST", "/v2/logging", ("ops",)),
        ("GET", "/v2/models/pair/trace/setting", ("ops",)),
        ("GET", "/v2/systemsharedmemory/status", ("all",)),
        ("GET", "/metrics", ("watcher",)),
        ("GET", "/openapi.json", ("alice",)),
        ("GET", "/docs", ("alice",)),
    ],
)
def test_a_route_is_open_to_those_with_its_right(
    keyed: Keyed, method: str, path: str, allowed: tuple[str, ...]
) -> None:
    every = ("alice", "ops", "watcher", "all")
    found = {name: keyed.ask(name, method, path).status for name in every}
    assert {name for name, status in found.items() if status != 403} == {*allowed, "all"}, found
    assert 401 not in found.values()
    assert keyed.ask(None, method, path).status == 401


def test_the_description_says_which_key_a_route_wants(keyed: Keyed) -> None:
    described = keyed.ask("alice", "GET", "/openapi.json").json
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert described["paths"]["/v2/health/live"]["get"]["security"] == []
    assert described["paths"]["/predict/{name}"]["post"]["security"] == [{"key": ["infer"]}]
    assert described["paths"][INFER.replace("pair", "{name}")]["post"]["security"] == [{"key": ["infer"]}]
    assert {"401", "403", "429"} <= set(described["paths"]["/v2/logging"]["post"]["responses"])


def test_refusals_are_counted_by_reason_and_requests_by_key(keyed: Keyed) -> None:
    def figures() -> dict[str, float]:
        text = keyed.ask("watcher", "GET", "/metrics").body.decode()
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}

    before = figures()
    for name in (None, "nobody", "ops", "all"):
        keyed.ask(name, "POST", INFER, BODY)
    after = figures()
    for reason in ("no_key", "unknown_key", "no_right"):
        name = f'penstock_refused_total{{reason="{reason}"}}'
        assert after[name] - before.get(name, 0) == 1, reason
    assert after['penstock_key_requests_total{key="all"}'] - before['penstock_key_requests_total{key="all"}'] == 1


def test_a_connection_goes_on_behind_what_is_refused(keyed: Keyed) -> None:
    yes, no = keyed.line("alice"), keyed.line("ops")
    requests = [infer("a", "pair", 1, yes), infer("b"), infer("c", "pair", 8, no), infer("d", "pair", 1, yes)]
    refused = [(401, "error"), (403, "error")]
    with connected(keyed.server) as held:  # all at once
        held.sendall(b"".join(requests))
        assert answers(held, 4) == [(200, "a"), *refused, (200, "d")]
    with connected(keyed.server) as held:  # one after another, each in two parts
        for request, expected in zip(requests, [(200, "a"), *refused, (200, "d")], strict=True):
            held.sendall(request[:-7])
            time.sleep(0.02)
            held.sendall(request[-7:])
            assert answers(held, 1) == [expected]


def test_a_refused_body_in_chunks_is_thrown_away_and_the_connection_closed(keyed: Keyed) -> None:
    with connected(keyed.server) as held:
        held.sendall(chunked(infer("a", "pair", 1, keyed.line("ops"), binary=False)))
        assert answers(held, 1) == [(403, "error")]
        assert held.recv(1) == b""


def test_who_asks_first_is_refused_without_a_hundred_and_the_connection_closed(keyed: Keyed) -> None:
    head, _, body = infer("a", "pair", 1, "Expect: 100-continue").partition(b"\r\n\r\n")
    with connected(keyed.server) as held:
        held.sendall(head + b"\r\n\r\n")
        text = held.makefile("rb").read()
    assert text.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in text
    with connected(keyed.server) as held:
        held.sendall(head + f"\r\n{keyed.line('alice')}\r\n\r\n".encode())
        assert held.recv(100).startswith(b"HTTP/1.1 100 ")
        held.sendall(body)
        assert answers(held, 1) == [(200, "a")]


def test_who_sends_a_long_body_reads_why_it_was_refused(keyed: Keyed) -> None:
    connection = keyed.server.connect()
    with closing(connection):
        connection.request("POST", INFER, b" " * (40 * 2**20), keyed.headers("ops"))
        response = connection.getresponse()
        assert response.status == 403
        assert response.getheader("connection") == "close"
        assert "lacks the right" in json.loads(response.read())["error"]


def test_no_memory_is_taken_for_a_body_that_is_refused(keyed: Keyed) -> None:
    def resident() -> int:
        status = Path(f"/proc/{keyed.server.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])

    held: list[socket.socket] = []
    before, part = resident(), b" " * 2**20
    for _ in range(8):
        one = socket.create_connection(("127.0.0.1", keyed.server.port), timeout=20)
        held.append(one)
        one.sendall(f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: {60 * 2**20}\r\n\r\n".encode())
        for _ in range(8):
            one.sendall(part)
    grown = resident() - before
    for one in held:
        one.close()
    assert grown < 16 * 1024, f"{grown} kB more for 64 MiB of bodies"


def test_a_removed_key_stops_working_on_an_open_connection_and_a_new_one_works(own: Keyed) -> None:
    connection = own.server.connect()

    def asked(name: str) -> int:
        connection.request("POST", INFER, json.dumps(BODY), own.headers(name))
        response = connection.getresponse()
        response.read()
        return response.status

    with closing(connection):
        assert (asked("alice"), asked("bob")) == (200, 200)
        port = connection.sock.getsockname()
        keys.remove(own.file, "alice")
        own.keys["carol"] = add(own.file, "carol")
        own.wait("/v2/models/pair", "alice", 401)
        assert (asked("alice"), asked("bob"), asked("carol")) == (401, 200, 200)
        assert connection.sock.getsockname() == port


@pytest.mark.parametrize("bad", [b'{"keys": 7}', None], ids=["damaged", "gone"])
def test_a_bad_file_leaves_the_keys_of_before_and_the_log_says_so(own: Keyed, bad: bytes | None) -> None:
    whole = own.file.read_bytes()
    own.file.unlink() if bad is None else own.file.write_bytes(bad)
    give_up = time.monotonic() + WITHIN_S
    while "the API keys of before stay in use" not in own.server.log:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert own.ask("alice", "POST", INFER, BODY).status == 200
    own.file.write_bytes(whole)
    keys.remove(own.file, "alice")
    own.wait("/v2/models/pair", "alice", 401)
    assert own.server.log.count("of before stay in use") == 1


def test_a_hangup_has_the_keys_read_anew_though_the_file_is_as_it_was(own: Keyed) -> None:
    own.keys["ops"] = add(own.file, "ops", "repository")
    own.wait("/v2/logging", "ops", 200)
    told = f"API keys: read anew from {own.file}"
    before = own.server.log.count(told)  # for the key that was added
    os.kill(own.server.process.pid, signal.SIGHUP)
    give_up = time.monotonic() + WITHIN_S
    while own.server.log.count(told) == before:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert own.ask("alice", "GET", "/v2/models/pair").status == 200


def test_neither_keys_nor_hashes_are_in_the_log(own: Keyed) -> None:
    own.keys["all"] = add(own.file, "all", "infer", "repository", "metrics")
    own.wait("/metrics", "all", 200)
    own.ask("all", "POST", "/v2/logging", {"log_verbose_level": 1})
    for name in ("alice", "all", "stranger-key-of-nobody", None):
        for method, path in (("POST", INFER), ("POST", PREDICT), ("GET", "/v2/nothing"), ("GET", "/metrics")):
            own.ask(name, method, path, b"no JSON" if method == "POST" else None)
    with connected(own.server) as held:
        held.sendall(f"BAD {own.keys['alice']}\r\n{own.line('alice')}\r\n\r\n".encode())
        held.recv(1000)
    keys.remove(own.file, "bob")
    own.wait("/v2/models/pair", "bob", 401)
    own.server.stop()
    assert own.server.process.stdout is not None
    told = own.server.log + "\n".join(own.server.lines) + own.server.process.stdout.read()
    for secret in (*own.keys.values(), "stranger-key-of-nobody"):
        assert secret not in told
        assert secret[-20:] not in told
        assert keys.digest(secret.encode())[:16] not in told


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_tritonclient_brings_its_key_in_headers(keyed: Keyed, kind: str) -> None:
    client = pytest.importorskip(f"tritonclient.{kind}")
    failed = pytest.importorskip("tritonclient.utils").InferenceServerException
    where = keyed.server.netloc if kind == "http" else rpc_address(keyed.server)
    ids, weight = client.InferInput("ids", [1, 2], "INT64"), client.InferInput("weight", [1], "FP32")
    ids.set_data_from_numpy(np.array([[1, 2]]))
    weight.set_data_from_numpy(np.array([1], np.float32))
    with client.InferenceServerClient(where) as asking:
        assert asking.is_server_ready()
        headers = {"authorization": f"Bearer {keyed.keys['alice']}"}
        assert asking.infer("pair", [ids, weight], headers=headers).as_numpy("total").tolist() == [4]
        with pytest.raises(failed, match="an API key is needed"):
            asking.infer("pair", [ids, weight])


def test_without_a_file_of_keys_everything_is_as_it_was(server: Server) -> None:
    assert server.ask("GET", "/metrics").status == 200
    described = server.ask("GET", "/openapi.json").json
    assert "components" not in described
    assert "security" not in described["paths"]["/v2"]["get"]
    assert "penstock_refused" not in server.ask("GET", "/metrics").body.decode()


class TestRpc:
    """The same over gRPC."""

    @pytest.fixture(scope="class")
    def address(self, keyed: Keyed) -> str:
        return rpc_address(keyed.server)

    @pytest.fixture
    def call(self, keyed: Keyed, address: str) -> Iterator[Callable[..., tuple[str, Any]]]:
        calls = pytest.importorskip("penstock.serve.conformance.calls")
        grpc = pytest.importorskip("grpc")
        from penstock import messages

        with closing(grpc.insecure_channel(address)) as channel:

            def ask(name: str | None, method: str, request: Any = None) -> tuple[str, Any]:
                request = calls.Calls.message(f"{method}Request") if request is None else request
                reader = messages.message(f"{method}Response").FromString
                stub = channel.unary_unary(f"/{messages.SERVICE}/{method}", type(request).SerializeToString, reader)
                told = [(key.lower(), value) for key, value in keyed.headers(name).items()]
                try:
                    return "OK", stub(request, metadata=told, timeout=20)
                except grpc.RpcError as error:
                    return error.code().name, error

            yield ask

    def test_health_is_open(self, call: Callable[..., Any], address: str) -> None:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        assert [call(None, method)[0] for method in ("ServerLive", "ServerReady")] == ["OK", "OK"]
        with closing(grpc.insecure_channel(address)) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    @pytest.mark.parametrize(
        ("name", "code"), [(None, "UNAUTHENTICATED"), ("nobody", "UNAUTHENTICATED"), ("ops", "PERMISSION_DENIED")]
    )
    def test_a_model_s_health_is_for_those_who_may_ask_it(self, failing: Keyed, name: str | None, code: str) -> None:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        def found(name: str | None, model: str) -> str:
            told = [(key.lower(), value) for key, value in failing.headers(name).items()]
            try:
                status = stub.Check(health_pb2.HealthCheckRequest(service=model), metadata=told, timeout=20).status
            except grpc.RpcError as error:
                return str(error.code().name)
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

        with closing(grpc.insecure_channel(rpc_address(failing.server))) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert {found(name, model) for model in ("pair", "secret", "nothere")} == {code}
            assert [found(name, whole) for whole in ("", "inference.GRPCInferenceService")] == 2 * ["NOT_SERVING"]
            assert [found("alice", model) for model in ("pair", "nothere")] == ["SERVING", "NOT_FOUND"]

    @pytest.mark.parametrize(
        ("name", "method", "code"),
        [
            (None, "ModelInfer", "UNAUTHENTICATED"),
            ("nobody", "ModelInfer", "UNAUTHENTICATED"),
            ("ops", "ModelInfer", "PERMISSION_DENIED"),
            ("alice", "ModelInfer", "OK"),
            ("alice", "RepositoryModelUnload", "PERMISSION_DENIED"),
            ("alice", "SystemSharedMemoryRegister", "PERMISSION_DENIED"),
            ("alice", "LogSettings", "PERMISSION_DENIED"),
            ("ops", "LogSettings", "OK"),
            ("alice", "RepositoryIndex", "OK"),
            ("watcher", "ServerMetadata", "PERMISSION_DENIED"),
        ],
    )
    def test_a_method_is_open_to_those_with_its_right(
        self, call: Callable[..., Any], name: str | None, method: str, code: str
    ) -> None:
        found, answer = call(name, method, infer_message() if method == "ModelInfer" else None)
        assert found == code
        if code == "PERMISSION_DENIED":
            assert f"the API key {name!r} lacks the right" in answer.details()

    def test_a_call_over_the_rate_is_told_when_to_ask_again(self, own: Keyed) -> None:
        grpc = pytest.importorskip("grpc")
        from penstock import messages

        own.keys["few"] = add(own.file, "few", rate=0.1, burst=3)
        own.wait("/v2/models/pair", "few", 200)
        with closing(grpc.insecure_channel(rpc_address(own.server))) as channel:
            stub = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer", lambda held: held.SerializeToString())
            told = [("authorization", f"Bearer {own.keys['few']}")]
            assert stub(infer_message(), metadata=told, timeout=20)
            assert own.ask("few", "POST", INFER, BODY).status == 200  # they share the rate
            with pytest.raises(grpc.RpcError) as caught:
                stub(infer_message(), metadata=told, timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        after = dict(caught.value.trailing_metadata())
        assert 9000 <= int(after["grpc-retry-pushback-ms"]) <= 10_000

    def test_every_message_of_a_stream_is_held_to_the_key_as_it_is_now(self, own: Keyed) -> None:
        grpc = pytest.importorskip("grpc")
        import queue

        from penstock import messages

        waiting: queue.Queue[Any] = queue.Queue()
        reader = messages.message("ModelStreamInferResponse").FromString
        with closing(grpc.insecure_channel(rpc_address(own.server))) as channel:
            stub = channel.stream_stream(
                f"/{messages.SERVICE}/ModelStreamInfer", lambda held: held.SerializeToString(), reader
            )
            told = [("authorization", f"Bearer {own.keys['alice']}")]
            came = stub(iter(waiting.get, None), metadata=told, timeout=30)
            waiting.put(infer_message())
            assert next(came).error_message == ""
            keys.remove(own.file, "alice")
            own.wait("/v2/models/pair", "alice", 401)
            waiting.put(infer_message())
            assert next(came).error_message == "the API key is unknown"
            waiting.put(None)

    @pytest.mark.parametrize(
        "path", ["/inference.GRPCInferenceService/ModelStreamInfer",
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no.Such/Method"],
    )  # fmt: skip
    def test_streams_reflection_and_what_there_is_not_want_a_key_too(self, address: str, path: str) -> None:
        import grpc

        with closing(grpc.insecure_channel(address)) as channel, pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream(path)(iter([b""]), timeout=20))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    def test_a_large_message_that_is_refused_is_not_read(self, call: Callable[..., Any]) -> None:
        request = infer_message()
        request.raw_input_contents.append(bytes(32 * 2**20))
        assert call(None, "ModelInfer", request)[0] == "UNAUTHENTICATED"


def infer_message() -> Any:
    from penstock import messages

    request = messages.message("ModelInferRequest")(model_name="pair")
    ids = request.inputs.add(name="ids", datatype="INT64", shape=[1, 2])
    ids.contents.int64_contents.extend([1, 2])
    request.inputs.add(name="weight", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    return request


def rpc_address(server: Server) -> str:
    return re.findall(r"gRPC at (\S+)", "\n".join(server.lines))[0]


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Callable[..., Access]]:
    before = signal.getsignal(signal.SIGHUP)

    def made(file: str | None = None, *names: str) -> Access:
        path = None if file is None else tmp_path / file
        if path is not None:
            path.write_text('{"version": 1, "keys": []}')
            path.chmod(0o600)
            for name in names:
                add(path, name)
        return Access(AccessFiles(path))

    yield made
    signal.signal(signal.SIGHUP, before)


def test_an_open_server_warns_where_others_reach_it(access: Callable[..., Access]) -> None:
    for host in ("127.0.0.1", "::1", "127.8.8.8"):
        assert list(access().warnings(host)) == []
    for host in ("0.0.0.0", "::", "192.168.1.5", "fe80::1%eth0"):
        (line,) = access().warnings(host)
        assert "--keys FILE" in line


def test_keys_in_plain_text_are_warned_of_where_others_may_read_them(access: Callable[..., Access]) -> None:
    held = access("keys.json", "alice")
    assert list(held.warnings("127.0.0.1")) == []
    (line,) = held.warnings("0.0.0.0")
    assert "--tls-cert FILE" in line


def test_a_file_without_a_key_and_one_that_others_write_are_warned_of(
    access: Callable[..., Access], tmp_path: Path
) -> None:
    held = access("keys.json")
    (tmp_path / "keys.json").chmod(0o666)
    assert [line.split()[0] for line in held.warnings("127.0.0.1")] == ["--keys", "--keys"]


def test_a_server_says_its_warnings_before_it_is_ready(models: Path, tmp_path: Path, start_server: StartServer) -> None:
    add(tmp_path / "keys.json", "alice")
    (tmp_path / "keys.json").chmod(0o644)
    server = start_server(models, "--keys", tmp_path / "keys.json")
    server.stop()
    (warning,) = [line for line in server.lines if line.startswith("warning: ")]
    assert "can be read by others (mode 0644): chmod 600" in warning


@pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        (Path("a.pem"), None, "--tls-cert a.pem: needs --tls-key FILE beside it; give both"),
        (None, Path("b.pem"), "--tls-key b.pem: needs --tls-cert FILE beside it; give both"),
    ],
)
def test_a_certificate_and_its_key_go_together(cert: Path | None, key: Path | None, why: str) -> None:
    with pytest.raises(PenstockError) as caught:
        AccessFiles(None, cert, key)
    assert str(caught.value) == why


def test_a_missing_file_of_keys_ends_the_start_with_the_option_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--keys .*none.json: No such file .* penstock keys add"):
        Access(AccessFiles(tmp_path / "none.json"))

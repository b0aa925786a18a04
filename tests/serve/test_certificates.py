"""TLS: HTTPS and gRPC of a real server, certificates that change, and files that are no pair."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.serve.access import Access, AccessFiles
from penstock.serve.certificates import Certificates, bound_handshakes
from tests.serve.conftest import write_fake_artifact
from tests.serve.test_connection import answers, infer

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

trustme = pytest.importorskip("trustme")
PREDICT = {"inputs": {"ids": [[1]], "weight": [1]}}


@dataclass
class Files:
    """A pair in files, by an authority of the test's own, whom `trusts` trusts."""

    authority: Any
    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "cert.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def root(self) -> bytes:
        return bytes(self.authority.cert_pem.bytes())

    @property
    def trusts(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.root.decode())

    def issue(self) -> None:
        """Put a new pair in place of the one there is."""
        made = self.authority.issue_cert("127.0.0.1", "localhost")
        self.key.write_bytes(made.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))


def issued(folder: Path) -> Files:
    found = Files(trustme.CA(), folder)
    found.issue()
    return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return issued(tmp_path)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> tuple[Server, Files]:
    folder, held = tmp_path_factory.mktemp("tls") / "models", issued(tmp_path_factory.mktemp("pair"))
    write_fake_artifact(folder, "pair")
    options = ("--tls-cert", held.cert, "--tls-key", held.key, "--max-queue-rows", "30000")
    return start_server(folder, *options, trusts=held.trusts), held


def reached(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def shown(server: Server, held: Files) -> bytes:
    """The certificate that a handshake shows now."""
    with reached(server) as plain, held.trusts.wrap_socket(plain, server_hostname="localhost") as made:
        return made.getpeercert(binary_form=True) or b""


def test_both_roads_of_http_answer_over_tls(secure: tuple[Server, Files]) -> None:
    server, _ = secure
    assert server.url.startswith("https://127.0.0.1:")
    assert server.ask("POST", "/predict/pair", PREDICT).json["outputs"]["total"] == [2]
    body = infer("a").partition(b"\r\n\r\n")
    length = re.findall(rb"Inference-Header-Content-Length: (\d+)", body[0])[0].decode()
    answer = server.ask("POST", "/v2/models/pair/infer", body[2], {"Inference-Header-Content-Length": length})
    assert answer.status == 200


def test_redirects_stay_within_tls(secure: tuple[Server, Files]) -> None:
    answer = secure[0].ask("GET", "/docs/", headers={"Host": "models.example.com"})
    assert answer.headers["location"] == "https://models.example.com/docs"


def test_requests_of_all_kinds_take_turns_on_one_connection(secure: tuple[Server, Files]) -> None:
    server, held = secure
    health = b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n\r\n"
    with reached(server) as plain, held.trusts.wrap_socket(plain, server_hostname="localhost") as made:
        made.sendall(infer("a") + health + infer("b", rows=8) + infer("c", "none") + health + infer("d"))
        live = (200, "live")
        assert answers(made, 6) == [(200, "a"), live, (200, "b"), (404, "error"), live, (200, "d")]


def test_a_body_of_megabytes_comes_in_and_goes_out(secure: tuple[Server, Files]) -> None:
    server, _ = secure
    rows = 20_000
    content = {
        "inputs": [
            {"name": "ids", "shape": [rows, 16], "datatype": "INT64", "data": [1] * 16 * rows},
            {"name": "weight", "shape": [rows], "datatype": "FP32", "data": [0] * rows},
        ]
    }
    answer = server.ask("POST", "/v2/models/pair/infer", json.dumps(content).encode(), timeout_s=60)
    assert answer.status == 200, answer.body[:200]
    assert len(answer.body) > 400_000


@pytest.mark.parametrize("name", [None, "localhost"], ids=["without a name", "by name"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_spoken_also_with_clients_that_name_no_server(
    secure: tuple[Server, Files], version: ssl.TLSVersion, name: str | None
) -> None:
    server, held = secure
    context = held.trusts
    context.minimum_version = context.maximum_version = version
    with reached(server) as plain, context.wrap_socket(plain, server_hostname=name or "127.0.0.1") as made:
        assert made.version() == version.name.replace("_", ".")
        made.sendall(infer("a"))
        assert answers(made, 1) == [(200, "a")]


def test_old_versions_of_tls_and_plain_http_are_not_spoken(secure: tuple[Server, Files]) -> None:
    server, held = secure
    old = held.trusts
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        old.wrap_socket(plain, server_hostname="localhost")
    with reached(server) as plain:
        plain.sendall(b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n")
        assert not plain.makefile("rb").read().startswith(b"HTTP")
    assert server.ask("GET", "/v2/health/live").status == 200


def rpc_ready(server: Server, root: bytes) -> bool:
    grpc = pytest.importorskip("grpc")
    from penstock import messages

    (address,) = re.findall(r"gRPC at (\S+)", "\n".join(server.lines))
    options = [("grpc.use_local_subchannel_pool", 1)]
    with closing(grpc.secure_channel(address, grpc.ssl_channel_credentials(root), options)) as channel:
        reader = messages.message("ServerReadyResponse").FromString
        stub = channel.unary_unary(f"/{messages.SERVICE}/ServerReady", lambda _: b"", reader)
        return bool(stub(None, timeout=20).ready)


def test_grpc_answers_over_tls(secure: tuple[Server, Files]) -> None:
    server, held = secure
    assert rpc_ready(server, held.root)


def test_a_renewed_certificate_is_shown_to_those_who_come_from_then_on(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    grpc = pytest.importorskip("grpc")
    write_fake_artifact(tmp_path / "models", "pair")
    server = start_server(tmp_path / "models", "--tls-cert", files.cert, "--tls-key", files.key, trusts=files.trusts)
    before, former = shown(server, files), files.root
    assert shown(server, files) == before
    connection = server.connect()
    with closing(connection):
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read()
        files.authority = trustme.CA()
        files.issue()
        give_up = time.monotonic() + 3
        while True:
            try:
                assert shown(server, files) != before
                break
            except ssl.SSLError:  # the former's, by another authority
                assert time.monotonic() < give_up
                time.sleep(0.05)
        assert rpc_ready(server, files.root)
        with pytest.raises(grpc.RpcError):
            rpc_ready(server, former)
        connection.request("GET", "/v2/health/live")  # who was there already stays
        assert connection.getresponse().status == 200
    files.cert.write_text("nothing")
    give_up = time.monotonic() + 3
    while "the TLS certificates of before stay in use" not in server.log:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert shown(server, files)
    assert rpc_ready(server, files.root)
    server.stop()


def test_clients_that_lie_idle_do_not_keep_a_server_from_ending(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    write_fake_artifact(tmp_path / "models", "pair")
    server = start_server(tmp_path / "models", "--tls-cert", files.cert, "--tls-key", files.key, trusts=files.trusts)
    idle = server.connect()
    with closing(idle), reached(server):  # one that was answered, one that shakes no hand
        idle.request("GET", "/v2/health/live")
        assert idle.getresponse().read()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("secure", [True, False])
def test_only_servers_over_tls_have_limits_for_it(secure: bool) -> None:
    async def made() -> dict[str, float]:
        loop, seen = asyncio.get_running_loop(), dict[str, float]()

        def create_server(**named: Any) -> None:
            seen.update(named)

        loop.create_server = create_server  # type: ignore[assignment]
        bound_handshakes(loop)
        loop.create_server(ssl=object() if secure else None)  # type: ignore[call-overload]
        del seen["ssl"]
        return seen

    limits = asyncio.run(made())
    assert (0 < limits["ssl_handshake_timeout"] <= 10) if secure else limits == {}


def refusal(cert: Path, key: Path) -> str:
    with pytest.raises(PenstockError) as caught:
        Certificates(cert, key).read()
    return str(caught.value)


def test_files_that_are_no_pair_are_refused_by_their_option(files: Files, tmp_path: Path) -> None:
    assert Certificates(files.cert, files.key).read().chain == files.cert.read_bytes()
    none, empty = tmp_path / "none.pem", tmp_path / "empty.pem"
    empty.write_text("")
    assert refusal(none, files.key) == f"--tls-cert {none}: No such file or directory"
    assert refusal(files.cert, none) == f"--tls-key {none}: No such file or directory"
    assert refusal(empty, files.key).startswith(f"--tls-cert {empty}: holds no certificate in PEM")
    assert refusal(files.cert, empty).startswith(f"--tls-key {empty}: holds no private key in PEM")
    assert refusal(files.key, files.cert).startswith(f"--tls-cert {files.key}: holds no certificate")
    other = issued_beside(tmp_path)
    assert refusal(files.cert, other.key).startswith(
        f"--tls-key {other.key}: is not the key of the certificate --tls-cert {files.cert}"
    )
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "cannot be read as PEM" in refusal(broken, files.key)


def issued_beside(tmp_path: Path) -> Files:
    folder = tmp_path / "other"
    folder.mkdir()
    return issued(folder)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(files: Files, tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    loaded = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert refusal(files.cert, locked).startswith(f"--tls-key {locked}: is encrypted")


def test_a_certificate_is_no_leave_to_go_without_keys(files: Files) -> None:
    before = signal.getsignal(signal.SIGHUP)
    access = Access(AccessFiles(None, files.cert, files.key))
    assert access.scheme == "https"
    assert any("--keys FILE" in line for line in access.warnings("0.0.0.0"))
    signal.signal(signal.SIGHUP, before)

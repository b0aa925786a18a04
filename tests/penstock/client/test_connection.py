"""A server asked patiently: over real sockets, by servers that are busy, gone, slow or broken as a script says."""

from __future__ import annotations

import email.utils
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.client import connection
from penstock.client.connection import Broken, Patience, Server, Unanswered, Unreachable, model_of, place
from penstock.errors import PenstockError

Step = tuple[int, dict[str, str], bytes]


class Scripted:
    """A server that answers as the script says, one step a request, and the last of them from then on."""

    def __init__(self, *steps: Step | str | bytes) -> None:
        self.steps, self.asked, self.times = list(steps), [], []
        held = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                held.asked.append((self.path, body, self.client_address[1]))
                held.times.append(time.monotonic())
                step = held.steps[0] if len(held.steps) == 1 else held.steps.pop(0)
                if isinstance(step, bytes):  # and then a byte now and then
                    self.wfile.write(step)
                    with suppress(OSError):
                        while True:
                            time.sleep(0.05)
                            self.wfile.write(b" ")
                if step == "break":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
                    self.close_connection = True
                    return
                if step == "hang":
                    time.sleep(1.5)
                status, headers, content = (200, {}, b"late") if step == "hang" else step
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
                if step[1].get("X-Hang-Up"):
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def start(*steps: Step | str | bytes) -> Scripted:
        made.append(Scripted(*steps))
        return made[-1]

    yield start
    for server in made:
        server.http.shutdown()
        server.http.server_close()


def server(url: str, retries: int = 5, timeout_s: float = 10) -> Server:
    return Server(place(url), Patience(retries, timeout_s))


def ok(content: bytes = b"{}") -> Step:
    return 200, {}, content


def busy(retry_after: str | None = "0") -> Step:
    return 503, {} if retry_after is None else {"Retry-After": retry_after}, b'{"error": "full"}'


@pytest.mark.parametrize(
    ("url", "shown", "path", "model"),
    [
        ("http://host:8000", "http://host:8000", "", None),
        ("host:8000/", "http://host:8000", "", None),
        ("https://host", "https://host", "", None),
        ("http://[::1]:80/predict/a-b", "http://[::1]:80", "", "a-b"),
        ("http://host/behind/proxy/", "http://host/behind/proxy", "/behind/proxy", None),
        ("http://host/behind/predict/m%20x/", "http://host/behind", "/behind", "m x"),
    ],
)
def test_a_url_is_a_server_s_or_its_model_s(url: str, shown: str, path: str, model: str | None) -> None:
    found = place(url)
    assert (str(found), found.path, found.model) == (shown, path, model)


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:x", "http://host?q=1", "http://a:b@host"])
def test_what_is_no_such_url_is_refused(url: str) -> None:
    with pytest.raises(PenstockError, match="URL "):
        place(url)


def test_one_connection_serves_many_requests_of_a_thread(scripted: Callable[..., Scripted]) -> None:
    there = scripted(ok(b"1"), ok(b"2"))
    held = server(there.url)
    assert [held.ask("POST", f"/{n}", b"x").body for n in range(2)] == [b"1", b"2"]
    assert len({port for _, _, port in there.asked}) == 1
    held.close()


@pytest.mark.parametrize(
    "begun",
    [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"],
)
def test_an_answer_that_comes_byte_by_byte_has_no_more_time(scripted: Callable[..., Scripted], begun: bytes) -> None:
    there, began = scripted(ok(), begun), time.monotonic()
    held = server(there.url, retries=0, timeout_s=0.5)
    assert held.ask("POST", "/").status == 200
    with pytest.raises(Unanswered, match=r"no answer within 0\.5 s"):
        held.ask("POST", "/")
    assert 0.4 < time.monotonic() - began < 2


def test_each_answer_has_its_time(scripted: Callable[..., Scripted]) -> None:
    held = server(scripted(ok()).url, timeout_s=0.3)
    for _ in range(3):
        assert held.ask("POST", "/").status == 200
        time.sleep(0.2)


def test_a_busy_server_is_asked_again_after_as_long_as_it_says(scripted: Callable[..., Scripted]) -> None:
    there = scripted(busy("1"), ok())
    assert server(there.url).ask("POST", "/").status == 200
    assert 1 <= there.times[1] - there.times[0] < 1.5


def test_the_time_to_ask_again_may_be_a_date(scripted: Callable[..., Scripted]) -> None:
    there = scripted(busy(email.utils.formatdate(time.time() + 2, usegmt=True)), ok())
    assert server(there.url).ask("POST", "/").status == 200
    assert 0.9 <= there.times[1] - there.times[0] < 2.5


@pytest.mark.parametrize("said", [None, "soon", "-1", "٣"])
def test_without_a_time_pauses_grow_by_themselves(scripted: Callable[..., Scripted], said: str | None) -> None:
    headers = {} if said is None else {"Retry-After": said.encode().decode("latin-1")}
    there = scripted((503, headers, b""), (503, headers, b""), ok())
    assert server(there.url).ask("POST", "/").status == 200
    first, second = (later - sooner for sooner, later in zip(there.times, there.times[1:], strict=False))
    assert 0.12 <= first <= 0.35
    assert 0.24 <= second <= 0.6


def test_after_the_last_retry_the_answer_is_the_503(scripted: Callable[..., Scripted]) -> None:
    there = scripted(busy())
    answer = server(there.url, retries=2).ask("POST", "/")
    assert (answer.status, answer.error, len(there.asked)) == (503, "full", 3)


def test_a_pause_over_the_timeout_is_not_waited_for(scripted: Callable[..., Scripted]) -> None:
    there = scripted(busy("3600"), ok())
    assert server(there.url).ask("POST", "/").status == 503


def test_other_statuses_are_answers(scripted: Callable[..., Scripted]) -> None:
    for status in (200, 400, 404, 413, 500, 504):
        there = scripted((status, {}, b"no json"))
        answer = server(there.url).ask("POST", "/")
        assert (answer.status, len(there.asked)) == (status, 1)
        assert answer.error == f"status {status}: no json"


def test_a_server_that_is_not_there_yet_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server(f"http://127.0.0.1:{port}").ask, "POST", "/")
        time.sleep(0.4)
        with socket.create_server(("127.0.0.1", port)) as listener:
            late, _ = listener.accept()
            with late:
                late.recv(1000)
                late.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                assert asked.result(10).body == b"ok"


def test_nobody_at_all_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=f"http://127.0.0.1:{port}: nobody listens there.*penstock serve"):
        server(f"http://127.0.0.1:{port}", retries=1).ask("GET", "/v2")


def test_an_unknown_host_is_not_waited_for() -> None:
    started = time.monotonic()
    with pytest.raises(Unreachable, match=r"http://nobody\.invalid"):
        server("http://nobody.invalid").ask("GET", "/v2")
    assert time.monotonic() - started < 5


def test_an_answer_that_breaks_off_is_asked_for_again(scripted: Callable[..., Scripted]) -> None:
    there = scripted("break", ok(b"whole"))
    assert server(there.url).ask("POST", "/").body == b"whole"


def test_one_that_breaks_off_each_time_is_told(scripted: Callable[..., Scripted]) -> None:
    with pytest.raises(Broken, match="the connection broke: IncompleteRead"):
        server(scripted("break").url, retries=1).ask("POST", "/")


def test_a_connection_that_was_closed_while_idle_costs_no_retry(scripted: Callable[..., Scripted]) -> None:
    there = scripted((200, {"X-Hang-Up": "1"}, b"1"), ok(b"2"))
    held = server(there.url, retries=0)
    assert held.ask("POST", "/").body == b"1"
    time.sleep(0.1)
    assert held.ask("POST", "/").body == b"2"


def test_no_answer_in_time_is_told_and_not_asked_for_again(scripted: Callable[..., Scripted]) -> None:
    there = scripted("hang")
    with pytest.raises(Unanswered, match=r"no answer within 0.3 s \(--timeout\)"):
        server(there.url, timeout_s=0.3).ask("POST", "/")
    assert len(there.asked) == 1


def test_a_body_refused_before_it_was_sent_is_answered() -> None:
    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
            time.sleep(0.3)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, args=[listener], daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with suppress(Broken):  # the reset may overtake the answer
            assert server(url, retries=0).ask("POST", "/", bytes(1 << 26)).status == 413


def test_closing_ends_what_is_under_way_at_once(scripted: Callable[..., Scripted]) -> None:
    held = server(scripted("hang").url)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(held.ask, "POST", "/")
        time.sleep(0.3)
        started = time.monotonic()
        held.close()
        with pytest.raises(Unanswered):
            asked.result(10)
    assert time.monotonic() - started < 1
    with pytest.raises(Unanswered):
        held.ask("POST", "/")


def index(*names: str) -> Step:
    return ok(json.dumps([{"name": name} for name in names]).encode())


def test_the_model_is_the_named_one_else_the_only_one(scripted: Callable[..., Scripted]) -> None:
    there = scripted(index("only"))
    assert model_of(server(there.url), None) == "only"
    assert there.asked[0][:2] == ("/v2/repository/index", b'{"ready": true}')
    assert model_of(server(f"{there.url}/predict/given"), None) == "given"
    assert model_of(server(there.url), "named") == "named"
    assert len(there.asked) == 1


def test_of_several_models_none_is_taken_and_all_are_told(scripted: Callable[..., Scripted]) -> None:
    with pytest.raises(PenstockError, match=r"serves a, b; name one: --model NAME"):
        model_of(server(scripted(index("b", "a"), (404, {}, b"")).url), None)
    with pytest.raises(PenstockError, match=r"serves a, b, r; name one: --model NAME"):
        model_of(server(scripted(index("b", "a"), ok(b'{"r": {"a": 1}}')).url), None)
    with pytest.raises(PenstockError, match="serves no model that is ready"):
        model_of(server(scripted(index()).url), None)
    with pytest.raises(PenstockError, match="--model other: the URL names given"):
        model_of(server("http://host/predict/given"), "other")


def test_a_server_of_something_else_is_told(scripted: Callable[..., Scripted]) -> None:
    for step, words in (((404, {}, b"<html>"), "status 404: <html>"), (ok(b"<html>"), "Expecting value")):
        with pytest.raises(PenstockError, match=words):
            connection.inputs_of(server(scripted(step).url), "m")

"""Which heads are answered on the shortest road, and which are left to a whole HTTP server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.heads import answer_lines, read_head, without_upgrade

LINE = "POST /v2/models/m/infer HTTP/1.1"


def head(*lines: str, first: str = LINE) -> bytes:
    return "\r\n".join([first, "Host: here", *lines, "", ""]).encode()


def test_an_infer_request_is_read() -> None:
    found = read_head(head("Content-Length: 120", "INFERENCE-Header-Content-Length: 20"))
    assert found is not None
    assert (found.name, found.version, found.length, found.json_length, found.keep_alive) == ("m", None, 120, 20, True)
    assert found.headers[b"host"] == b"here"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/models/m/versions/3/infer", ("m", "3")),
        ("/v2/models/m%2Ex/infer?x=1", ("m.x", None)),
    ],
)
def test_the_path_names_the_model_and_its_version(path: str, expected: tuple[str, str | None]) -> None:
    found = read_head(head(first=f"POST {path} HTTP/1.1"))
    assert found is not None
    assert (found.name, found.version, found.length) == (*expected, 0)


def test_a_client_may_end_the_connection_with_its_request() -> None:
    found = read_head(head("Connection: close"))
    assert found is not None
    assert not found.keep_alive


@pytest.mark.parametrize(
    "text",
    [
        head(first="GET /v2/models/m/infer HTTP/1.1"),
        head(first="POST /v2/models/m/infer HTTP/1.0"),
        head(first="POST /v2/models/m/load HTTP/1.1"),
        head("Transfer-Encoding: chunked"),
        head("Expect: 100-continue", "Content-Length: 1"),
        head("Content-Length: 1", "Content-Length: 2"),
        head("Content-Length: -1"),
        head("Content-Length: 1_0"),
        head("Content-Length: 9999999999999999999999"),
        head("Transfer-Encoding: chunked", "Content-Length: 5"),
        head("no colon here"),
        head("X: \x00"),
        b"\r\n\r\n",
    ],
)
def test_whatever_is_unusual_or_wrong_is_left_to_the_whole_server(text: bytes) -> None:
    assert read_head(text) is None


@pytest.mark.parametrize(
    ("said", "length"), [("x", 0), ("-1", 0), ("", 0), ("7" * 30, 0), ("300", 0), ("0", 0), ("100", 100)]
)
def test_a_wrong_length_of_json_only_moves_where_arrays_lie(said: str, length: int) -> None:
    found = read_head(head("Content-Length: 100", f"Inference-Header-Content-Length: {said}"))
    assert found is not None
    assert found.json_length == length


def test_a_long_head_is_read_too() -> None:
    found = read_head(head(f"X-Long: {'x' * 10_000}", "Content-Length: 1"))
    assert found is not None
    assert found.length == 1


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd_to_be_left_to_the_whole_server(noise: bytes) -> None:
    assert read_head(noise + b"\r\n\r\n") is None


def test_a_wish_to_upgrade_is_passed_over() -> None:
    found = read_head(head("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "Content-Length: 7"))
    assert found is not None
    assert (found.name, found.length, found.keep_alive) == ("m", 7, True)


@pytest.mark.parametrize("line", ["Upgrade: h2c", "upgrade : x", "UPGRADE:"])
def test_a_head_is_left_as_it_is_but_for_its_wish_to_upgrade(line: str) -> None:
    assert without_upgrade(head("A: 1", line, "B: upgrade: 2")) == head("A: 1", "B: upgrade: 2")
    assert without_upgrade(head("A: upgrade: 1")) == head("A: upgrade: 1")


def test_an_answers_own_id_stands_in_its_head_alone() -> None:
    plain = answer_lines(200, {"Content-Type": "x"}, 3, kept=True)
    assert plain == b"HTTP/1.1 200 OK\r\ncontent-type: x\r\ncontent-length: 3\r\n"
    for id in ("one", "two"):
        assert answer_lines(200, {"Content-Type": "x", "X-Request-Id": id}, 3, kept=True) == (
            plain + f"x-request-id: {id}\r\n".encode()
        )
    assert answer_lines(200, {}, 0, kept=False).endswith(b"connection: close\r\n")

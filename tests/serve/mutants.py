"""Servers that are wrong in known ways: over HTTP and gRPC, before one that is right, or with no other behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import grpc

from penstock import messages

SERVICE = f"/{messages.SERVICE}/"
# Told of a request (its path and body) and of the answer (status, headers, body); gives the answer that goes out.
Spoil = Callable[[str, bytes, tuple[int, dict[str, str], bytes]], tuple[int, dict[str, str], bytes]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[_Handler, bytes], tuple[int, dict[str, str], bytes]]

    def do_GET(self) -> None:
        status, headers, body = type(self).answer(self, self._body())
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while (size := int(self.rfile.readline(), 16)) > 0:
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _http(answer: Callable[[Any, bytes], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    kind = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def http_saying(status: int, content: Any) -> Any:
    """A server whose every answer is the same; its URL."""
    body = json.dumps(content).encode()
    return _http(lambda handler, _: (status, {}, json.dumps([content]).encode() if "index" in handler.path else body))


def http_before(url: str, spoil: Spoil) -> Any:
    """A server that gives another's answers, spoilt; its URL."""

    def answer(handler: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("host", "transfer-encoding")}
        headers["Content-Length"] = str(len(body))
        connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
        try:
            connection.request(handler.command, handler.path, body, headers)
            response = connection.getresponse()
            dropped = ("content-length", "connection", "date", "transfer-encoding")
            kept = {k: v for k, v in response.getheaders() if k.lower() not in dropped}
            return spoil(handler.path, body, (response.status, kept, response.read()))
        finally:
            connection.close()

    return _http(answer)


# Told of a method's path, the request and what follows; gives the answers, or raises Wrong.
Serve = Callable[[str, list[bytes]], list[bytes]]


class Wrong(Exception):
    """How a call ends: gRPC's code by name."""

    def __init__(self, code: str, details: str = "wrong") -> None:
        super().__init__(code)
        self.code, self.details = code, details


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    def service(self, details: Any) -> Any:
        def run(requests: Any, context: Any) -> Iterator[bytes]:
            try:
                yield from self._serve(details.method, list(requests))
            except Wrong as error:
                context.abort(getattr(grpc.StatusCode, error.code), error.details)

        return grpc.stream_stream_rpc_method_handler(run)


@contextmanager
def grpc_serving(serve: Serve, port: int = 0) -> Iterator[str]:
    """A gRPC server that answers every method by a function; its address."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(16), handlers=[_Calls(serve)], options=options)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def behind(address: str) -> Serve:
    """What a gRPC server gives, as a function."""
    channel = grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)])

    def serve(path: str, requests: list[bytes]) -> list[bytes]:
        try:
            return list(channel.stream_stream(path)(iter(requests), timeout=30))
        except grpc.RpcError as error:
            raise Wrong(error.code().name, error.details() or "") from None

    return serve

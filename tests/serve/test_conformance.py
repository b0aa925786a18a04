"""`penstock check`: all green on our server, and red on those that do otherwise, each check on one at least."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from penstock import cli, messages
from penstock.errors import PenstockError
from penstock.serve.conformance import run
from penstock.serve.conformance.calls import Calls
from penstock.serve.conformance.checks import every
from penstock.serve.conformance.connection import connect
from penstock.serve.conformance.target import Failed, Target
from tests.serve.mutants import SERVICE, Serve, Wrong, behind, grpc_serving, http_before, http_saying

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

YES = {
    **{"name": "yes", "version": "1", "platform": "", "versions": ["1"], "model_name": "yes", "ready": True},
    "extensions": ["binary_tensor_data"],
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}],
}
ALL = {check.group.removeprefix("gRPC: ") for check in every()}
MODEL = "digits-onnx-fp32"
# What no server can be asked, or no model of ours: each says why.
NOT_HERE = r"does not list the extension|is of no |several inputs or dynamic|no rows of scores|allow it with --reload"


def address(server: Server) -> str:
    found = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert found is not None
    return found[1]


def failures(target: Target) -> dict[str, str]:
    """What fails, by group and rule."""
    verdicts = run.run(target)
    return {f"{held.check.group}: {held.check.rule}": held.why for held in verdicts if held.result == "failed"}


@pytest.mark.parametrize("model", [None, "digits-onnx-int8", "pair"])
def test_every_check_passes_on_our_server(server: Server, model: str | None, tmp_path: Path) -> None:
    words = ["check", server.url, "--grpc", address(server), "--junit", str(tmp_path / "check.xml")]
    done = CliRunner().invoke(cli.app, [*words, *(["--model", model] if model else [])], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "0 failed" in done.output.splitlines()[-1]
    suites = ElementTree.parse(tmp_path / "check.xml").getroot()
    counts = [sum(int(suite.attrib[key]) for suite in suites) for key in ("tests", "failures")]
    assert counts == [len(every()), 0]
    assert counts[0] >= 80 + 25
    why = [item.attrib["message"] for item in suites.iter("skipped")]
    assert [reason for reason in why if not re.search(NOT_HERE, reason)] == []


def test_the_model_is_unloaded_only_where_that_is_allowed(served_repository: Path, start_server: StartServer) -> None:
    server = start_server(served_repository / MODEL)
    target = connect(server.url, MODEL, 20, address(server), reload=True)
    held = [verdict for verdict in run.run(target) if "loaded" in verdict.check.rule]
    assert [verdict.result for verdict in held] == ["passed", "passed"]


def with_a_free_port_after_it(start_server: StartServer, *arguments: Path) -> Server:
    """A server whose gRPC is elsewhere, and the port after whose HTTP nobody has."""
    for _ in range(20):
        server = start_server(*arguments)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", server.port + 1))
            return server
        server.stop()
    raise RuntimeError("the port after every server's is taken")


def test_grpc_is_found_at_the_next_port_if_the_same_server_is_there(
    served_repository: Path, start_server: StartServer
) -> None:
    server = with_a_free_port_after_it(start_server, served_repository / MODEL)
    with grpc_serving(behind(address(server)), server.port + 1) as where:
        found = connect(server.url, MODEL, 5)
        assert found.calls is not None
        assert found.calls.address == where
    with grpc_serving(spoilt(another_name, "ServerMetadata")(behind(address(server))), server.port + 1):
        assert connect(server.url, MODEL, 5).calls is None
    done = CliRunner().invoke(cli.app, ["check", server.url, MODEL], catch_exceptions=False)
    assert "skipped: gRPC: health: 5 checks: no gRPC of this server at 127.0.0.1:" in done.output
    assert done.exit_code == 0


def test_a_server_that_says_yes_to_everything_fails() -> None:
    with http_saying(200, YES) as url:
        verdicts = list(run.run(connect(url, None, 5)))
    failed = {verdict.check.rule: verdict.why for verdict in verdicts if verdict.result == "failed"}
    assert "an unknown model is an error" in failed
    assert "a header length that is no number is refused" in failed
    assert "a wrong method is 404 or 405" in failed
    assert "two rows give two rows" in failed
    strict = [verdict for verdict in verdicts if verdict.check.group == "strictness"]
    assert [verdict.check.rule for verdict in strict if verdict.result == "passed"] == ["the server is well afterwards"]
    skipped = {verdict.check.group for verdict in verdicts if verdict.result == "skipped"}
    assert {"statistics", "logging", "classification", "gRPC: infer"} <= skipped  # it does not claim them


def test_every_check_fails_on_a_server_that_says_yes_or_on_one_that_says_no(server: Server) -> None:
    """One that fails on neither could not fail."""

    def yes(path: str, requests: list[bytes]) -> list[bytes]:
        return [b"\x08\x01"] if path.endswith("Ready") else [b""] * max(1, len(requests))

    def no(path: str, requests: list[bytes]) -> list[bytes]:
        raise Wrong("INTERNAL")

    failed: set[str] = set()
    for model in (MODEL, "pair"):
        for (status, content), serve in (((200, YES), yes), ((500, {"error": "no"}), no)):
            target = connect(server.url, model, 3, reload=True)
            target.server = {**target.server, "extensions": sorted(ALL)}
            with http_saying(status, content) as target.url, grpc_serving(serve) as where:
                target.calls = Calls(where, 3)
                failed |= set(failures(target))
    unseen = (
        "gRPC: strictness: a typed number out of its datatype's range is INVALID_ARGUMENT"  # our models have no int8
    )
    left = {f"{check.group}: {check.rule}" for check in every()} - failed
    assert left == {unseen}


def changed(change: Callable[[dict[str, Any]], Any], only: str = "/infer") -> Any:
    """Spoils the JSON of good answers."""

    def spoil(path: str, body: bytes, answer: tuple[int, dict[str, str], bytes]) -> tuple[int, dict[str, str], bytes]:
        status, headers, content = answer
        if b"classification" in body:
            return answer
        if not path.endswith(only) or status != 200 or not content.startswith(b"{") or len(headers) > 1:
            return answer
        held = json.loads(content)
        held = change(held) or held
        return status, headers, json.dumps(held).encode()

    return spoil


def wrong_status(path: str, body: bytes, answer: tuple[int, dict[str, str], bytes]) -> Any:
    return (500, *answer[1:]) if answer[0] == 400 else answer


def error_with_more(path: str, body: bytes, answer: tuple[int, dict[str, str], bytes]) -> Any:
    status, headers, content = answer
    return (status, headers, json.dumps({**json.loads(content), "code": 7}).encode()) if status == 400 else answer


HTTP_MUTANTS: dict[str, tuple[Any, set[str]]] = {
    "no id": (changed(lambda held: held.pop("id", None) and None), {"infer, JSON: the id comes back as it was"}),
    "a version that is a number": (
        changed(lambda held: held.update(model_version=1)),
        {"infer, JSON: model_version is a string"},
    ),
    "nested data": (
        changed(lambda held: held["outputs"][0].update(data=[held["outputs"][0]["data"]])),
        {"infer, JSON: data is flat, as many numbers as its shape takes, and not in binary"},
    ),
    "another datatype": (
        changed(lambda held: held["outputs"][0].update(datatype="FP64")),
        {
            *("infer, JSON: outputs have the datatypes that metadata says",),
            *("binary_tensor_data: a raw request (header length 0) is its input's bytes",),
            *("binary_tensor_data: binary_data_output gives all outputs in binary",),
        },
    ),
    "frozen statistics": (
        changed(lambda held: held["model_stats"][0]["inference_stats"]["success"].update(count=7), only="/stats"),
        {"statistics: a request that succeeds counts as one"},
    ),
    "no model that is ready": (
        lambda path, body, answer: (200, {}, b"[]") if path.endswith("index") and b"ready" in body else answer,
        {"model_repository: the index of what is ready lists nothing else"},
    ),
}


@pytest.mark.parametrize("mutant", HTTP_MUTANTS)
def test_a_server_that_is_wrong_in_one_place_fails_there_and_nowhere_else(server: Server, mutant: str) -> None:
    spoil, wanted = HTTP_MUTANTS[mutant]
    target = connect(server.url, MODEL, 20)
    target.calls = None
    with http_before(server.url, spoil) as target.url:
        assert set(failures(target)) == wanted


@pytest.mark.parametrize("spoil", [wrong_status, error_with_more])
def test_errors_of_another_class_or_form_fail_all_that_is_refused(server: Server, spoil: Any) -> None:
    target = connect(server.url, MODEL, 20)
    target.calls = None
    with http_before(server.url, spoil) as target.url:
        failed = failures(target)
    rules = {f"{check.group}: {check.rule}" for check in every() if check.group == "strictness"}
    others = ("a fraction for whole numbers is refused", "behind a refused request the connection answers the next")
    assert rules - set(failed) == {f"strictness: {rule}" for rule in (*others, "the server is well afterwards")}


def spoilt(change: Callable[[Any], Any], method: str = "ModelInfer") -> Callable[[Serve], Serve]:
    """Spoils a method's answers."""

    def around(serve: Serve) -> Serve:
        def served(path: str, requests: list[bytes]) -> list[bytes]:
            answers = serve(path, requests)
            if path != SERVICE + method:
                return answers
            held = [messages.message(f"{method}Response").FromString(answer) for answer in answers]
            held = change(held) or held
            return [message.SerializeToString() for message in held]

        return served

    return around


def asked(change: Callable[[Any], Any]) -> Callable[[Serve], Serve]:
    """Spoils the requests for inference before they are read."""

    def around(serve: Serve) -> Serve:
        def served(path: str, requests: list[bytes]) -> list[bytes]:
            if path != f"{SERVICE}ModelInfer":
                return serve(path, requests)
            held = [messages.message("ModelInferRequest").FromString(request) for request in requests]
            for message in held:
                change(message)
            return serve(path, [message.SerializeToString() for message in held])

        return served

    return around


def ending(codes: dict[str, str], only: str = "") -> Callable[[Serve], Serve]:
    """Ends calls in other codes."""

    def around(serve: Serve) -> Serve:
        def served(path: str, requests: list[bytes]) -> list[bytes]:
            try:
                return serve(path, requests)
            except Wrong as error:
                code = codes.get(error.code, error.code) if path.endswith(only) else error.code
                raise Wrong(code, error.details) from None

        return served

    return around


def instead(path: str, answers: list[bytes]) -> Callable[[Serve], Serve]:
    return lambda serve: lambda asked, requests: answers if asked == path else serve(asked, requests)


def another_name(answers: list[Any]) -> None:
    answers[0].name = "other"


def both(answers: list[Any]) -> None:
    for answer in answers:
        for tensor in answer.outputs:
            tensor.contents.fp32_contents.extend([0.0])


def typed(answers: list[Any]) -> None:
    """As right as raw contents are."""
    import numpy as np

    for answer in answers:
        if not any(tensor.datatype == "BYTES" for tensor in answer.outputs):
            for raw, tensor in zip(answer.raw_output_contents, answer.outputs, strict=True):
                tensor.contents.fp32_contents.extend(np.frombuffer(raw, np.float32))
            del answer.raw_output_contents[:]


def ends_at_an_error(answers: list[Any]) -> list[Any]:
    wrong = [place for place, answer in enumerate(answers) if answer.error_message]
    return answers[: wrong[0] + 1] if wrong else answers


STREAM = "ModelStreamInfer"
GRPC_MUTANTS: dict[str, tuple[Callable[[Serve], Serve], set[str]]] = {
    "right": (lambda serve: serve, set()),
    "typed contents, which are as good": (spoilt(typed), set()),
    "not ready": (
        spoilt(lambda held: [messages.message("ModelReadyResponse")()], "ModelReady"),
        {"health: the model is ready", "health: a version of it is ready"},
    ),
    "another name": (
        spoilt(another_name, "ServerMetadata"),
        {"metadata: the server's is that of HTTP"},
    ),
    "another platform": (
        spoilt(lambda held: setattr(held[0], "platform", "other"), "ModelMetadata"),
        {"metadata: the model's is that of HTTP"},
    ),
    "no id": (spoilt(lambda held: setattr(held[0], "id", "")), {"infer: the id comes back as it was"}),
    "no version": (
        spoilt(lambda held: setattr(held[0], "model_version", "")),
        {"infer: the answer names its model and version", "infer: a version may be named"},
    ),
    "raw and typed": (spoilt(both), {"infer: outputs come as raw contents or typed ones, never as both"}),
    "outputs not chosen": (
        asked(lambda held: held.ClearField("outputs")),
        {
            *("classification: classes are those of HTTP", "strictness: an unknown output is INVALID_ARGUMENT"),
            "strictness: an output asked for twice is INVALID_ARGUMENT",
        },
    ),
    "typed contents beside raw ones not seen": (
        asked(lambda held: [held.raw_input_contents and tensor.ClearField("contents") for tensor in held.inputs]),
        {"strictness: raw contents and typed ones is INVALID_ARGUMENT"},
    ),
    "unknown models INVALID_ARGUMENT": (
        ending({"NOT_FOUND": "INVALID_ARGUMENT"}, "ModelInfer"),
        {f"strictness: inference of an unknown {what} is NOT_FOUND" for what in ("model", "version")},
    ),
    "late calls DEADLINE_EXCEEDED": (
        ending({"UNAVAILABLE": "DEADLINE_EXCEEDED"}),
        {"schedule_policy: a timeout that passes is UNAVAILABLE"},
    ),
    "frozen statistics": (
        spoilt(lambda held: [row.inference_stats.Clear() for row in held[0].model_stats] and None, "ModelStatistics"),
        {"statistics: a request that succeeds counts as one"},
    ),
    "a setting that is another": (
        spoilt(lambda held: setattr(held[0].settings["log_info"], "string_param", "x"), "LogSettings"),
        {"logging: settings are those of HTTP, and setting what is set changes nothing"},
    ),
    "an index of nothing": (
        spoilt(lambda held: held[0].ClearField("models"), "RepositoryIndex"),
        {"model_repository: the index is that of HTTP"},
    ),
    "a stream out of order": (
        spoilt(lambda held: held[::-1], STREAM),
        {
            "streaming: answers come in the order of the requests",
            "streaming: a refused request in the middle is a message, and not the end",
        },
    ),
    "a stream that ends at an error": (
        spoilt(ends_at_an_error, STREAM),
        {"streaming: a refused request in the middle is a message, and not the end"},
    ),
    "a stream that says something": (
        spoilt(lambda held: [*held, messages.message(f"{STREAM}Response")()], STREAM),
        {
            *(
                "streaming: answers come in the order of the requests",
                "streaming: a stream without a request ends well",
            ),
            "streaming: a refused request in the middle is a message, and not the end",
        },
    ),
    "not serving": (
        instead("/grpc.health.v1.Health/Check", [b"\x08\x02"]),
        {
            "beside the protocol: grpc.health.v1 says SERVING",
            "beside the protocol: grpc.health.v1 does not know an unknown service",
        },
    ),
}


@pytest.mark.parametrize("mutant", GRPC_MUTANTS)
def test_a_grpc_server_that_is_wrong_in_one_place_fails_there_and_nowhere_else(server: Server, mutant: str) -> None:
    around, wanted = GRPC_MUTANTS[mutant]
    target = connect(server.url, MODEL, 20, address(server))
    with grpc_serving(around(behind(address(server)))) as where:
        target.calls = Calls(where, 20)
        only = [check for check in every() if check.group.startswith("gRPC: ")]
        failed = {
            f"{held.check.group}: {held.check.rule}": held.why
            for held in run.run(target, only)
            if held.result == "failed"
        }
    assert set(failed) == {f"gRPC: {rule}" for rule in wanted}, failed


def test_the_command_ends_with_1_where_a_check_fails() -> None:
    with http_saying(200, YES) as url:
        done = CliRunner().invoke(cli.app, ["check", url], catch_exceptions=False)
    assert done.exit_code == 1
    assert "failed: strictness: " in done.output


def test_who_speaks_no_such_protocol_is_told_so() -> None:
    with http_saying(200, []) as url, pytest.raises(PenstockError, match="speaks no Open Inference Protocol: "):
        connect(url, None, 5)


def test_an_address_where_nobody_listens_is_told_with_what_starts_a_server() -> None:
    with pytest.raises(
        PenstockError, match=r"^http://127\.0\.0\.1:9: nobody listens there; start it with: penstock serve"
    ):
        connect("http://127.0.0.1:9", None, 1)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:8000", "http://127.0.0.1:port", "http://", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(PenstockError, match="must be an address such as http://127"):
        connect(url, None, 1)


def test_a_model_that_is_not_there_is_told(server: Server) -> None:
    with pytest.raises(PenstockError, match="has no model that answers one row of ones; name one with --model"):
        connect(server.url, "nobody", 5)


def test_a_server_that_lists_no_models_wants_one_named(server: Server) -> None:
    spoil = lambda path, body, answer: (404, {}, b"no") if path.endswith("index") else answer  # noqa: E731
    with http_before(server.url, spoil) as url:
        with pytest.raises(PenstockError, match=r"lists no models \(404 .*name one with --model"):
            connect(url, None, 5)
        assert connect(url, MODEL, 5).name == MODEL


def test_a_grpc_address_where_nobody_answers_is_told(server: Server) -> None:
    with pytest.raises(PenstockError, match=r"--grpc 127\.0\.0\.1:9: nobody answers there"):
        connect(server.url, MODEL, 2, "127.0.0.1:9")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_drips_in_is_not_waited_for_for_ever(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(head)
                try:
                    while True:
                        connection.sendall(b"x")
                        stop.wait(0.05)
                except OSError:
                    pass

        stop = threading.Event()
        threading.Thread(target=drip, daemon=True).start()
        target = Target(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)
        with pytest.raises(Failed, match=r"does not answer within 0\.5 s"):
            target.ask("GET", "/v2")


def test_an_answer_that_breaks_off_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def cut() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}")

        threading.Thread(target=cut, daemon=True).start()
        target = Target(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=5)
        with pytest.raises(Failed, match="breaks its answer off, 8 bytes before its end"):
            target.ask("GET", "/v2")

"""Faults that servers of models are known for, each with the tests that would see it; and knobs that do nothing."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from penstock import cli
from penstock.artifact import Artifact
from penstock.serve import server as server_module
from penstock.serve.lifecycle import open_repository
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, load
from penstock.serve.outcomes import Expired
from penstock.serve.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

HERE = Path(__file__).parent

FAULTS = {
    "a client's timeout kills the batch loop": (
        "test_scheduler.py::test_an_item_whose_deadline_passes_while_it_is_computed_is_told_so_and_the_next_one_served",
        "test_app.py::test_a_timeout_is_a_503_as_in_triton",
    ),
    "the work of clients that went away is still computed": (
        "test_connection.py::test_the_work_of_a_client_that_went_away_is_dropped",
        "test_scheduler.py::test_a_cancelled_item_frees_its_rows_and_is_not_computed",
        "test_rpc.py::test_a_cancelled_or_late_call_frees_its_work",
        "test_reader.py::test_a_client_that_goes_away_makes_room_for_the_next",
    ),
    "a timeout frees the slot while its thread still runs": (
        "test_known_faults.py::test_a_timeout_does_not_free_an_instance_whose_thread_still_runs",
        "test_family.py::test_a_slot_is_kept_as_long_as_its_batch_looks_at_it_though_its_request_has_expired",
    ),
    "the newest request is answered first": (
        "test_scheduler.py::test_a_batch_is_one_key_within_max_batch_and_first_in_first_out",
        "test_scheduler.py::test_lower_priority_numbers_go_first_and_equal_ones_in_order_of_arrival",
    ),
    "requests are counted instead of rows": (
        "test_scheduler.py::test_the_queue_bound_counts_rows_and_the_refusal_says_how_many_wait",
        "test_metrics.py::test_a_batch_is_counted_in_rows_seconds_and_waits",
    ),
    "a lone request pays the batch window": ("test_scheduler.py::test_a_lone_request_does_not_wait_for_company",),
    "the delay is counted from when the queue is looked at": (
        "test_scheduler.py::test_items_that_met_a_busy_server_wait_for_company_until_the_oldest_has_waited_long_enough",
        "test_scheduler.py::test_rows_that_met_a_busy_server_wait_for_company_but_no_longer_than_max_delay_ms",
    ),
    "one bad row fails 31 neighbours": (
        "test_scheduler.py::test_one_poisoned_item_among_32_fails_alone",
        "test_scheduler.py::test_a_quick_batch_with_a_bad_row_fails_its_sender_alone",
    ),
    "answers reach the wrong caller after a cancellation": (
        "test_scheduler.py::test_whatever_is_interleaved_each_caller_gets_its_own_answer_exactly_once",
        "test_app.py::test_32_clients_at_once_with_requests_of_different_sizes_each_get_their_own_rows",
    ),
    "ready with no models": (
        "test_repository.py::test_an_empty_repository_object_is_not_ready",
        "test_known_faults.py::test_a_server_whose_every_model_was_unloaded_is_not_ready",
    ),
    "ready while a model is missing, dead or on its way out": (
        "test_app.py::test_a_server_with_a_failed_model_is_live_but_not_ready_and_names_it",
        "test_app.py::test_a_model_that_hangs_is_replaced_and_the_server_not_ready_meanwhile",
        "test_drain.py::test_a_lame_duck_is_not_ready_and_answers_with_word_to_leave",
        "test_known_faults.py::test_a_model_whose_batch_takes_longer_than_anybody_waits_is_not_ready_meanwhile",
    ),
    "models are unloaded under requests": (
        "test_known_faults.py::test_a_model_that_is_unloaded_answers_what_it_was_asked_before",
        "test_app.py::test_models_loaded_anew_under_requests_that_take_long_to_read_lose_none",
        "test_drain.py::test_what_was_received_is_answered_and_counted",
    ),
    "memory grows with every reload": ("test_known_faults.py::test_a_model_that_was_replaced_leaves_nothing_behind",),
    "connections or tasks are left behind": (
        "test_connection.py::test_a_client_that_goes_away_at_once_leaves_no_task_behind",
        "test_known_faults.py::test_clients_that_came_and_went_leave_no_open_file",
    ),
    "a knob does nothing": (
        "test_known_faults.py::test_every_option_of_serve_reaches_its_setting",
        "test_known_faults.py::test_every_option_of_serve_has_a_test_of_its_effect",
    ),
    "a gzip bomb or much JSON holds everybody up": (
        "test_compression.py::test_a_bomb_is_refused_at_the_bound_and_nobody_waits_for_it",
        "test_inflating.py::test_the_event_loop_goes_on_while_a_bomb_is_inflated",
        "test_reader.py::test_the_event_loop_and_other_threads_go_on_meanwhile",
        "test_reader.py::test_a_long_body_beside_inference_is_refused_before_it_is_parsed",
        "test_app.py::test_a_body_declared_too_long_is_a_413_before_any_of_it_is_sent",
    ),
    "two pipelined requests of one socket are mixed up": (
        "test_connection.py::test_requests_sent_ahead_are_answered_in_their_order",
        "test_drain.py::test_requests_sent_ahead_are_answered_in_order_and_the_last_says_that_it_is_the_last",
    ),
}

# Of each option, a value that is not its default, and a test of what it does.
OPTIONS: dict[str, tuple[str | None, str]] = {
    "--host": ("127.0.0.2", "test_known_faults.py::test_host_and_timeout_are_held_to"),
    "--port": ("8123", "test_app.py::test_a_server_that_has_printed_its_address_takes_connections_there"),
    "--grpc-port": ("-1", "test_rpc.py::test_a_port_that_is_taken_is_told_before_the_models_are_loaded"),
    "--device": ("cuda:0", "test_known_faults.py::test_device_and_threads_reach_the_runner"),
    "--instances": ("3", "test_model.py::test_there_is_one_instance_unless_told_but_two_over_one_loaded_engine"),
    "--threads": ("2", "test_known_faults.py::test_device_and_threads_reach_the_runner"),
    "--isolate": (None, "test_isolated.py::test_the_server_loads_no_runtime_itself"),
    "--mode": ("none", "test_lifecycle.py::test_a_server_of_mode_none_refuses_over_http_and_grpc_and_lists_its_models"),
    "--poll-s": (
        "2 --mode poll",
        "test_polling.py::test_a_polling_server_begins_empty_and_exchanges_versions_under_load",
    ),
    "--load": (
        "m",
        "test_lifecycle.py::test_a_server_begins_with_the_models_that_are_named_and_clients_load_the_others",
    ),
    "--route": ("a=b", "test_routes.py::test_http_clients_use_a_route_as_a_model"),
    "--shadow": ("a=b:0.1", "test_shadow.py::test_a_server_compares_what_it_answered_over_every_road"),
    "--keys": ("keys.json", "test_access.py::test_without_a_known_key_there_is_a_401_with_a_challenge"),
    "--tls-cert": ("cert.pem --tls-key key.pem", "test_certificates.py::test_both_roads_of_http_answer_over_tls"),
    "--tls-key": (
        "key.pem --tls-cert cert.pem",
        "test_certificates.py::test_files_that_are_no_pair_are_refused_by_their_option",
    ),
    "--log-format": ("json", "test_requestlog.py::test_everything_that_a_server_writes_is_json"),
    "--log-requests": ("all", "test_requestlog.py::test_all_are_logged_where_that_is_asked_for"),
    "--otel": (None, "test_telemetry.py::test_spans_are_wanted_by_the_option_or_the_environment"),
    "--max-queue-rows": ("5", "test_app.py::test_a_full_queue_is_a_503_that_says_when_to_try_again"),
    "--max-delay-ms": (
        "7",
        "test_scheduler.py::test_rows_that_met_a_busy_server_wait_for_company_but_no_longer_than_max_delay_ms",
    ),
    "--timeout-s": ("9", "test_known_faults.py::test_host_and_timeout_are_held_to"),
    "--run-limit-s": ("9", "test_app.py::test_a_model_that_hangs_is_replaced_and_the_server_not_ready_meanwhile"),
    "--max-body-mb": ("3", "test_app.py::test_a_body_declared_too_long_is_a_413_before_any_of_it_is_sent"),
    "--max-pixels": ("99", "test_app.py::test_a_small_file_of_many_pixels_is_refused_undecoded"),
    "--scaled-decoding": (None, "test_app.py::test_large_jpegs_are_decoded_smaller_if_that_is_asked_for"),
    "--max-images": ("2", "test_app.py::test_more_files_than_the_bound_are_refused"),
    "--max-connections": ("9", "test_connection.py::test_a_connection_too_many_is_told_so_and_the_others_go_on"),
    "--idle-limit-s": ("9", "test_connection.py::test_an_idle_connection_is_closed_and_a_busy_one_is_not"),
    "--receive-limit-s": ("9", "test_connection.py::test_a_client_that_drips_its_body_is_cut_off_on_both_roads"),
    "--allow-shared-memory": (None, "test_sharedmemory.py::*"),
    "--lame-duck-s": ("9", "test_drain.py::test_a_lame_duck_is_not_ready_and_answers_with_word_to_leave"),
    "--drain-s": (
        "9",
        "test_drain.py::test_what_takes_longer_than_drain_s_is_cut_counted_and_told_by_the_exit_status",
    ),
    "--workers": ("2", "test_family.py::*"),
    "--slots-mb": ("9", "test_family.py::test_what_no_slot_can_ever_hold_is_too_large"),
    "--busy-poll-us": ("9", "test_family.py::test_a_lone_request_keeps_its_processes_awake_where_that_is_asked_for"),
    "--no-page": (None, "test_page.py::test_there_is_no_page_where_none_is_wanted"),
    "--trace-file": ("traces.json", "test_tracing.py::*"),
}


def exists(test: str) -> bool:
    """Whether there is a test of that name; * is any of the file."""
    file, _, name = test.partition("::")
    tree = ast.parse((HERE / file).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return name == "*" or name in names


@pytest.mark.parametrize("fault", FAULTS)
def test_every_known_fault_has_its_tests(fault: str) -> None:
    assert [test for test in FAULTS[fault] if not exists(test)] == []


# --- Knobs -----------------------------------------------------------------------------------------------------------


def served_options() -> set[str]:
    command: Any = typer.main.get_command(cli.app)
    return {max(held.opts, key=len) for held in command.commands["serve"].params if held.opts[0].startswith("-")}


def test_every_option_of_serve_has_a_test_of_its_effect() -> None:
    assert served_options() == set(OPTIONS)
    assert [test for _, test in OPTIONS.values() if not exists(test)] == []


def flat(settings: Any) -> dict[str, Any]:
    """The settings' fields, those of dataclasses among them by their own names."""
    found = {}
    for held in fields(settings):
        value = getattr(settings, held.name)
        inner = flat(value) if is_dataclass(value) else {"": value}
        found.update({f"{held.name}.{name}": part for name, part in inner.items()})
    return found


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_serve_reaches_its_setting(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def serve(paths: list[Path], settings: Any, say: Any) -> int:
        told.append(settings)
        return 0

    monkeypatch.setattr(server_module, "serve", serve)
    value = OPTIONS[option][0]
    for given in ([], [option, *(value or "").split()]):
        result = CliRunner().invoke(cli.app, ["serve", "models", *given])
        assert result.exit_code == 0, result.output
    before, after = map(flat, told)
    changed = {name for name in after if before[name] != after[name]}
    assert changed, f"{option} changes nothing"
    words = iter([option, *(value or "1").split()])
    for name, text in zip(words, words, strict=True):
        monkeypatch.setenv(f"PENSTOCK_SERVE_{name[2:].upper().replace('-', '_')}", text)
    result = CliRunner().invoke(cli.app, ["serve", "models"])
    assert result.exit_code == 0, result.output
    assert flat(told[2]) == after, f"{option}: its variable says something else"


def test_host_and_timeout_are_held_to(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--host", "127.0.0.2", "--timeout-s", "0.2", "--grpc-port", "-1")
    assert server.netloc.startswith("127.0.0.2:")
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [30_000]}
    answer = server.ask("POST", "/v2/models/slow/infer", {"inputs": [entry]})
    assert (answer.status, "timeout of 0.2 s" in answer.error) == (503, True)
    with pytest.raises(ConnectionRefusedError):
        server.raw(b"")


def test_device_and_threads_reach_the_runner(
    tmp_path: Path, fake_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_artifact(tmp_path, "m")
    told: dict[str, Any] = {}
    loaded = Artifact.load

    def load_told(self: Artifact, **how: Any) -> Any:
        told.update(how)
        return loaded(self, **{**how, "device": "cpu"})

    monkeypatch.setattr(Artifact, "load", load_told)
    load(tmp_path / "m", Limits(devices=("cuda:1",), threads=3), Metrics())
    assert (told["device"], told["threads"]) == ("cuda:1", 3)


# --- Faults that no other file's test would see ----------------------------------------------------------------------


def test_a_timeout_does_not_free_an_instance_whose_thread_still_runs() -> None:
    gate, running, most = threading.Event(), 0, 0

    def work(payloads: list[Any]) -> list[Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert gate.wait(10)
        running -= 1
        return payloads

    async def scenario() -> None:
        scheduler = Scheduler(lambda: work, max_batch=4)
        with pytest.raises(Expired):
            await scheduler.submit("late", timeout_s=0.02)
        waiting = [asyncio.ensure_future(scheduler.submit(number)) for number in range(3)]
        await asyncio.sleep(0.05)
        assert scheduler.pending_rows == 3  # they wait for the thread, which is still at work
        gate.set()
        assert await asyncio.gather(*waiting) == [0, 1, 2]
        await scheduler.close()

    asyncio.run(scenario())
    assert most == 1


def test_a_model_that_was_replaced_leaves_nothing_behind(
    tmp_path: Path, fake_artifact: Callable[..., Artifact]
) -> None:
    fake_artifact(tmp_path, "m")
    repository = open_repository([tmp_path], Limits(), Metrics())
    inputs = {"ids": np.ones((1, 2), np.int64), "weight": np.ones(1, np.float32)}

    def left() -> tuple[int, int]:
        """Threads of instances, and tasks."""
        return sum(held.name == "penstock-instance" for held in threading.enumerate()), len(asyncio.all_tasks())

    async def scenario() -> None:
        former: list[weakref.ref[Any]] = []
        before = left()
        for _ in range(10):
            former.append(weakref.ref(repository.models["m"]))
            asked = asyncio.ensure_future(repository.models["m"].infer(inputs))
            await asyncio.sleep(0)
            await repository.load("m")
            assert (await asked)["total"].tolist() == [3.0]
            del asked
        give_up = time.monotonic() + 10
        while any(now > then for now, then in zip(left(), before, strict=True)):
            assert time.monotonic() < give_up, (threading.enumerate(), asyncio.all_tasks())
            await asyncio.sleep(0.02)
        gc.collect()
        assert [ref for ref in former if ref() is not None] == []
        await repository.close()

    asyncio.run(scenario())


def test_a_model_whose_batch_takes_longer_than_anybody_waits_is_not_ready_meanwhile() -> None:
    gate = threading.Event()

    def work(payloads: list[Any]) -> list[Any]:
        assert gate.wait(10)
        return payloads

    async def scenario() -> list[bool]:
        scheduler = Scheduler(lambda: work, max_batch=4, stall_s=0.05)
        seen = [scheduler.healthy]
        asked = asyncio.ensure_future(scheduler.submit("x"))
        await asyncio.sleep(0.02)
        seen.append(scheduler.healthy)
        await asyncio.sleep(0.1)
        seen.append(scheduler.healthy)
        gate.set()
        await asked
        seen.append(scheduler.healthy)
        await scheduler.close()
        return seen

    assert asyncio.run(scenario()) == [True, True, False, True]


@pytest.fixture(scope="module")
def alone(slow_onnx: Path, start_server: StartServer) -> Server:
    """A server of the slow model alone."""
    return start_server(slow_onnx, "--grpc-port", "-1")


def turns(count: int) -> bytes:
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [count]}
    return json.dumps({"inputs": [entry]}).encode()


def test_a_model_that_is_unloaded_answers_what_it_was_asked_before(alone: Server) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(alone.ask, "POST", "/v2/models/slow/infer", turns(2000)) for _ in range(3)]
        alone.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', 2)
        assert alone.ask("POST", "/v2/repository/models/slow/unload").status == 200
        assert [answer.result().status for answer in asked] == [200] * 3
    assert alone.ask("POST", "/v2/models/slow/infer", turns(1)).status == 404
    assert alone.ask("POST", "/v2/repository/models/slow/load").status == 200
    assert alone.ask("POST", "/v2/models/slow/infer", turns(1)).status == 200


def test_a_server_whose_every_model_was_unloaded_is_not_ready(alone: Server) -> None:
    assert alone.ask("POST", "/v2/repository/models/slow/unload").status == 200
    answer = alone.ask("GET", "/v2/health/ready")
    assert (answer.status, answer.error) == (503, "no model is loaded")
    assert alone.ask("POST", "/v2/repository/models/slow/load").status == 200
    assert alone.ask("GET", "/v2/health/ready").status == 200


def test_clients_that_came_and_went_leave_no_open_file(alone: Server) -> None:
    folder = Path(f"/proc/{alone.process.pid}/fd")
    before = len(list(folder.iterdir()))
    held = [alone.connect() for _ in range(40)]
    for number, connection in enumerate(held):
        connection.request("POST", "/v2/models/slow/infer", turns(1))
        if number % 2:
            connection.getresponse().read()
        connection.close()
    give_up = time.monotonic() + 10
    while len(list(folder.iterdir())) > before:
        assert time.monotonic() < give_up, "files stay open"
        time.sleep(0.02)

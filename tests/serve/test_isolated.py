"""Isolated runners: they answer as others do, and one that dies, hangs or stops is missed, replaced, and no more."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.laid import Form, Laid, Memory, Place
from penstock.runtimes import InstanceDead, RejectedInput
from penstock.serve.arena import Arena
from penstock.serve.isolated import IsolatedRunner
from penstock.serve.opening import Opening
from tests.serve.conftest import Answer, Server, StartServer

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory without a file is Linux's")


def wait_until(true: Callable[[], bool], within_s: float = 15) -> float:
    """How long it took to come true."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < within_s, "it did not come true"
        time.sleep(0.01)
    return time.monotonic() - started


@pytest.fixture
def pair(fake_artifact: Callable[..., Artifact], tmp_path: Path) -> Iterator[IsolatedRunner]:
    with IsolatedRunner(Opening(path=fake_artifact(tmp_path, "pair").folder)) as runner:
        yield runner


def inputs(rows: int, first: int = 0, tokens: int = 2) -> dict[str, Any]:
    ids = np.zeros((rows, tokens), np.int64)
    ids[:, 0] = first + np.arange(rows)
    return {"ids": ids, "weight": np.full(rows, 0.5, np.float32)}


def test_it_answers_as_the_runner_here_does(pair: IsolatedRunner, pair_signature: Any) -> None:
    from penstock.runtimes.fake import FakeRunner

    for rows in (1, 8):
        found, here = pair.run(inputs(rows, first=5)), FakeRunner(pair_signature).run(inputs(rows, first=5))
        assert list(found) == list(here)
        for name, array in here.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)


def test_rows_of_several_are_one_batch_of_which_each_has_its_own(pair: IsolatedRunner) -> None:
    answers = pair.run_together([inputs(rows, first=10 * rows) for rows in (1, 3, 2)])
    assert [answer["total"].tolist() for answer in answers] == [
        [10 * rows + row + 0.5 for row in range(rows)] for rows in (1, 3, 2)
    ]


def test_answers_belong_to_the_caller_and_are_not_written_over(pair: IsolatedRunner) -> None:
    first = pair.run(inputs(2, first=1))["total"]
    pair.run(inputs(2, first=100))
    assert first.tolist() == [1.5, 2.5]


def test_memory_is_known_to_the_process_before_a_batch_lies_in_it(pair: IsolatedRunner) -> None:
    def mapped() -> int:
        return Path(f"/proc/{pair.pid}/maps").read_text().count("/memfd:front-end")

    fd = os.memfd_create("front-end")
    os.ftruncate(fd, 4096)
    memory = Memory(fd)
    assert mapped() == 0
    for _ in range(2):
        pair.prepare(memory)
        assert mapped() == 1
    assert pair.run(inputs(1, first=3))["total"].tolist() == [3.5]


def test_memory_that_cannot_be_prepared_is_an_error_and_the_next_may_be(
    pair: IsolatedRunner,
) -> None:
    fd = os.memfd_create("front-end")
    memory_of_nothing = type("Nothing", (), {"fd": fd, "number": 10**6})()  # which cannot be mapped
    with pytest.raises(RuntimeError, match="empty file"):
        pair.prepare(memory_of_nothing)
    os.ftruncate(fd, 4096)
    pair.prepare(Memory(fd))
    assert pair.run(inputs(1, first=3))["total"].tolist() == [3.5]


def laid(memory: Memory, **inputs: Any) -> Laid:
    """A request that lies in memory, of a form of its own; its answer has room nowhere."""
    places, start = [], 0
    for name, array in inputs.items():
        place = Place(name, array.dtype, array.shape, start)
        place.at(memory.map, 0)[...] = array
        places.append(place)
        start = place.end
    return Laid(Form(memory, places, ()), 0, None)


def slots() -> Memory:
    fd = os.memfd_create("front-end")
    os.ftruncate(fd, 65_536)
    return Memory(fd)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_requests_that_are_refused_cost_the_process_nothing(slow_onnx: Path) -> None:
    with IsolatedRunner(Opening(path=slow_onnx)) as runner:
        memory, before = slots(), descriptors(runner.pid)
        for width in range(1, 20):
            with pytest.raises(RejectedInput):
                runner.run_together([laid(memory, turns=np.zeros((1, width), np.int64))])
        assert runner.run_together([laid(memory, turns=np.array([1]))])[0]["total"].shape == (1,)
        assert descriptors(runner.pid) == before + 2  # the memory's own, and its mapping's
        del memory
        gc.collect()
        runner.run_together([laid(slots(), turns=np.array([1]))])
        assert Path(f"/proc/{runner.pid}/maps").read_text().count("/memfd:front-end") == 1


def test_memory_is_prepared_once_the_batch_before_it_has_ended_and_holds_no_other_up(slow_onnx: Path) -> None:
    with IsolatedRunner(Opening(path=slow_onnx)) as runner:
        batch = threading.Thread(target=runner.run, args=({"turns": np.array([2000])},))
        batch.start()
        time.sleep(0.1)
        memory = slots()
        runner.prepare(memory)
        batch.join()
        assert Path(f"/proc/{runner.pid}/maps").read_text().count("/memfd:front-end") == 1
        assert runner.run({"turns": np.array([1])})["total"].shape == (1,)


def test_a_batch_of_many_bytes_finds_room(pair: IsolatedRunner) -> None:
    wide = inputs(4, tokens=500_000)
    wide["ids"][:, -1] = 7
    assert pair.run(wide)["total"].tolist() == [7.5, 8.5, 9.5, 10.5]


def test_what_the_model_rejects_is_rejected_here(slow_onnx: Path) -> None:
    with IsolatedRunner(Opening(path=slow_onnx)) as runner:
        with pytest.raises(RejectedInput):
            runner.run({"turns": np.zeros((2, 2), np.int64)})
        assert runner.run({"turns": np.array([1])})["total"].shape == (1,)
        assert runner.well


def test_what_does_not_open_says_why_as_it_would_here(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no graph")
    with pytest.raises(PenstockError, match="not an ONNX model"):
        IsolatedRunner(Opening(path=tmp_path / "no.onnx"))


def test_one_that_is_killed_says_so_to_whoever_waits_and_is_known_to_be_gone(slow_onnx: Path) -> None:
    with IsolatedRunner(Opening(path=slow_onnx)) as runner:
        threading.Timer(0.3, os.kill, (runner.pid, signal.SIGKILL)).start()
        with pytest.raises(InstanceDead, match="SIGKILL"):
            runner.run({"turns": np.array([10**7])})
        wait_until(lambda: runner.gone)
        assert not runner.well


def test_one_that_dies_while_idle_is_missed(pair: IsolatedRunner) -> None:
    os.kill(pair.pid, signal.SIGKILL)
    assert wait_until(lambda: not pair.well) < 2
    assert pair.gone


def test_one_that_is_stopped_is_not_well_within_two_seconds_and_is_ended_in_the_end(pair: IsolatedRunner) -> None:
    assert pair.well
    os.kill(pair.pid, signal.SIGSTOP)
    assert wait_until(lambda: not pair.well) < 2.5
    assert not pair.gone
    with pytest.raises(InstanceDead, match="SIGKILL"):
        pair.run(inputs(1))


def test_one_that_goes_on_in_time_is_well_again(pair: IsolatedRunner) -> None:
    os.kill(pair.pid, signal.SIGSTOP)
    wait_until(lambda: not pair.well)
    os.kill(pair.pid, signal.SIGCONT)
    wait_until(lambda: pair.well)
    assert pair.run(inputs(1))["total"].tolist() == [0.5]


def test_closing_ends_the_process_and_gives_everything_back(
    fake_artifact: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = fake_artifact(tmp_path, "pair").folder
    held = None
    for _ in range(4):
        runner = IsolatedRunner(Opening(path=folder))
        runner.run(inputs(1))
        runner.close()
        runner.close()
        assert runner.gone
        wait_until(lambda: not any(thread.name == "penstock-watch" for thread in threading.enumerate()))
        open_files = len(list(Path("/proc/self/fd").iterdir()))
        assert held in (None, open_files)
        held = open_files


def test_the_process_ends_with_the_one_that_started_it(fake_artifact: Callable[..., Artifact], tmp_path: Path) -> None:
    folder = fake_artifact(tmp_path, "pair").folder
    program = (
        "import sys, time; from pathlib import Path; from penstock.serve.isolated import IsolatedRunner; "
        "from penstock.serve.opening import Opening; "
        "print(IsolatedRunner(Opening(path=Path(sys.argv[1]))).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "(zombie)" in Path(f"/proc/{pid}/status").read_text())


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def isolating(slow_onnx: Path, start_server: StartServer) -> Iterator[Server]:
    server = start_server(slow_onnx, "--isolate", "--run-limit-s", "20")
    yield server
    server.stop()
    assert not children(server.process.pid)


def ask(server: Server, turns: int = 10) -> Answer:
    asked = {"inputs": [{"name": "turns", "shape": [1], "datatype": "INT64", "data": [turns]}]}
    return server.ask("POST", "/v2/models/slow/infer", asked)


def ready(server: Server) -> bool:
    return server.ask("GET", "/v2/health/ready").status == 200


def test_the_server_loads_no_runtime_itself(isolating: Server) -> None:
    assert ask(isolating).status == 200
    assert "onnxruntime" not in Path(f"/proc/{isolating.process.pid}/maps").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_a_runner_that_ends_or_stops_over_a_request_is_replaced_and_the_request_answered(
    isolating: Server, number: int
) -> None:
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask(isolating, 10_000)))
    asking.start()
    time.sleep(0.3)
    (pid,) = children(isolating.process.pid)
    os.kill(pid, number)
    wait_until(lambda: not ready(isolating))
    wait_until(lambda: ready(isolating))
    asking.join()
    assert answers[0].status == 200
    assert children(isolating.process.pid) != [pid]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_ends_or_stops_while_idle_turns_readiness_red_and_is_replaced(isolating: Server, number: int) -> None:
    (pid,) = children(isolating.process.pid)
    os.kill(pid, number)
    assert wait_until(lambda: not ready(isolating)) < 3
    wait_until(lambda: ready(isolating))
    assert ask(isolating).status == 200
    assert children(isolating.process.pid) != [pid]


def test_one_that_hangs_past_the_limit_is_ended(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--isolate", "--run-limit-s", "0.5")
    (pid,) = children(server.process.pid)
    started = time.monotonic()
    answer = ask(server, 10**8)
    assert answer.status == 503
    assert time.monotonic() - started < 3
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    wait_until(lambda: ready(server))
    assert ask(server).status == 200
    assert server.stop() == 0


def test_a_signal_to_the_whole_group_lets_what_is_under_way_be_answered(isolating: Server) -> None:
    """As a terminal's ^C and systemd's stop do it: the runner's process is told too."""
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(ask(isolating, 8_000)))
    asking.start()
    time.sleep(0.3)
    for pid in children(isolating.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert isolating.stop() == 0
    asking.join()
    assert answers[0].status == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["that runs", "that is stopped"])
def test_a_runner_ends_with_a_server_that_is_killed(slow_onnx: Path, start_server: StartServer, number: int) -> None:
    server = start_server(slow_onnx, "--isolate")
    (pid,) = children(server.process.pid)
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGSTOP)
    server.process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists())


def test_batches_that_hang_leave_no_memory_and_no_files_behind(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--isolate", "--run-limit-s", "0.3", "--grpc-port", "-1")

    def files() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    assert ask(server).status == 200
    held = files()
    for _ in range(3):
        assert ask(server, 10**8).status == 503
        wait_until(lambda: ready(server))
    wait_until(lambda: files() <= held + 1)


def test_where_there_is_no_memory_for_a_batch_its_sender_is_told_and_the_runner_goes_on(
    pair: IsolatedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "_reach", full)
        with pytest.raises(PenstockError, match="no memory for input 'ids'"):
            pair.run(inputs(1))
    assert pair.run(inputs(1))["total"].tolist() == [0.5]
    assert pair.well


def test_an_answer_to_another_question_is_no_answer(pair: IsolatedRunner) -> None:
    lane = pair._lanes.get()
    lane.socket.send(b'{"arrays": [], "end": 0, "number": 77}')  # its answer comes first
    pair._lanes.put(lane)
    with pytest.raises(InstanceDead):
        pair.run(inputs(1))
    assert pair.gone

"""^C of the whole command: one word, exit code 130, and a key that is held down counts once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import parents
from penstock.bench import fleet
from penstock.commands.terminal import one_interrupt


def test_an_interrupt_while_the_command_line_is_imported_is_one_word(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    done = _run("import penstock.__main__; penstock.__main__.main()", path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_many_interrupts_are_one_and_one_after_silence_is_another() -> None:
    heard = []
    with one_interrupt():
        for silence in (0.0, 0.01, 0.01, 1.1, 0.01):
            time.sleep(silence)
            try:
                signal.raise_signal(signal.SIGINT)
                heard.append(False)
            except KeyboardInterrupt:
                heard.append(True)
    assert heard == [True, False, False, True, False]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with one_interrupt():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_deaf_process_does_not_hear_an_interrupt_even_as_it_begins() -> None:
    with parents.deaf():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_generators_do_not_hear_an_interrupt_from_the_first() -> None:
    process = fleet._start()
    try:
        blocked = re.search(r"^SigBlk:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        assert blocked is not None
        assert int(blocked[1], 16) & 1 << signal.SIGINT - 1
    finally:
        process.kill()
        process.communicate()


def _run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Python code in a process that hears ^C, as one of a terminal does."""
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), home])}
    command = [sys.executable, "-c", hears + code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)

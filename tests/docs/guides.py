"""Guides run as a reader would: their files written, their commands typed, and what comes held to what they show.

In docs/guides/*.md:

- A block with a `title` in its first line is a file; it is written where it stands.
- In a `console` block a line that begins with `$ ` is a command (it goes on after a `\\`), and what follows is what it
  prints, stdout and stderr together. Text is compared word for word. Numbers with a point or an exponent are measured:
  any such number will do. `…` is whatever may come: within a line anything, as a line of its own any lines.
- A command ends with 0; with another status where `error:` begins a line of what it prints.
- A command that ends in ` &` is a server: it runs on once all that is shown has come. `kill %1` ends the first one.
- `<!-- not run: WHY -->` before a block leaves that one out; `<!-- needs: nginx -->` names a program of the whole guide
  that there must be, and `<!-- needs: import transformers -->` a package.
- Ports are those in PORTS. Others that are free take their place, so that guides run beside anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PORTS = (8000, 8001, 8080, 8081)
LIMIT_S = 120.0
_FENCE = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?$")
_NOTE = re.compile(r"^<!-- (?P<kind>not run|needs): (?P<text>.+) -->$")
_MEASURED = re.compile(r"(?<![\w.])-?(?:\d[\d,]*\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.]*\w)")
_UNIT = re.compile(r"(?<![\w.])-?\d[\d,]*\.\d+(?=(?:s|ms|%|kB|MB)\b)")


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    name: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """What the reader types, and what comes."""

    text: str
    shown: str
    line: int


@dataclass
class Guide:
    """What a guide has its reader do, in order; what it needs; the blocks that cannot be run, with the reasons."""

    steps: list[File | Command] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unmarked: list[int] = field(default_factory=list)


def read(text: str) -> Guide:
    """The steps of a guide.

    Args:
        text: of its page.
    """
    guide, why, lines = Guide(), "", text.splitlines()
    number = 0
    while number < len(lines):
        if note := _NOTE.match(lines[number]):
            if note["kind"] == "not run":
                why = note["text"]
            else:
                kind, _, name = note["text"].rpartition(" ")
                (guide.packages if kind == "import" else guide.programs).append(name)
        elif fence := _FENCE.match(lines[number]):
            end = next(place for place in range(number + 1, len(lines)) if lines[place] == "```")
            inside = lines[number + 1 : end]
            if why:
                guide.left_out.append(why)
            elif fence["title"]:
                guide.steps.append(File(fence["title"], "\n".join(inside) + "\n", number + 1))
            elif fence["language"] == "console":
                guide.steps.extend(_commands(inside, number + 2))
            elif fence["language"] in ("bash", "sh", "shell"):
                guide.unmarked.append(number + 1)
            why, number = "", end
        number += 1
    return guide


def _commands(lines: list[str], first: int) -> list[Command]:
    found: list[tuple[list[str], list[str], int]] = []
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            found.append(([line[2:]], [], number))
        elif found and not found[-1][1] and found[-1][0][-1].endswith("\\"):
            found[-1][0].append(line)
        else:
            found[-1][1].append(line)
    return [Command("\n".join(typed), "\n".join(shown), number) for typed, shown, number in found]


def alike(shown: str, came: str) -> bool:
    """Whether what came is what is shown, but for what is measured and what is left open."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, _masked(line).split("…"))) + r"\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{_masked(line)}\n" for line in came.splitlines())) is not None


def _masked(line: str) -> str:
    return _UNIT.sub("#", _MEASURED.sub("#", line.rstrip()))


def free_ports() -> dict[str, str]:
    """A free port for each of PORTS; those that follow one another there do so here."""
    while True:
        with contextlib.ExitStack() as held:
            try:
                taken = [_bound(held, 0)]
                for before, port in itertools.pairwise(PORTS):
                    taken.append(_bound(held, taken[-1] + 1 if port == before + 1 else 0))
            except (OSError, OverflowError):
                continue
            return {str(port): str(one) for port, one in zip(PORTS, taken, strict=True)}


def _bound(held: contextlib.ExitStack, port: int) -> int:
    listener = held.enter_context(socket.socket())
    listener.bind(("127.0.0.1", port))
    return int(listener.getsockname()[1])


class Desk:
    """A reader's folder and shell."""

    def __init__(self, folder: Path, environment: dict[str, str], ports: dict[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self._ports = ports
        self._servers: list[tuple[subprocess.Popen[bytes], Path, int]] = []

    def do(self, step: File | Command) -> None:
        """Write a file, or type a command and hold what comes to what is shown.

        Raises:
            AssertionError: something else came.
        """
        if isinstance(step, File):
            path = self.folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_replaced(step.text, self._ports))
        elif stop := re.fullmatch(r"kill %(\d+)", step.text):
            self._stop(int(stop[1]) - 1, step)
        elif step.text.endswith(" &"):
            self._begin(step)
        else:
            self._run(step)

    def leave(self) -> None:
        """End what runs still."""
        for process, _, _ in self._servers:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)

    def _run(self, step: Command) -> None:
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", _replaced(step.text, self._ports)],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        came = ran.stdout.decode()
        self._compare(step, came)
        fails = re.search(r"^error:", step.shown, re.MULTILINE) is not None
        assert (ran.returncode != 0) == fails, f"line {step.line}: {step.text} ended with {ran.returncode}"

    def _begin(self, step: Command) -> None:
        log = self.folder.parent / f"server-{len(self._servers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {_replaced(step.text[:-2], self._ports)}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._servers.append((process, log, 0))
        give_up = time.monotonic() + LIMIT_S
        while not self._has_come(step.shown, log.read_text()):
            if process.poll() is not None or time.monotonic() > give_up:
                self._compare(step, log.read_text())
            time.sleep(0.05)
        self._servers[-1] = (process, log, log.stat().st_size)

    def _has_come(self, shown: str, came: str) -> bool:
        return came.endswith("\n") and alike(shown, _replaced(came, self._back())) if shown else True

    def _stop(self, number: int, step: Command) -> None:
        process, log, seen = self._servers[number]
        process.terminate()
        assert process.wait(LIMIT_S) == 0, log.read_text()
        self._compare(step, log.read_bytes()[seen:].decode())

    def _compare(self, step: Command, came: str) -> None:
        came = _replaced(came, self._back())
        assert alike(step.shown, came), f"line {step.line}: $ {step.text}\nshown:\n{step.shown}\ncame:\n{came}"

    def _back(self) -> dict[str, str]:
        return {there: shown for shown, there in self._ports.items()}


def _replaced(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"(?<=[ :])\d{4,5}\b", lambda found: ports.get(found[0], found[0]), text)

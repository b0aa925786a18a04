"""Tab completion: in real shells, of commands, options, values and files, without anything heavy."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.commands import completion
from tests.penstock.test_imports import HEAVY

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a `penstock` to run, and a few files."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "penstock"
    script.write_text(f"#!{sys.executable}\nfrom penstock.__main__ import main\nmain()\n")
    script.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "ckpt_of_mine.pth").touch()
    (tmp_path / "work" / "digits_of_mine.toml").touch()
    return tmp_path


def environment(place: Path, **more: str) -> dict[str, str]:
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    python = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PATH": path, "PYTHONPATH": python, "HOME": str(place), "TERM": "dumb", **more}


class Shell:
    """A shell on a terminal of its own, in which somebody types."""

    def __init__(self, command: list[str], place: Path) -> None:
        self._here, there = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, env=environment(place), cwd=place / "work",
            start_new_session=True,
        )  # fmt: skip
        os.close(there)
        self.seen = ""

    def type(self, text: str, until: str, limit_s: float = 60) -> str:
        """Type, and wait for what is to appear then; gives all that has appeared since."""
        start = len(self.seen)
        os.write(self._here, text.encode())
        give_up = time.monotonic() + limit_s
        while not re.search(until, self.seen[start:]):
            assert time.monotonic() < give_up, f"{until!r} is not in {self.seen[start:]!r}"
            if select.select([self._here], [], [], 0.2)[0]:
                heard = os.read(self._here, 65_536).decode(errors="replace")
                self.seen += heard.replace("\r", "").replace("\a", "")  # a bell rings where several words are possible
        return self.seen[start:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_tab_key_completes_in_bash(place: Path) -> None:
    shell = Shell(["bash", "--norc", "--noprofile", "-i"], place)
    try:
        shell.type("bind 'set enable-bracketed-paste off'; PS1='ready> '\n", r"\nready> ")
        shell.type('source <(penstock --show-completion bash); echo "so""urced"\n', r"sourced\nready> ")
        for typed, completed in (
            ("penstock exp", "ort "),
            ("penstock export --format on", "nx "),
            ("penstock export --precision fp32,bf", "16 "),
            ("penstock export --accuracy", "-drop "),
            ("penstock train fash", "ion-mnist "),
            ("penstock train digits_", "of_mine.toml "),
            ("penstock inspect ckpt", "_of_mine.pth "),
            ("penstock export --model penstock.train.nets:Resid", "ualNet "),
            ("penstock export --model torchv", "ision:"),
            ("penstock export --model transf", "ormers:"),
            ("penstock serve --mode po", "ll "),
            ("penstock doctor ser", "ve "),
        ):
            shell.type(f"{typed}\t|", re.escape(f"{typed}{completed}|"))  # without a space that has not been told
            shell.type("\x15echo cleared\n", r"\ncleared\nready> ")
    finally:
        shell.close()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_the_tab_key_completes_in_zsh(place: Path) -> None:
    shell = Shell(["zsh", "-f", "-i"], place)
    try:
        shell.type("unsetopt zle prompt_cr prompt_sp; PS1='ready> '; setopt zle\n", r"\nready> ")
        shell.type("autoload -Uz compinit && compinit -u -D && echo i''nit\n", r"init\n")
        shell.type("source <(penstock --show-completion zsh) && echo so''urced\n", r"sourced\n")
        for typed, completed in (("penstock export --format on", "nx"), ("penstock train fash", "ion-mnist")):
            shell.type(f"{typed}\t", re.escape(completed))
            shell.type("\x15echo cle''ared\n", r"cleared\n")
    finally:
        shell.close()


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("penstock exp", "export"),
        ("penstock export --format on", "onnx"),
        ("penstock export --model penstock.train.nets:Resid", "penstock.train.nets:ResidualNet"),
        ("penstock train ./digits_", "./digits_of_mine.toml"),
    ],
)
def test_fish_completes(place: Path, typed: str, completed: str) -> None:
    script = f'penstock --show-completion fish | source; complete -C "{typed}"'
    ran = subprocess.run(
        ["fish", "--no-config", "-c", script],
        capture_output=True,
        text=True,
        env=environment(place),
        cwd=place / "work",
        timeout=120,
        check=False,
    )
    assert completed in [line.partition("\t")[0] for line in ran.stdout.splitlines()], ran


def test_nothing_heavy_is_imported_for_a_completion() -> None:
    names = [name for name in vars(completion) if not name.startswith("_") and name not in ("annotations",)]
    functions = [name for name in names if getattr(getattr(completion, name), "__module__", "") == completion.__name__]
    calls = "".join(f"completion.{name}('')\n" for name in functions if name != "in_bash")
    zoos = "completion.architectures('torchvision:')\ncompletion.architectures('timm:')\n"
    code = f"import sys\nimport penstock.cli\nfrom penstock.commands import completion\n{calls}{zoos}"
    code += f"print(*set({HEAVY!r}) & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stdout) == (0, "\n"), ran.stderr
    assert len(functions) > 12


def test_what_is_completed_is_what_there_is() -> None:
    from penstock import runtimes

    pytest.importorskip("torchvision")
    import torchvision

    pytest.importorskip("modelopt")
    from penstock.export import formats
    from penstock.export.pipeline import PRECISIONS
    from penstock.train import recipefiles

    assert runtimes.names()
    assert set(completion.formats("")) == {*formats.names(), "auto"}
    assert set(completion.precisions("")) == set(PRECISIONS)
    assert completion.recipes("") == sorted(recipefiles.shipped())
    known = {f"torchvision:{name}" for name in torchvision.models.list_models()}
    assert set(completion.architectures("torchvision:")) == known


def test_of_several_with_commas_the_last_is_completed_and_none_is_offered_twice() -> None:
    assert completion.precisions("fp32,fp1") == ["fp32,fp16"]
    assert completion.formats("onnx,") == [f"onnx,{name}" for name in completion.formats("") if name != "onnx"]


def test_networks_of_penstocks_own_are_those_that_can_be_made() -> None:
    pytest.importorskip("torch")
    from penstock.train import nets

    found = completion.architectures("penstock.train.nets:")
    assert "penstock.train.nets:ResidualNet" in found
    assert all(hasattr(nets, name.partition(":")[2]) for name in found)


def test_a_package_that_is_not_there_has_no_models() -> None:
    assert completion.architectures("nowhere:") == []

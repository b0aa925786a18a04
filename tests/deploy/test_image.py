"""The image: rules that its Dockerfile keeps, and locks that hold all that it serves with."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = ("build", "serve", "serve-gpu")
# What the image must know of Pythons: those of its own base, of later ones, and of Debian 12's.
PYTHONS = ("3.11", "3.12", "3.13")


def instructions(name: str) -> list[str]:
    """What stands behind an instruction in the last stage, with its continuation lines."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M))
    last = joined[joined.rindex("\nFROM ") :]
    return [line.partition(" ")[2] for line in last.splitlines() if line.startswith(f"{name} ")]


def locked(name: str) -> dict[str, list[tuple[Requirement, list[str]]]]:
    """The packages of a lock: each one's requirements, which markers tell apart, with their hashes."""
    found: dict[str, list[tuple[Requirement, list[str]]]] = {}
    text = "\n".join(line for line in (ROOT / f"deploy/{name}.lock").read_text().splitlines() if line[:1] != "#")
    for entry in text.replace("\\\n", " ").splitlines():
        wanted, *hashes = entry.split(" --hash=")
        requirement = Requirement(wanted)
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, [h.strip() for h in hashes]))
    return found


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    ran = subprocess.run([program, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_the_server_gets_signals_itself_and_is_not_root() -> None:
    assert instructions("ENTRYPOINT") == ['["penstock"]']
    assert instructions("CMD") == ['["serve", "/models"]']
    (user,) = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "by number, so that runAsNonRoot can be held to it"


def test_health_is_asked_by_penstock_itself() -> None:
    (check,) = instructions("HEALTHCHECK")
    assert check.endswith('CMD ["penstock", "health"]')


def test_models_are_a_volume_and_nothing_is_installed_in_the_last_stage() -> None:
    assert instructions("VOLUME") == ["/models"]
    assert all(words.startswith("useradd ") for words in instructions("RUN"))


def test_all_that_is_fetched_has_its_hash_and_builds_bring_nothing() -> None:
    commands = re.findall(r"/pip (?:--python \S+ )?((?:install|wheel)[^&\n]*)", DOCKERFILE.replace("\\\n", " "))
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or "--no-index" in command, command
        assert not command.startswith("wheel") or "--no-build-isolation" in command, command


def test_labels_are_those_of_oci_and_the_version_is_the_project_s() -> None:
    (labels,) = instructions("LABEL")
    named = {word.partition("=")[0].removeprefix("org.opencontainers.image.") for word in shlex.split(labels)}
    assert named == {"title", "description", "licenses", "version", "revision", "created", "base.name"}
    assert f"VERSION={PROJECT['version']}" in instructions("ARG")


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_is_pinned_with_hashes_and_no_index_is_named(name: str) -> None:
    text = (ROOT / f"deploy/{name}.lock").read_text()
    assert re.findall(r"://|--index|--find-links|--trusted-host|file:", text) == []
    for package, entries in locked(name).items():
        for requirement, hashes in entries:
            assert [each.operator for each in requirement.specifier] == ["=="], package
            assert hashes, package
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), package


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", ["serve", "serve-gpu"])
def test_a_lock_holds_what_its_extra_asks_for_once_for_each_python(extra: str, python: str) -> None:
    held = locked(extra)
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "extra": ""}
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]):
        wanted = Requirement(text)
        entries = held[canonicalize_name(wanted.name)]
        fit = [entry for entry, _ in entries if entry.marker is None or entry.marker.evaluate(here)]
        assert len(fit) == 1, f"{wanted.name} on Python {python}: {fit}"
        (pinned,) = fit[0].specifier
        assert wanted.specifier.contains(pinned.version), f"{fit[0]}: the extra asks for {wanted}; run make lock"


def test_no_image_has_torch_and_the_one_for_cpus_nothing_of_cuda() -> None:
    assert {"torch", "torchvision"}.isdisjoint({*locked("serve"), *locked("serve-gpu")})
    assert [name for name in locked("serve") if name.startswith(("nvidia", "cuda", "tensorrt"))] == []
    assert {"tensorrt", "onnxruntime-gpu", "nvidia-cudnn-cu13", "cuda-bindings"} <= locked("serve-gpu").keys()


def test_all_that_serving_imports_is_in_the_lock() -> None:
    """What the Dockerfile imports for its bytecode, here, where far more is installed that could be imported too."""
    code = re.search(r'-m? ?c "(.*?)"\n', DOCKERFILE.replace("\\\n", ""), re.S)
    assert code is not None
    told = "; import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run(
        [sys.executable, "-c", code.group(1) + told], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    owners = packages_distributions()  # several of a name like google, which packages share
    imported = {
        name: {canonicalize_name(owner) for owner in owners[name]} for name in ran.stdout.split() if name in owners
    }
    assert {"onnxruntime", "grpc", "fastapi", "PIL"} <= imported.keys()
    # uvicorn looks whether there is watchfiles, for reloading; setuptools is there before any code runs.
    held = {*locked("serve"), "penstock", "watchfiles", "setuptools"}
    assert {name: by for name, by in imported.items() if not by & held} == {}


def test_what_builds_is_pinned_by_the_lock_of_builds() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    asked = [line for line in (ROOT / "deploy/build.in").read_text().splitlines() if line[:1] != "#"]
    for text in (*build, *asked):
        wanted = Requirement(text)
        ((pinned, _),) = locked("build")[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(next(iter(pinned.specifier)).version), f"{pinned}: run make lock"


def test_the_context_is_what_the_dockerfile_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    build = DOCKERFILE[: DOCKERFILE.rindex("\nFROM ")]
    copied = {word.rstrip("/") for line in re.findall(r"^COPY (.*) \S+$", build, re.M) for word in line.split()}
    assert let_in == {*(word for word in copied if not word.startswith("deploy/")), "deploy", "deploy/*.lock"}
    assert {"bench/results", "bench/studies", "**/__pycache__", "deploy/*"} <= set(ignored)

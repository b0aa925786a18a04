"""The doctor: what is tried here works here, and where nothing is installed it says what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import doctor
from penstock.doctor import packages, report
from penstock.doctor.attempts import Outcome
from penstock.doctor.findings import Finding, named
from tests.penstock.test_imports import HEAVY

ROOT = Path(__file__).parents[3]


def told(python: str | Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "penstock", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)


def by_name(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["group"], each["name"]): each for each in json.loads(text)["findings"]}


@pytest.fixture(scope="module")
def here() -> dict[tuple[str, str], dict[str, Any]]:
    """What the doctor finds where the tests run."""
    for module in ("onnxruntime", "torch", "modelopt", "fastapi", "lightning", "sklearn"):
        pytest.importorskip(module)
    code = (
        "import sys\nfrom penstock import doctor\nfrom penstock.doctor import report\n"
        f"print(report.as_json(doctor.examine()))\nprint(*set({HEAVY!r}) & set(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    return {**by_name(ran.stdout), ("loaded", ""): dict.fromkeys(ran.stderr.split())}


@pytest.mark.parametrize("stage", packages.STAGES)
def test_the_stages_work_where_the_tests_do(here: dict[tuple[str, str], dict[str, Any]], stage: str) -> None:
    found = here["stages", stage]
    assert (found["works"], found["why"], found["fix"]) == (True, "", ""), found


def test_runtimes_have_computed_and_not_only_been_found(here: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert re.match(
        r"[\d.]+: fp32, fp16, int8 ran and answered rightly, ", here["runtimes", "onnxruntime on the CPU"]["found"]
    )
    assert "fp32, fp16, bf16 ran and answered rightly" in here["runtimes", "torch on the CPU"]["found"]
    assert here["formats", "onnx"]["found"].startswith("exports fp32, fp16, bf16, int8; runs fp32, fp16")
    assert here["formats", "torchscript"]["found"] == "exports fp32, fp16; runs fp32, fp16 on the CPU"


def test_a_server_has_answered(here: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert here["stages", "serve"]["found"].startswith("a server began, answered over HTTP, and ended, ")


def test_where_penstock_alone_is_installed_it_says_what_to_install(bare_python: Path) -> None:
    ran = told(bare_python, "--json")
    assert ran.returncode == 0, ran.stderr
    found = by_name(ran.stdout)
    for stage, extra in packages.STAGES.items():
        assert found["stages", stage]["works"] is False
        assert found["stages", stage]["fix"] == f"pip install 'penstock[{extra}]'"
        assert "not installed" in found["stages", stage]["why"]
    assert found["runtimes", "onnxruntime on the CPU"]["works"] is False
    assert found["formats", "onnx"]["works"] is None
    assert found["extras", "parquet"]["fix"] == "pip install 'penstock[parquet]'"


def test_there_the_table_names_each_command_once(bare_python: Path) -> None:
    ran = told(bare_python)
    assert ran.returncode == 0, ran.stderr
    commands = ran.stdout.partition("what to do for what does not work")[2]
    for extra in packages.STAGES.values():
        assert len(re.findall(rf"^pip install 'penstock\[{extra}\]' +for .*\b{extra}\b", commands, re.MULTILINE)) == 1


def test_the_exit_code_is_of_the_stages_that_are_asked_for(bare_python: Path) -> None:
    assert told(bare_python, "--quick", "serve").returncode == 1
    assert told(bare_python, "--quick", "--json", "train", "bench").returncode == 1
    assert told(bare_python, "--quick").returncode == 0
    unknown = told(bare_python, "--quick", "exprot")
    assert unknown.returncode == 2
    assert unknown.stderr == (
        "error: 'exprot' is no stage: train, export, serve, bench, gpu; the nearest is 'export'\n"
    )


def test_nothing_heavy_is_loaded_by_the_doctor_itself(here: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert here["loaded", ""] == {}


# --- What cannot be had on one machine ------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions that are found, to be changed; the others are those that are here."""
    changed: dict[str, str] = {}
    real = packages.version
    monkeypatch.setattr(packages, "version", lambda name: changed.get(name) or real(name))
    return changed


def test_two_onnxruntimes_that_hide_each_other_are_told(installed: dict[str, str]) -> None:
    installed.update({"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.0"})
    found = named(doctor._runtimes({}, "580.1", quick=True), "runtimes", "onnxruntime twice")
    assert (found.works, found.why.partition(" hide")[0]) == (False, "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.0")
    assert found.fix == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    alone = named(doctor._runtimes({}, None, quick=True), "runtimes", "onnxruntime twice")
    assert alone.fix == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime"


def test_a_package_that_is_too_old_is_told_with_what_is_needed(installed: dict[str, str]) -> None:
    installed["onnxruntime"] = "1.19.2"
    found = doctor._stage("serve", "serve", {}, quick=True)
    assert (found.works, found.fix) == (False, "pip install -U 'penstock[serve]'")
    assert "onnxruntime 1.19.2 is here, and >=1.2" in found.why


def test_the_gpu_s_onnxruntime_stands_in_for_the_other(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "version", lambda name: None if name == "onnxruntime" else "99.0")
    assert packages.needed("serve") == packages.Needed()


@pytest.mark.parametrize(
    ("outcome", "why", "fix"),
    [
        (None, "cuda-bindings is not installed", "pip install cuda-bindings"),
        (
            Outcome(error="CUDA answers cudaGetDeviceCount: cudaErrorInsufficientDriver"),
            "the driver is older than the CUDA that is installed",
            "nvidia-smi",
        ),
        (Outcome(error="crashes (SIGSEGV)"), "crashes (SIGSEGV)", "nvidia-smi"),
    ],
)
def test_a_gpu_that_cannot_be_used_says_why(outcome: Outcome | None, why: str, fix: str) -> None:
    found = doctor._gpu({} if outcome is None else {"GPU": outcome}, "580.159", quick=False)
    assert (found.works, found.found) == (False, "driver 580.159")
    assert found.why.startswith(why)
    assert found.fix.startswith(fix)


def test_a_gpu_is_told_by_its_name() -> None:
    facts = {"gpu": "NVIDIA L4", "compute_capability": "8.9"}
    found = doctor._gpu({"GPU": Outcome({"gpus": [facts]})}, "580.159", quick=False)
    assert (found.works, found.found) == (True, "NVIDIA L4, compute capability 8.9; driver 580.159")


def test_a_stage_that_fails_though_its_packages_are_there_is_installed_again() -> None:
    broken = doctor._stage("serve", "serve", {"serving": Outcome(error="ImportError: libfoo.so.1")}, quick=False)
    assert (broken.works, broken.why) == (False, "ImportError: libfoo.so.1")
    assert broken.fix == "pip install --force-reinstall 'penstock[serve]'"


def test_what_servers_and_packages_say_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    report.show([Finding("machine", "GPU", False, "a\x1b[2Jb", "[red]c")])
    assert "a\\x1b[2Jb; [red]c" in capsys.readouterr().out


def test_json_holds_the_versions_of_what_penstock_uses() -> None:
    told_ = json.loads(report.as_json([]))
    assert told_["versions"]["numpy"]
    assert "pip" not in told_["versions"]


def test_the_table_is_ascii_but_for_names(capsys: pytest.CaptureFixture[str]) -> None:
    report.show([Finding("stages", "serve", True, "fine"), Finding("extras", "otel", None, "", "not there", "fix it")])
    assert capsys.readouterr().out.isascii()


@pytest.mark.parametrize(
    ("held", "fix"), [("8.6.0", "pip install --force-reinstall tensorrt"), (None, "pip install tensorrt")]
)
def test_what_is_installed_and_fails_is_to_be_installed_anew(
    monkeypatch: pytest.MonkeyPatch, held: str | None, fix: str
) -> None:
    monkeypatch.setattr(packages, "version", lambda _: held)
    tried = {"TensorRT, tensorrt": Outcome(error="TensorRT could not enqueue the batch")}
    found = named(doctor._runtimes(tried, "580.1", quick=False), "runtimes", "TensorRT, tensorrt")
    assert (found.works, found.fix) == (False, fix)


def test_of_extras_nothing_is_claimed_where_penstock_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "requirements", lambda: None)
    found = doctor._extra("parquet", "tables in Parquet files")
    assert found.works is None
    assert "penstock itself is not installed here" in found.why

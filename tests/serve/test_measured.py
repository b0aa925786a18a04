"""`penstock bench URL` against penstock's own servers: uploads, golden rows, keys and TLS, and LoadGen."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.artifact import Artifact
from penstock.bench import scenarios, server
from penstock.bench.server import Plan
from penstock.bench.sources import Wanted
from penstock.client.access import Access
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, Signature, Tensor

QUICK = {"seconds": 0.6, "warmup_s": 0.1, "processes": 1}


@pytest.fixture(scope="session")
def colours(fake_artifact: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A model of pictures that answers them as scores."""
    helper = pytest.importorskip("onnx").helper
    shape = ["batch", 3, 4, 6]
    values = [helper.make_tensor_value_info(name, 1, shape) for name in ("image", "out")]
    graph = helper.make_graph([helper.make_node("Identity", ["image"], ["out"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    tensors = [Tensor(name=name, shape=tuple(shape)) for name in ("image", "out")]
    signature = Signature(inputs=(tensors[0],), outputs=(tensors[1],), dims={"batch": Dim(min=1, opt=4, max=8)})
    preprocess = ImagePreprocess(input="image", mode="RGB", height=4, width=6, mean=(0, 0, 0), std=(1, 1, 1))
    folder, graph = tmp_path_factory.mktemp("colours") / "models", model.SerializeToString()
    return fake_artifact(folder, "colours", signature, graph=graph, preprocess=preprocess, task="segmentation")


@pytest.fixture(scope="session")
def served(colours: Artifact, start_server: Callable[..., Any]) -> str:
    return str(start_server(colours.folder.parent).url)


def measured(url: str, wanted: Wanted, **told: Any) -> dict[str, Any]:
    result = server.measure(url, "colours", Plan(concurrency=(2,), wanted=wanted, **{**QUICK, **told}))
    (run,) = result["runs"]
    assert run["failures"] == {}, run["answers"]
    assert len(run["latencies_s"]) > 10
    return result


@pytest.mark.parametrize(("rows", "pictures"), [(1, True), (3, True), (1, False), (2, False)])
def test_pictures_are_uploaded_and_the_server_tells_where_the_time_went(
    served: str, png: Callable[[Any], bytes], tmp_path: Path, rows: int, pictures: bool
) -> None:
    for number in range(7):
        (tmp_path / f"{number}.png").write_bytes(png(np.random.default_rng(number).integers(0, 255, (9, 9, 3))))
    result = measured(served, Wanted(form="image", data=tmp_path if pictures else None, rows=rows))
    assert result["payload"]["form"] == "image"
    assert result["payload"]["rows"] == rows
    assert result["payload"]["different"] == (7 // rows if pictures else 16)
    stages = result["runs"][0]["stages_s"]
    assert stages["server"] > 0
    assert sum(stages.values()) == pytest.approx(np.mean(result["runs"][0]["latencies_s"]), rel=0.1)


def test_golden_rows_are_held_to_what_the_source_answered(served: str, colours: Artifact) -> None:
    result = measured(served, Wanted(artifact=colours.folder))
    assert result["payload"]["source"].startswith("golden rows of")
    assert result["payload"]["different"] == 5
    assert any("what the artifact's source answered" in note for note in result["notes"])
    measured(served, Wanted(form="v2-json", artifact=colours.folder, rows=2))


def test_another_model_than_the_artifact_is_found_out(
    served: str, colours: Artifact, fake_artifact: Callable[..., Artifact], tmp_path: Path
) -> None:
    _, outputs = colours.golden()
    other = fake_artifact(
        tmp_path / "models",
        "colours",
        colours.receipt.signature,
        {"out": outputs["out"] + 1},
        graph=(colours.folder / "model.onnx").read_bytes(),
    )
    with pytest.raises(PenstockError, match="does not answer the artifact's golden inputs"):
        measured(served, Wanted(artifact=other.folder))


def test_pictures_become_numbers_as_a_receipt_says(
    served: str, colours: Artifact, png: Callable[[Any], bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(png(np.full((5, 5, 3), 80)))
    result = measured(served, Wanted(form="v2-binary", data=tmp_path, artifact=colours.folder))
    assert result["payload"]["form"] == "v2-binary"


def test_a_key_and_tls_go_with_every_request(
    colours: Artifact, start_server: Callable[..., Any], tmp_path: Path
) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    told = [sys.executable, "-m", "penstock", "keys", "add", str(tmp_path / "keys.json"), "bench"]
    key = subprocess.run(told, capture_output=True, text=True, check=True).stdout.split()[-1]
    files = ("--keys", tmp_path / "keys.json", "--tls-cert", tmp_path / "own.pem", "--tls-key", tmp_path / "own.pem")
    trusts = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    started = start_server(colours.folder.parent, *files, trusts=trusts)
    access = Access(key, tmp_path / "ca.pem")
    assert measured(started.url, Wanted(), access=access)["server"]["name"] == "penstock"
    (grpc,) = [word for word in " ".join(started.lines).split() if word.startswith("127.0.0.1:")]
    measured(started.url, Wanted(form="grpc"), access=access, grpc=grpc)
    with pytest.raises(PenstockError, match="key"):
        measured(started.url, Wanted(), access=Access(None, tmp_path / "ca.pem"))
    with pytest.raises(PenstockError, match="not trusted"):
        measured(started.url, Wanted(), access=Access(key))


@pytest.mark.parametrize("scenario", ["singlestream", "multistream", "server", "offline"])
@pytest.mark.parametrize("where", ["server", "artifact"])
def test_loadgen_measures_a_server_and_an_artifact(
    served: str, colours: Artifact, tmp_path: Path, scenario: str, where: str
) -> None:
    pytest.importorskip("mlperf_loadgen")
    code = (
        "import json, sys; from pathlib import Path; from penstock.bench import scenarios; "
        "from penstock.bench.server import Plan; word, scenario, logs = sys.argv[1:]; "
        "plan = Plan(rates=(200.0,) if scenario == 'server' else (), seconds=0.5); "
        "print(json.dumps(scenarios.measure(word, None, plan, scenarios.Choice(scenario, Path(logs)))))"
    )
    word = served if where == "server" else str(colours.folder)
    command = [sys.executable, "-c", code, word, scenario, str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (run,) = result["runs"]
    assert run["mode"] == f"loadgen {scenario}"
    assert run["failures"] == {}
    assert len(run["latencies_s"]) >= 50
    assert (tmp_path / "logs" / "mlperf_log_summary.txt").is_file()
    assert (tmp_path / "logs" / "mlperf_log_detail.txt").is_file()
    assert result["loadgen"]["summary"]["Scenario"].replace(" ", "").lower() == scenario


@pytest.mark.parametrize(
    ("plan", "scenario", "said"),
    [
        (Plan(), "server", "needs the rate"),
        (Plan(rates=(3.0,)), "singlestream", "--rate"),
        (Plan(slo_ms=3.0), "offline", "--slo-ms"),
        (Plan(concurrency=(3,)), "singlestream", "--concurrency"),
        (Plan(concurrency=(20_000,)), "offline", "--concurrency 20000: with --loadgen must be at most 1024"),
        (Plan(poisson=True), "offline", "--poisson"),
    ],
)
def test_what_a_scenario_does_not_take_is_refused(plan: Plan, scenario: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        scenarios.measure("http://127.0.0.1:1", None, plan, scenarios.Choice(scenario))

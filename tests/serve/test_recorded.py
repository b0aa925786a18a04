"""Models of texts and of table rows over real HTTP: the tensors that training made, bit for bit, and their answers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from penstock import tabular, textual
from penstock.client import run
from penstock.client.run import Wishes
from penstock.data.specs import CsvText
from penstock.errors import PenstockError
from penstock.preprocessing import Preprocess
from penstock.serve import predict
from penstock.serve.errors import RequestError
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load
from penstock.signature import Dim, Signature, Tensor

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

SAID = (
    "The pump runs; all is well.",
    "the valve LEAKS!",
    "naïve Ærø pump",
    "",
    "pump " * 40,
    "漢字 and ümlauts, \u2028 too",
)
TEXTS = textual.fit(SAID[:4], size=100, least=1, length=9)
FLATS = [
    {"age": 30, "city": "Rome", "rooms": 2, "lift": True},
    {"age": 50.25, "city": "Oslo, N", "rooms": 3, "lift": False},
    {"age": None, "city": "", "rooms": 3, "lift": True},
    {"age": 1e-7, "city": "Bonn", "rooms": None, "lift": None},
]
ROWS = tabular.fit(FLATS, ("age", "city", "rooms", "lift"), categories=("rooms",))
JSON, CSV, PNG = "application/json", "text/csv", "image/png"
BINARY = {"Accept": "application/octet-stream"}


def graph(nodes: list[Any], held: Preprocess, out: tuple[str, list[Any]], constants: dict[str, Any]) -> bytes:
    """An ONNX graph from the only input of a preprocessing to `out`, of that dtype and shape."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    (tensor,) = held.tensors()
    kinds = {"int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT}
    made = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(tensor.name, kinds[tensor.dtype], tensor.shape)],
        [helper.make_tensor_value_info("out", kinds[out[0]], out[1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    found: bytes = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, fake_artifact: Callable[..., Any]) -> Path:
    """Models that answer what they are given (`said`, `flat`), of moods and tags of texts, and of prices of flats."""
    pytest.importorskip("onnx")
    from onnx import helper

    output = tmp_path_factory.mktemp("recorded") / "models"

    def write(
        name: str, held: Preprocess, nodes: list[Any], out: tuple[str, list[Any]], constants: Any, **told: Any
    ) -> None:
        signature = Signature(
            inputs=held.tensors(),
            outputs=(Tensor(name="out", dtype=out[0], shape=tuple(out[1])),),
            dims={"batch": Dim(min=1, opt=4, max=8)},
        )
        fake_artifact(output, name, signature, graph=graph(nodes, held, out, constants), preprocess=held, **told)

    same = [helper.make_node("Identity", ["ids"], ["out"])]
    dataset = CsvText(train="train.csv", text="review")
    write("said", TEXTS, same, ("int64", ["batch", 9]), {}, dataset=dataset)
    same = [helper.make_node("Identity", ["row"], ["out"])]
    write("flat", ROWS, same, ("float32", ["batch", ROWS.features]), {})
    summed = [
        helper.make_node("Gather", ["table", "ids"], ["found"]),
        helper.make_node("ReduceSum", ["found", "axis"], ["out"], keepdims=0),
    ]
    table = np.zeros((TEXTS.tokens, 2), np.float32)
    table[TEXTS.rows(["leaks"])["ids"][0, 0]] = [3, 0]
    table[TEXTS.rows(["well"])["ids"][0, 0]] = [0, 2]
    moods = {"table": table, "axis": np.array([1])}
    write("mood", TEXTS, summed, ("float32", ["batch", 2]), moods, task="classification", labels=("bad", "good"))
    write("tags", TEXTS, summed, ("float32", ["batch", 2]), moods, task="multilabel", labels=("bad", "good"))
    weights = {"weights": np.arange(1, ROWS.features + 1, dtype=np.float32).reshape(-1, 1)}
    product = [helper.make_node("MatMul", ["row", "weights"], ["out"])]
    write("price", ROWS, product, ("float32", ["batch", 1]), weights, task="regression")
    return output


@pytest.fixture(scope="module")
def recorded(folder: Path, start_server: StartServer) -> Server:
    return start_server(folder)


@pytest.fixture(scope="module", params=[None, "2"], ids=["one process", "front ends"])
def either(request: pytest.FixtureRequest, folder: Path, start_server: StartServer) -> Server:
    """A server in one process, and one whose front ends read what clients send."""
    return start_server(folder, *(() if request.param is None else ("--workers", request.param)))


def tensor(server: Server, name: str, body: Any, kind: str | None = None) -> Any:
    """What the model was given, as it answers it, to the bit."""
    headers = BINARY | ({} if kind is None else {"Content-Type": kind})
    answer = server.ask("POST", f"/predict/{name}", body, headers)
    assert answer.status == 200, answer.body
    length = int(answer.headers["inference-header-content-length"])
    (told,) = json.loads(answer.body[:length])["outputs"]
    dtype = {"INT64": np.int64, "FP32": np.float32}[told["datatype"]]
    return np.frombuffer(answer.body[length:], dtype).reshape(told["shape"])


def as_csv(header: list[str], records: list[list[Any]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([header, *records])
    return buffer.getvalue().encode()


def test_texts_become_the_very_tensors_of_training(either: Server) -> None:
    trained = TEXTS.rows(SAID)["ids"]
    assert tensor(either, "said", {"texts": list(SAID)}).tobytes() == trained.tobytes()
    for text, row in zip(SAID, trained, strict=True):
        assert tensor(either, "said", {"text": text}).tobytes() == row.tobytes()
    sheet = as_csv(["label", "review"], [["x", text] for text in SAID])  # as the data set names its column
    assert tensor(either, "said", sheet, CSV).tobytes() == trained.tobytes()


def test_table_rows_become_the_very_tensors_of_training(either: Server) -> None:
    trained = ROWS.rows(FLATS)["row"]
    assert tensor(either, "flat", {"rows": FLATS}).tobytes() == trained.tobytes()
    assert tensor(either, "flat", {"rows": [list(flat.values()) for flat in FLATS]}).tobytes() == trained.tobytes()
    for flat, row in zip(FLATS, trained, strict=True):
        assert tensor(either, "flat", {"row": dict(reversed(flat.items()))}).tobytes() == row.tobytes()
    names = ["price", *reversed(ROWS.names)]
    records = [["?" if name == "price" else flat[name] for name in names] for flat in FLATS]
    assert tensor(either, "flat", as_csv(names, records), CSV).tobytes() == trained.tobytes()


def test_what_is_long_is_read_elsewhere_into_the_same_tensors(either: Server) -> None:
    texts = [f"{'pump ' * 220} {number} leaks" for number in range(1000)]
    body = json.dumps({"texts": texts}).encode()
    assert len(body) > 2**20
    answered = tensor(either, "said", body, "application/json")
    assert answered.tobytes() == TEXTS.rows(texts)["ids"].tobytes()


def test_a_text_is_answered_with_labels_and_scores(recorded: Server) -> None:
    answer = recorded.ask("POST", "/predict/mood", {"texts": ["The valve leaks!", "all is well"]}).json
    scores = [1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-2))]
    assert [entry["label"] for entry in answer["predictions"]] == ["bad", "good"]
    assert [entry["score"] for entry in answer["predictions"]] == pytest.approx(scores, abs=1e-6)
    assert [label["label"] for label in answer["predictions"][0]["top"]] == ["bad", "good"]


def test_several_labels_have_scores_of_their_own(recorded: Server) -> None:
    (entry,) = recorded.ask("POST", "/predict/tags", {"text": "it leaks, and all is well"}).json["predictions"]
    scores = {label["label"]: label["score"] for label in entry["top"]}
    assert scores == {"bad": round(1 / (1 + math.exp(-3)), 6), "good": round(1 / (1 + math.exp(-2)), 6)}
    (entry,) = recorded.ask("POST", "/predict/tags?top_k=1", {"text": "nothing"}).json["predictions"]
    assert entry["top"] == [{"label": "bad", "score": 0.5}]


def test_a_row_is_answered_with_a_plain_number(recorded: Server) -> None:
    weights = np.arange(1, ROWS.features + 1, dtype=np.float32)
    answer = recorded.ask("POST", "/predict/price", {"row": FLATS[1]}).json
    assert answer["values"] == pytest.approx([float(ROWS.rows(FLATS[1:2])["row"][0] @ weights)])


def test_the_openapi_examples_are_answered(recorded: Server) -> None:
    content = recorded.ask("GET", "/openapi.json").json["paths"]["/predict/{name}"]["post"]["requestBody"]["content"]
    shown = content["application/json"]["examples"]
    assert {"said.text", "mood.text", "flat.row", "price.row", "flat.inputs"} <= shown.keys()
    assert not any(name.endswith(".image") for name in shown)
    for name, example in shown.items():
        model = name.partition(".")[0]
        assert recorded.ask("POST", f"/predict/{model}", example["value"]).status == 200, name
    assert set(content["text/csv"]["examples"]) == {"said", "flat", "mood", "tags", "price"}
    for model, example in content["text/csv"]["examples"].items():
        answer = recorded.ask("POST", f"/predict/{model}", example["value"].encode(), {"Content-Type": CSV})
        assert answer.status == 200, (model, answer.body)
    assert (
        "said takes texts, of which it reads the first 9 tokens."
        in content["application/json"]["schema"]["description"]
    )


@pytest.mark.parametrize(
    ("model", "body", "kind", "status", "rule"),
    [
        ("mood", b"\x89PNG", PNG, 415, 'records no image preprocessing; it takes texts: send {"text": …}'),
        ("mood", b'{"row": [1]}', JSON, 415, "takes no table rows; it takes texts"),
        ("price", b'{"text": "a"}', JSON, 415, "takes no text: it records no tokenizer; it takes table rows"),
        ("price", b'{"image": "AAAA"}', JSON, 415, 'send {"row": {"age": …}} or {"rows": […]} as JSON, or a CSV file'),
        ("mood", b'{"texts": [5]}', JSON, 400, "texts[0] is '5'; it must be a string"),
        ("mood", b"text\n", CSV, 400, "the table has no row below a header"),
        ("mood", b"review\nfine\n", CSV, 400, "the table's header lacks 'text', the column of texts"),
        ("mood", b"text,text\na,b\n", CSV, 400, "the table's header has 'text' twice"),
        ("mood", b"text,label\na\n", CSV, 400, "line 2 of the table has 1 values; its header has 2"),
        ("price", b'{"row": {"age": 1}}', JSON, 400, "rows[0] has no column 'city'; a row is a value for each of the"),
        ("price", b'{"row": {"age": 1, "x": 1}}', JSON, 400, "rows[0] has a column 'x', which is unknown"),
        ("price", b'{"rows": [["old", "", 1, 1]]}', JSON, 400, "rows[0].age is 'old'; it must be a number"),
        ("price", b'{"row": [1, [], 1, true]}', JSON, 400, "rows[0].city is [], a list; it must be text or a number"),
        ("price", b'{"row": [1]}', JSON, 400, "rows[0] has 1 values"),
        ("price", b"age,city\n1,Rome\n", CSV, 400, "the table's header lacks 'rooms'"),
        ("price", b"age,city,rooms,lift\n1,,,\nold,,,\n", CSV, 400, "line 3, column age is 'old'; it must be a"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_with_its_place_and_what_can(
    recorded: Server, model: str, body: bytes, kind: str, status: int, rule: str
) -> None:
    answer = recorded.ask("POST", f"/predict/{model}", body, {"Content-Type": kind})
    assert (answer.status, rule in answer.error) == (status, True), answer.error


@pytest.fixture(scope="module")
def mood(folder: Path) -> Model:
    return load(folder / "mood", Limits(max_queue_rows=3), Metrics())


def test_more_texts_than_may_wait_are_refused_before_they_are_read(mood: Model) -> None:
    assert len(predict.text_inputs(mood, ["a"] * 3)["ids"]) == 3
    with pytest.raises(RequestError, match="texts holds more than 3 rows"):
        predict.text_inputs(mood, ["a"] * 4)
    with pytest.raises(RequestError, match="the table holds more than 3 rows"):
        predict.csv_inputs(mood, b"text\na\nb\nc\nd\n")


def test_the_client_sends_files_of_texts_and_of_rows(
    recorded: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said.txt").write_text("The valve leaks!\n\nall is well\n", "utf-8")
    (tmp_path / "said.csv").write_text('text,label\n"it leaks, again",bad\nwell well,good\n', "utf-8")
    header = list(FLATS[0])
    (tmp_path / "flats.csv").write_bytes(as_csv(header, [list(flat.values()) for flat in FLATS]))
    complaints: list[str] = []

    def asked(file: str, model: str) -> list[str]:
        assert run.predict(recorded.url, [str(tmp_path / file)], Wishes(model=model), complaints.append) == 0
        return [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]

    assert [line.split()[0] for line in asked("said.txt", "mood")] == ["bad", "good"]
    assert [line.split()[0] for line in asked("said.csv", "mood")] == ["bad", "good"]
    weights = np.arange(1, ROWS.features + 1, dtype=np.float32)
    expected = ROWS.rows(FLATS)["row"] @ weights
    assert [float(line) for line in asked("flats.csv", "price")] == pytest.approx(expected.tolist())
    assert complaints == ["2 answered, 0 failed", "2 answered, 0 failed", "4 answered, 0 failed"]


def test_an_artifact_with_a_damaged_tokenizer_is_not_served(
    folder: Path, tmp_path: Path, fake_artifact: Callable[..., Any]
) -> None:
    damaged = TEXTS.model_copy(update={"tokenizer": "{}"})
    signature = load(folder / "said", Limits(), Metrics()).signature
    fake_artifact(tmp_path, "damaged", signature, preprocess=damaged)
    with pytest.raises(PenstockError, match="the recorded tokenizer cannot be read"):
        load(tmp_path / "damaged", Limits(), Metrics())


def test_a_benchmark_sends_the_tensors_of_a_csv_file(recorded: Server, folder: Path, tmp_path: Path) -> None:
    from penstock.bench import server
    from penstock.bench.server import Plan
    from penstock.bench.sources import Wanted

    data = tmp_path / "said.csv"
    data.write_bytes(as_csv(["text", "label"], [[text, "good"] for text in SAID]))
    quick = {"seconds": 0.4, "warmup_s": 0.1, "processes": 1, "concurrency": (1,)}
    result = server.measure(recorded.url, "mood", Plan(wanted=Wanted(data=data, artifact=folder / "mood"), **quick))
    assert (result["payload"]["form"], len(result["runs"][0]["failures"])) == ("v2-binary", 0)
    with pytest.raises(PenstockError, match="texts and table rows become numbers as a receipt says; give --artifact"):
        server.measure(recorded.url, "mood", Plan(wanted=Wanted(data=data), **quick))

"""The HTTP application, asked through a real server on a real socket."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import re
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock import artifact, datasets
from penstock.data.samples import Samples
from penstock.runtimes.fake import FakeRunner
from penstock.serve.app import _reply

if TYPE_CHECKING:
    from penstock.signature import Signature
    from tests.serve.conftest import Answer, Server, StartServer

DIGITS = "/predict/digits-onnx-fp32"
INFER = "/v2/models/digits-onnx-fp32/infer"
PNG = {"Content-Type": "image/png"}


def multipart(content: bytes, field: str = "file", filename: str | None = "scan.png") -> tuple[bytes, dict[str, str]]:
    """A form with one field, as browsers and curl -F send it."""
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{field}"{named}\r\n'
    kind = "Content-Type: image/png\r\n" if filename is not None else ""
    body = f"{head}{kind}\r\n".encode() + content + b"\r\n--edge--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=edge"}


def form(*files: tuple[str, bytes], field: str = "file") -> tuple[bytes, dict[str, str]]:
    """A form of several files, each with its name."""
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode() + data + b"\r\n"
        for name, data in files
    ]
    return b"".join([*parts, b"--edge--\r\n"]), {"Content-Type": "multipart/form-data; boundary=edge"}


def predictions(answer: Answer) -> list[dict[str, Any]]:
    """What an answer predicts, without its timing, which differs from one to the next."""
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json["predictions"]
    return found


def refused(answer: Answer, status: int, *parts: str) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    for part in parts:
        assert part in answer.error


@pytest.fixture(scope="module")
def direct(repository: Path) -> Callable[[Any], Any]:
    """The logits of the served fp32 model's own runner, without a server."""
    runner = artifact.read(repository / "digits-onnx-fp32").load()
    return lambda images: runner.run({"image": images})["logits"]


@pytest.fixture(scope="module")
def tensors(repository: Path, scans: tuple[Any, Any]) -> Any:
    """The held-out scans as the model takes them."""
    receipt = artifact.read(repository / "digits-onnx-fp32").receipt
    assert receipt.preprocess is not None
    rows = datasets.rows(Samples(*scans), receipt.preprocess)
    return rows.inputs["image"]


@pytest.fixture(scope="module")
def scan(scans: tuple[Any, Any], png: Callable[[Any], bytes]) -> bytes:
    """One held-out scan as PNG."""
    return png(scans[0][0])


# --- Starting ----------------------------------------------------------------------------------------------------


def test_the_server_says_what_it_serves_and_that_it_is_ready(server: Server) -> None:
    assert sorted(line.split()[1] for line in server.lines if line.startswith("serving ")) == [
        "digits-onnx-fp16",
        "digits-onnx-fp32",
        "digits-onnx-int8",
        "pair",
    ]
    assert server.lines[-1].startswith(f"ready at {server.url}")
    assert "verified" in next(line for line in server.lines if "digits-onnx-fp32" in line)


def test_a_server_with_a_failed_model_says_which_and_why_and_that_it_is_not_ready(narrow_server: Server) -> None:
    (failed,) = [line for line in narrow_server.lines if line.startswith("NOT serving")]
    assert "digits-onnx-fp16" in failed
    assert "vouches for" in failed
    assert "not ready" in narrow_server.lines[-1]


def test_a_bare_onnx_file_is_announced_as_unverified(narrow_server: Server) -> None:
    (line,) = [line for line in narrow_server.lines if line.startswith("serving slow")]
    assert "unverified" in line


def test_a_server_that_has_printed_its_address_takes_connections_there(server: Server) -> None:
    assert not server.refused_at_first


# --- /predict ----------------------------------------------------------------------------------------------------


def expected_scores(logits: Any) -> Any:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def check_prediction(prediction: dict[str, Any], logits: Any) -> None:
    scores = expected_scores(logits[None])[0]
    assert prediction["label"] == str(int(logits.argmax()))
    assert [entry["label"] for entry in prediction["top"]] == [str(n) for n in np.argsort(-scores)[:3]]
    assert prediction["score"] == pytest.approx(scores.max(), abs=1e-5)


def test_a_form_upload_is_answered_with_labels_and_scores(
    server: Server, scan: bytes, tensors: Any, direct: Callable[[Any], Any]
) -> None:
    answer = server.ask("POST", DIGITS, *multipart(scan))
    assert answer.status == 200
    assert answer.json["model"] == "digits-onnx-fp32"
    assert answer.json["version"] == 1
    (prediction,) = answer.json["predictions"]
    check_prediction(prediction, direct(tensors[:1])[0])


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "application/octet-stream", None])
def test_a_raw_image_is_answered_as_a_form_upload_is(server: Server, scan: bytes, kind: str | None) -> None:
    answer = server.ask("POST", DIGITS, scan, {"Content-Type": kind} if kind else {})
    assert answer.status == 200
    assert predictions(answer) == predictions(server.ask("POST", DIGITS, *multipart(scan)))


def test_json_rows_are_answered_in_order(server: Server, tensors: Any, direct: Callable[[Any], Any]) -> None:
    rows = tensors[:70]  # more than the largest batch, 64
    answer = server.ask("POST", DIGITS, {"inputs": rows.tolist()})
    assert answer.status == 200
    logits = direct(rows[:64]), direct(rows[64:])
    for prediction, row in zip(answer.json["predictions"], np.concatenate(logits), strict=True):
        check_prediction(prediction, row)


def test_json_inputs_by_name_reach_a_model_that_is_no_classifier(server: Server) -> None:
    answer = server.ask("POST", "/predict/pair", {"inputs": {"ids": [[1, 2], [30, 4]], "weight": [0.5, 0.25]}})
    assert answer.json["outputs"] == {"total": [3.5, 34.25], "wide": [[[4] * 3] * 2, [[35] * 3] * 2]}


@pytest.mark.parametrize(("query", "count"), [("", 3), ("?top_k=1", 1), ("?top_k=7", 7), ("?top_k=1000", 10)])
def test_top_k_sets_how_many_labels_are_given(server: Server, scan: bytes, query: str, count: int) -> None:
    (prediction,) = server.ask("POST", DIGITS + query, scan, PNG).json["predictions"]
    assert len(prediction["top"]) == count
    assert [entry["score"] for entry in prediction["top"]] == sorted(
        (entry["score"] for entry in prediction["top"]), reverse=True
    )


@pytest.mark.parametrize(
    "value",
    ["0", "-1", "1001", "abc", "1.5", "", "+3", " 3", "%D9%A3", "0000000019999", "9" * 5000],
)
def test_a_top_k_out_of_range_is_refused(server: Server, scan: bytes, value: str) -> None:
    refused(server.ask("POST", f"{DIGITS}?top_k={value.replace(' ', '%20')}", scan, PNG), 400, "top_k", "1 to 1000")


@pytest.mark.parametrize(
    ("data", "part"),
    [(b"hello", "not an image"), (b"", "empty"), (b"<svg/>", "not an image"), (b"%PDF-1.7", "not an image")],
)
@pytest.mark.parametrize("form", [True, False], ids=["form", "raw"])
def test_what_is_no_image_is_refused(server: Server, data: bytes, part: str, form: bool) -> None:
    body, headers = multipart(data) if form else (data, PNG)
    refused(server.ask("POST", DIGITS, body, headers), 400, part)


def test_a_picture_as_curl_s_d_sends_it_is_refused_with_the_option_that_leaves_it_whole(
    server: Server, scan: bytes
) -> None:
    altered, kind = scan.translate(None, b"\0\r\n"), "application/x-www-form-urlencoded"
    refused(server.ask("POST", DIGITS, altered, {"Content-Type": kind}), 400, "--data-binary @FILE")
    assert server.ask("POST", DIGITS, scan, {"Content-Type": kind}).status == 200


@pytest.mark.parametrize("share", [0.4, 0.7, 0.95])
def test_a_truncated_image_is_refused(server: Server, png: Callable[[Any], bytes], share: float) -> None:
    whole = png(np.random.default_rng(0).integers(0, 255, (64, 64)))
    refused(server.ask("POST", DIGITS, whole[: int(len(whole) * share)], PNG), 400, "damaged")


def test_a_small_file_of_many_pixels_is_refused_undecoded(narrow_server: Server, png: Callable[[Any], bytes]) -> None:
    bomb = png(np.zeros((3000, 3000)))
    assert len(bomb) < 50_000
    refused(narrow_server.ask("POST", DIGITS, bomb, PNG), 400, "3000x3000 = 9000000 pixels", "limit is 4096")


def test_an_image_whose_header_lies_about_its_size_is_refused(server: Server) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    huge = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 0, 0, 0, 0)
    lying = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", huge) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    refused(server.ask("POST", DIGITS, lying, PNG), 400, "pixels")


def test_a_form_without_the_file_field_is_refused_with_the_fields_it_has(server: Server, scan: bytes) -> None:
    refused(server.ask("POST", DIGITS, *multipart(scan, field="image")), 400, "field 'file'", "'image'")


def test_a_form_whose_file_field_is_text_is_refused(server: Server) -> None:
    refused(server.ask("POST", DIGITS, *multipart(b"text", filename=None)), 400, "field 'file'")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=edge"),
        (b"--edge--\r\n", "multipart/form-data; boundary=edge"),
        (b"garbage", "multipart/form-data; boundary=edge"),
        (b"--edge\r\ngarbage", "multipart/form-data; boundary=edge"),
        (b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n--edge--\r\n", "multipart/form-data; boundary=edge"),
        (multipart(b"x")[0], "multipart/form-data"),
        (multipart(b"x")[0] + multipart(b"y")[0], "multipart/form-data; boundary=edge"),
        (multipart(b"x")[0][:-20], "multipart/form-data; boundary=edge"),
    ],
    ids=["empty", "no parts", "garbage", "garbage part", "no name", "no boundary", "twice", "cut short"],
)
def test_a_broken_form_is_refused(server: Server, body: bytes, kind: str) -> None:
    answer = server.ask("POST", DIGITS, body, {"Content-Type": kind})
    refused(answer, 400, *(["without a boundary"] if "boundary" not in kind else []))


def test_a_form_that_is_cut_short_is_told_so(server: Server, scan: bytes) -> None:
    body, headers = multipart(scan)
    refused(server.ask("POST", DIGITS, body[:-20], headers), 400, "cut before its last boundary")


@pytest.mark.parametrize("field", ["file", "files"])
def test_several_files_of_a_form_are_answered_in_their_order(
    server: Server,
    scans: tuple[Any, Any],
    tensors: Any,
    png: Callable[[Any], bytes],
    direct: Callable[[Any], Any],
    field: str,
) -> None:
    answer = server.ask("POST", DIGITS, *form(*[(f"{n}.png", png(scans[0][n])) for n in range(20)], field=field))
    for prediction, row in zip(predictions(answer), direct(tensors[:20]), strict=True):
        check_prediction(prediction, row)


def test_the_files_of_a_form_run_as_one_batch(server: Server, scan: bytes) -> None:
    rows, batches = (f'penstock_batch_rows_{kind}{{model="digits-onnx-fp32",version="1"}}' for kind in ("sum", "count"))
    before = server.metric(rows), server.metric(batches)
    predictions(server.ask("POST", DIGITS, *form(*[("a.png", scan)] * 10)))
    assert (server.metric(rows) - before[0], server.metric(batches) - before[1]) == (10, 1)


def test_a_bad_image_among_several_is_named_by_its_place_and_file(server: Server, scan: bytes) -> None:
    answer = server.ask("POST", DIGITS, *form(("a.png", scan), ("b.png", b"hello"), ("c.png", scan)))
    refused(answer, 400, "files[1] 'b.png': the 5 bytes sent are not an image")


def test_more_files_than_the_bound_are_refused(forms: Server, scan: bytes) -> None:
    assert len(predictions(forms.ask("POST", DIGITS, *form(*[("a.png", scan)] * 4)))) == 4
    refused(forms.ask("POST", DIGITS, *form(*[("a.png", scan)] * 5)), 400, "the form holds more than 4 images")
    refused(forms.ask("POST", DIGITS, {"images": ["AAAA"] * 5}), 400, "'images' holds more than 4 images")


def test_large_jpegs_are_decoded_smaller_if_that_is_asked_for(
    forms: Server, forms_repository: Path, start_server: StartServer
) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    Image.fromarray(noise).resize((480, 320)).save(buffer, "JPEG")
    data, wish = buffer.getvalue(), {"Accept": "application/octet-stream"}
    preprocess = artifact.read(forms_repository / "colours").receipt.preprocess
    assert preprocess is not None
    plain, scaled = (preprocess.read(data, scaled=held).tobytes() for held in (False, True))
    assert plain != scaled
    for server, due in (
        (forms, plain),
        (start_server(forms_repository / "colours", "--scaled-decoding", "--grpc-port", "-1"), scaled),
    ):
        sent, kind = multipart(data)
        for body, headers in (
            (data, {"Content-Type": "image/jpeg"}),
            (sent, kind),
            ({"image": base64.b64encode(data).decode()}, {}),
        ):
            answer = server.ask("POST", "/predict/colours", body, {**headers, **wish})
            assert answer.status == 200, answer.body
            assert answer.body[int(answer.headers["inference-header-content-length"]) :] == due


@pytest.mark.parametrize("extra", ["top_k", "note"])
def test_a_form_with_more_than_files_is_refused(server: Server, scan: bytes, extra: str) -> None:
    field = f'--edge\r\nContent-Disposition: form-data; name="{extra}"\r\n\r\n3\r\n'.encode()
    body, headers = multipart(scan)
    refused(server.ask("POST", DIGITS, field + body, headers), 400, "and nothing else", f"'{extra}', 'file'")


def test_images_in_base64_are_answered_as_their_files_are(
    server: Server, scans: tuple[Any, Any], png: Callable[[Any], bytes]
) -> None:
    files = [png(image) for image in scans[0][:3]]
    coded = [base64.b64encode(data).decode() for data in files]
    expected = predictions(server.ask("POST", DIGITS, *form(*[("a.png", data) for data in files])))
    assert predictions(server.ask("POST", DIGITS, {"images": coded})) == expected
    assert predictions(server.ask("POST", DIGITS, {"image": f"data:image/png;base64,{coded[0]}"})) == expected[:1]


def test_the_server_fetches_no_url(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/cat.png"
        refused(server.ask("POST", DIGITS, {"image": url}), 400, url, "fetches nothing")
        with pytest.raises(TimeoutError):
            listener.accept()


def test_table_rows_are_answered_as_lists_objects_and_csv(forms: Server) -> None:
    for body in ({"rows": [[1, 2, 3], [4, 5, 6.5]]}, b"1,2,3\n4,5,6.5\n", b"a,b,c\r\n1,2,3\r\n4,5,6.5\r\n"):
        headers = {"Content-Type": "text/csv; charset=utf-8"} if isinstance(body, bytes) else {}
        answer = forms.ask("POST", "/predict/price", body, headers)
        assert (answer.status, answer.json["values"]) == (200, [6.0, 15.5])
    person = {"age": 30, "children": 2, "member": True}
    assert forms.ask("POST", "/predict/people", {"row": person}).json["outputs"] == {"total": [33.0]}
    table = b"member,children,age\nfalse,1,20\ntrue,0,1.5\n"
    answer = forms.ask("POST", "/predict/people", table, {"Content-Type": "text/csv"})
    assert answer.json["outputs"] == {"total": [21.0, 2.5]}


@pytest.mark.parametrize(
    ("path", "body", "kind", "parts"),
    [
        ("price", {"rows": [[1, 2]]}, None, ["rows[0] has 2 values", "a list of 3 values"]),
        ("price", b"1,2,3\n1,x,3\n", "text/csv", ["line 2, column 2 is 'x'", "a number"]),
        ("people", {"row": {"age": 1}}, None, ["rows[0] has no column 'children'"]),
        ("people", b"age\n1\n", "text/csv", ["header lacks 'children'"]),
        ("price", b"\xff", "text/csv", ["not UTF-8"]),
    ],
)
def test_wrong_rows_are_refused_by_place_and_rule(
    forms: Server, path: str, body: Any, kind: str | None, parts: list[str]
) -> None:
    headers = {"Content-Type": kind} if kind else {}
    refused(forms.ask("POST", f"/predict/{path}", body, headers), 400, *parts)


def test_text_for_a_model_without_a_tokenizer_is_refused_with_what_to_send(server: Server) -> None:
    refused(server.ask("POST", "/predict/pair", {"text": "hello"}), 415, "records no tokenizer", '"ids"')


def test_tensors_in_binary_are_answered_in_words(server: Server, tensors: Any, direct: Callable[[Any], Any]) -> None:
    rows = np.ascontiguousarray(tensors[:5])
    entry = {
        "name": "image",
        "datatype": "FP32",
        "shape": [5, 1, 8, 8],
        "parameters": {"binary_data_size": rows.nbytes},
    }
    text = json.dumps({"inputs": [entry]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    for prediction, row in zip(
        predictions(server.ask("POST", DIGITS, text + rows.tobytes(), headers)), direct(rows), strict=True
    ):
        check_prediction(prediction, row)
    text = json.dumps({"inputs": [entry], "outputs": [{"name": "logits"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    refused(server.ask("POST", DIGITS, text + rows.tobytes(), headers), 400, "'outputs' is of POST /v2/models/")


def colours(pixels: Any, png: Callable[[Any], bytes]) -> bytes:
    """A picture of 4 x 6 pixels in pure red, green and blue, by number."""
    return png(np.eye(3, dtype=np.uint8)[np.asarray(pixels)] * 255)


PIXELS = [[0, 0, 1, 1, 1, 2]] * 3 + [[2, 2, 2, 2, 2, 2]]


def test_an_image_s_class_map_is_answered_with_its_labels_and_as_png(
    forms: Server, png: Callable[[Any], bytes]
) -> None:
    picture = colours(PIXELS, png)
    (said,) = predictions(forms.ask("POST", "/predict/colours", picture, PNG))
    assert (said["width"], said["height"]) == (6, 4)
    assert [(entry["label"], entry["share"]) for entry in said["labels"]] == [
        ("green", 0.375),
        ("blue", 0.375),
        ("red", 0.25),
    ]
    answer = forms.ask("POST", "/predict/colours", picture, {**PNG, "Accept": "image/png"})
    assert (answer.status, answer.headers["content-type"]) == (200, "image/png")
    assert answer.body == base64.b64decode(said["map"])
    image = Image.open(io.BytesIO(answer.body))
    assert image.mode == "P"
    assert np.asarray(image).tolist() == PIXELS


def test_a_form_of_answer_that_there_is_not_is_a_406_before_anything_runs(
    forms: Server, scan: bytes, png: Callable[[Any], bytes]
) -> None:
    batches = 'penstock_batch_rows_count{model="colours",version="1"}'
    before = forms.metric(batches)
    two = form(*[("a.png", colours(PIXELS, png))] * 2)
    answer = forms.ask("POST", "/predict/colours", two[0], {**two[1], "Accept": "image/png"})
    refused(answer, 406, "a PNG holds one map", "2 rows")
    assert forms.metric(batches) == before
    refused(forms.ask("POST", DIGITS, scan, {**PNG, "Accept": "image/png"}), 406, "answers no maps")
    refused(forms.ask("POST", DIGITS, scan, {**PNG, "Accept": "text/html"}), 406, "'text/html'", "application/json")
    assert forms.ask("POST", DIGITS, scan, {**PNG, "Accept": "text/html, */*;q=0.1"}).status == 200


def test_an_answer_in_binary_is_the_protocol_s(
    server: Server, scan: bytes, tensors: Any, direct: Callable[[Any], Any]
) -> None:
    answer = server.ask("POST", DIGITS, scan, {**PNG, "Accept": "application/octet-stream"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:length])["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [1, 10])
    assert np.allclose(np.frombuffer(answer.body[length:], "<f4"), direct(tensors[:1])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accept", ["application/json", "application/octet-stream", "image/png"])
def test_every_answer_says_how_long_its_stages_took(forms: Server, png: Callable[[Any], bytes], accept: str) -> None:
    answer = forms.ask("POST", "/predict/colours", colours(PIXELS, png), {**PNG, "Accept": accept})
    found = re.findall(r"(\w+);dur=(\d+\.\d{3})", answer.headers["server-timing"])
    assert [name for name, _ in found] == ["decode", "queue", "compute", "total"]
    stages = {name: float(duration) for name, duration in found}
    assert stages["decode"] > 0
    assert stages["compute"] > 0
    assert stages["total"] >= stages["decode"] + stages["queue"] + stages["compute"] - 0.01
    if accept == "application/json":
        assert answer.json["timing"] == {f"{name}_ms": duration for name, duration in stages.items()}


@pytest.mark.parametrize("form", [True, False], ids=["form", "raw"])
def test_how_long_a_client_takes_to_send_is_none_of_the_server_s_time(server: Server, scan: bytes, form: bool) -> None:
    body, kind = scan, "image/png"
    if form:
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: image/png\r\n\r\n'
        body, kind = head + scan + b"\r\n--b--\r\n", "multipart/form-data; boundary=b"
    connection = server.connect()
    connection.putrequest("POST", DIGITS)
    connection.putheader("Content-Type", kind)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:10])
    time.sleep(0.7)
    connection.send(body[10:])
    answer = connection.getresponse()
    assert json.loads(answer.read())["timing"]["total_ms"] < 600
    connection.close()


def test_timing_is_of_the_request_itself(narrow_server: Server) -> None:
    answer = narrow_server.ask("POST", "/predict/slow", {"inputs": [1000]})
    assert answer.json["timing"]["compute_ms"] > 20
    assert answer.json["timing"]["queue_ms"] < answer.json["timing"]["compute_ms"]


def test_an_image_for_a_model_without_preprocessing_is_refused_with_what_to_send(server: Server, scan: bytes) -> None:
    refused(server.ask("POST", "/predict/pair", scan, PNG), 415, "no image preprocessing", '"ids"')


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_taken_as_what_it_was(server: Server, scan: bytes, coding: str, pack: Any) -> None:
    plain = server.ask("POST", DIGITS, scan, PNG)
    packed = server.ask("POST", DIGITS, pack(scan), {**PNG, "Content-Encoding": coding})
    assert predictions(packed) == predictions(plain)


@pytest.mark.parametrize("path", [DIGITS, INFER])
@pytest.mark.parametrize("kind", ["application/json", "image/png", "text/csv", "application/x-www-form-urlencoded"])
def test_a_body_in_gzip_of_which_no_header_tells_is_named(server: Server, path: str, kind: str) -> None:
    body = gzip.compress(b'{"inputs": []}')
    refused(server.ask("POST", path, body, {"Content-Type": kind}), 400, "send it with Content-Encoding: gzip")


@pytest.mark.parametrize("path", [DIGITS, INFER])
@pytest.mark.parametrize(
    ("coding", "body", "status", "words"),
    [
        ("br", b"{}", 415, "Content-Encoding is 'br'; it must be gzip, deflate or identity"),
        ("gzip", b"{}", 400, "the body is not gzip, as Content-Encoding says"),
        ("gzip", gzip.compress(b"{}")[:-1], 400, "the body is gzip that is cut short"),
        ("gzip", gzip.compress(b"{}") + b"x", 400, "the body is gzip that goes on behind its end"),
        ("deflate", zlib.compress(bytes(1 << 27)), 413, "the body inflates to over the limit of"),
    ],
)
def test_a_body_that_is_not_what_its_encoding_says_is_refused(
    server: Server, path: str, coding: str, body: bytes, status: int, words: str
) -> None:
    refused(server.ask("POST", path, body, {**PNG, "Content-Encoding": coding}), status, words)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"inputs": "x"}', b'{"inputs": [[1, 2], [3]]}', b'{"inputs": 1e400}', b"[" * 100_000]
)
def test_wrong_json_is_refused(server: Server, body: bytes) -> None:
    refused(server.ask("POST", DIGITS, body, {"Content-Type": "application/json"}), 400)


# --- The Open Inference Protocol, by the unmodified client --------------------------------------------------------


def triton(server: Server) -> Any:
    client_module = pytest.importorskip("tritonclient.http")
    return client_module.InferenceServerClient(server.netloc)


def triton_io(images: Any, binary: bool, module: Any) -> tuple[list[Any], list[Any]]:
    wanted = module.InferInput("image", list(images.shape), "FP32")
    wanted.set_data_from_numpy(images, binary_data=binary)
    return [wanted], [module.InferRequestedOutput("logits", binary_data=binary)]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("rows", [1, 7, 64, 100])
def test_tritonclient_gets_what_the_runner_gives(
    server: Server, tensors: Any, direct: Callable[[Any], Any], binary: bool, rows: int
) -> None:
    module = pytest.importorskip("tritonclient.http")
    inputs, outputs = triton_io(tensors[:rows], binary, module)
    with triton(server) as client:
        result = client.infer("digits-onnx-fp32", inputs, outputs=outputs, request_id="r7", model_version="1")
    expected = np.concatenate([direct(tensors[:rows][start : start + 64]) for start in range(0, rows, 64)])
    assert np.allclose(result.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
    assert result.get_response()["id"] == "r7"
    assert result.get_response()["model_name"] == "digits-onnx-fp32"


def test_tritonclient_that_names_no_outputs_gets_all_of_them(server: Server, pair_signature: Signature) -> None:
    module = pytest.importorskip("tritonclient.http")
    arrays = {"ids": np.array([[5, 6, 7]], np.int64), "weight": np.array([0.5], np.float32)}
    kinds = {"ids": "INT64", "weight": "FP32"}
    inputs = []
    for name, array in arrays.items():
        inputs.append(module.InferInput(name, list(array.shape), kinds[name]))
        inputs[-1].set_data_from_numpy(array, binary_data=name == "ids")
    with triton(server) as client:
        result = client.infer("pair", inputs)
    for name, expected in FakeRunner(pair_signature).run(arrays).items():
        assert np.array_equal(result.as_numpy(name), expected)
        assert result.as_numpy(name).dtype == expected.dtype


def test_tritonclient_runs_many_requests_at_once(server: Server, tensors: Any, direct: Callable[[Any], Any]) -> None:
    module = pytest.importorskip("tritonclient.http")
    client = module.InferenceServerClient(server.netloc, concurrency=8)
    try:
        pending = [
            client.async_infer("digits-onnx-fp32", triton_io(tensors[n : n + 1], True, module)[0]) for n in range(24)
        ]
        got = np.concatenate([request.get_result().as_numpy("logits") for request in pending])
    finally:
        client.close()
    assert np.allclose(got, direct(tensors[:24]), rtol=1e-4, atol=1e-4)


def test_tritonclient_s_asyncio_client_gets_what_the_runner_gives(
    server: Server, tensors: Any, direct: Callable[[Any], Any]
) -> None:
    module = pytest.importorskip("tritonclient.http.aio")

    async def scenario() -> Any:
        client = module.InferenceServerClient(server.netloc)
        try:
            assert await client.is_server_ready()
            answers = await asyncio.gather(
                *[
                    client.infer("digits-onnx-fp32", triton_io(tensors[n : n + 3], n % 2 == 0, module)[0])
                    for n in range(12)
                ]
            )
        finally:
            await client.close()
        return [answer.as_numpy("logits") for answer in answers]

    for n, logits in enumerate(asyncio.run(scenario())):
        assert np.allclose(logits, direct(tensors[n : n + 3]), rtol=1e-4, atol=1e-4)


def test_tritonclient_is_told_why_a_request_is_refused(server: Server) -> None:
    module = pytest.importorskip("tritonclient.http")
    utils = pytest.importorskip("tritonclient.utils")
    inputs, _ = triton_io(np.zeros((1, 1, 8, 9), np.float32), True, module)
    with (
        triton(server) as client,
        pytest.raises(utils.InferenceServerException, match=r"\[1, 1, 8, 9\]; it must be \[batch, 1, 8, 8\]"),
    ):
        client.infer("digits-onnx-fp32", inputs)


def test_tritonclient_reads_health_metadata_and_index(server: Server) -> None:
    with triton(server) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("digits-onnx-fp32")
        assert client.is_model_ready("digits-onnx-fp32", "1")
        assert not client.is_model_ready("nobody")
        assert client.get_server_metadata()["name"] == "penstock"
        metadata = client.get_model_metadata("digits-onnx-fp32")
        assert client.get_model_metadata("digits-onnx-fp32", "1") == metadata
        index = client.get_model_repository_index()
    assert metadata == {
        "name": "digits-onnx-fp32",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
    }
    assert [(row["name"], row["state"]) for row in index] == [
        (name, "READY") for name in ("digits-onnx-fp16", "digits-onnx-fp32", "digits-onnx-int8", "pair")
    ]


def test_every_variant_takes_the_same_request_and_agrees(server: Server, tensors: Any) -> None:
    module = pytest.importorskip("tritonclient.http")
    with triton(server) as client:
        answers = [
            client.infer(f"digits-onnx-{precision}", triton_io(tensors[:64], True, module)[0]).as_numpy("logits")
            for precision in ("fp32", "fp16", "int8")
        ]
    for answer in answers:
        assert answer.dtype == np.float32
        assert np.mean(answer.argmax(1) == answers[0].argmax(1)) >= 0.95


def test_an_infer_request_for_the_named_version_is_answered(server: Server) -> None:
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0] * 64}]}
    plain = server.ask("POST", INFER, body)
    assert plain.status == 200
    assert server.ask("POST", "/v2/models/digits-onnx-fp32/versions/1/infer", body).json == plain.json
    refused(
        server.ask("POST", "/v2/models/digits-onnx-fp32/versions/2/infer", body), 404, "version '2'", "version 1 is"
    )


@pytest.mark.parametrize(
    ("body", "headers", "part"),
    [
        (b"", {}, "not valid JSON"),
        (b"{}", {}, "'inputs'"),
        (b"[" * 100_000, {}, "not valid JSON"),
        (b"{}", {"Inference-Header-Content-Length": "3"}, "Inference-Header-Content-Length is '3'"),
        (b"{}", {"Inference-Header-Content-Length": "-1"}, "Inference-Header-Content-Length is '-1'"),
        (b"{}", {"Inference-Header-Content-Length": "ten"}, "Inference-Header-Content-Length is 'ten'"),
        (b"{}", {"Inference-Header-Content-Length": "0"}, "the raw request has 2 bytes"),
        (b"{}", {"Inference-Header-Content-Length": "0" * 5000}, "Inference-Header-Content-Length"),
    ],
)
def test_a_wrong_infer_request_is_refused(server: Server, body: bytes, headers: dict[str, str], part: str) -> None:
    refused(server.ask("POST", INFER, body, headers), 400, part)


# --- Health, metrics, documentation ------------------------------------------------------------------------------


def test_live_and_ready(server: Server) -> None:
    assert (server.ask("GET", "/v2/health/live").status, server.ask("GET", "/v2/health/ready").status) == (200, 200)
    assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
    assert server.ask("GET", "/v2/models/pair/ready").json == {"name": "pair", "ready": True}


def test_a_server_with_a_failed_model_is_live_but_not_ready_and_names_it(narrow_server: Server) -> None:
    assert narrow_server.ask("GET", "/v2/health/live").status == 200
    answer = narrow_server.ask("GET", "/v2/health/ready")
    assert answer.status == 503
    assert "'digits-onnx-fp16' failed to load" in answer.json["error"]
    assert "vouches for" in answer.json["error"]
    assert "digits-onnx-fp32" not in answer.json["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/predict/digits-onnx-fp16"),
        ("POST", "/v2/models/digits-onnx-fp16/infer"),
        ("GET", "/v2/models/digits-onnx-fp16"),
        ("GET", "/v2/models/digits-onnx-fp16/ready"),
    ],
)
def test_a_failed_model_answers_503_with_its_reason(narrow_server: Server, method: str, path: str) -> None:
    answer = narrow_server.ask(method, path, b"x" if method == "POST" else None)
    refused(answer, 503, "'digits-onnx-fp16' failed to load", "vouches for")


def test_the_other_models_of_that_server_answer(narrow_server: Server, scan: bytes) -> None:
    assert narrow_server.ask("POST", DIGITS, scan, PNG).status == 200
    states = {row["name"]: row["state"] for row in narrow_server.ask("POST", "/v2/repository/index").json}
    assert states == {"digits-onnx-fp16": "UNAVAILABLE", "digits-onnx-fp32": "READY", "slow": "READY"}


def test_metrics_count_answers_and_refusals_by_model_and_code(server: Server, scan: bytes) -> None:
    good = 'penstock_requests_total{code="200",model="digits-onnx-fp32"}'
    bad = 'penstock_requests_total{code="400",model="digits-onnx-fp32"}'
    unknown = 'penstock_requests_total{code="404",model=""}'
    rows = 'penstock_batch_rows_sum{model="digits-onnx-fp32",version="1"}'
    before = [server.metric(sample) for sample in (good, bad, unknown, rows)]
    server.ask("POST", DIGITS, scan, PNG)
    server.ask("POST", DIGITS, b"no image", PNG)
    server.ask("POST", "/predict/nobody-1", scan, PNG)
    server.ask("POST", "/predict/nobody-2", scan, PNG)
    after = [server.metric(sample) for sample in (good, bad, unknown, rows)]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 2, 1]
    text = server.ask("GET", "/metrics").body.decode()
    assert "nobody" not in text  # a client cannot make new time series
    assert server.ask("GET", "/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_metrics_say_which_models_are_ready(narrow_server: Server) -> None:
    assert narrow_server.metric('penstock_model_ready{model="digits-onnx-fp32"}') == 1
    assert 'penstock_model_ready{model="digits-onnx-fp16"} 0.0' in narrow_server.ask("GET", "/metrics").body.decode()


def test_the_documentation_page_and_the_description_are_served(server: Server) -> None:
    assert b"swagger" in server.ask("GET", "/docs").body.lower()
    described = server.ask("GET", "/openapi.json").json
    assert described["info"]["title"] == "penstock"
    predict = described["paths"]["/predict/{name}"]["post"]["requestBody"]["content"]
    assert set(predict) == {"multipart/form-data", "image/png", "image/jpeg", "text/csv", "application/json"}
    assert {"/v2/models/{name}/infer", "/v2/health/ready", "/metrics", "/v2/repository/index"} <= set(
        described["paths"]
    )


# --- Wrong addresses, wrong sizes, busy --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("GET", "/page", "'/page' is unknown"),
        ("GET", "/nothing/here", "'/nothing/here' is unknown"),
        ("POST", "/predict", "'/predict' is unknown; it is POST /predict/MODEL; the models are digits-onnx-fp16, "),
        ("POST", "/predict/nobody", "'nobody' is not served; the models are digits-onnx-fp16, "),
        ("POST", "/v2/models/nobody/infer", "'nobody' is not served"),
        ("GET", "/v2/models/nobody", "'nobody' is not served"),
        ("GET", "/v2/models/nobody/ready", "'nobody' is not served"),
        ("GET", "/v2/models/pair/versions/2", "version '2' of model 'pair' is not served; version 1 is"),
        ("GET", "/v2/models/pair/versions/latest/ready", "version 'latest'"),
        ("POST", "/predict/..%2f..%2fetc%2fpasswd", "unknown"),
        ("GET", "/v2/models/%ff%00", "not served"),
    ],
)
def test_an_unknown_address_is_a_404_that_says_what_there_is(server: Server, method: str, path: str, part: str) -> None:
    refused(server.ask(method, path), 404, part)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", DIGITS),
        ("PUT", DIGITS),
        ("GET", INFER),
        ("DELETE", "/v2"),
        ("POST", "/metrics"),
        ("GET", "/v2/repository/index"),
    ],
)
def test_a_method_that_is_not_taken_is_a_405(server: Server, method: str, path: str) -> None:
    answer = server.ask(method, path)
    refused(answer, 405, method, path)
    assert answer.headers["allow"]


@pytest.mark.parametrize("path", [DIGITS, INFER, "/v2/models/slow/infer"])
def test_a_body_declared_too_long_is_a_413_before_any_of_it_is_sent(narrow_server: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    status, _, body = narrow_server.raw(head.encode(), timeout_s=5).partition(b"\n")
    assert status == b"413"
    assert list(json.loads(body)) == ["error"]
    assert "--max-body-mb" in json.loads(body)["error"]


@pytest.mark.parametrize("kind", ["image/png", "application/json", "multipart/form-data; boundary=edge"])
def test_a_body_of_undeclared_length_is_a_413_once_it_is_too_long(narrow_server: Server, kind: str) -> None:
    head = f"POST {DIGITS} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = multipart(b"x" * 10_000)[0].removesuffix(b"--edge--\r\n")
    chunks = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for _ in range(6)) + b"0\r\n\r\n"
    status, _, body = narrow_server.raw(head.encode() + chunks).partition(b"\n")
    content = json.loads(body)
    assert list(content) == ["error"]
    assert status == b"413"
    assert "52428 bytes" in content["error"]


def test_a_body_of_undeclared_length_within_the_limit_is_answered(narrow_server: Server, scan: bytes) -> None:
    head = f"POST {DIGITS} HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n" + scan[n : n + 1] + b"\r\n" for n in range(len(scan))) + b"0\r\n\r\n"
    assert narrow_server.raw(head.encode() + chunks).startswith(b"200")


PENDING = 'penstock_pending_rows{model="slow",version="1"}'
SLOW = "/v2/models/slow/infer"


def turns(count: int, timeout_us: int = 0) -> dict[str, Any]:
    return {
        "inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [count]}],
        "parameters": {"timeout": timeout_us},
    }


LONG = 3000  # half a second of work, or more


def test_a_model_that_loops_holds_nobody_up_however_quick_it_was_before(narrow_server: Server) -> None:
    for _ in range(5):
        assert narrow_server.ask("POST", SLOW, turns(1)).status == 200
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(narrow_server.ask, "POST", SLOW, turns(LONG))
        for _ in range(20):
            assert narrow_server.ask("GET", "/v2/health/live").status == 200
        assert not busy.done()
        assert busy.result().status == 200


def test_a_full_queue_is_a_503_that_says_when_to_try_again(narrow_server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(narrow_server.ask, "POST", SLOW, turns(LONG))
        second = pool.submit(narrow_server.ask, "POST", SLOW, turns(LONG))
        narrow_server.wait_for_metric(PENDING, 1)
        answer = narrow_server.ask("POST", SLOW, turns(1))
        refused(answer, 503, "1 rows are waiting and the queue holds 1")
        assert answer.headers["retry-after"] == "1"
        assert (first.result().status, second.result().status) == (200, 200)


def test_a_timeout_is_a_503_as_in_triton(narrow_server: Server) -> None:
    refused(narrow_server.ask("POST", SLOW, turns(LONG, timeout_us=20_000)), 503, "timeout of 0.02 s")
    narrow_server.wait_for_metric(PENDING, 0)
    assert narrow_server.ask("POST", SLOW, turns(1)).status == 200


def test_other_models_and_health_answer_while_one_model_is_busy(narrow_server: Server, scan: bytes) -> None:
    with ThreadPoolExecutor(2) as pool:
        busy = pool.submit(narrow_server.ask, "POST", SLOW, turns(LONG))
        waiting = pool.submit(narrow_server.ask, "POST", SLOW, turns(LONG))
        narrow_server.wait_for_metric(PENDING, 1)
        assert narrow_server.ask("GET", "/v2/health/live").status == 200
        assert narrow_server.ask("POST", DIGITS, scan, PNG).status == 200
        assert not (busy.done() and waiting.done())
        assert (busy.result().status, waiting.result().status) == (200, 200)


def test_a_client_that_goes_away_amid_its_upload_leaves_no_traceback(narrow_server: Server) -> None:
    before = narrow_server.log
    for path in (DIGITS, INFER):
        with socket.create_connection(("127.0.0.1", narrow_server.port)) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode() + b"x" * 10)
    for _ in range(5):
        assert narrow_server.ask("GET", "/v2/health/live").status == 200
    assert "Traceback" not in narrow_server.log.removeprefix(before)


def test_what_is_no_http_is_refused_and_the_server_goes_on(server: Server) -> None:
    assert server.raw(b"hello\r\n\r\n").startswith(b"400")
    assert server.ask("GET", "/v2/health/live").status == 200


def test_a_connection_serves_many_requests_also_after_a_refused_one(server: Server, scan: bytes) -> None:
    connection = server.connect()
    statuses = []
    try:
        for body in (scan, b"no image", scan):
            connection.request("POST", DIGITS, body, PNG)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
    finally:
        connection.close()
    assert statuses == [200, 400, 200]


# --- Many at once ------------------------------------------------------------------------------------------------


def test_32_clients_at_once_each_get_the_answer_to_their_own_scan(
    server: Server, scans: tuple[Any, Any], tensors: Any, png: Callable[[Any], bytes], direct: Callable[[Any], Any]
) -> None:
    logits = direct(tensors[:32])
    start = threading.Barrier(32)

    def client(n: int) -> list[dict[str, Any]]:
        body = png(scans[0][n])
        start.wait(20)
        return [server.ask("POST", f"{DIGITS}?top_k=10", body, PNG).json["predictions"][0] for _ in range(3)]

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(client, range(32)))
    for n, said in enumerate(answers):
        scores = expected_scores(logits[n : n + 1])[0]
        for prediction in said:
            got = {entry["label"]: entry["score"] for entry in prediction["top"]}
            assert [got[str(k)] for k in range(10)] == pytest.approx(scores.tolist(), abs=1e-4)


def test_32_clients_at_once_with_requests_of_different_sizes_each_get_their_own_rows(server: Server) -> None:
    start = threading.Barrier(32)

    def client(n: int) -> bool:
        rows, tokens = 1 + n % 11, 1 + n % 3
        ids = [[1000 * n + row] + [0] * (tokens - 1) for row in range(rows)]
        start.wait(20)
        answers = [
            server.ask("POST", "/predict/pair", {"inputs": {"ids": ids, "weight": [0.5] * rows}}) for _ in range(3)
        ]
        expected = [1000 * n + row + 0.5 for row in range(rows)]
        return all(answer.json["outputs"]["total"] == expected for answer in answers)

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(client, range(32)))


# --- Stopping ----------------------------------------------------------------------------------------------------


def test_sigterm_exits_with_0_after_answering_what_is_under_way(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx)
    with ThreadPoolExecutor(2) as pool:
        busy = pool.submit(server.ask, "POST", SLOW, turns(LONG))
        waiting = pool.submit(server.ask, "POST", SLOW, turns(LONG))
        server.wait_for_metric(PENDING, 1)
        server.process.send_signal(signal.SIGTERM)
        assert (busy.result().status, waiting.result().status) == (200, 200)
    code = server.process.wait(timeout=20)
    assert "Traceback" not in server.log
    assert code == 0


def test_sigterm_of_an_idle_server_exits_with_0(
    tmp_path: Path, start_server: StartServer, fake_artifact: Callable[..., Any]
) -> None:
    fake_artifact(tmp_path, "m")
    server = start_server(tmp_path)
    code = server.stop(signal.SIGTERM)
    assert server.log == ""
    assert code == 0


def test_sigterm_right_after_the_server_printed_its_address_is_not_lost(
    tmp_path: Path, start_server: StartServer, fake_artifact: Callable[..., Any]
) -> None:
    fake_artifact(tmp_path, "m")
    server = start_server(tmp_path, settle=False)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=10) == 0
    assert "Traceback" not in server.log


# --- Fuzzing: never a 500 ----------------------------------------------------------------------------------------

names = st.sampled_from(["digits-onnx-fp32", "pair", "nobody"]) | st.text(max_size=6).map(
    lambda text: quote(text, safe="")
)
addresses = st.one_of(
    names.map(lambda name: f"/predict/{name}"),
    names.map(lambda name: f"/v2/models/{name}/infer"),
    st.builds(lambda name, version: f"/v2/models/{name}/versions/{version}/infer", names, names),
    names.map(lambda name: f"/v2/models/{name}"),
    st.sampled_from(["/v2", "/v2/repository/index", "/metrics", "/v2/health/ready", "/"]),
    st.text(max_size=10).map(lambda text: "/" + quote(text)),
)
queries = st.just("") | st.text(max_size=8).map(lambda text: f"?top_k={quote(text)}") | st.just("?&&=%%%")
header_text = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20).map(
    str.strip
)
headers_sent = st.fixed_dictionaries(
    {},
    optional={
        "Content-Type": st.sampled_from(
            [
                "application/json",
                "image/png",
                "multipart/form-data; boundary=edge",
                "multipart/form-data",
                "text/csv",
                "application/x-www-form-urlencoded",
            ]
        )
        | header_text,
        "Inference-Header-Content-Length": st.integers(-2, 200).map(str) | header_text,
        "Content-Encoding": st.sampled_from(["identity", "gzip"]) | header_text,
        "Accept": st.sampled_from(["image/png", "application/octet-stream", "*/*;q=0.5, image/*"]) | header_text,
    },
)
json_numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_like = st.recursive(
    st.none() | st.booleans() | json_numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "data", "shape", "datatype", "ids", "images", "image", "rows", "texts"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
).map(lambda content: json.dumps(content).encode())
tensor_requests = st.fixed_dictionaries(
    {
        "inputs": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["image", "ids", "weight"]),
                    "datatype": st.sampled_from(["FP32", "INT64", "BOOL", "FP16"]),
                    "shape": st.lists(st.integers(0, 3) | st.just(2**40), max_size=4),
                    "data": st.lists(json_numbers, max_size=6),
                }
            ),
            max_size=2,
        )
    }
).map(lambda content: json.dumps(content).encode())
pictures = st.builds(
    lambda at, value, keep: _changed_picture(at, value, keep),
    st.integers(0, 90),
    st.integers(0, 255),
    st.integers(1, 91),
)
bodies = st.one_of(
    st.binary(max_size=200),
    json_like,
    tensor_requests,
    pictures,
    pictures.map(lambda data: multipart(data)[0]),
    st.binary(max_size=80).map(lambda data: b"--edge\r\n" + data + b"\r\n--edge--\r\n"),
)


def _changed_picture(at: int, value: int, keep: int) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", (8, 8), 128).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[at % len(content)] = value
    return bytes(content[:keep])


def check_never_a_500(server: Server, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
    answer = server.ask(method, path, body, {name: text.encode("latin-1") for name, text in headers.items()})  # type: ignore[dict-item]
    assert answer.status < 500 or answer.status == 503, answer.body
    if answer.status >= 400:
        assert answer.error


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(addresses, queries, bodies, headers_sent)
def test_no_post_gets_a_500_or_a_traceback(
    server: Server, path: str, query: str, body: bytes, headers: dict[str, str]
) -> None:
    before = len(server.log)
    check_never_a_500(server, "POST", path + query, body, headers)
    assert server.log[before:] == ""


cells = st.one_of(json_numbers, st.text(max_size=4), st.booleans(), st.none(), st.lists(json_numbers, max_size=2))
values = st.one_of(
    cells,
    st.lists(cells, max_size=4),
    st.lists(st.lists(cells, max_size=4), max_size=3),
    st.dictionaries(st.sampled_from(["age", "children", "member", "row", "image"]), cells),
    st.lists(st.dictionaries(st.sampled_from(["age", "children", "member"]), cells), max_size=3),
    st.binary(max_size=30).map(lambda data: base64.b64encode(data).decode()),
)
people_forms = st.dictionaries(
    st.sampled_from(["inputs", "image", "images", "text", "texts", "row", "rows"]), values, min_size=1, max_size=2
).map(lambda content: (json.dumps(content).encode(), "application/json"))
tables_sent = st.text('age,childrnmbtuf01-.e\n"\r ', max_size=60).map(lambda text: (text.encode(), "text/csv"))


@FUZZ
@given(
    st.sampled_from(["colours", "price", "people", "digits-onnx-fp32"]),
    people_forms | tables_sent,
    st.sampled_from(["*/*", "image/png", "application/octet-stream"]),
)
def test_no_form_of_predict_gets_a_500_or_a_traceback(
    forms: Server, name: str, sent: tuple[bytes, str], accept: str
) -> None:
    before = len(forms.log)
    body, kind = sent
    check_never_a_500(forms, "POST", f"/predict/{name}", body, {"Content-Type": kind, "Accept": accept})
    assert forms.log[before:] == ""


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "rot13", "base64", "utf-16", "utf-7", "nobody"])
@pytest.mark.parametrize("name", [b"\\ud800", b"\xff\xfe\x00\xd8", b"+2AA-"])
def test_names_of_a_form_in_no_charset_are_refused(server: Server, charset: str, name: bytes) -> None:
    before = len(server.log)
    body = b'--edge\r\nContent-Disposition: form-data; name="' + name + b'"; filename="a"\r\n\r\nx\r\n--edge--\r\n'
    kind = f"multipart/form-data; boundary=edge; charset={charset}"
    refused(server.ask("POST", DIGITS, body, {"Content-Type": kind}), 400)
    assert server.log[before:] == ""


@pytest.mark.parametrize("inputs", ["{}", "5", "-0", "[]", "[[]]", "null"])
@pytest.mark.parametrize("accept", ["*/*", "image/png"])
def test_inputs_that_are_no_rows_are_refused_whatever_is_accepted(forms: Server, inputs: str, accept: str) -> None:
    for name in ("colours", "price", "people", "digits-onnx-fp32"):
        body, headers = f'{{"inputs": {inputs}}}'.encode(), {"Content-Type": "application/json", "Accept": accept}
        answer = forms.ask("POST", f"/predict/{name}", body, headers)
        assert answer.status in (400, 406)
        assert answer.error


@settings(FUZZ, max_examples=100)
@given(st.sampled_from(["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"]), addresses, queries, headers_sent)
def test_no_other_method_gets_a_500_or_a_traceback(
    server: Server, method: str, path: str, query: str, headers: dict[str, str]
) -> None:
    before = len(server.log)
    check_never_a_500(server, method, path + query, None, headers)
    assert server.log[before:] == ""


@pytest.mark.parametrize("body", [b"\x00", b"--edge", b"--edge\r\n", b"--edge\r\nA: b\r\n\r\nx", b"--edge--", b""])
def test_a_form_that_is_broken_is_refused_and_leaves_no_line_in_the_log(server: Server, body: bytes) -> None:
    before = len(server.log)
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    check_never_a_500(server, "POST", "/predict/digits-onnx-fp32", body, headers)
    assert server.log[before:] == ""


def test_a_model_that_hangs_is_replaced_and_the_server_not_ready_meanwhile(
    slow_onnx: Path, start_server: StartServer
) -> None:
    hanging = start_server(slow_onnx, "--run-limit-s", "0.3")
    assert hanging.ask("POST", SLOW, turns(1)).status == 200
    with ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        stuck = pool.submit(hanging.ask, "POST", SLOW, turns(20 * LONG))
        seen = set()
        while time.monotonic() - started < 10 and {200, 503} - seen:
            seen.add(hanging.ask("GET", "/v2/health/ready").status)
        refused(stuck.result(), 503, "hangs", "within 0.3 s (--run-limit-s)", "being replaced")
    assert hanging.ask("POST", SLOW, turns(1)).status == 200
    assert hanging.ask("GET", "/v2/health/ready").status == 200
    assert hanging.stop() == 0


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_probes_may_ask_for_the_head_alone(server: Server, path: str) -> None:
    answer = server.ask("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")


def test_models_loaded_anew_under_requests_that_take_long_to_read_lose_none(
    repository: Path, start_server: StartServer
) -> None:
    reloading = start_server(repository / "digits-onnx-fp32", "--max-queue-rows", "10000")
    rows = 1000
    entry = {"name": "image", "datatype": "FP32", "shape": [rows, 1, 8, 8], "data": [0] * (rows * 64)}
    body = gzip.compress(json.dumps({"inputs": [entry]}).encode())
    stop = threading.Event()

    def ask(number: int) -> list[int]:
        found = []
        while not stop.is_set():
            found.append(reloading.ask("POST", INFER, body, {"Content-Encoding": "gzip"}).status)
        return found

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, number) for number in range(3)]
        for _ in range(10):
            assert reloading.ask("POST", "/v2/repository/models/digits-onnx-fp32/load").status == 200
        stop.set()
        statuses = [status for part in asked for status in part.result()]
    assert set(statuses) == {200}


def test_what_quotes_a_name_that_is_no_text_is_answered_all_the_same() -> None:
    content = {"b\udcff": [{"reason": "no \udcff", "count": 1}], "fine": "ä"}
    assert json.loads(bytes(_reply(content).body)) == {"b\\udcff": [{"reason": "no \\udcff", "count": 1}], "fine": "ä"}

"""Artifacts: read strictly, vouched for byte by byte, and published whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import artifact, runtimes
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.parity import Distance, Limits
from penstock.receipt import FileDigest, Plan, PlanPoint, Receipt, Source, Verification
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(opt=2, max=4)},
)


SOURCE = Source(checkpoint="runs/best.pth", sha256="0" * 64, architecture="a:B", loaded=1, expected=1)


def receipt(name: str = "small", signature: Signature = SIGNATURE, **changes: Any) -> Receipt:
    return Receipt(
        name=name,
        version=1,
        created=datetime(2000, 1, 1, tzinfo=timezone.utc),
        precision="fp32",
        model_file="model.bin",
        signature=signature,
        verification=Verification(
            runtime="fake",
            engine_run=True,
            samples=4,
            real=True,
            batches=(1, 2, 4),
            distances=(Distance(output="y", max_abs=0.0, rel_l2=0.0, cosine=1.0),),
            limits={tensor.name: Limits(max_error=1e-4, min_agreement=1.0) for tensor in signature.outputs},
            passed=True,
        ),
        hardware="any",
        **{"format": "onnx", "runtime": "fake", "files": {}, "source": SOURCE, **changes},
    )


def publish(
    output: Path, content: bytes = b"weights", say: Callable[[str], None] = lambda line: None, **changes: Any
) -> Artifact:
    with artifact.draft(output) as folder:
        (folder / "model.bin").write_bytes(content)
        rows = {"x": np.ones((2, 2), np.float32)}
        artifact.write_golden(folder, rows, {"y": rows["x"] + 1})
        return artifact.publish(folder, output, receipt(files=artifact.digests(folder), **changes), say)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_published_artifact_reads_back_as_it_was(tmp_path: Path) -> None:
    published = publish(tmp_path)
    assert published.folder == tmp_path / "small" / "1"
    for folder in (published.folder, tmp_path / "small"):
        assert artifact.read(folder) == published
    assert published.model_path.read_bytes() == b"weights"
    inputs, outputs = published.golden()
    assert inputs["x"].tolist() == [[1, 1], [1, 1]]
    assert outputs["y"].tolist() == [[2, 2], [2, 2]]


def test_a_receipt_reads_back_from_its_json() -> None:
    content = receipt()
    assert Receipt.model_validate_json(content.to_json()) == content
    assert json.loads(content.to_json())["schema"] == 2


def test_a_receipt_that_could_not_be_read_again_is_not_published(tmp_path: Path) -> None:
    lost = Distance(output="y", max_abs=math.inf, rel_l2=math.inf, cosine=0.0)
    held = receipt()
    held = held.model_copy(update={"verification": held.verification.model_copy(update={"distances": (lost,)})})
    with artifact.draft(tmp_path) as folder:
        (folder / "model.bin").write_bytes(b"weights")
        with pytest.raises(ValueError, match="rel_l2"):
            artifact.publish(folder, tmp_path, held)
    assert not list(tmp_path.rglob("penstock.json"))
    assert not (tmp_path / "small").exists()


def test_a_plan_with_a_trial_without_numbers_is_published_and_read_again(tmp_path: Path) -> None:
    points = [
        PlanPoint(kept=kept, error=error, within=error is not None, lowered_operations=0.5, saved_bytes=8)
        for kept, error in (((), None), (("a",), 0.25))
    ]
    published = publish(tmp_path, plan=Plan(kept=("a",), points=tuple(points), lowered_operations=0.5))
    assert artifact.read(tmp_path / "small") == published


def test_digests_are_the_sha256_and_size_of_each_file(tmp_path: Path) -> None:
    published = publish(tmp_path, content=b"some weights")
    digest = published.receipt.files["model.bin"]
    assert digest.sha256 == hashlib.sha256(b"some weights").hexdigest()
    assert digest.bytes == 12
    assert published.receipt.files.keys() == {"model.bin", "golden.npz"}


def test_a_large_file_has_the_digest_of_all_of_it(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(3 * (1 << 20) + 5)
    (tmp_path / "large").write_bytes(content)
    assert artifact.sha256(tmp_path / "large") == hashlib.sha256(content).hexdigest()


def test_publishing_again_makes_the_next_version_and_keeps_the_first(tmp_path: Path) -> None:
    publish(tmp_path, content=b"one")
    second = publish(tmp_path, content=b"two")
    assert second.folder == tmp_path / "small" / "2"
    assert second.receipt.version == 2
    assert (tmp_path / "small" / "1" / "model.bin").read_bytes() == b"one"
    assert artifact.read(tmp_path / "small").receipt.version == 2
    assert artifact.read(tmp_path / "small" / "1").receipt.version == 1
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == ["1", "2", "config.pbtxt"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (("apple", "pear"), ("apple", "b"), "class 1: it was 'pear' and is 'b' now"),
        (("apple", "pear"), None, "class 0: it was 'apple' and is without a label now"),
        (None, ("apple", "pear"), "class 0: it was without a label and is 'apple' now"),
        (("apple", "pear"), ("apple", "pear"), None),
        (None, None, None),
    ],
)
def test_a_version_with_other_labels_than_the_one_before_it_is_told_of(
    tmp_path: Path, before: tuple[str, ...] | None, after: tuple[str, ...] | None, told: str | None
) -> None:
    said: list[str] = []
    publish(tmp_path, say=said.append, labels=before)
    assert not said
    publish(tmp_path, say=said.append, labels=after)
    assert len(said) == (told is not None)
    assert told is None or f"small: note: labels differ from version 1's, first of {told}; clients" in said[0]


def test_versions_are_ordered_as_numbers(tmp_path: Path) -> None:
    for name in ("2", "10", "1", "0", "03", "-4", "x", "1.5"):
        (tmp_path / name).mkdir()
    (tmp_path / "11").touch()
    assert artifact.versions(tmp_path) == [1, 2, 10]


@pytest.mark.parametrize(("format", "served"), [("pt2", False), ("torchscript", True), ("onnx", True)])
def test_the_config_says_what_triton_has_no_backend_for(tmp_path: Path, format: str, served: bool) -> None:
    publish(tmp_path, format=format)
    text = (tmp_path / "small" / "config.pbtxt").read_text()
    assert text.startswith("name: ") == served
    assert ("# Triton has no backend for programs of torch.export" in text) != served


def test_a_new_batch_range_is_a_new_version_with_its_own_config(tmp_path: Path) -> None:
    publish(tmp_path)
    publish(tmp_path, signature=SIGNATURE.with_batch(Dim(opt=8, max=32)))
    assert "max_batch_size: 32" in (tmp_path / "small" / "config.pbtxt").read_text()


def test_another_contract_under_the_same_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    publish(tmp_path)
    before = tree(tmp_path)
    other = SIGNATURE.model_copy(update={"inputs": (Tensor(name="z", shape=("batch", 2)),)})
    with pytest.raises(PenstockError) as caught:
        publish(tmp_path, signature=other)
    for part in (str(tmp_path / "small"), "version 1", "x:float32[batch,2]", "z:float32[batch,2]", "--name"):
        assert part in str(caught.value)
    assert tree(tmp_path) == before


def test_a_damaged_version_keeps_no_contract(tmp_path: Path) -> None:
    first = publish(tmp_path)
    (first.folder / "penstock.json").write_text("{}")
    assert publish(tmp_path).folder.name == "2"


def test_a_folder_that_is_no_model_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "notes.txt").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(PenstockError, match="exists and is not a model folder; choose another --name or --output"):
        publish(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, PenstockError])
def test_a_draft_that_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def half(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise error("stop")

    with pytest.raises(error), artifact.draft(tmp_path / "models") as folder:
        half(folder)
    assert tree(tmp_path) == {"models": None}


def finished_process() -> int:
    """The number of a process that has ended and been waited for."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_drafts_of_exports_that_were_killed_are_swept_by_the_next_one(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom penstock import artifact\n"
        "with artifact.draft(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'model.bin').write_bytes(b'half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".draft-")
    publish(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_drafts_of_living_exports_and_of_other_machines_are_left_alone(tmp_path: Path) -> None:
    """A living one holds a lock, whatever number its process has: in a container of its own that may be anybody's."""
    dead, host = finished_process(), artifact._draft_prefix()
    kept = [
        f".draft-another_host-{dead}-abcd",
        f"{host.replace('draft', 'notes')}{dead}-abcd",
        f"draft-{dead}-abcd",
    ]
    for name in (*kept, f"{host}{dead}-abcd", f"{host}{os.getpid()}-efgh"):
        (tmp_path / name / "1").mkdir(parents=True)
    with artifact.draft(tmp_path) as first, artifact.draft(tmp_path) as second:
        living = {first.parent.name, second.parent.name}
        code = "import sys\nfrom pathlib import Path\nfrom penstock import artifact\n"
        code += "with artifact.draft(Path(sys.argv[1])): pass\n"
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert {path.name for path in tmp_path.iterdir()} == {*kept, *living}
    assert {path.name for path in tmp_path.iterdir()} == set(kept)


def test_a_draft_bears_its_machine_and_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "my-host.lan*")
    with artifact.draft(tmp_path) as folder:
        assert re.fullmatch(rf"\.draft-my_host_lan_-{os.getpid()}-\w+", folder.parent.name)


def test_a_draft_is_hidden_from_those_who_look_for_models(tmp_path: Path) -> None:
    publish(tmp_path)
    with artifact.draft(tmp_path):
        assert artifact.find([tmp_path]) == [tmp_path / "small"]


def test_a_draft_is_a_version_folder_in_a_model_folder_of_its_own(tmp_path: Path) -> None:
    with artifact.draft(tmp_path) as folder:
        assert folder.name == "1"
        assert folder.parent.name.startswith(".draft-")
        assert folder.parent.parent == tmp_path
        assert tree(folder.parent) == {"1": None}
    assert tree(tmp_path) == {}


def test_others_may_read_what_is_published(tmp_path: Path) -> None:
    for made in (publish(tmp_path), publish(tmp_path)):
        for folder in (made.folder.parent, made.folder):
            assert folder.stat().st_mode & 0o055 == 0o055
        assert all(path.stat().st_mode & 0o044 == 0o044 for path in made.folder.iterdir())


@pytest.mark.parametrize("held", [0, 1])
def test_a_number_that_another_export_took_in_between_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    for _ in range(held):
        publish(tmp_path, content=b"before")
    real, raced = artifact.check_contract, []

    def taken(home: Path, signature: Signature) -> int:
        version = real(home, signature)
        if not raced:
            raced.append(version)
            publish(tmp_path, content=b"rival")
        return version

    monkeypatch.setattr(artifact, "check_contract", taken)
    mine = publish(tmp_path, content=b"mine")
    assert raced == [held + 1]
    assert mine.receipt.version == held + 2
    assert mine == artifact.read(tmp_path / "small")
    assert mine.model_path.read_bytes() == b"mine"
    assert artifact.read(tmp_path / "small" / str(held + 1)).model_path.read_bytes() == b"rival"
    assert {path.name for path in tmp_path.iterdir()} == {"small"}


def test_exports_at_the_same_time_each_get_a_version_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: publish(tmp_path, content=b"%d" % number), range(12)))
    assert sorted(item.receipt.version for item in made) == list(range(1, 13))
    for number, item in enumerate(made):
        found = artifact.read(item.folder)
        found.check_digests()
        assert found == item
        assert found.model_path.read_bytes() == b"%d" % number
    assert {path.name for path in tmp_path.iterdir()} == {"small"}


@pytest.mark.parametrize("content", ["file", "folder"])
def test_a_contract_is_checked_without_publishing(tmp_path: Path, content: str) -> None:
    home = tmp_path / "small"
    assert artifact.check_contract(home, SIGNATURE) == 1
    if content == "file":
        home.touch()
    else:
        home.mkdir()
    with pytest.raises(PenstockError, match="small: exists and is not a model folder; choose another --name"):
        artifact.check_contract(home, SIGNATURE)


def test_the_next_number_is_one_more_than_the_highest_that_is_there(tmp_path: Path) -> None:
    publish(tmp_path)
    publish(tmp_path)
    before = tree(tmp_path)
    assert artifact.check_contract(tmp_path / "small", SIGNATURE) == 3
    assert artifact.check_contract(tmp_path / "small", SIGNATURE.with_batch(Dim(opt=1, max=1))) == 3
    outputs = (Tensor(name="y", shape=("batch", 3)),)
    with pytest.raises(PenstockError, match=r"version 2 takes .*y:float32\[batch,2\]; the new one .*\[batch,3\]"):
        artifact.check_contract(tmp_path / "small", SIGNATURE.model_copy(update={"outputs": outputs}))
    assert tree(tmp_path) == before


def test_an_output_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("mine")
    with pytest.raises(PenstockError, match=rf"--output {tmp_path / 'models'}: cannot be written"):
        publish(tmp_path / "models")
    assert (tmp_path / "models").read_text() == "mine"


@pytest.mark.parametrize("taken", ["1", "2"])
def test_a_publication_that_fails_at_its_last_step_leaves_no_drafts(tmp_path: Path, taken: str) -> None:
    home = tmp_path / "small"
    if taken == "2":
        publish(tmp_path)
        (home / "2").touch()  # not a version, but in the way of one
    else:
        home.touch()
    before = tree(tmp_path)
    with pytest.raises(PenstockError, match=r"small: exists and is not a model|--output .*: cannot be written"):
        publish(tmp_path)
    assert tree(tmp_path) == before


def test_after_the_last_version_there_is_none(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "small" / "999999999").mkdir()
    before = tree(tmp_path)
    with pytest.raises(PenstockError, match="small/999999999: the last number that a version can have"):
        publish(tmp_path)
    assert tree(tmp_path) == before


def test_a_version_is_numbered_in_ascii(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "small" / "1\N{ARABIC-INDIC DIGIT THREE}").mkdir()
    assert artifact.versions(tmp_path / "small") == [1]


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_receipt_that_cannot_be_one_is_refused_unread(tmp_path: Path, kind: str) -> None:
    publish(tmp_path)
    receipt = tmp_path / "small" / "1" / artifact.RECEIPT
    receipt.unlink()
    if kind == "pipe":
        os.mkfifo(receipt)
    elif kind == "device":
        receipt.symlink_to("/dev/zero")
    else:
        with receipt.open("wb") as file:
            file.truncate(65 * 2**20)
    with pytest.raises(PenstockError, match="damaged receipt: it is"):
        artifact.read(tmp_path / "small")


@pytest.mark.parametrize("fact", ["flavor", "version", "gpu", "compute_capability", "recipe"])
def test_a_build_fact_of_another_kind_is_a_damaged_receipt(tmp_path: Path, fact: str) -> None:
    publish(tmp_path)
    path = tmp_path / "small" / "1" / artifact.RECEIPT
    content = json.loads(path.read_text())
    content["build"][fact] = ["tensorrt"]
    path.write_text(json.dumps(content))
    with pytest.raises(PenstockError, match=rf"damaged receipt: build.*{fact} is"):
        artifact.read(tmp_path / "small")


def copied(repository: Path, tmp_path: Path) -> Artifact:
    shutil.copytree(repository / "digits-onnx-fp32", tmp_path / "digits")
    return artifact.read(tmp_path / "digits")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.onnx", "golden.npz"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "gone"])
def test_a_changed_file_is_refused_by_name_before_the_runtime_sees_it(
    repository: Path, tmp_path: Path, name: str, damage: str
) -> None:
    held = copied(repository, tmp_path)
    path = held.folder / name
    if damage == "flipped":
        flip(path)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else path.read_bytes() + b"\0")
    with pytest.raises(PenstockError) as caught:
        held.load()
    assert str(path) in str(caught.value)
    assert ("missing" if damage == "gone" else "not those that the receipt vouches for") in str(caught.value)
    assert "export the model again" in str(caught.value)


@pytest.mark.parametrize("name", ["model.onnx", "golden.npz"])
def test_a_file_that_the_receipt_does_not_vouch_for_is_refused(repository: Path, tmp_path: Path, name: str) -> None:
    held = copied(repository, tmp_path)
    content = json.loads((held.folder / "penstock.json").read_text())
    del content["files"][name]
    (held.folder / "penstock.json").write_text(json.dumps(content))
    with pytest.raises(PenstockError, match=rf"penstock\.json: damaged receipt: '{name}' has no digest"):
        artifact.read(held.folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema": 2}', "\x00"])
def test_a_receipt_that_is_damaged_is_refused_by_name(tmp_path: Path, text: str) -> None:
    published = publish(tmp_path)
    (published.folder / "penstock.json").write_text(text)
    with pytest.raises(PenstockError, match=r"penstock\.json: damaged receipt"):
        artifact.read(published.folder)


@pytest.mark.parametrize("version", [0, -1, 1.5, "one", None])
def test_a_version_that_is_no_number_from_one_is_a_damaged_receipt(tmp_path: Path, version: Any) -> None:
    published = publish(tmp_path)
    path = published.folder / "penstock.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    with pytest.raises(PenstockError, match=r"penstock\.json: damaged receipt: version: "):
        artifact.read(published.folder)


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "0.0 kB"), (1_240, "1.2 kB"), (99_949, "99.9 kB"), (100_000, "0.10 MB"), (7_456_789, "7.46 MB")],
)
def test_the_size_is_that_of_the_model_file_in_words(tmp_path: Path, count: int, text: str) -> None:
    files = {"model.bin": FileDigest(sha256="0" * 64, bytes=count), "golden.npz": FileDigest(sha256="1" * 64, bytes=5)}
    assert Artifact(tmp_path, receipt(files=files)).size == text


def test_a_receipt_is_a_text_file_that_ends_its_last_line(tmp_path: Path) -> None:
    assert (publish(tmp_path).folder / "penstock.json").read_text().endswith("}\n")


def golden_refusal(held: Artifact) -> str:
    with pytest.raises(PenstockError) as caught:
        held.golden()
    assert str(caught.value).startswith(f"{held.folder / 'golden.npz'}: ")
    return str(caught.value)


@pytest.mark.parametrize("bits", [0x01, 0xFF])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_golden_samples_damaged_anywhere_are_refused_or_the_same(tmp_path: Path, save: Any, bits: int) -> None:
    held = publish(tmp_path)
    path = held.folder / "golden.npz"
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    save(path, **{"input:x": rows, "output:y": rows + 1})
    whole = path.read_bytes()
    raised: dict[str, int] = {}
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ bits]) + whole[index + 1 :])
        try:
            inputs, outputs = held.golden()
        except PenstockError:
            continue
        except Exception as error:
            raised.setdefault(f"{type(error).__name__}: {error}", index)
            continue
        assert np.array_equal(inputs["x"], rows)
        assert np.array_equal(outputs["y"], rows + 1)
    assert not raised


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_golden_samples_that_are_cut_are_refused_by_name(tmp_path: Path, share: float) -> None:
    held = publish(tmp_path)
    path = held.folder / "golden.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "cannot be read" in golden_refusal(held)
    path.unlink()
    assert "cannot be read" in golden_refusal(held)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"input:x": np.ones((2, 2))}, "output:y"),
        ({"output:y": np.ones((2, 2))}, "input:x"),
        ({"input:x": np.ones((0, 2)), "output:y": np.ones((0, 2))}, "holds no rows"),
        ({"input:x": np.ones((2, 2)), "output:y": np.ones((0, 2))}, "holds no rows"),
        ({"input:x": np.float32(1), "output:y": np.ones((2, 2))}, "holds no rows"),
    ],
)
def test_golden_samples_without_rows_or_names_are_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    held = publish(tmp_path)
    np.savez(held.folder / "golden.npz", **arrays)
    assert said in golden_refusal(held)


def test_pickled_golden_samples_are_refused_and_not_run(tmp_path: Path) -> None:
    held, witness = publish(tmp_path), tmp_path / "witness"

    class Evil:
        def __reduce__(self) -> Any:
            return exec, (f"open({str(witness)!r}, 'w')",)

    rows = np.ones((2, 2), np.float32)
    np.savez(held.folder / "golden.npz", **{"input:x": np.array([Evil()], object), "output:y": rows})
    assert "cannot be read" in golden_refusal(held)
    assert not witness.exists()
    with np.load(held.folder / "golden.npz", allow_pickle=True) as arrays:
        arrays["input:x"]
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_golden_entries_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    held = publish(tmp_path)
    with zipfile.ZipFile(held.folder / "golden.npz", "w") as archive:
        for name in ("input:x.npy", "output:y.npy"):
            archive.writestr(name, b"hello")
    golden_refusal(held)


def test_golden_samples_that_unpack_to_more_than_any_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = publish(tmp_path)
    path = held.folder / "golden.npz"
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb.npy", "w") as bomb:
        for _ in range(3):
            bomb.write(bytes(1 << 20))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(artifact, "_GOLDEN_BYTES", 3 << 20)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was read"))
    assert re.search(rf"unpacks to \d{{7}} bytes; the limit is {3 << 20}$", golden_refusal(held))


def rebuilt(**changes: Any) -> list[str]:
    return shlex.split(artifact.rebuild_command(unpublished(source=SOURCE.model_copy(update=changes))))


def unpublished(folder: Path = Path("models/small/1"), **changes: Any) -> Artifact:
    return Artifact(folder, receipt(**changes))


def test_the_command_that_rebuilds_holds_format_precision_options_and_checkpoint() -> None:
    assert rebuilt() == ["penstock", "export", "--format", "onnx", "--precision", "fp32", "runs/best.pth"]
    options = ("--model", "./net.py:Net", "--model-args", "act='re lu'")
    assert rebuilt(options=options)[6:] == [*options, "runs/best.pth"]


def test_the_command_that_rebuilds_survives_any_shell(tmp_path: Path) -> None:
    name = 'it\'s $(touch witness) & `more`; "x".pth'
    options = ("--model-args", 'a="\'; touch witness"')
    source = SOURCE.model_copy(update={"checkpoint": name, "options": options})
    command = artifact.rebuild_command(unpublished(source=source))
    command = command.replace("penstock export", "printf '%s\\n'", 1)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-3:] == [*options, name]
    assert list(tmp_path.iterdir()) == []


ENGINE: dict[str, Any] = {"format": "trt", "runtime": "tensorrt"}
RECIPE: dict[str, Any] = {"build": {"recipe": {"precision": "fp32"}}}


@pytest.mark.parametrize("version", [1, 7])
def test_an_engine_is_built_again_from_the_graph_in_its_models_folder(version: int) -> None:
    found = unpublished(Path("my models/small") / str(version), **ENGINE, **RECIPE)
    found = replace(found, receipt=found.receipt.model_copy(update={"version": version}))
    assert shlex.split(artifact.rebuild_command(found)) == ["penstock", "build", "my models/small"]


@pytest.mark.parametrize(
    ("device", "first"),
    [("cpu", ""), ("cuda", ""), ("cuda:0", ""), ("cuda:1", "CUDA_VISIBLE_DEVICES=1 ")],
)
def test_an_engine_that_cannot_run_here_says_what_builds_it_for_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, first: str
) -> None:
    monkeypatch.setattr(runtimes, "unavailable", lambda *_: "it was built elsewhere")
    reason = str(unpublished(**ENGINE, **RECIPE).unavailable(device))
    assert reason.startswith("it was built elsewhere; it was made for any; ")
    assert reason.endswith(f": {first}penstock build models/small")


def test_an_engine_without_a_recipe_is_exported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "unavailable", lambda *_: "it was built elsewhere")
    reason = str(unpublished(**ENGINE).unavailable())
    assert reason.endswith(": penstock export --format trt --precision fp32 runs/best.pth")


def test_what_is_no_engine_is_not_built_but_copied_to_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "unavailable", lambda *_: "there is no such GPU")
    reason = str(unpublished().unavailable("cuda:1"))
    assert reason == "there is no such GPU; it was made for any: copy it there, and penstock verify proves it"


def test_what_runs_here_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "unavailable", lambda *_: None)
    assert unpublished(**ENGINE, **RECIPE).unavailable("cuda:1") is None


def test_a_receipt_without_the_limits_of_an_output_is_refused_by_name(tmp_path: Path) -> None:
    path = publish(tmp_path).folder / "penstock.json"
    content = json.loads(path.read_text())
    content["verification"]["limits"] = {"z": content["verification"]["limits"].pop("y")}
    path.write_text(json.dumps(content))
    with pytest.raises(PenstockError, match=r"penstock\.json: damaged receipt: output 'y' has no limits"):
        artifact.read(path.parent)


@pytest.mark.parametrize("extra", [{}, {"signed_by": "someone"}])
def test_a_receipt_of_another_schema_is_refused_with_both_numbers(tmp_path: Path, extra: dict[str, Any]) -> None:
    published = publish(tmp_path)
    path = published.folder / "penstock.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 1} | extra))
    with pytest.raises(PenstockError, match="receipt schema 1; this penstock reads 2"):
        artifact.read(published.folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "", ".", ".hidden", "a\\b", "a\n", "a b"])
@pytest.mark.parametrize("field", ["model_file", "files"])
def test_a_receipt_that_names_a_file_elsewhere_is_refused(tmp_path: Path, field: str, name: str) -> None:
    published = publish(tmp_path)
    path = published.folder / "penstock.json"
    content = json.loads(path.read_text())
    content[field] = name if field == "model_file" else {name: {"sha256": "0" * 64, "bytes": 1}}
    path.write_text(json.dumps(content))
    with pytest.raises(PenstockError, match="leaves the artifact's folder"):
        artifact.read(published.folder)


def test_folders_that_hold_no_artifact_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half" / "1").mkdir(parents=True)
    with pytest.raises(PenstockError, match="none: no such folder"):
        artifact.read(tmp_path / "none")
    with pytest.raises(PenstockError, match=r"empty: not an artifact: .*penstock\.json"):
        artifact.read(tmp_path / "empty")
    with pytest.raises(PenstockError, match=r"half/1/penstock\.json: missing"):
        artifact.read(tmp_path / "half")


def test_models_are_found_in_repositories_models_versions_and_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        publish(tmp_path / "models", name=name)
    bare = tmp_path / "bare.onnx"
    bare.touch()
    models = tmp_path / "models"
    assert artifact.find([models]) == [models / "a", models / "b"]
    assert artifact.find([models / "b", bare, models / "a" / "1"]) == [models / "b", bare, models / "a" / "1"]


def test_folders_beside_the_models_that_are_none_are_passed_over(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    (tmp_path / "README.md").touch()
    assert artifact.find([tmp_path]) == [tmp_path / "small"]


def test_a_path_without_models_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=f"penstock export --output {tmp_path}"):
        artifact.find([tmp_path])
    with pytest.raises(PenstockError, match="none: no such file or folder"):
        artifact.find([tmp_path / "none"])


def test_a_loaded_artifact_answers_as_its_golden_file_says(repository: Path) -> None:
    held = artifact.read(repository / "digits-onnx-fp32")
    inputs, outputs = held.golden()
    with held.load() as runner:
        found = runner.run(inputs)["logits"]
    assert np.allclose(found, outputs["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("new", "kept"), [((1, 8, 20), True), ((1, 8, 9), False), ((3, 8, 10), False)])
def test_a_new_version_takes_all_that_clients_may_send_to_the_old_one(
    tmp_path: Path, new: tuple[int, int, int], kept: bool
) -> None:
    def with_seq(least: int, usual: int, most: int) -> Signature:
        x = Tensor(name="x", shape=("batch", "seq"))
        dims = {"batch": Dim(opt=2, max=4), "seq": Dim(min=least, opt=usual, max=most)}
        return Signature(inputs=(x,), outputs=SIGNATURE.outputs, dims=dims)

    publish(tmp_path, signature=with_seq(2, 8, 10))
    if kept:
        assert artifact.check_contract(tmp_path / "small", with_seq(*new)) == 2
        return
    with pytest.raises(PenstockError, match=r"takes 'seq' from 2 to 10, and the new one from .*--dim"):
        artifact.check_contract(tmp_path / "small", with_seq(*new))


def test_an_artifact_that_did_not_pass_the_gate_is_not_loaded(tmp_path: Path) -> None:
    published = publish(tmp_path)
    receipt = json.loads((published.folder / "penstock.json").read_text())
    receipt["verification"]["passed"] = False
    (published.folder / "penstock.json").write_text(json.dumps(receipt))
    with pytest.raises(PenstockError, match="by its receipt it did not pass the gate"):
        artifact.read(published.folder).load()

"""Evidence: what an engine must answer, kept whole beside it within bounds."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import evidence
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.evidence import Place
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="file", shape=("batch", "seq")),),  # a name that numpy.savez has for itself
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(min=1, opt=2, max=5), "seq": Dim(min=1, opt=3, max=7)},
)


def drawn(rows: int, seq: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    draw = np.random.default_rng(rows).standard_normal
    return {"file": draw((rows, seq)).astype(np.float32)}, {"y": draw((rows, 2)).astype(np.float32)}


def test_what_is_read_are_the_rows_written_over_again_up_to_whole_batches(tmp_path: Path) -> None:
    inputs, outputs = drawn(12)
    place = Place("seq = 7", 4, *drawn(4, 7))
    evidence.write(tmp_path, Rows(inputs, None), outputs, 11, [place])
    found = evidence.read(tmp_path, SIGNATURE)
    assert found is not None
    assert (found.samples, len(found.rows)) == (11, 15)
    order = np.arange(15) % 11
    assert np.array_equal(found.rows.inputs["file"], inputs["file"][order])
    assert np.array_equal(found.outputs["y"], outputs["y"][order])
    (held,) = found.places
    assert (held.what, held.rows) == ("seq = 7", 4)
    assert np.array_equal(held.inputs["file"], place.inputs["file"])
    assert np.array_equal(held.outputs["y"], place.outputs["y"])


@pytest.mark.parametrize(("most", "samples", "places"), [(0, 8, 0), (12 * 20, 12, 0), (12 * 20 + 144, 12, 1)])
def test_what_there_is_no_room_for_is_left_out_but_for_eight_rows(
    most: int, samples: int, places: int, tmp_path: Path
) -> None:
    inputs, outputs = drawn(12)
    two = [Place("seq = 7", 4, *drawn(4, 7))] * 2
    evidence.write(tmp_path, Rows(inputs, None), outputs, 12, two, most)
    found = evidence.read(tmp_path, SIGNATURE)
    assert found is not None
    assert (found.samples, len(found.places)) == (samples, places)


def test_there_may_be_none(tmp_path: Path) -> None:
    assert evidence.read(tmp_path, SIGNATURE) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no zip", "cut", "renamed"])
def test_a_damaged_file_is_refused_by_its_name(damage: Any, tmp_path: Path) -> None:
    inputs, outputs = drawn(5)
    evidence.write(tmp_path, Rows(inputs, None), outputs, 5, [])
    path = tmp_path / evidence.EVIDENCE
    if damage == "renamed":
        np.savez(path, other=inputs["file"])
    else:
        path.write_bytes(path.read_bytes()[:200] if damage == "cut" else damage)
    with pytest.raises(PenstockError, match=r"evidence\.npz: cannot be read"):
        evidence.read(tmp_path, SIGNATURE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input:file": np.zeros((0, 3), np.float32)}, r"file is float32\[0, 3\]"),
        ({"output:y": np.array([["a", "b"]] * 5)}, "y is str"),
        ({"input:file": np.zeros((5, 3, 1), np.float32)}, r"file is float32\[5, 3, 1\]"),
        ({"places": np.frombuffer(b'[{"what": "x", "rows": 0}]', np.uint8)}, "rows of place 0 are 0"),
        ({"places": np.frombuffer(b"{}", np.uint8)}, "its places are no list"),
    ],
)
def test_evidence_of_another_form_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    inputs, outputs = drawn(5)
    evidence.write(tmp_path, Rows(inputs, None), outputs, 5, [Place("x", 5, inputs, outputs)])
    path = tmp_path / evidence.EVIDENCE
    with np.load(path) as held, zipfile.ZipFile(tmp_path / "new.npz", "w") as archive:
        for name in held.files:
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, change.get(name, held[name]))
    (tmp_path / "new.npz").replace(path)
    with pytest.raises(PenstockError, match=f"evidence.npz: damaged: .*{words}"):
        evidence.read(tmp_path, SIGNATURE)

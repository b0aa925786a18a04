"""Files of recipes: five kinds with the same content, and what is said of one that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.train import recipe, recipefiles, toml

DIGITS = recipefiles.read(recipefiles.locate("digits"))


def ini(content: dict[str, Any], section: str = "") -> str:
    fields = [f"{name} = {value!r}" for name, value in content.items() if not isinstance(value, dict)]
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    inner = [ini(table, f"{section}.{name}".strip(".")) for name, table in tables.items()]
    return "\n".join([f"[{section}]" if section else "", *fields, *inner])


def as_yaml(content: dict[str, Any]) -> str:
    return str(pytest.importorskip("yaml").safe_dump(content))


WRITERS = {
    ".toml": toml.dumps,
    ".json": json.dumps,
    ".yaml": as_yaml,
    ".yml": as_yaml,
    ".ini": ini,
    ".cfg": ini,
    ".py": lambda content: f"RECIPE = {content!r}",
}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", WRITERS)
def test_the_same_content_is_the_same_recipe_in_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, f"mine{ending}", WRITERS[ending](DIGITS))
    assert recipefiles.read(path) == DIGITS
    assert recipe.load(str(path)) == recipe.load("digits")


def test_five_files_written_by_hand_agree(tmp_path: Path) -> None:
    files = {
        "a.toml": 'name = "a"\nclip = 0.5\n[optim]\nlr = 3e-4\nfreeze = ["stem.*"]\n[model.kwargs]\nflag = true\n',
        "a.json": '{"name": "a", "clip": 0.5, "optim": {"lr": 3e-4, "freeze": ["stem.*"]},'
        ' "model": {"kwargs": {"flag": true}}}',
        "a.yaml": "name: a\nclip: 0.5\noptim: {lr: 3e-4, freeze: ['stem.*']}\nmodel:\n  kwargs: {flag: true}\n",
        "a.ini": "name = a   ; of the model\nclip = 0.5\n[optim]\n# the peak\nlr = 3e-4  # small\n"
        "freeze =\n  ['stem.*']\n[model.kwargs]\nflag = true\n",
        "a.py": "PEAK = 3e-4\ndef recipe():\n    kwargs = {'flag': True}\n"
        "    return {'name': 'a', 'clip': 0.5, 'model': {'kwargs': kwargs},\n"
        "            'optim': {'lr': PEAK, 'freeze': ('stem.*',)}}\n",
    }
    found = [recipefiles.read(written(tmp_path, name, text)) for name, text in files.items()]
    assert found[0] == {
        "name": "a",
        "clip": 0.5,
        "optim": {"lr": 3e-4, "freeze": ["stem.*"]},
        "model": {"kwargs": {"flag": True}},
    }
    assert all(other == found[0] for other in found[1:])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.toml", "a = 1\nb = = 2\n", "cannot be read as TOML: Invalid value (at line 2, column 5)"),
        ("x.toml", "a = 2020-01-01\n", "cannot be read as TOML: a is datetime.date(2020, 1, 1), a date; it must be"),
        ("x.json", '{\n"a": 1,\n}', "cannot be read as JSON: line "),
        ("x.json", '{"a": {"b": 1, "b": 2}}', "cannot be read as JSON: 'b' is there twice"),
        ("x.json", "[1]", "cannot be read as JSON: it must hold fields by name, and is a list"),
        ("x.json", "[" * 100_000, "cannot be read as JSON: it is nested too deeply"),
        ("x.toml", "a." * 50_000 + "a = 1", "cannot be read as TOML: a name has more than 64 parts"),
        ("x.toml", '[a."b.c".' + "'='." * 50_000 + "a]", "cannot be read as TOML: a name has more than 64 parts"),
        (
            "x.json",
            '{"' + "a." * 50_000 + '": 1}',
            "cannot be read as JSON: a name begins with 'a.a.a.a.",
        ),
        ("x.yaml", "a: 1\nb: [1,\n", "cannot be read as YAML: line 3: "),
        ("x.yaml", "a: 1\nb: 2\na: 3\n", "cannot be read as YAML: line 3: 'a' is there twice"),
        ("x.yaml", "a: !!python/name:os.system\n", "cannot be read as YAML: line 1: could not determine a constructor"),
        ("x.yaml", "a: 2020-01-32\n", "cannot be read as YAML: day"),
        ("x.yaml", "1: a\n", "cannot be read as YAML: 1 is named by a int; names are text"),
        ("x.yaml", "a: &a [*a]\n", "cannot be read as YAML: it "),
        ("x.yaml", "", "cannot be read as YAML: it must hold fields by name, and is a NoneType"),
        ("x.ini", "a = 1\n[b]\nc = 1\nwhat\n", "cannot be read as INI: line 4: it is neither a [section] nor a field"),
        ("x.ini", "[b]\nc = 1\nc = 2\n", "cannot be read as INI: line 3: 'c' is there twice in [b]"),
        ("x.ini", "[recipe]\na = 1\n[b]\n[b]\n", "cannot be read as INI: line 4: [b] is there twice"),
        ("x.ini", "b = 1\n[b]\nc = 1\n", "cannot be read as INI: 'b' is a field, and a section: [b]"),
        ("x.ini", "[b.c]\nd = 1\n[b]\nc = 1\n", "cannot be read as INI: 'c' is a field of [b], and a section"),
        ("x.py", "a = 1\nRECIPE = {\n", "cannot be read as Python: line 2: '{' was never closed"),
        ("x.py", "a = 1\n\nRECIPE = {'lr': 1 / 0}\n", "cannot be read as Python: line 3: ZeroDivisionError: division"),
        ("x.py", "def recipe():\n    raise KeyError('lr')\n", "cannot be read as Python: line 2: KeyError: 'lr'"),
        ("x.py", "import sys\nsys.exit(3)\n", "cannot be read as Python: line 2: SystemExit: 3"),
        ("x.py", "a = 1\n", "cannot be read as Python: it must set RECIPE = {…} or have a function recipe(), none"),
        ("x.py", "RECIPE = {}\ndef recipe(): ...\n", "cannot be read as Python: it must set RECIPE = {…} or have a"),
        (
            "x.py",
            "RECIPE = {'a': {'b': object}}\n",
            "cannot be read as Python: a.b is <class 'object'>, a type; it must",
        ),
        ("x.txt", "a = 1\n", "the file's name must end in one of .toml, .json, .yaml, .yml, .ini, .cfg, .py"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_file_and_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(PenstockError) as caught:
        recipefiles.read(path)
    message = str(caught.value)
    assert message.startswith(f"recipe {path}: {said}"), message
    assert "\n" not in message


def test_a_mark_of_the_byte_order_before_the_text_is_passed_over(tmp_path: Path) -> None:
    assert recipefiles.read(written(tmp_path, "x.toml", "\ufeffa = 1\n")) == {"a": 1}


def test_yaml_s_merged_keys_may_be_set_again(tmp_path: Path) -> None:
    text = "base: &base {lr: 1.0, clip: 2.0}\noptim:\n  <<: *base\n  lr: 3.0\n"
    assert recipefiles.read(written(tmp_path, "x.yaml", text))["optim"] == {"lr": 3.0, "clip": 2.0}


def test_names_in_ini_keep_their_capitals_and_percent_signs_mean_nothing(tmp_path: Path) -> None:
    text = '[DEFAULT]\na = 1\n[Model]\nBias = 50%\nquoted = "a # b"\n'
    found = recipefiles.read(written(tmp_path, "x.ini", text))
    assert found == {"DEFAULT": {"a": 1}, "Model": {"Bias": "50%", "quoted": "a # b"}}


def test_a_python_file_has_the_files_beside_it_and_leaves_no_module(tmp_path: Path) -> None:
    written(tmp_path, "penstock_test_peaks.py", "PEAK = 0.5\n")
    path = written(
        tmp_path,
        "mine.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom pathlib import Path\n"
        "from penstock_test_peaks import PEAK\n@dataclass\nclass Size:\n    side: int\n"
        "RECIPE = {'lr': PEAK, 'side': Size(3).side, 'path': Path('photos'), 'here': Path(__file__).name}\n",
    )
    assert recipefiles.read(path) == {"lr": 0.5, "side": 3, "path": "photos", "here": "mine.py"}


def test_every_shipped_recipe_says_in_its_first_line_what_it_is_for() -> None:
    found = recipefiles.shipped()
    assert {"digits", "fashion-mnist", "image-folder", "csv-text", "csv-table", "regression"} <= found.keys()
    assert all(len(line) > 20 and not line.startswith("#") for line in found.values())


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=4))
def test_what_is_written_as_toml_is_read_back_the_same(content: dict[str, Any]) -> None:
    assert toml.loads(toml.dumps(content)) == content


def test_toml_has_no_null_so_what_is_not_set_is_a_comment() -> None:
    assert toml.dumps({"a": None, "b": {"c": None, "d": 1e-5}}) == "# a is not set\n\n[b]\n# c is not set\nd = 1e-05\n"
    with pytest.raises(PenstockError, match="None is a NoneType, which TOML cannot hold"):
        toml.dumps({"a": [None]})


@pytest.mark.parametrize("name", ["big.toml", "big.yaml", "big.json"])
def test_a_file_too_large_for_a_recipe_is_not_read(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PenstockError, match=r"cannot be read as [A-Z]+: it has more than the 1,048,576 bytes"):
        recipefiles.read(tmp_path / name)

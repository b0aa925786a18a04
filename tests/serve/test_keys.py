"""Files of API keys: what is kept of a key, and files that break a rule."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.serve import keys, rights

DIGEST = "0123456789abcdef" * 4


def entry(**other: Any) -> dict[str, Any]:
    return {"name": "alice", "sha256": DIGEST, "rights": ["infer"], **other}


def content(*entries: Any, **other: Any) -> dict[str, Any]:
    return {"version": 1, "keys": list(entries), **other}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def added(file: Path, name: str = "alice", *asked: str) -> str:
    return keys.add(file, keys.make(name, asked or ("infer",), None, None, None))


def test_a_key_is_random_and_only_its_hash_is_kept_in_a_file_for_its_owner_alone(file: Path) -> None:
    first, second = added(file), added(file, "bob")
    assert first != second
    assert len(first) == len(keys.PREFIX) + 43  # 32 bytes, six bits to a letter
    text = file.read_text()
    assert first not in text
    assert first.removeprefix(keys.PREFIX) not in text
    assert [key.sha256 for key in keys.read(file)] == [keys.digest(first.encode()), keys.digest(second.encode())]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_said_of_a_key_reads_back(file: Path) -> None:
    made = keys.make("ops-1", ("metrics", "infer"), 2.5, 10, "2100-12-31")
    keys.add(file, made)
    (found,) = keys.read(file)
    assert (found.name, found.rights, found.rate, found.burst) == ("ops-1", ("infer", "metrics"), 2.5, 10)
    assert found.expires == datetime(2101, 1, 1, tzinfo=timezone.utc)
    assert found.created == made.created


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2100-12-31", "through 2100-12-31 (UTC)"),
        ("2100-12-31T12:00:30", "until 2100-12-31 12:00:30+00:00"),
        ("2100-12-31T00:00:00+02:00", "until 2100-12-31 00:00:00+02:00"),
        (None, ""),
    ],
)
def test_how_long_a_key_is_valid_is_said_as_it_was_given(file: Path, given: str | None, said: str) -> None:
    keys.add(file, keys.make("a", ("infer",), None, None, given))
    assert keys.read(file)[0].valid == said


def test_a_second_of_requests_is_the_burst_where_none_is_said() -> None:
    def at_once(rate: float | None, burst: float | None) -> float:
        return keys.Key("a", DIGEST, rate=rate, burst=burst).most_at_once

    assert [at_once(*pair) for pair in ((20, None), (0.5, None), (20, 3))] == [20, 1, 3]


def test_a_hash_is_not_shown_with_its_key(file: Path) -> None:
    added(file)
    assert keys.read(file)[0].sha256 not in repr(keys.read(file))


def test_a_name_is_taken_once(file: Path) -> None:
    added(file)
    before = file.read_bytes()
    with pytest.raises(PenstockError, match=r"has a key 'alice' already; .* penstock keys remove"):
        added(file)
    assert file.read_bytes() == before


def test_a_removed_key_is_gone_and_the_others_stay(file: Path) -> None:
    added(file), added(file, "bob"), added(file, "carol")
    keys.remove(file, "bob")
    assert [key.name for key in keys.read(file)] == ["alice", "carol"]
    with pytest.raises(PenstockError, match="has no key 'bob'; it has alice, carol"):
        keys.remove(file, "bob")


def test_keys_that_are_added_at_once_are_all_kept(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: added(file, f"key{number}"), range(24)))
    assert {key.name for key in keys.read(file)} == {f"key{number}" for number in range(24)}
    assert list(file.parent.iterdir()) == [file]


def test_a_link_to_a_file_stays_one(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file)
    added(link)
    assert link.is_symlink()
    assert [key.name for key in keys.read(file)] == ["alice"]


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ([], 'must be {"version": 1, "keys": [...]}'),
        ({"version": 1}, 'must be {"version": 1, "keys": [...]}'),
        (content(version=2), "version is 2; it must be 1"),
        (content(more=1), "field 'more' is unknown; it must be version or keys"),
        (content(7), "keys[0] must be an object"),
        (content(entry(), entry(name="bob")), "key 'bob' is there twice; each name and each sha256 must be its own"),
        (content(entry(), entry(sha256="a" * 64)), "key 'alice' is there twice"),
        (content(entry(right=[])), "keys[0].right is unknown; a key has name, sha256, rights, rate"),
        (content({"name": "a", "sha256": DIGEST}), "keys[0].rights is missing"),
        (content(entry(rights=[])), "keys[0].rights is []; it must be a list of infer, repository"),
        (content(entry(rights=["all"])), "keys[0].rights is ['all']; it must be a list of infer, repository"),
        (content(entry(rights="infer")), "keys[0].rights is 'infer'; it must be a list"),
        (content(entry(rights=[["infer"]])), "keys[0].rights is [['infer']]; it must be a list"),
        (content(entry(rate=0)), "keys[0].rate is 0; it must be requests a second, a number from 0.001"),
        (content(entry(rate="5")), "keys[0].rate is '5'"),
        (content(entry(rate=True)), "keys[0].rate is True"),
        (content(entry(rate=float("nan"))), "keys[0].rate is nan"),
        (content(entry(rate=10**400)), "keys[0].rate is 1000"),
        (content(entry(burst=5)), "keys[0].burst is 5, but there is no rate"),
        (content(entry(rate=5, burst=0.5)), "keys[0].burst is 0.5; it must be requests at once"),
        (content(entry(expires="soon")), "keys[0].expires is 'soon'; it must be a date as in 2030-12-31"),
        (content(entry(expires="9999-12-31")), "keys[0].expires is '9999-12-31'"),
        (content(entry(expires=5)), "keys[0].expires is 5"),
        (content(entry(name="a b")), "keys[0].name is 'a b'; it must be 1 to 64 letters"),
        (content(entry(name="a\n")), "keys[0].name is 'a\\n'"),
        (content(entry(name="")), "keys[0].name is ''"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_by_field_value_and_rule(file: Path, held: Any, why: str) -> None:
    file.write_text(json.dumps(held))
    with pytest.raises(PenstockError) as caught:
        keys.read(file)
    assert str(caught.value).startswith(f"{file}: {why}")


@pytest.mark.parametrize(("field", "rule"), [("sha256", "64 hexadecimal"), ("name", "1 to 64 letters")])
def test_a_key_that_stands_in_another_s_place_is_not_told(file: Path, field: str, rule: str) -> None:
    secret = "penstock_" + "s" * 43
    file.write_text(json.dumps(content(entry(**{field: secret}))))
    with pytest.raises(PenstockError, match=rf"keys\[0\].{field} is not one; it must be {rule}") as caught:
        keys.read(file)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"no json", b"\xff\xfe", b"[" * 100_000, b" " * (5 * 2**20)])
def test_what_is_no_file_of_keys_is_refused_in_one_sentence(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(PenstockError) as caught:
        keys.read(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from("aé\n") | st.sampled_from(rights.EVERY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*keys._FIELDS, "other"]), JSON, max_size=7))
def test_any_entry_is_read_or_refused(held: dict[str, Any]) -> None:
    try:
        (found,) = keys._read(content({**entry(), **held}))
    except PenstockError as error:
        assert str(error).startswith("keys[0].")  # noqa: PT017
    else:
        assert set(found.rights) <= set(rights.EVERY)


@pytest.mark.parametrize(
    ("mode", "what"), [(0o600, None), (0o640, None), (0o644, "read"), (0o660, "written"), (0o602, "written")]
)
def test_a_file_that_is_open_to_others_is_told_of(file: Path, mode: int, what: str | None) -> None:
    added(file)
    file.chmod(mode)
    told = keys.open_to_others(file)
    assert told is None if what is None else told is not None and f"can be {what} by others (mode 0{mode:o})" in told


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", "keys", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    return run


def test_the_commands_print_a_key_once_and_list_none(command: Callable[..., Any], file: Path) -> None:
    made = command("add", "keys.json", "alice", "--rights", "infer,repository", "--rate", "5")
    assert made.returncode == 0
    key = made.stdout.strip()
    assert keys.read(file)[0].sha256 == keys.digest(key.encode())
    listed = command("list", "keys.json")
    assert listed.stdout.splitlines()[1].split()[:3] == ["alice", "infer,", "repository"]
    assert key not in listed.stdout + listed.stderr + made.stderr
    assert keys.digest(key.encode())[:8] not in listed.stdout
    dated = command("add", "keys.json", "bob", "--expires", "2100-12-31")
    assert dated.stderr.startswith("bob: infer, valid through 2100-12-31 (UTC); keys.json keeps")
    assert "through 2100-12-31 (UTC)" in command("list", "keys.json").stdout
    assert command("remove", "keys.json", "bob").returncode == 0
    assert command("remove", "keys.json", "alice").stdout == "alice: removed from keys.json\n"
    assert keys.read(file) == ()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("a b",), "NAME is 'a b'; it must be 1 to 64 letters"),
        (("a", "--rights", "root"), "--rights is ['root']; it must be a list of infer, repository"),
        (("a", "--rate", "-1"), "--rate is -1.0; it must be requests a second"),
        (("a", "--burst", "9"), "--burst is 9, but there is no rate; give both"),
        (("a", "--expires", "2001-01-01"), "--expires is '2001-01-01'; it must lie ahead"),
        (("a", "--expires", "May"), "--expires is 'May'; it must be a date as in 2030-12-31"),
    ],
)
def test_an_option_that_is_wrong_is_named(words: tuple[str, ...], why: str) -> None:
    options = dict(zip(words[1::2], words[2::2], strict=True))
    rate, burst = (None if text is None else float(text) for text in map(options.get, ("--rate", "--burst")))
    with pytest.raises(PenstockError) as caught:
        keys.make(words[0], (options.get("--rights", "infer"),), rate, burst, options.get("--expires"))
    assert str(caught.value).startswith(why)

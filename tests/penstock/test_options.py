"""Options: texts of the command line, understood or refused with the option, the value and the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import options
from penstock.errors import PenstockError
from penstock.signature import Dim, Range

sizes = st.integers(1, 999_999)


@given(st.lists(st.sampled_from(["onnx", "trt", "torchscript"]), min_size=1), st.sampled_from([",", ", ", " ,", ",,"]))
def test_a_list_is_its_parts_in_order_each_once(parts: list[str], comma: str) -> None:
    assert options.commas(comma.join(parts), "--format") == tuple(dict.fromkeys(parts))


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_an_empty_list_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"--format '.*': must name at least one"):
        options.commas(text, "--format")


@given(st.tuples(sizes, sizes, sizes).map(sorted))
def test_three_sizes_in_order_are_a_range(found: list[int]) -> None:
    low, usual, high = found
    assert options.size_range(f"{low},{usual},{high}", "--batch") == Dim(min=low, opt=usual, max=high)


@given(sizes)
def test_one_size_is_the_largest_of_a_range_from_1(size: int) -> None:
    assert options.size_range(str(size), "--batch") == Dim(min=1, opt=min(8, size), max=size)


@given(st.text())
def test_any_text_is_a_range_or_refused_in_one_sentence(text: str) -> None:
    try:
        found = options.size_range(text, "--batch")
    except PenstockError:
        return
    assert 1 <= found.min <= found.opt <= found.max


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "eight", "1000000", "٣", "", "9" * 5000])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match=r"--batch .*: must be a whole number from 1 to 999999"):
        options.positive(text, "--batch")


def test_precisions_come_from_the_long_form_or_one_short_one() -> None:
    assert options.precisions(None, fp16=False, int8=False) == ("fp32",)
    assert options.precisions("fp32,int8", fp16=False, int8=False) == ("fp32", "int8")
    assert options.precisions(None, fp16=True, int8=False) == ("fp16",)
    assert options.precisions(None, fp16=False, int8=True) == ("int8",)
    assert options.precisions(None, fp16=True, int8=True) == ("int8-fp16",)  # one variant of both
    assert options.precisions(None, best=True) == ("int8-fp16",)
    for long, short in (("fp16", {"fp16": True}), (None, {"fp16": True, "fp8": True})):
        with pytest.raises(PenstockError, match="--fp16"):
            options.precisions(long, **short)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.tuples(sizes, sizes, sizes).map(sorted)))
def test_ranges_of_sizes_are_read_by_the_dimensions_name(ranges: dict[str, list[int]]) -> None:
    found = options.size_ranges([f"{name}={low},{usual},{high}" for name, (low, usual, high) in ranges.items()])
    assert found == {name: Dim(min=low, opt=usual, max=high) for name, (low, usual, high) in ranges.items()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq", "--dim 'seq': must read NAME=…, as in seq=1,128,512"),
        ("seq=", "--dim seq '': must be a whole number from 1 to 999999"),
        ("seq=1,2", "--dim seq '1,2': must be MAX, or MIN,OPT,MAX, as in 1,8,64"),
        ("seq=3,2,1", "--dim seq '3,2,1': a range must have 1 <= min <= opt <= max, not 3,2,1"),
    ],
)
def test_a_range_of_sizes_of_another_form_is_refused(text: str, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        options.size_ranges([text])
    assert str(caught.value) == said


floats = st.floats(allow_nan=False, allow_infinity=False)
words = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda word: word not in ("nan", "inf"))


@given(words, floats | words, floats | words)
def test_a_range_of_values_is_two_numbers_or_dimensions(name: str, low: float | str, high: float | str) -> None:
    text = f"{name}={low},{high}"
    if isinstance(low, float) and isinstance(high, float) and low > high:
        with pytest.raises(PenstockError, match=r"--range .*: a range of values must have low <= high"):
            options.value_ranges([text])
    else:
        assert options.value_ranges([text]) == {name: Range(low=low, high=high)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ids", "--range 'ids': must read NAME=…, as in ids=0,30521"),
        ("ids=5", "--range ids=5: must read NAME=LOW,HIGH, as in ids=0,30521"),
        ("ids=1,2,3", "--range ids=1,2,3: must read NAME=LOW,HIGH"),
        ("ids=,2", "--range ids=,2: "),
        ("ids=0,nan", "--range ids=0,nan: high"),
        ("ids=-inf,0", "--range ids=-inf,0: low"),
        ("ids=0,a b", "--range ids=0,a b: "),
        ("ids=3,1", "--range ids=3,1: a range of values must have low <= high, not 3,1"),
    ],
)
def test_a_range_of_values_of_another_form_is_refused(text: str, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        options.value_ranges([text])
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_of_a_name_given_twice_the_last_range_counts() -> None:
    assert options.value_ranges(["a=0,1", "a=0,2"]) == {"a": Range(low=0, high=2)}
    assert options.size_ranges(["a=1", "a=2"]) == {"a": Dim(opt=2, max=2)}


@pytest.mark.parametrize(
    ("script", "trace", "road"),
    [
        (None, False, "auto"),
        (None, True, "trace"),
        ("script", False, "script"),
        ("auto", False, "auto"),
        ("trace", False, "trace"),
    ],
)
def test_the_road_to_torchscript_is_told_by_two_options(script: str | None, trace: bool, road: str) -> None:
    assert options.road(script, trace) == road


def test_two_roads_or_an_unknown_one_are_refused() -> None:
    for script in ("script", "auto"):
        with pytest.raises(PenstockError, match="--trace and --script: give one or the other"):
            options.road(script, True)
    with pytest.raises(PenstockError, match=r"--script 'ckpt\.pth': must be --script, or --script auto"):
        options.road("ckpt.pth", False)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("export --script a.pth", "export --script=script a.pth"),
        ("export a.pth --script", "export a.pth --script=script"),
        ("export --script --fp16 a.pth", "export --script=script --fp16 a.pth"),
        ("export --script auto a.pth", "export --script auto a.pth"),
        ("export --script trace a.pth", "export --script trace a.pth"),
        ("export --script=auto a.pth", "export --script=auto a.pth"),
        ("export a.pth", "export a.pth"),
        ("", ""),
    ],
)
def test_a_bare_script_takes_no_file_for_its_value(typed: str, meant: str) -> None:
    words = typed.split()
    assert options.spelled_out(words) == meant.split()
    assert words == typed.split()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["batch=1,1,1;batch=2,2,2"], "names batch twice"),
        (["batch=1,1,1", "batch=1"], "is given twice"),
        ([""], "must read NAME="),
        ([";"], "must read NAME="),
    ],
)
def test_profiles_that_say_a_thing_twice_or_nothing_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(PenstockError, match=words):
        options.profiles(texts)


def test_a_profile_may_end_with_its_separator() -> None:
    assert options.profiles(["batch=1,2,3;"]) == options.profiles(["batch=1,2,3"])


def test_devices_are_read_one_by_one() -> None:
    assert options.devices("cpu") == ("cpu",)
    assert options.devices("cuda:0, cuda:1") == ("cuda:0", "cuda:1")


@pytest.mark.parametrize("text", ["", "gpu", "cuda:0,", "cuda:0,cuda:0", "cuda:-1"])
def test_what_is_no_device_or_named_twice_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(PenstockError, match="--device"):
        options.devices(text)


def test_uint8_among_the_inputs_asks_for_pictures_as_they_are() -> None:
    assert options.inputs(["x:float32[batch,3]", " uint8 "]) == (("x:float32[batch,3]",), True)
    assert options.inputs(["uint8:uint8[batch,3]"]) == (("uint8:uint8[batch,3]",), False)

"""Requests: the words that a receipt keeps ask the command line for the same export again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock import cli, options, origin
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.export.request import Request
from penstock.receipt import Source
from penstock.signature import Dim, Range
from penstock.state import Choice


def asked(words: list[str]) -> Request:
    """What the command line makes of these words."""
    seen: list[Request] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "export", lambda request, say, stage: seen.append(request))
        done = CliRunner().invoke(cli.app, options.spelled_out(["export", *words]), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


def round_trip(request: Request, format: str) -> Request:
    """The request that its words make, after a way through a shell's quotes."""
    line = shlex.join(["--format", format, *request.words(format), str(request.checkpoint)])
    return asked(shlex.split(line))


names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
texts = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=("Cs",)), min_size=1, max_size=9
)
plain = st.one_of(st.integers(-9, 9), st.booleans(), st.none(), st.floats(-4, 4), texts, st.lists(st.integers(0, 9)))
dims = st.lists(st.integers(1, 999), min_size=3, max_size=3).map(
    lambda held: Dim(**dict(zip(("min", "opt", "max"), sorted(held), strict=True)))
)
bounds = st.one_of(st.integers(-(2**31), 2**31).map(float), st.floats(-1e6, 1e6))
numbers = st.tuples(bounds, bounds).map(lambda ends: Range(low=min(ends), high=max(ends)))
ranges = st.one_of(numbers, st.sampled_from([Range(low=1, high="seq"), Range(low="seq", high="seq")]))
some = st.lists(st.from_regex(r"[a-z0-9.*]{1,8}", fullmatch=True), max_size=2).map(tuple)
choices = st.builds(
    Choice,
    ema=st.sampled_from([None, True, False]),
    key=st.none() | names,
    prefix=st.none() | names.map(lambda name: f"{name}."),
    partial=some,
)
overrides = st.builds(
    Override,
    model=st.none() | texts.filter(lambda text: not text.startswith("-")).map(lambda text: f"./{text}.py:Net"),
    model_args=st.dictionaries(names, plain, max_size=3),
    inputs=st.lists(names.map(lambda name: f"{name}:float32[batch,3]"), max_size=2).map(tuple),
    dims=st.dictionaries(names, dims, max_size=2),
    batch=st.none() | dims,
    ranges=st.dictionaries(names, ranges, max_size=2),
    keep=some,
    choice=choices,
    allow_pickle=st.booleans(),
)
requests = st.builds(
    Request,
    checkpoint=st.just(Path("a b.pth")),
    name=st.none() | names,
    override=overrides,
    pixels=st.booleans(),
    fuse=st.booleans(),
    road=st.sampled_from(["auto", "trace", "script"]),
    opset=st.none() | st.integers(13, 23),
    data=st.none() | names.map(lambda name: Path(f"{name}.npz")),
    labels=st.none() | st.lists(names, min_size=1, max_size=3).map(",".join),
    max_error=st.none() | st.floats(0, 1),
    min_agreement=st.none() | st.floats(0, 1),
)


@settings(deadline=None, max_examples=60)
@given(requests)
def test_the_words_of_a_torchscript_request_make_that_request_again(request: Request) -> None:
    again = round_trip(request, "torchscript")
    assert again == Request(**{**request.__dict__, "formats": ("torchscript",), "opset": None})


@settings(deadline=None, max_examples=30)
@given(requests)
def test_the_words_of_an_onnx_request_make_that_request_again(request: Request) -> None:
    again = round_trip(request, "onnx")
    assert again == Request(**{**request.__dict__, "formats": ("onnx",), "road": "auto"})


def test_a_request_of_nothing_in_particular_needs_no_words() -> None:
    request = Request(Path("net.pth"))
    for format in ("onnx", "torchscript", "pt2", "trt"):
        assert request.words(format) == ()


def test_words_are_those_of_the_format_alone() -> None:
    request = Request(Path("net.pth"), formats=("onnx", "torchscript", "pt2", "trt"), road="trace", opset=17)
    assert request.words("onnx") == request.words("trt") == ("--opset", "17")
    assert request.words("torchscript") == ("--script=trace",)
    assert request.words("pt2") == ()


def test_a_request_is_one_variant_for_each_format_and_precision() -> None:
    request = Request(Path("net.pth"), formats=("onnx", "trt"), precisions=("fp32", "int8"))
    assert request.variants == [("onnx", "fp32"), ("onnx", "int8"), ("trt", "fp32"), ("trt", "int8")]
    assert request.variant_name("net", "onnx", "int8") == "net-onnx-int8"
    assert Request(Path("net.pth"), name="mine").variant_name("net", "pt2", "fp32") == "mine-pt2-fp32"


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "two words", "x" * 129, "naïve", "-dash"])
def test_a_name_that_is_no_folder_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        Request(Path("net.pth"), name=name).variant_name("net", "onnx", "fp32")
    assert f"--name {name!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "road"),
    [
        ([], "auto"),
        (["--script"], "script"),
        (["--script", "auto"], "auto"),
        (["--script=auto"], "auto"),
        (["--script", "trace"], "trace"),
        (["--trace"], "trace"),
    ],
)
def test_the_road_to_torchscript_is_what_the_words_say(words: list[str], road: str) -> None:
    request = asked([*words, "net.pth"])
    assert (request.road, request.checkpoint) == (road, Path("net.pth"))


def test_the_budget_and_the_calibration_are_what_the_words_say() -> None:
    request = asked(["--int8", "--accuracy-drop", "0.5", "--calibration", "percentile=99.9", "net.pth"])
    assert (request.precisions, request.accuracy_drop, request.calibration) == (("int8",), 0.5, "percentile=99.9")
    assert round_trip(request, "onnx").accuracy_drop == 0.5
    assert round_trip(request, "onnx").calibration == "percentile=99.9"


def test_a_word_that_begins_with_a_dash_is_no_option_on_the_way_back() -> None:
    """As the arguments of a model may: `act=-1` stands behind its name, a key or prefix by itself."""
    request = Request(Path("net.pth"), override=Override(model_args={"shift": -1}, choice=Choice(prefix="-net.")))
    assert round_trip(request, "onnx").override == request.override


def test_random_is_no_file_and_a_file_of_that_name_has_another_spelling() -> None:
    drawn, folder = (asked(["--int8", "--data", word, "net.pth"]) for word in ("random", "./random"))
    assert (drawn.data, drawn.random_data) == (None, True)
    assert (folder.data, folder.random_data) == (Path("random"), False)
    assert drawn.words("onnx")[-2:] == ("--data", "random")
    assert folder.words("onnx")[-2:] == ("--data", "./random")
    for request in (drawn, folder):
        again = round_trip(request, "onnx")
        assert (again.data, again.random_data) == (request.data, request.random_data)


@pytest.mark.parametrize("word", ["random.npz", "data/random", "/random", "random/x"])
def test_paths_with_random_in_them_are_paths_as_they_are_spelt(word: str) -> None:
    request = asked(["--int8", "--data", word, "net.pth"])
    assert (request.data, request.random_data) == (Path(word), False)
    assert request.words("onnx")[-2:] == ("--data", word)


def test_pictures_as_they_are_are_among_the_words_and_no_input_of_the_checkpoints() -> None:
    request = Request(Path("ckpt.pth"), override=Override(inputs=("x:float32[batch,3]",)), pixels=True)
    assert request.words("onnx") == ("--input", "x:float32[batch,3]", "--input", "uint8")
    source = Source(
        checkpoint="ckpt.pth", sha256="", architecture="", options=request.words("onnx"), loaded=0, expected=0
    )
    assert origin.override(source, None, False).inputs == ("x:float32[batch,3]",)

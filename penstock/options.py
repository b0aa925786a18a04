"""Options: what the command line's texts mean, or one sentence on why they mean nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock import runtimes
from penstock.errors import PenstockError
from penstock.signature import Dim, Range, first_message

EVERY_PRECISION = ("fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16", "fp8")
ROADS = ("auto", "trace", "script")
# Threads, or callers, of one process: more than any machine has cores, and none takes minutes to begin.
MOST_AT_ONCE = 1024
# The word of --input that asks for pictures as they are.
UINT8 = "uint8"


def commas(text: str, option: str) -> tuple[str, ...]:
    """The parts of a list with commas, each once."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise PenstockError(f"{option} {text!r}: must name at least one")
    return parts


def precisions(precision: str | None, **short_forms: bool) -> tuple[str, ...]:
    """What --precision and its short forms (`fp16=True`) ask for together."""
    short = [name for name, asked in short_forms.items() if asked]
    if precision is not None and short:
        raise PenstockError(f"--precision {precision} and --{short[0]}: give one or the other")
    if sorted(short) == ["fp16", "int8"] or short == ["best"]:
        return ("int8-fp16",)
    if len(short) > 1:
        both = ",".join("int8-fp16" if name == "best" else name for name in short)
        raise PenstockError(
            f"--{' and --'.join(short)}: one variant has one precision; give --precision {both} for each of them"
        )
    return tuple(short) or commas("fp32" if precision is None else precision, "--precision")


def inputs(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """What --input says: the tensors that it names, and whether `uint8` is among them, for pictures as they are."""
    return tuple(text for text in texts if text.strip() != UINT8), any(text.strip() == UINT8 for text in texts)


def size_range(text: str, option: str) -> Dim:
    """`64` or `1,8,64` as the range of a dimension; the first stands for from 1 to it."""
    sizes = [positive(part.strip(), option) for part in text.split(",")]
    if len(sizes) not in (1, 3):
        raise PenstockError(f"{option} {text!r}: must be MAX, or MIN,OPT,MAX, as in 1,8,64")
    low, usual, high = sizes if len(sizes) == 3 else (1, min(8, sizes[0]), sizes[0])
    try:
        return Dim(min=low, opt=usual, max=high)
    except ValueError as error:
        raise PenstockError(f"{option} {text!r}: {first_message(error)}") from None


def size_ranges(texts: Sequence[str]) -> dict[str, Dim]:
    """`seq=1,128,512` as the range of the dimension `seq`, for each."""
    return {name: size_range(sizes, f"--dim {name}") for name, sizes in _pairs(texts, "--dim", "seq=1,128,512")}


def profiles(texts: Sequence[str]) -> tuple[dict[str, Dim], ...]:
    """`batch=1,1,1;seq=1,32,64` as the ranges of an engine's profile, for each."""
    found: list[dict[str, Dim]] = []
    for text in texts:
        ranges: dict[str, Dim] = {}
        if not text.strip().strip(";"):
            raise PenstockError(f"--profile {text!r}: must read NAME=…, as in batch=1,1,1")
        for name, sizes in _pairs(text.strip().strip(";").split(";"), "--profile", "batch=1,1,1;seq=1,32,64"):
            if name in ranges:
                raise PenstockError(
                    f"--profile {text!r}: names {name} twice; a profile of its own takes another --profile"
                )
            ranges[name] = size_range(sizes, f"--profile {name}")
        if ranges in found:
            raise PenstockError(f"--profile {text!r}: is given twice")
        found.append(ranges)
    return tuple(found)


def value_ranges(texts: Sequence[str]) -> dict[str, Range]:
    """`ids=0,30521` as the values of the input `ids`, for each; a bound may be the name of a dimension."""
    found = {}
    for name, ends in _pairs(texts, "--range", "ids=0,30521"):
        bounds = [end.strip() for end in ends.split(",")]
        if len(bounds) != 2:
            raise PenstockError(f"--range {name}={ends}: must read NAME=LOW,HIGH, as in ids=0,30521")
        try:
            found[name] = Range(low=_bound(bounds[0]), high=_bound(bounds[1]))
        except ValueError as error:
            raise PenstockError(f"--range {name}={ends}: {first_message(error)}") from None
    return found


def _bound(text: str) -> float | str:
    return text if text.isidentifier() and text not in ("nan", "inf", "infinity") else float(text)


def _pairs(texts: Sequence[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals:
            raise PenstockError(f"{option} {text!r}: must read NAME=…, as in {example}")
        yield name.strip(), rest


def road(script: str | None, trace: bool) -> str:
    """What --script and --trace ask for together."""
    if script is not None and script not in ROADS:
        raise PenstockError(f"--script {script!r}: must be --script, or --script auto")
    if trace and script is not None:
        raise PenstockError("--trace and --script: give one or the other")
    return "trace" if trace else script or "auto"


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """The command line's words with a bare `--script` given its value: the word after it may be a file."""
    words = list(arguments)
    for place, word in enumerate(words):
        if word == "--script" and words[place + 1 : place + 2] not in ([road] for road in ROADS):
            words[place] = "--script=script"
    return words


def positive(text: str, option: str, most: int = 999_999) -> int:
    """A whole number from 1 to `most`, which has six digits at most."""
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= most:
        raise PenstockError(f"{option} {text[:20]!r}: must be a whole number from 1 to {most}")
    return int(text)


def devices(text: str) -> tuple[str, ...]:
    """Read `cuda:0,cuda:1`.

    Raises:
        PenstockError: one is no device, or is named twice.
    """
    found = tuple(part.strip() for part in text.split(","))
    for device in found:
        runtimes.check_device(device)
        if found.count(device) > 1:
            raise PenstockError(f"--device {text[:40]!r}: {device} is named twice; --instances gives it more to do")
    return found


def grpc_port(given: int | None, port: int) -> int | None:
    """gRPC's port beside HTTP's; None is none."""
    if given is None:
        return port + 1 if 0 < port < 65535 else 0
    return None if given < 0 else given

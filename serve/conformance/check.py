"""A check, and what checks share: what they expect of an answer, and when they do not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.serve.conformance.target import NUMPY, Answer, Failed, Skipped, Target

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls, Reply

Try = Callable[[Target], None]
# What says that a request is at fault: Triton's statuses for its error classes, and HTTP's own for bodies.
FAULTS = (400, 404, 413, 415, 422, 501)


@dataclass(frozen=True)
class Check:
    """One rule, in the group of the extension that it is of."""

    group: str
    rule: str
    run: Try


def expect(held: bool, what: str) -> None:
    if not held:
        raise Failed(what)


def ok(answer: Answer) -> Answer:
    """The answer, which must be a 200."""
    expect(answer.status == 200, f"answers {answer.status}: {answer.body[:160]!r}")
    return answer


def within(answer: Answer, least: int = 200, most: int = 200) -> None:
    expect(least <= answer.status <= most, f"answers {answer.status}: {answer.body[:160]!r}")


def refused(answer: Answer, statuses: tuple[int, ...] = FAULTS) -> None:
    """See that an answer is the client's fault, with an error of one sentence and nothing else."""
    expect(answer.status in statuses, f"answers {answer.status}: {answer.body[:160]!r}")
    content = answer.json
    expect(isinstance(content, dict) and list(content) == ["error"], f"the body is {answer.body[:160]!r}")
    expect(isinstance(content["error"], str) and content["error"] != "", "the error says nothing")


def listed(t: Target, extension: str) -> bool:
    return any(held.partition("(")[0] == extension for held in t.extensions)


def needs(extension: str, run: Try) -> Try:
    """The same, skipped where the server does not list an extension."""

    def tried(t: Target) -> None:
        if not listed(t, extension):
            raise Skipped(f"the server does not list the extension {extension}")
        run(t)

    return tried


def first(t: Target) -> dict[str, Any]:
    """The answer to the request that the model takes, in JSON."""
    return dict(ok(t.infer(t.request())).json)


def values(content: dict[str, Any]) -> dict[str, Any]:
    """The outputs of an answer in JSON, as arrays by name."""
    return {
        entry["name"]: np.array(entry["data"], NUMPY.get(entry["datatype"])).reshape(entry["shape"])
        for entry in content["outputs"]
    }


def same(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """See that arrays are those that another road gave, to the rounding of one run."""
    expect(sorted(found) == sorted(wanted), f"{what}: it has outputs {sorted(found)}, not {sorted(wanted)}")
    for name, array in wanted.items():
        expect(found[name].shape == array.shape, f"{what}: {name} has shape {found[name].shape}, not {array.shape}")
        close = array.dtype.kind != "f" or np.allclose(found[name], array, rtol=1e-3, atol=1e-5, equal_nan=True)
        expect(bool(close and (array.dtype.kind == "f" or (found[name] == array).all())), f"{what}: {name} differs")


def called(run: Callable[[Target, Calls], None]) -> Try:
    """A check over gRPC, skipped where the target has none."""

    def tried(t: Target) -> None:
        if t.calls is None:
            raise Skipped(t.no_calls)
        run(t, t.calls)

    return tried


def answered(reply: Reply) -> Any:
    """The message that came, of a call that must succeed."""
    expect(reply.code == "OK", f"ends in {reply.code}: {reply.details[:160]}")
    return reply.message


def ends(reply: Reply, *codes: str) -> None:
    """See that a call ends in one of these codes, and says why."""
    expect(reply.code in codes, f"ends in {reply.code}, not {' or '.join(codes)}: {reply.details[:160]}")
    expect(reply.code == "OK" or reply.details != "", f"ends in {reply.code} and does not say why")


def offered(reply: Reply, what: str) -> Reply:
    """The reply, skipping the check where the server has no such method."""
    if reply.code == "UNIMPLEMENTED":
        raise Skipped(f"the server has no {what}")
    return reply

"""The rehearsal: each payload asked alone before the first run, for the answer that is due to it."""

from __future__ import annotations

import math

from penstock.bench import sources, target
from penstock.bench.answers import Checker, Expected
from penstock.bench.httpanswers import Answer
from penstock.bench.pacing import TooSlow
from penstock.bench.payloads import GRPC, JSON, Payload
from penstock.bench.sources import Payloads, Wanted
from penstock.bench.target import Gone, Target
from penstock.errors import PenstockError

# How far an answer may be from the one that the payload had alone: a batch changes the last bits, of fp16 more of them.
TOLERANCE = 0.01
# So many payloads are asked twice, to see whether answers are alike from call to call.
_AGAIN = 4


def held(
    found: Target, wanted: Wanted, tolerance: float | None = None
) -> tuple[Payloads, list[Expected], list[str], float]:
    """Payloads, the answers that are due, notes, and how far floats may be from them: infinite where none is compared.

    Args:
        found: the server and its model.
        wanted: what is to be sent.
        tolerance: the relative L2 error that is right; None is what the artifact's receipt says, or else TOLERANCE.

    Raises:
        PenstockError: there is nothing to send, or the server refuses it.
    """
    made, notes = sources.prepare(found, wanted), list[str]()
    try:
        first = _alone(found, made.requests[0])
    except (Gone, TooSlow):
        raise
    except PenstockError:
        if made.form != "v2-binary" or wanted.form is not None:
            raise
        made = sources.prepare(found, _in_json(wanted))
        first = _alone(found, made.requests[0])
        notes.append("the server refuses the binary extension, though its /v2 names it: asked in JSON")
    grpc = made.form == GRPC
    asked = [first, *(_alone(found, payload) for payload in made.requests[1:])]
    due = [Expected.of(answer, grpc=grpc) for answer in asked]
    if tolerance is None:
        tolerance = TOLERANCE if made.tolerance is None else made.tolerance
    again, first_time = made.requests[:_AGAIN], Checker(due, tolerance)  # one may be alike by chance
    shared = _shared(found, due)
    alike = shared is None and all(
        first_time.right(place, _alone(found, payload)) for place, payload in enumerate(again)
    )
    if found.pacing.waited_s:
        notes.append(
            f"the requests before the first run had to wait for {found.pacing.waited_s:.0f} s in all, since the key is "
            f"over its rate: runs ask without waiting, and what is refused is a failure"
        )
    if not alike:
        unlike = "answers to the same payload differ from call to call: they are not compared, only counted"
        notes.append(shared or unlike)
        return made, due, notes, math.inf
    if made.expected is not None:
        checker = Checker(made.expected, tolerance)
        for place, answer in enumerate(asked):
            if not checker.right(place, answer):
                raise PenstockError(
                    f"{found.url}: {found.model} does not answer the artifact's golden inputs as its source did: "
                    f"{checker.example}; is it that artifact which is served?"
                )
        due = made.expected
    notes.append(_rule(made, tolerance))
    return made, due, notes, tolerance


def _shared(found: Target, due: list[Expected]) -> str | None:
    """That several models answer, as what one answers is not due from another; None where one does.

    Which model's turn falls on which payload is luck, so that answers which are alike from call to call say nothing.
    """
    unlike = "answers are not compared, only read; give the name of one of them to have its answers compared"
    if found.shared is not None:
        if len(found.shared) < 2:
            return None
        return f"{found.model} is a route that shares requests among {', '.join(found.shared)}: {unlike}"
    others = sorted({model for each in due if (model := each.model) not in (None, found.model)}, key=str)
    if not others:
        return None
    return (
        f"{found.model} is a route, answered by {', '.join(map(str, others))}; whether by more models is told over "
        f"HTTP, to a key with the right repository: {unlike}"
    )


def _alone(found: Target, payload: Payload) -> Answer:
    """The answer to a payload that is asked alone.

    Raises:
        PenstockError: it is answered with an error.
    """
    if payload.form == GRPC:
        return target.asked_by_call(found, payload.body)
    answer = found.ask(payload.path, payload.headers, payload.body)
    if answer.head.status != 200:
        said = answer.body[:300].decode("utf-8", "replace")
        raise PenstockError(f"{found.url}{payload.path}: a request alone is answered {answer.head.status}: {said}")
    return answer


def _in_json(wanted: Wanted) -> Wanted:
    return Wanted(JSON, wanted.data, wanted.artifact, wanted.rows, wanted.shapes)


def _rule(made: Payloads, tolerance: float) -> str:
    due = (
        "what the artifact's source answered"
        if made.expected is not None
        else "what the same payload was answered alone"
    )
    return (
        f"an answer is right if its bytes, or else its names, datatypes, shapes and whole numbers are those of {due}, "
        f"and "
        f"floats within a relative L2 error of {tolerance:g}"
    )


def wired(found: Target, made: Payloads) -> list[bytes]:
    """Requests as they go over the wire."""
    where = found.place
    if where is None:
        return [payload.body for payload in made.requests]
    host = str(where).partition("://")[2].partition("/")[0]
    return [payload.request(host, found.access.headers, where.path) for payload in made.requests]

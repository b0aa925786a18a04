"""A front end's way to its engine: whose slots are whose while the engine answers, and after it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from penstock.serve import remote
from penstock.serve.errors import RequestError
from penstock.serve.remote import EngineLink, RemoteModel
from penstock.serve.slots import Slots
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", dtype="float32", shape=("batch", 3)),),
    outputs=(Tensor(name="y", dtype="float32", shape=("batch", 5)),),
    dims={"batch": Dim(min=1, opt=4, max=8)},
)


class Transport:
    """Whatever is said goes nowhere."""

    def write(self, data: bytes) -> None:
        assert data


def test_slots_of_requests_that_an_engine_did_not_answer_are_kept_for_a_while_after_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "_LET_GO_S", 0.2)

    async def asked_and_lost() -> None:
        slots = Slots(2**20)
        link = EngineLink(slots, lambda *_: None, lambda *_: None, dict)
        link.connection_made(Transport())
        told = {"id": 1, "name": "model", "version": 1, "signature": SIGNATURE.model_dump(mode="json")}
        limits = {"receipt": None, "timeout_s": 30.0, "max_queue_rows": 64, "max_batch": 8}
        model = RemoteModel({**told, **limits}, link)
        asked: list[asyncio.Task[Any]] = [
            asyncio.create_task(model.infer({"x": np.ones((2, 3), np.float32)})) for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        assert slots.taken == 6  # each one's inputs, and the room for its answer
        link.connection_lost(None)
        for task in asked:
            with pytest.raises(RequestError, match="the engine ended over this request"):
                await task
        del asked, task
        await asyncio.sleep(0.05)
        assert slots.taken == 6  # a batch under way may still write there
        await asyncio.sleep(0.3)
        assert slots.taken == 0

    asyncio.run(asked_and_lost())

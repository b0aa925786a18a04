"""What a caller is told when the model's side fails."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from penstock.runtimes import InstanceDead
from penstock.runtimes.fake import FakeRunner
from penstock.serve.app import create_app
from penstock.serve.errors import nearest_first
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.repository import Repository
from penstock.signature import Signature


def answer_of(error: Exception, signature: Signature) -> httpx.Response:
    """What POST /predict answers when the runner raises `error` over every request."""

    class Failing(FakeRunner):
        def run(self, feeds: object) -> dict[str, object]:
            raise error

    async def ask() -> httpx.Response:
        metrics = Metrics()
        model = Model("pair", 1, signature, None, lambda: RunnerBatches(Failing(signature)), Limits(), metrics)
        transport = httpx.ASGITransport(create_app(Repository({"pair": model}), metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            inputs = {t.name: [[0] * 2] if len(t.shape) == 2 else [0] for t in signature.inputs}
            return await client.post("/predict/pair", json={"inputs": inputs})

    return asyncio.run(ask())


def test_a_runner_that_dies_over_a_request_is_a_503(pair_signature: Signature) -> None:
    answer = answer_of(InstanceDead("CUDA: cudaErrorIllegalAddress"), pair_signature)
    assert answer.status_code == 503
    assert json.loads(answer.content) == {"error": "the model's runner died over this request; it is being restarted"}


def test_a_fault_of_our_own_is_a_500_without_its_details(
    pair_signature: Signature, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = answer_of(ZeroDivisionError("secret"), pair_signature)
    assert answer.status_code == 500
    assert json.loads(answer.content) == {"error": "the server failed to answer; its log says why"}
    assert "secret" in caplog.text
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.fields for record in logged] == [{"request_id": answer.headers["x-request-id"]}]  # type: ignore[attr-defined]


def test_names_are_told_the_most_alike_first_and_not_all_of_many() -> None:
    assert nearest_first("b-2", ["a-1", "b-1", "b-22"]) == "the models are b-22, b-1, a-1"
    assert nearest_first("a", []) == "there are none yet"
    told = nearest_first("m7", [f"m{number}" for number in range(100)])
    assert told.startswith("the models are m7, ")
    assert told.endswith(" and 90 more")

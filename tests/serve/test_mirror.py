"""What a front end keeps of its engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.serve.errors import RequestError
from penstock.serve.mirror import Mirror
from penstock.serve.sharedmemory import Regions

NOTHING: dict[str, Any] = {
    **{"models": [], "mode": "none", "failures": {}, "unloaded": [], "routes": {}, "shadows": [], "regions": []},
    **{"traced": False, "logging": {}},
}


def test_before_an_engine_was_heard_no_model_is_known_and_none_is_unknown() -> None:
    mirror = Mirror(Regions())
    for ask in (mirror.repository.find, mirror.repository.look, mirror.repository.behind):
        with pytest.raises(RequestError, match="the engine is being restarted; try again soon") as caught:
            ask("any")
        assert caught.value.status == 503
    mirror.follow(SimpleNamespace(), NOTHING)  # type: ignore[arg-type] # nothing is asked of it
    with pytest.raises(RequestError, match="'any' is not served; the models are none") as caught:
        mirror.repository.find("any")
    assert caught.value.status == 404


def test_a_model_that_is_not_loaded_is_told_as_the_engine_would() -> None:
    mirror = Mirror(Regions())
    mirror.follow(SimpleNamespace(), {**NOTHING, "unloaded": ["b"]})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="'b' is not loaded; by --mode none clients may not load it"):
        mirror.repository.find("b")
    mirror.follow(SimpleNamespace(), {**NOTHING, "mode": "explicit", "unloaded": ["b"]})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="'b' is not loaded; POST /v2/repository/models/b/load loads it"):
        mirror.repository.find("b")

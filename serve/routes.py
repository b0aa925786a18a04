"""Names that stand for models: an alias for one, or several among which requests are shared by weight.

The turn of each target is set beforehand, so that every stretch of requests is shared as the weights say, and no
request waits for a choice: among those whose turn has come, the one whose turn is over first (earliest pseudo-deadline,
after Baruah, Cohen, Plaxton and Varvel, "Proportionate progress", Algorithmica 15, 1996). After any number n of
requests each target has had n times its share, give or take less than one. With front ends each of them takes turns
by itself, for the requests that come to it: of all together, each target has its share give or take one for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from penstock.artifact import MODEL_NAME
from penstock.errors import PenstockError
from penstock.serve.errors import RequestError, nearest_first
from penstock.serve.model import Model
from penstock.signature import Signature, Tensor

_MOST_WEIGHT, _MOST_TARGETS, _MOST_ROUTES = 1000, 16, 256
Weights = dict[str, int]
Models = Mapping[str, Model]


def parse(texts: Iterable[str]) -> dict[str, Weights]:
    """`digits=digits-onnx-fp32` or `digits=digits-onnx-fp32:90,digits-onnx-int8:10` as weights by target, by route.

    Raises:
        PenstockError: naming the option, its text and the rule.
    """
    found: dict[str, Weights] = {}
    for text in texts:
        shown = f"--route {text[:200]}"
        name, equals, rest = text.partition("=")
        if not equals:
            raise PenstockError(f"{shown}: must read NAME=MODEL, or NAME=MODEL:WEIGHT,MODEL:WEIGHT, as in a=b:90,c:10")
        if name in found:
            raise PenstockError(f"{shown}: the route {name!r} is given twice; name all of its models in one")
        weights: Weights = {}
        for part in rest.split(","):
            target, colon, weight = part.strip().partition(":")
            if not colon and "," in rest:
                raise PenstockError(f"{shown}: {target!r} has no weight; of several models each has one, as in a:90")
            if target in weights:
                raise PenstockError(f"{shown}: names {target!r} twice")
            whole = weight.isascii() and weight.isdigit() and len(weight) <= len(str(_MOST_WEIGHT))
            weights[target] = int(weight) if whole else -1 if colon else 1
        found[name] = _sound(name, weights, shown)
    return found


def _sound(name: str, weights: Any, shown: str) -> Weights:
    """A route's weights, if they can be such.

    Raises:
        PenstockError: the name is none, or there are too few or too many targets, or a weight is out of range.
    """
    if not MODEL_NAME.fullmatch(name):
        raise PenstockError(f"{shown}: a route's name must be letters, digits, _, - and .")
    if not isinstance(weights, dict) or not 1 <= len(weights) <= _MOST_TARGETS:
        raise PenstockError(f"{shown}: must name 1 to {_MOST_TARGETS} models, each with its weight")
    for target, weight in weights.items():
        if not MODEL_NAME.fullmatch(target):
            raise PenstockError(f"{shown}: {target[:128]!r} is no name of a model")
        if type(weight) is not int or not 0 <= weight <= _MOST_WEIGHT:
            raise PenstockError(f"{shown}: the weight of {target!r} must be a whole number from 0 to {_MOST_WEIGHT}")
    if not any(weights.values()):
        raise PenstockError(f"{shown}: all weights are 0; one must be more")
    return weights


def turns(weights: Weights) -> list[str]:
    """Whose turn it is, for as many requests as it takes until all weights have come out even."""
    least = math.gcd(*weights.values())
    shares = {name: weight // least for name, weight in weights.items() if weight}
    total, had, order = sum(shares.values()), dict.fromkeys(shares, 0), []
    for slot in range(total):
        come = [name for name, share in shares.items() if had[name] * total // share <= slot]
        chosen = min(come, key=lambda name: -(-(had[name] + 1) * total // shares[name]))
        had[chosen] += 1
        order.append(chosen)
    return order


class Route:
    """One name's targets, with what they have been given; `counts` go on from those of the route that it replaces."""

    def __init__(self, weights: Weights, counts: Mapping[str, int] | None = None) -> None:
        self.weights = weights
        self.counts = {**dict.fromkeys(weights, 0), **(counts or {})}
        self._next = itertools.cycle(turns(weights)).__next__

    def taken(self) -> dict[str, int]:
        """What was counted since this was last asked, from which it begins anew."""
        found, self.counts = self.counts, dict.fromkeys(self.counts, 0)
        return found

    def add(self, taken: Mapping[str, int]) -> None:
        """Count what another process has counted."""
        for name, count in taken.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def take(self, models: Models, version: str | None) -> Model | None:
        """The model whose turn it is; where that is not there, the first that is takes it. None if none is."""
        name = self._next()
        model = models.get(name)
        if model is None or not model.ready or (version is not None and version != str(model.version)):
            model = self.look(models, version)
            if model is None:
                return None
            name = model.name
        self.counts[name] += 1
        return model

    def look(self, models: Models, version: str | None = None) -> Model | None:
        """One that stands for all, and is ready if any is; it is given nothing."""
        there = self.served(models)
        if version is not None:
            there = [model for model in there if version == str(model.version)]
        return next((model for model in there if model.ready), there[0] if there else None)

    def served(self, models: Models) -> list[Model]:
        """The models that it gives anything to, as far as they are served."""
        return [models[name] for name, weight in self.weights.items() if weight and name in models]


class Routes:
    """The routes of one server, by name."""

    def __init__(self) -> None:
        self.held: dict[str, Route] = {}

    def as_dict(self) -> dict[str, Weights]:
        """The weights of each route's targets."""
        return {name: route.weights for name, route in self.held.items()}

    @property
    def targets(self) -> set[str]:
        """The models that routes lead to, served or not."""
        return {target for route in self.held.values() for target in route.weights}

    def change(
        self,
        wanted: Mapping[str, Any],
        known: Collection[str],
        models: Models,
        *,
        called: str = "route",
        may_come: bool = False,
    ) -> None:
        """Replace all routes by others, or none if any cannot be. What a route leads to now it may lead to again.

        Args:
            wanted: weights by target, by route.
            known: the names of the models in the repository.
            models: those that are served.
            called: what stands before a route's name in the sentence on what is wrong with it.
            may_come: whether models that are not in the repository may be later.

        Raises:
            PenstockError: naming the route and the rule.
        """
        if len(wanted) > _MOST_ROUTES:
            raise PenstockError(f"there are {len(wanted)} routes; there may be {_MOST_ROUTES}")
        made = {}
        for name, weights in wanted.items():
            shown = f"{called} {name[:128]!r}"
            if name in known:
                raise PenstockError(f"{shown}: a model has that name; a route needs one of its own")
            for target in (weights := _sound(name, weights, shown)):
                if not may_come and target not in known and target not in self.targets:
                    raise PenstockError(f"{shown}: no model is named {target!r}; {nearest_first(target, known)}")
            _check_alike(shown, [models[target] for target in weights if target in models])
            former = self.held.get(name)
            made[name] = Route(weights, former.counts if former else None)
        self.held = made

    def check(self, model: Model, models: Models) -> None:
        """See that a model that is about to be served agrees with those that it shares a route with.

        Raises:
            PenstockError: it bears a route's name, or says what differs.
        """
        if model.name in self.held:
            raise PenstockError(f"{model.name!r} is the name of a route; a model needs one of its own")
        for name, route in self.held.items():
            if model.name in route.weights:
                others = [models[other] for other in route.weights if other in models and other != model.name]
                _check_alike(f"route {name!r}", [*others, model])

    def problems(self, models: Models) -> list[str]:
        """Each route that leads nowhere."""
        return [
            f"route {name!r} leads to no model that is served"
            for name, route in self.held.items()
            if not route.served(models)
        ]

    def families(self) -> Iterator[Metric]:
        """How often each target was chosen."""
        chosen = CounterMetricFamily(
            "penstock_route_requests", "Requests for a route that a model was given.", labels=("route", "model")
        )
        for name, route in self.held.items():
            for target, count in route.counts.items():
                chosen.add_metric((name, target), count)
        yield chosen


def _check_alike(shown: str, models: list[Model]) -> None:
    for model in models[1:]:
        if (why := difference(models[0].signature, model.signature, models[0].name, model.name)) is not None:
            raise PenstockError(f"{shown}: its models must take and give the same: {why}")
    labelled = [model for model in models if model.labels]
    for model in labelled[1:]:
        for number, (ours, theirs) in enumerate(zip(labelled[0].labels or (), model.labels or (), strict=False)):
            if ours != theirs:
                raise PenstockError(
                    f"{shown}: its models must give the same labels: class {number} is {ours[:80]!r} in "
                    f"{labelled[0].name!r} and {theirs[:80]!r} in {model.name!r}; export one again with the other's "
                    "--labels"
                )


def difference(first: Signature, second: Signature, a: str, b: str) -> str | None:
    """What a client would see of it that one model stands in for the other, by their names, or None for nothing.

    Names of dimensions are no part of it, and neither is how many rows a batch holds: larger requests are split.
    """
    for kind in ("inputs", "outputs"):
        ours, theirs = ({tensor.name: tensor for tensor in getattr(held, kind)} for held in (first, second))
        if list(ours) != list(theirs):
            return f"the {kind} of {a!r} are {', '.join(ours)}, and those of {b!r} {', '.join(theirs)}"
        for name, tensor in ours.items():
            other = theirs[name]
            if _form(tensor, first) != _form(other, second):
                return f"{kind[:-1]} {name!r} is {_shown(tensor, first)} in {a!r} and {_shown(other, second)} in {b!r}"
    return None


def _form(tensor: Tensor, signature: Signature) -> tuple[Any, ...]:
    return tensor.dtype, *(_size(size, signature) for size in tensor.shape)


def _size(size: int | str, signature: Signature) -> int | str:
    """A size, or its range; sizes of outputs alone, which a model computes, have none."""
    if isinstance(size, int):
        return size
    if size == signature.batch or size not in signature.dims:
        return "?"
    return f"{signature.dims[size].min}..{signature.dims[size].max}"


def _shown(tensor: Tensor, signature: Signature) -> str:
    return f"{tensor.dtype}[{','.join(str(_size(size, signature)) for size in tensor.shape)}]"


def absent(name: str, route: Route, version: str | None) -> RequestError:
    """Why a route has nobody to answer."""
    targets = ", ".join(route.weights)
    if version is not None:
        return RequestError(f"version {version[:20]!r} is of no model that route {name!r} leads to: {targets}", 404)
    return RequestError(f"route {name!r} leads to no model that is served: {targets}", 503)

"""What a sweep tries: the section `[sweep]` of a recipe, and the values that it may take, by dotted path."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from penstock.errors import PenstockError
from penstock.fields import NoTruths

Direction = Literal["maximize", "minimize"]
_UP, _DOWN = ("accuracy", "f1", "auc", "r2", "precision", "recall"), ("loss", "error", "mae", "mse", "rmse")
_TRIALS = 20


class Parameter(NoTruths):
    """The values of one field: a range, or `choices`.

    A range whose numbers are all whole gives whole numbers. `log` draws evenly by the logarithm; `step` gives `low`,
    `low + step` and so on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = Field(default=None, gt=0)
    choices: tuple[Any, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Parameter:
        if self.choices is not None:
            self._check_choices()
        elif self.low is None or self.high is None:
            raise ValueError("has neither choices nor low and high; give choices = [..], or low = .. and high = ..")
        else:
            self._check_range(self.low, self.high)
        return self

    def _check_choices(self) -> None:
        if self.log or not self.low is self.high is self.step is None:
            raise ValueError("has choices and a range; give one or the other")
        labels = self.labels
        if None in labels:
            raise ValueError("choices holds none; give a value, since neither TOML nor --set can say none")
        if len(set(labels)) < len(labels):
            raise ValueError(f"choices {list(labels)!r:.80} holds a value twice")

    def _check_range(self, low: float, high: float) -> None:
        if low >= high:
            raise ValueError(f"low is {low:g} and high is {high:g}; low must be under high")
        if self.log and self.step is not None:
            raise ValueError("has log and step; give one or the other")
        if self.log and low <= 0:
            raise ValueError(f"low is {low:g}; with log it must be over 0")
        if self.step is not None and _steps(low, high, self.step) < 1:
            raise ValueError(f"step is {self.step:g}; from {low:g} to {high:g} it must be {high - low:g} at most")

    @property
    def labels(self) -> tuple[Any, ...]:
        """The choices as a database keeps them: lists and tables as JSON, all else as it is."""
        return tuple(_label(choice) for choice in self.choices or ())

    @property
    def whole(self) -> bool:
        """Whether a range is of whole numbers."""
        return all(isinstance(end, int) for end in (self.low, self.high, self.step) if end is not None)

    @property
    def last(self) -> int | float:
        """The highest value of a range, which a step may not reach."""
        assert self.low is not None
        assert self.high is not None
        if self.step is None:
            return self.high
        return _rounded(self.low + self.step * _steps(self.low, self.high, self.step))

    @property
    def countable(self) -> bool:
        """Whether a grid can hold all values."""
        return self.choices is not None or self.whole or self.step is not None

    def points(self) -> tuple[Any, ...]:
        """All values as labels, in order; only where they are countable."""
        if self.choices is not None:
            return self.labels
        assert self.low is not None
        assert self.high is not None
        step = 1 if self.step is None else self.step
        return tuple(_rounded(self.low + step * index) for index in range(_steps(self.low, self.high, step) + 1))

    def value(self, label: Any) -> Any:
        """What a label stands for."""
        if self.choices is not None:
            return self.choices[self.labels.index(label)]
        return label if self.step is None else _rounded(label)


def _steps(low: float, high: float, step: float) -> int:
    """How many steps there are from one to the other; one that is short by a rounding counts."""
    return math.floor((high - low) / step + 1e-9)


def _label(choice: Any) -> Any:
    return choice if choice is None or isinstance(choice, bool | int | float | str) else json.dumps(choice)


def _rounded(value: int | float) -> int | float:
    """Without the last digits, in which sums of steps differ: 0.3, not 0.30000000000000004."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


class Sweep(NoTruths):
    """How a recipe's best values are looked for.

    Args:
        metric: what the loop logs at the end of an epoch; a trial's value is that of its best epoch. A recipe whose
            sweep names none has its task's: val_accuracy, val_f1 or val_rmse.
        direction: by the metric's name, where that tells.
        sampler: TPE (Bergstra et al., 2011), at random, or the whole grid, each point once.
        pruner: which trials end early: none, asynchronous successive halving (Li et al., 2020), hyperband (Li et al.,
            2018), or those under the median of the others.
        trials: how many; None is 20, and of a grid all.
        seed: of what is drawn.
        space: the values of fields, by dotted path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    metric: str = "val_accuracy"
    direction: Direction | None = None
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    pruner: Literal["none", "halving", "hyperband", "median"] = "none"
    trials: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    space: dict[str, Parameter] = Field(min_length=1)

    @field_validator("space", mode="before")
    @classmethod
    def _by_dotted_path(cls, value: Any) -> Any:
        """`optim.lr = {…}` is a table in a table in TOML, and `"optim.lr" = {…}` is what is meant; both are one."""
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for path, told in _flat(value):
            before = found.get(path)
            found[path] = {**before, **told} if isinstance(before, dict) and isinstance(told, dict) else told
        return found

    @model_validator(mode="after")
    def _can_be_begun(self) -> Sweep:
        if self.direction is None and _usual(self.metric) is None:
            raise ValueError(f'direction must be given for {self.metric}: "maximize" or "minimize"')
        endless = [path for path, parameter in self.space.items() if not parameter.countable]
        if self.sampler == "grid" and endless:
            raise ValueError(f"space.{endless[0]} has no end of values; for a grid give it a step, or choices")
        return self

    @property
    def towards(self) -> Direction:
        """The direction, given or usual."""
        found = self.direction or _usual(self.metric)
        assert found is not None
        return found

    @property
    def total(self) -> int:
        """How many trials there are to be."""
        if self.sampler != "grid":
            return self.trials or _TRIALS
        whole = math.prod(len(parameter.points()) for parameter in self.space.values())
        return min(self.trials or whole, whole)

    def grid(self) -> Iterator[dict[str, Any]]:
        """The points of the grid, as labels by path."""
        axes = [parameter.points() for parameter in self.space.values()]
        for point in itertools.product(*axes):
            yield dict(zip(self.space, point, strict=True))

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one > other if self.towards == "maximize" else one < other


def _flat(content: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value and all(isinstance(part, dict) for part in value.values()):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _usual(metric: str) -> Direction | None:
    parts = re.split(r"[^a-z0-9]+", metric.lower())
    if any(part in _DOWN for part in parts):
        return "minimize"
    return "maximize" if any(part in _UP for part in parts) else None


def put(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's content with values at dotted paths; what is missing on the way is made.

    Raises:
        PenstockError: a path goes through what has no parts.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(content))
    for path, value in values.items():
        *sections, name = path.split(".")
        place = changed
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise PenstockError(f"sweep.space.{path}: {section} is {place!r:.60}, which has no {name}")
        place[name] = value
    return changed

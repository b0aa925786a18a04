"""Signatures: the named inputs and outputs of a model, their dtypes, shapes and dynamic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from penstock.errors import PenstockError
from penstock.fields import NoTruths
from penstock.fields import first_message as first_message

# numpy's name of each dtype -> the Open Inference Protocol's name of it.
V2_DTYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
# What a served model may take and give besides: see ServedTensor.
SERVED_DTYPES = {**V2_DTYPES, "bfloat16": "BF16", "object": "BYTES"}
NAME = re.compile(r"\w[\w.\-/:]*", re.ASCII)
DIM = re.compile(r"[A-Za-z_]\w*")
Arrays = Mapping[str, NDArray[np.generic]]


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """numpy's name of a dtype; numpy itself puts it together anew each time."""
    return str(dtype.name)


class SignatureMismatch(PenstockError):
    """Arrays that do not fit the signature they were given for."""


class Dim(NoTruths):
    """The range of one dynamic dimension: smallest, most usual and largest size."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    min: int = 1
    opt: int
    max: int

    @model_validator(mode="after")
    def _ordered(self) -> Dim:
        if not 1 <= self.min <= self.opt <= self.max:
            raise ValueError(f"a range must have 1 <= min <= opt <= max, not {self.min},{self.opt},{self.max}")
        return self


# How many rows a model runs at once where nobody says otherwise.
BATCH = Dim(min=1, opt=8, max=64)


class Range(BaseModel):
    """The lowest and the highest value of an input; the name of a dimension stands for its size."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    low: float | str
    high: float | str

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not isinstance(self.low, str) and not isinstance(self.high, str) and self.low > self.high:
            raise ValueError(f"a range of values must have low <= high, not {self.low:g},{self.high:g}")
        return self

    def at(self, sizes: Mapping[str, int]) -> tuple[float, float]:
        """The two bounds as numbers, for these sizes of the dimensions."""
        low, high = (sizes[end] if isinstance(end, str) else end for end in (self.low, self.high))
        return float(low), float(high)


class Tensor(BaseModel):
    """One input or output; `shape` holds sizes, or names of dynamic dimensions."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    dtypes: ClassVar[Mapping[str, str]] = V2_DTYPES
    name: str
    dtype: str = "float32"
    shape: tuple[int | str, ...]

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"tensor name {name!r} must hold letters, digits and _.-/: and start with none of .-/:")
        return name

    @field_validator("dtype")
    @classmethod
    def _known(cls, dtype: str) -> str:
        if dtype not in cls.dtypes:
            raise ValueError(f"dtype {dtype!r} must be one of {', '.join(cls.dtypes)}")
        return dtype

    @field_validator("shape")
    @classmethod
    def _sized(cls, shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
        for size in shape:
            if isinstance(size, int) and size < 1:
                raise ValueError(f"size {size} must be at least 1, or the name of a dynamic dimension")
            if isinstance(size, str) and not DIM.fullmatch(size):
                raise ValueError(f"dimension name {size!r} must be letters, digits and _")
        return shape

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"

    @classmethod
    def parse(cls, text: str) -> Tensor:
        """Read `image:float32[batch,3,224,224]`, the form that `str` writes; the dtype may be left out.

        Raises:
            PenstockError: the text is not of that form.
        """
        match = re.fullmatch(r"([^\[\]]+?)(?::(\w+))?\[([^\[\]]*)\]", text.strip())
        if match is None:
            raise PenstockError(f"tensor {text!r} must read NAME:DTYPE[SIZE,…], as in image:float32[batch,3,224,224]")
        name, dtype, sizes = match.groups()
        shape = [part.strip() for part in sizes.split(",")] if sizes.strip() else []
        try:
            return cls(
                name=name,
                dtype=dtype or "float32",
                shape=tuple(int(part) if re.fullmatch(r"-?\d+", part) else part for part in shape),
            )
        except ValueError as error:
            raise PenstockError(f"tensor {text!r}: {first_message(error)}") from None


class ServedTensor(Tensor):
    """A tensor of a model that was not exported here, which may also be of text or of bfloat16."""

    dtypes: ClassVar[Mapping[str, str]] = SERVED_DTYPES


class Signature(BaseModel):
    """The contract that every variant of a model keeps: names, order, dtypes and dynamic dimensions.

    `ranges`: the values that an input may have, where they are known, as the indices of a table are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dims: dict[str, Dim] = {}
    ranges: dict[str, Range] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Signature:
        for group in (self.inputs, self.outputs):
            names = [tensor.name for tensor in group]
            if len(set(names)) != len(names):
                raise ValueError(f"tensor names must differ, not {', '.join(names)}")
        for tensor in self.inputs:
            for size in tensor.shape:
                if isinstance(size, str) and size not in self.dims:
                    raise ValueError(f"dimension {size!r} of input {tensor.name!r} has no range in dims")
        names = [tensor.name for tensor in self.inputs]
        for name, values in self.ranges.items():
            if name not in names:
                raise ValueError(f"the range of {name!r} is of no input; those are {', '.join(names)}")
            for end in (values.low, values.high):
                if isinstance(end, str) and end not in self.dims:
                    raise ValueError(f"the range of {name!r} names {end!r}, which is no dynamic dimension")
        return self

    @property
    def batch(self) -> str | None:
        """The name of the dimension that every input and output begins with, or None: then it cannot batch."""
        firsts = {tensor.shape[0] if tensor.shape else None for tensor in (*self.inputs, *self.outputs)}
        first = firsts.pop() if len(firsts) == 1 else None
        return first if isinstance(first, str) else None

    @property
    def max_batch(self) -> int:
        """The largest number of rows in one run; 1 for a model that cannot batch."""
        return self.dims[self.batch].max if self.batch else 1

    @property
    def min_batch(self) -> int:
        """The smallest number of rows in one run; 1 for a model that cannot batch."""
        return self.dims[self.batch].min if self.batch else 1

    def with_batch(self, batch: Dim) -> Signature:
        """The same signature with another range for its batch dimension."""
        if self.batch is None:
            raise PenstockError("a batch range needs a model whose inputs and outputs share a dynamic first dimension")
        return self.model_copy(update={"dims": {**self.dims, self.batch: batch}})

    def check_input(self, name: str, dtype: str) -> None:
        """See that there is an input of that name and dtype.

        Raises:
            SignatureMismatch: there is none.
        """
        declared = next((tensor.dtype for tensor in self.inputs if tensor.name == name), None)
        if declared is None:
            names = ", ".join(tensor.name for tensor in self.inputs)
            raise SignatureMismatch(f"input {name[:128]!r} is unknown; the model's inputs are {names}")
        if dtype != declared:
            raise SignatureMismatch(f"input {name!r} has dtype {dtype}; it must be {declared}")

    def check(self, arrays: Arrays, *, limit_batch: bool = True) -> None:
        """See that `arrays` are exactly this signature's inputs: names, dtypes, ranks and sizes.

        Args:
            arrays: input name -> array.
            limit_batch: hold the batch dimension to its range too; a server splits larger requests instead.

        Raises:
            SignatureMismatch: with the input, the value and the rule.
        """
        expected = {tensor.name: tensor for tensor in self.inputs}
        for name, array in arrays.items():
            self.check_input(name, dtype_name(array.dtype))
        sizes: dict[str, int] = {}
        for name, tensor in expected.items():
            if name not in arrays:
                raise SignatureMismatch(f"input {name!r} is missing; the model's inputs are {', '.join(expected)}")
            self._check_tensor(tensor, arrays[name], sizes, None if limit_batch else self.batch)

    def _check_tensor(
        self, tensor: Tensor, array: NDArray[np.generic], sizes: dict[str, int], unlimited: str | None
    ) -> None:
        if array.ndim != len(tensor.shape):
            raise SignatureMismatch(_shown(tensor, array))
        for actual, declared in zip(array.shape, tensor.shape, strict=True):
            if isinstance(declared, int):
                if actual != declared:
                    raise SignatureMismatch(_shown(tensor, array))
                continue
            if sizes.setdefault(declared, actual) != actual:
                raise SignatureMismatch(
                    f"{_shown(tensor, array)}, with one size of {declared!r} in all inputs: {sizes[declared]}"
                )
            dim = self.dims[declared]
            if actual < dim.min or (actual > dim.max and declared != unlimited):
                most = "on" if declared == unlimited else f"to {dim.max}"
                raise SignatureMismatch(f"{_shown(tensor, array)}, with {declared!r} from {dim.min} {most}")


def served(given: Mapping[str, Any]) -> Signature:
    """A served model's signature from its JSON, which does not tell that tensors of text are of a class of their own.

    Raises:
        ValidationError: pydantic's, it is none.
    """
    groups = {group: [_served(tensor) for tensor in given[group]] for group in ("inputs", "outputs")}
    return Signature.model_validate({**given, **groups})


def _served(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return (Tensor if given.get("dtype") in V2_DTYPES else ServedTensor).model_validate(given)


def _shown(tensor: Tensor, array: NDArray[np.generic]) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"input {tensor.name!r} has shape {list(array.shape)}; it must be [{sizes}]"

"""Pickles: which names a pickled file would import, found without importing any, and loading that holds it to them.

Unpickling a file of somebody else's runs what the file says. The names are found by unpickling with inert stand-ins in
the place of everything that would be imported; loading then refuses whatever was not on that list.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import torch

from penstock.errors import PenstockError


class _Inert:
    """Stands in for anything that a pickle names: takes every call and every state, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Inert:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    def add(self, value: Any) -> None:
        pass


class _Listing(pickle._Unpickler):
    """Unpickles to inert stand-ins, and notes every name asked for.

    Python's own unpickler keeps its memo in a dictionary: C's is an array as long as the file says, of gigabytes.
    """

    def __init__(self, file: BinaryIO, names: dict[str, None]) -> None:
        super().__init__(file)
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        if not module or not name:
            raise EOFError  # the file ends here
        self._names[f"{module}.{name}"] = None
        return type(name.replace(".", "_"), (_Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        # Files before torch 1.6 give a module's class this way; all else is a storage.
        return pid[1] if isinstance(pid, tuple) and pid[:1] == ("module",) else _Inert()


def names(path: Path) -> list[str]:
    """The names that unpickling a file would import, in order, without torch's own of plain tensors; none is imported.

    An empty list for a file that is no pickle; those found so far for one that is damaged further on.
    """
    found: dict[str, None] = {}
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith("data.pkl"):
                    _list(io.BytesIO(archive.read(entry)), found)
    else:
        with path.open("rb") as file:
            while _list(file, found):
                pass
    return [name for name in found if name not in _PLAIN]


# What torch.save writes for any state_dict.
_PLAIN = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor",
    *(f"torch.{kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")),
    *(f"torch.{kind}Storage" for kind in ("Byte", "Bool")),
    # Each by its name: torch.storage._load_from_bytes would unpickle once more, and unseen.
    *(f"torch.storage.{kind}Storage" for kind in ("Typed", "Untyped", "_Typed", "_Untyped")),
    "torch.Size",
    "__builtin__.set",
    "builtins.set",
}


def _list(file: BinaryIO, found: dict[str, None]) -> bool:
    """Note the names of the next pickle in a file; False at its end, or where it is none."""
    try:
        _Listing(file, found).load()
    except Exception:  # the end, raw storages after the last pickle, or damage
        return False
    return True


def load(path: Path, allowed: Collection[str], stand_ins: Mapping[str, Callable[..., Any]]) -> Any:
    """Unpickle a file, code and all, importing no name that is not `allowed`.

    Args:
        path: a file that `torch.save` or `pickle` wrote.
        allowed: names as `names` gives them.
        stand_ins: what to use for some names instead of importing them, as for those of a script's `__main__`.

    Raises:
        PenstockError: it wants another name, or one that cannot be imported.
    """

    class Held(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full in stand_ins:
                return stand_ins[full]
            if full not in allowed and full not in _PLAIN:
                raise PenstockError(f"{path}: its pickle hides the name {full!r}, which was not on its list")
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError) as error:
                raise PenstockError(
                    f"{path}: {full!r} cannot be imported ({error}): run penstock where it can, or give the file "
                    f"that defines it with --model ./FILE.py:{name.split('.')[-1]}"
                ) from None

    surrogate = ModuleType("penstock_held_pickle")
    surrogate.Unpickler = Held  # type: ignore[attr-defined]
    surrogate.load = lambda file, **options: Held(file, **options).load()  # type: ignore[attr-defined]
    here = str(Path.cwd())
    sys.path.append(here)  # last: a class is found beside the user's work, but shadows no package
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=surrogate)
    finally:
        sys.path.remove(here)

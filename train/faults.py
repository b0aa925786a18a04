"""Faults: what an error from the midst of a run says to the user, where the run's own processes are what failed."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch.distributed
from torch import nn

from penstock.errors import PenstockError, first_line, listed

AGAIN = "--resume goes on after the last whole epoch"
# What gloo's errors, which have no class of their own, are known by.
_GLOO = ("gloo", "Connection closed by peer", "Connection reset by peer")


def told(error: BaseException, lost: Callable[[], str | None] = lambda: None) -> PenstockError | None:
    """The error for the user that another one amounts to; None of one that it does not explain.

    Args:
        error: an error of penstock's that torch has brought from a process that reads batches, with that process's
            frames; or torch's own, of such a process or of another rank that is there no more.
        lost: finds which rank that is.
    """
    said = str(error)
    if isinstance(error, PenstockError) and "DataLoader worker" in said:
        return PenstockError(said.rpartition(f"{PenstockError.__module__}.PenstockError: ")[2].strip())
    if not isinstance(error, RuntimeError):
        return None
    if said.startswith("DataLoader worker"):
        return PenstockError(
            f"loader.workers: a process that reads batches has ended: {first_line(error)}; the system may have ended "
            f"it for want of memory; {AGAIN}, --set loader.workers=0 reads without such processes"
        )
    if isinstance(error, torch.distributed.DistError) or any(word in said for word in _GLOO):
        gone = lost() or (
            f"another of the run's processes is gone, or cannot be reached: {first_line(error)}; what it says itself "
            "tells why"
        )
        return PenstockError(f"machine.devices: {gone}; {AGAIN}")
    return None


def of_unused(error: BaseException, net: nn.Module) -> PenstockError | None:
    """The error for the user that torch's is of parameters which got no gradient in a batch; None of any other.

    Args:
        error: of which torch tells the parameters by their places among those that are trained.
        net: whose they are.
    """
    said = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
    if said is None:
        return None
    names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    lacking = [names[int(place)] for place in said[1].split() if int(place) < len(names)]
    return PenstockError(
        f"model.target: the network, {type(net).__name__}, uses {listed(lacking)} in some batches and not in others, "
        "which several processes cannot learn: have its forward use them in each, as by adding 0 * parameter.sum() to "
        "its answer, leave them as they are with optim.freeze, or --set machine.devices=1"
    )


def of_network(error: BaseException, net: nn.Module, log: Path) -> PenstockError | None:
    """The error for the user that was raised in the code of a network of theirs; None of any other.

    Args:
        error: what was raised.
        net: whose classes' own files are looked for in the traceback; installed packages are nobody's to put right.
        log: the run's, which has the whole traceback.
    """
    files = {file for module in net.modules() if (file := _source(type(module))) is not None}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return None
    return PenstockError(
        f"model.target: {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}: {first_line(error)}; "
        f"{log} has the traceback"
    )


def _source(kind: type) -> str | None:
    """The file that a class is written in, where it is neither penstock's nor an installed package's."""
    if kind.__module__.partition(".")[0] in ("penstock", "torch"):
        return None
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None
    return None if file is None or (Path(file).is_relative_to(sys.prefix) and "site-packages" in file) else file

"""Faults: what an error from the midst of a run says to the user, where the run's own processes are what failed."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed

from penstock.errors import PenstockError, first_line

AGAIN = "--resume goes on after the last whole epoch"
# What gloo's errors, which have no class of their own, are known by.
_GLOO = ("gloo", "Connection closed by peer", "Connection reset by peer")


def told(error: Exception, lost: Callable[[], str | None] = lambda: None) -> PenstockError | None:
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

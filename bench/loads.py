"""Loads in words: what each run of a server was, and what is to be known of it before its figures are read."""

from __future__ import annotations

# Short runs that only find the way of a search; the figures of the others are what was asked for.
SHORT = ("guess", "probe")


def named(mode: str, rate_per_s: float | None, connections: int | None) -> str:
    """`closed, 8 connections`, or `poisson, 200/s`."""
    if rate_per_s is not None:
        return f"{mode}, {rate_per_s:,.6g}/s"
    return mode if connections is None else f"{mode}, {connections} connection{'' if connections == 1 else 's'}"


def marked(name: str, purpose: str | None, ended: str | None, void: str | None) -> str:
    """A load's name with what sets the run apart: `constant, 200/s (probe, void)`.

    Args:
        name: as `named` gives it.
        purpose: what the run was for; a guess or a probe of a search is told.
        ended: `lost`, `stopped`, `hopeless`, or None where it took its time.
        void: why it says nothing of the server, if it does not.
    """
    marks = [purpose if purpose in SHORT else None, ended, "void" if void else None]
    told = ", ".join(mark for mark in marks if mark)
    return f"{name} ({told})" if told else name

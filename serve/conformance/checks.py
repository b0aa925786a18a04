"""All checks, group by group."""

from __future__ import annotations

from penstock.serve.conformance import abuse, binary, control, inference, memory, metadata, rpc, rpc_abuse, rpc_control
from penstock.serve.conformance.check import Check


def every() -> list[Check]:
    """All checks in the order that they are tried in."""
    modules = (metadata, inference, binary, control, memory, abuse, rpc, rpc_control, rpc_abuse)
    return [
        *(check for module in modules for check in module.checks()),
        *control.reloading(),
        *rpc_control.reloading(),
    ]

"""What the doctor finds: one thing of this machine, whether it works, and the command that puts it right."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["machine", "stages", "runtimes", "formats", "extras"]
# Their titles, in the order in which they are shown.
GROUPS: dict[Group, str] = {
    "machine": "this machine",
    "runtimes": "what runs models",
    "formats": "what can be exported, and run here",
    "stages": "the road",
    "extras": "for more",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at or tried.

    Attributes:
        group: what it belongs to.
        name: what it is called, one of a kind in its group.
        works: whether it does; None where it is absent and nobody need miss it, or was not tried.
        found: what there is.
        why: why it does not work, or works worse than it could.
        fix: the command that puts it right.
    """

    group: Group
    name: str
    works: bool | None
    found: str = ""
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def named(findings: list[Finding], group: Group, name: str) -> Finding:
    """The finding of a name that is there."""
    return next(each for each in findings if (each.group, each.name) == (group, name))

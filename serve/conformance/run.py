"""Running the checks: one after another, each with its verdict; a table for people, JUnit XML for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rich.table import Table

from penstock.files import write_whole, writing
from penstock.screen import Screen
from penstock.serve.conformance.check import Check
from penstock.serve.conformance.checks import every
from penstock.serve.conformance.target import Failed, Skipped, Target


@dataclass(frozen=True)
class Verdict:
    """What came of a check: `passed`, `failed` or `skipped`, why, and seconds."""

    check: Check
    result: str
    why: str
    seconds: float


def run(target: Target, checks: list[Check] | None = None) -> Iterator[Verdict]:
    """Try each check on the target."""
    for check in every() if checks is None else checks:
        started = time.perf_counter()
        result, why = "passed", ""
        try:
            check.run(target)
        except Failed as error:
            result, why = "failed", str(error)
        except Skipped as error:
            result, why = "skipped", str(error)
        except Exception as error:  # whatever an answer lacks that a check takes for granted
            result, why = "failed", f"the answer is not as expected: {type(error).__name__}: {error}"
        yield Verdict(check, result, why, time.perf_counter() - started)


def show(verdicts: list[Verdict], say: Callable[[str], None]) -> None:
    """A row for each group, and a line for what did not pass."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("extension")
    for name in ("passed", "failed", "skipped"):
        table.add_column(name, justify="right")
    groups = dict.fromkeys(verdict.check.group for verdict in verdicts)
    for group in groups:
        counts = [
            sum(verdict.check.group == group and verdict.result == result for verdict in verdicts)
            for result in ("passed", "failed", "skipped")
        ]
        table.add_row(group, *map(str, counts))
    for line in _lines(verdicts):
        say(line[:400])
    Screen().print(table)


def _lines(verdicts: list[Verdict]) -> Iterator[str]:
    """What did not pass, and why; what a whole group is skipped for is said once."""
    skipped: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.result == "skipped":
            skipped.setdefault((verdict.check.group, verdict.why), []).append(verdict.check.rule)
    for (group, why), rules in skipped.items():
        yield f"skipped: {group}: {rules[0] if len(rules) == 1 else f'{len(rules)} checks'}: {why}"
    for verdict in verdicts:
        if verdict.result == "failed":
            yield f"failed: {verdict.check.group}: {verdict.check.rule}: {verdict.why}"


def write_junit(verdicts: list[Verdict], url: str, path: Path) -> None:
    """Write the verdicts as JUnit XML, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    suites = ElementTree.Element("testsuites")
    for group in dict.fromkeys(verdict.check.group for verdict in verdicts):
        held = [verdict for verdict in verdicts if verdict.check.group == group]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=group,
            hostname=url,
            tests=str(len(held)),
            failures=str(sum(verdict.result == "failed" for verdict in held)),
            skipped=str(sum(verdict.result == "skipped" for verdict in held)),
            time=f"{sum(verdict.seconds for verdict in held):.3f}",
        )
        for verdict in held:
            case = ElementTree.SubElement(
                suite, "testcase", classname=group, name=verdict.check.rule, time=f"{verdict.seconds:.3f}"
            )
            if verdict.result != "passed":
                kind = "failure" if verdict.result == "failed" else "skipped"
                ElementTree.SubElement(case, kind, message=verdict.why)
    with writing("--junit", path, "the verdicts are not kept"):
        write_whole(path, ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))

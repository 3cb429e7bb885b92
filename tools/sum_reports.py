"""Sums up what a run of nox did: from the JUnit files under build/reports and nox's own report.

    python tools/sum_reports.py build/reports

Prints one line per suite and, last, ``N passed, N failed``. A session that failed without a failed test in its report
(it did not build, did not install, crashed) counts as one failure, and so does a report that cannot be read.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Counts:
    """What the tests of one report came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another report."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def read_junit(path: Path) -> Counts:
    """Count the test cases of a JUnit file, one by one: the totals in its header are not trusted."""
    counts = Counts()
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except ElementTree.ParseError:
        return Counts(failed=1)
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            counts.failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def sum_up(reports: Path) -> tuple[dict[str, Counts], list[str]]:
    """Counts per report and the names of sessions that failed although none of their reports has a failure."""
    counts = {path.stem: read_junit(path) for path in sorted(reports.glob("*.xml"))}
    broken = []
    for path in sorted(reports.glob("nox*.json")):
        for session in json.loads(path.read_text(encoding="utf-8"))["sessions"]:
            name = str(session["signatures"][0] if session["signatures"] else session["name"])
            own = [c for stem, c in counts.items() if stem == name or stem.startswith(f"{name}.")]
            if str(session["result"]) != "success" and not any(c.failed for c in own):
                broken.append(f"{name} ({session['result']})")
    return counts, broken


def main() -> int:
    """Print the sums; 1 when anything failed or nothing ran."""
    reports = Path(sys.argv[1])
    counts, broken = sum_up(reports)
    total = Counts(failed=len(broken))
    for name, suite in counts.items():
        print(f"{name}: {suite.passed} passed, {suite.failed} failed, {suite.skipped} skipped")
        total.add(suite)
    for name in broken:
        print(f"{name}: the session failed outside of its tests")
    print(f"{total.skipped} skipped")
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())

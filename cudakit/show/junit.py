"""JUnit XML for CI systems: one test suite, one case per step of a check.

The document conforms to the schemas of Ant's JUnit task and of Jenkins' xUnit plugin.
"""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

# characters that XML 1.0 does not allow, not even escaped
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """One test case. seconds: the host's time. failure, error, skipped: the text if it failed, could not be run, or was
    skipped; at most one is set. kind, message: the class of the failure or error, and one line about it."""

    name: str
    seconds: float
    failure: str | None = None
    error: str | None = None
    skipped: str | None = None
    kind: str = ""
    message: str = ""


def text(name: str, cases: Sequence[Case], when: datetime.datetime | None = None) -> str:
    """The document of one suite. when: its time stamp; now if None."""
    name = _printable(name)
    stamp = when or datetime.datetime.now(datetime.UTC)
    root = ElementTree.Element("testsuites")
    failures, errors, skipped = (
        sum(getattr(case, what) is not None for case in cases) for what in ("failure", "error", "skipped")
    )
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {
            "name": f"cudakit check {name}",
            "package": "cudakit",
            "id": "0",
            "timestamp": stamp.strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": platform.node() or "localhost",
            "tests": str(len(cases)),
            "failures": str(failures),
            "errors": str(errors),
            "skipped": str(skipped),
            "time": f"{sum(case.seconds for case in cases):.3f}",
        },
    )
    ElementTree.SubElement(suite, "properties")
    for case in cases:
        made = ElementTree.SubElement(
            suite,
            "testcase",
            {"name": _printable(case.name), "classname": f"cudakit.{name}", "time": f"{case.seconds:.3f}"},
        )
        for tag in ("failure", "error"):
            said = getattr(case, tag)
            if said is not None:
                facts = {"type": _printable(case.kind), "message": _printable(case.message)}
                ElementTree.SubElement(made, tag, facts).text = _printable(said)
        if case.skipped is not None:
            ElementTree.SubElement(made, "skipped", {"message": _printable(case.skipped)})
    for stream in ("system-out", "system-err"):
        ElementTree.SubElement(suite, stream)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _printable(words: str) -> str:
    """`words` with Python's escapes for characters that XML does not allow."""
    return _FORBIDDEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), words)

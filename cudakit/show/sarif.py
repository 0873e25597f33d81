"""SARIF 2.1.0: reports that GitHub's code scanning and editors show at the source line.

A path below the root of the repository is written relative to `%SRCROOT%`; any other path is absolute. The fingerprint
of a report is the hash of its line's text and of the text after it, as GitHub's upload action computes it, so that a
report keeps its identity if lines above it are added or removed.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cudakit import reports
from cudakit.reports import Report
from cudakit.show import rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_BLOCK, _BASE, _BITS = 100, 37, (1 << 64) - 1  # of the fingerprint: code units per line, factor, 64 bits


def text(found: Sequence[Report], root: Path, category: str, nothing_checked: str | None = None) -> str:
    """The log of one check. root: the folder that paths are relative to. category: distinguishes the check from others
    of the same repository. nothing_checked: why nothing was checked, or None."""
    return json.dumps(log(found, root, category, nothing_checked), indent=1) + "\n"


def log(found: Sequence[Report], root: Path, category: str, nothing_checked: str | None = None) -> dict[str, Any]:
    """As `text`, as a dict."""
    kinds = list(dict.fromkeys(one.kind for one in found))
    results: dict[str, dict[str, Any]] = {}  # a finding on several architectures is one result
    for one in found:
        result = _result(one, kinds, root)
        results.setdefault(json.dumps([result[key] for key in ("ruleId", "message", "locations")]), result)
    invocation: dict[str, Any] = {"executionSuccessful": nothing_checked is None}
    if nothing_checked is not None:
        said = {"text": f"Nothing was checked: {nothing_checked}"}
        invocation["toolExecutionNotifications"] = [{"level": "error", "message": said}]
    failing = {one.kind for one in found if one.severity == reports.ERROR}
    driver = {
        "name": "cudakit",
        "semanticVersion": _version(),
        "rules": [_rule(rules.rule(kind), "error" if kind in failing else "warning") for kind in kinds],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": category},
        "originalUriBaseIds": {_ROOT: {"uri": root.as_uri().rstrip("/") + "/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": list(results.values()),
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def source_root(folder: Path) -> Path:
    """The root of the git repository that `folder` is in, else `folder` itself."""
    here = folder.resolve()
    return next((one for one in (here, *here.parents) if (one / ".git").exists()), here)


def uri(file: str, root: Path) -> tuple[str, bool]:
    """A file's URI, and whether it is relative to the root."""
    path = Path(file).resolve()
    if path.is_relative_to(root):
        return quote(os.fsencode(path.relative_to(root).as_posix())), True
    return path.as_uri(), False


def line_hash(source: str, line: int) -> str | None:
    """The fingerprint of a line (from 1) of a source text; None if there is no such line. It is a hash of the next 100
    UTF-16 code units, without blanks and tabs, and the number of lines up to this one with the same hash."""
    ends = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [one.replace(" ", "").replace("\t", "") for one in ends.split("\n")]
    if not 1 <= line <= len(lines):
        return None
    units: list[int] = []
    starts = []
    for one in lines:
        starts.append(len(units))
        coded = (one + "\n").encode("utf-16-le", "surrogatepass")
        units += [low | high << 8 for low, high in zip(coded[::2], coded[1::2], strict=True)]
    units[-1] = 0xFFFF  # the end of the file, instead of the last line's end
    units += [0] * _BLOCK
    hashes = [_hash(units[start : start + _BLOCK]) for start in starts[:line]]
    return f"{hashes[-1]:x}:{hashes.count(hashes[-1])}"


def _hash(units: Sequence[int]) -> int:
    return functools.reduce(lambda value, unit: (value * _BASE + unit) & _BITS, units, 0)


def _rule(rule: rules.Rule, severity: str) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": f"{rule.kind[:1].upper()}{rule.kind[1:]}"},
        "fullDescription": {"text": rule.summary},
        "help": {
            "text": f"{rule.summary}\n\n{rule.advice}",
            "markdown": f"**{rule.summary}**\n\n{rule.advice}",
        },
        "defaultConfiguration": {"level": severity},
        "properties": {"tags": ["cuda", "correctness"], "precision": "very-high", "problem.severity": severity},
    }


def _result(report: Report, kinds: Sequence[str], root: Path) -> dict[str, Any]:
    related = list(_related(report, root))
    result: dict[str, Any] = {
        "ruleId": rules.rule(report.kind).id,
        "ruleIndex": kinds.index(report.kind),
        "level": "error" if report.severity == reports.ERROR else "warning",
        "message": {"text": _message(report, related)},
        "locations": [],
    }
    file, line, column = _primary(report, root)
    if file is not None:
        result["locations"] = [_location(file, line, root, column, report.kernel)]
    fingerprint = _fingerprint(file, line)
    if fingerprint is not None:
        result["partialFingerprints"] = {"primaryLocationLineHash": fingerprint}
    if related:
        result["relatedLocations"] = related
    facts = {
        "kernel": report.kernel,
        "block": report.block,
        "thread": report.thread,
        "step": report.step,
        "problem": report.problem,
        "replay": report.replay,
        "report": report.full_text,
    }
    result["properties"] = {name: value for name, value in facts.items() if value}
    return result


def _message(report: Report, related: Sequence[dict[str, Any]]) -> str:
    """The message: kind, sentence, block and thread, variant and problem; related places are links."""
    parts = [f"{report.kind[:1].upper()}{report.kind[1:]}: {report.message}"]
    who = [
        f"{name} {value}" for name, value in (("block", report.block), ("thread", report.thread)) if value is not None
    ]
    if report.kernel is not None:
        parts.append(", ".join([f"Kernel {report.kernel}", *who]))
    if report.variant is not None:
        parts.append(f"Variant {report.family}/{report.variant}")
    if report.problem is not None:
        parts.append(f"On {report.problem}")
    if report.replay is not None:
        parts.append(f"Repeat it with: {report.replay}")
    said = [part.replace("](", "] (") for part in parts]  # only the related places below are links
    said += [f"See [{one['message']['text']}]({one['id']})" for one in related]
    return "\n".join(f"{part.rstrip('.')}." for part in said)


def _related(report: Report, root: Path) -> Iterator[dict[str, Any]]:
    """Places related to a report, in files below the root: the other accesses, the lines that it was inlined into, the
    launch, the allocation and its free."""
    places: list[tuple[str, str | None, int | None]] = []
    for other in report.others:
        places.append((f"the {other.access} that it conflicts with", other.file, other.line))
    places += [("the line that it is inlined into", one.file, one.line) for one in report.inlined]
    if report.launched is not None:
        places.append(("the launch", report.launched.file, report.launched.line))
    for what, name in (("made", "the allocation"), ("freed", "the free")):
        place = (report.allocation or {}).get(what)
        if isinstance(place, dict):
            places.append((name, place["file"], place["line"]))
    number = 0
    for said, file, line in places:
        if file is not None and line is not None and uri(file, root)[1]:
            number += 1
            yield {"id": number, "message": {"text": said}, **_location(file, line, root)}


def _location(
    file: str, line: int | None, root: Path, column: int | None = None, kernel: str | None = None
) -> dict[str, Any]:
    address, relative = uri(file, root)
    place: dict[str, Any] = {"artifactLocation": {"uri": address, **({"uriBaseId": _ROOT} if relative else {})}}
    if line:  # compilers write line 0 for code without a source line
        place["region"] = {"startLine": line, **({} if column is None else {"startColumn": column})}
    location: dict[str, Any] = {"physicalLocation": place}
    if kernel is not None:
        location["logicalLocations"] = [{"name": kernel, "kind": "function"}]
    return location


def _primary(report: Report, root: Path) -> tuple[str | None, int | None, int | None]:
    """The file, line and column that a report is shown at: the line at fault, or, if that is in a header outside of the
    root, the line of a file below the root that it was inlined into."""
    if report.file is not None and not uri(report.file, root)[1]:
        for place in report.inlined:
            if uri(place.file, root)[1]:
                return place.file, place.line, None
    return report.file, report.line, report.column


def _fingerprint(file: str | None, line: int | None) -> str | None:
    if file is None or line is None:
        return None
    try:
        with open(file, encoding="utf-8", errors="replace", newline="") as source:
            return line_hash(source.read(), line)
    except OSError:
        return None


def _version() -> str:
    try:
        return importlib.metadata.version("cudakit")
    except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
        return "0.0.0"

"""docs/systems.md as data: the examples, result files and tests that it names, and what is wrong with them."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paths import ROOT

PAGE = ROOT / "docs" / "systems.md"

_LINK = r"\[([^]]*(?:\[[^]]*\])?[^]]*)\]\(\.\./([^)#]+)(?:#[\w-]*)?\)"
_COMMAND = re.compile(r"`python -m cudakit ([^`]+)`")
# Marks of tests that do not run everywhere.
_ELSEWHERE = ("gpu", "skip")


@dataclass(frozen=True)
class System:
    """A line of the page. shown: paths of examples, or commands such as "bench softmax". results: the names of rows by
    file. tests: ids as pytest prints them; one without parameters stands for all of its cases."""

    name: str
    shown: tuple[str, ...]
    results: tuple[tuple[str, tuple[str, ...]], ...]
    tests: tuple[str, ...]


def systems(text: str | None = None) -> list[System]:
    """The lines of the page's tables, in order."""
    lines = (PAGE.read_text(encoding="utf-8") if text is None else text).splitlines()
    found = []
    for line in lines:
        if not re.match(r"\| [A-Z]\d", line):
            continue
        name, _, shown, results, tests = (cell.strip() for cell in line.strip("|").split(" | "))
        files = [re.search(_LINK, part) for part in results.split("; ")]
        named = [re.findall(r"`([^`]+)`", part) for part in results.split("; ")]
        found.append(
            System(
                name,
                (*(path for _, path in re.findall(_LINK, shown)), *_COMMAND.findall(shown)),
                tuple((file[2] if file else "", tuple(rows)) for file, rows in zip(files, named, strict=True)),
                tuple(f"{path}::{test.strip('`')}" for test, path in re.findall(_LINK, tests)),
            )
        )
    return found


def problems(system: System, root: Path = ROOT) -> Iterator[str]:
    """Yield each thing that the line names and the repository does not have."""
    if not (system.shown and system.results and system.tests):
        yield "a line needs an example or a command, a file and a test"
        return
    yield from (f"{path} does not exist" for path in system.shown if "/" in path and not (root / path).is_file())
    for path, rows in system.results:
        yield from _of_file(root / path, path, rows, system.shown)
    for test in system.tests:
        yield from _of_test(root, test)


def _of_file(file: Path, path: str, rows: tuple[str, ...], shown: tuple[str, ...]) -> Iterator[str]:
    if not file.is_file():
        yield f"{path} does not exist"
        return
    text = file.read_text(encoding="utf-8")
    report = json.loads(text) if file.suffix == ".json" else {"command": text, "rows": []}
    command = report.get("command", "")
    if not any(set(name.split()) <= set(command.split()) for name in shown):
        yield f"{path} is the result of `{command}`, not of {' or '.join(shown)}"
    if file.suffix == ".json" and not rows:
        yield f"no row of {path} is named"
    correct = {row.get("variant") for row in report["rows"] if row.get("ok", True) is True}
    yield from (f"{path} has no correct row {row}" for row in rows if row not in correct)


def _of_test(root: Path, test: str) -> Iterator[str]:
    path, _, name = test.partition("::")
    function = name.partition("[")[0]
    found = _functions(root / path) if (root / path).is_file() else {}
    if function not in found:
        yield f"there is no test {function} in {path}"
    yield from (f"{test} has the mark {mark}" for mark in found.get(function, ()) if mark in _ELSEWHERE)


@functools.cache
def _functions(file: Path) -> dict[str, list[str]]:
    """The tests of a file, with the names of their marks."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    marks = re.compile(r"pytest\.mark\.(\w+)")
    return {
        node.name: [mark for decorator in node.decorator_list for mark in marks.findall(ast.unparse(decorator))[:1]]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }

"""The kernels of a `.cu` file, and how often each was launched while a check ran."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cudakit.compile import compiler
from cudakit.launch.definitions import KERNEL, last_name
from cudakit.launch.mangling import demangle
from cudakit.launch.parameter_names import without_comments
from cudakit.show import annotate

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)(.*?)(?=\.entry\s|\Z)", re.DOTALL)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s", re.MULTILINE)
_FILE = re.compile(r"^\s*\.file\s+(\d+)\s+\"([^\"]+)\"", re.MULTILINE)


class FileKernels:
    """The kernels of one source file by name, each with its launches. All instances of a template are one kernel;
    overloads are several. Kernels of included headers are not the file's.

    compiled: the file compiled for each architecture.
    """

    def __init__(self, path: Path, text: str, compiled: Iterable[compiler.Compiled]) -> None:
        self._launches: dict[str, int] = {}
        self._path = path
        code = without_comments(text)
        found = list(KERNEL.finditer(code))
        self._written = {match["name"] for match in found}
        for one in compiled:
            for mangled in _entries(one.ptx, path):
                self._launches.setdefault(_kernel_of(mangled), 0)
        known = {last_name(name) for name in self._launches}
        for match in found:
            declaration = re.split(r"[;{}]", code[: match.start()])[-1]
            if "template" in declaration and match["name"] not in known:
                self._launches.setdefault(match["name"], 0)

    def count(self, records: Iterable[Any]) -> list[Any]:
        """Add the launches of the file's kernels among `records`. Returns the records that are of them."""
        mine = []
        for record in records:
            if not any(annotate.same_file(file, self._path) for file in {file for file, _ in record.counters.per_line}):
                continue  # another file's, perhaps of the same name
            name = _kernel_of(record.name)
            if name not in self._launches:
                if last_name(name) not in self._written:
                    continue  # another file's, with code of this file inlined into it
                self._launches.pop(last_name(name), None)
                self._launches[name] = 0
            self._launches[name] += record.counters.launches
            mine.append(record)
        return mine

    @property
    def launches(self) -> dict[str, int]:
        """Launches by kernel, in the order of the file's PTX, then the templates that nothing instantiates. The name
        has parameter types if the kernel is overloaded."""
        short = [name.partition("(")[0] for name in self._launches]
        return {
            base if short.count(base) == 1 else name: count
            for base, (name, count) in zip(short, self._launches.items(), strict=True)
        }

    @property
    def checked(self) -> int:
        """How many of the kernels were launched."""
        return sum(count > 0 for count in self._launches.values())

    def lines(self) -> list[str]:
        """A line per kernel, and how many were checked."""
        return [
            *(f"  {name}: {_times(count)}" for name, count in self.launches.items()),
            f"{self.checked} of {len(self._launches)} kernel{'s' * (len(self._launches) != 1)} checked",
        ]


def _times(count: int) -> str:
    return f"{count} launch{'es' * (count != 1)}" if count else "NEVER LAUNCHED"


def _kernel_of(mangled: str) -> str:
    """The kernel that a name in PTX is, or is an instance of."""
    known = demangle(mangled)
    if known is None:
        return mangled
    return known.base if known.base != known.name else known.text


def _entries(ptx: str, path: Path) -> list[str]:
    """The kernels of a PTX text that are written in `path`; all if it has no line info."""
    own = {number for number, file in _FILE.findall(ptx) if annotate.same_file(file, path)}
    entries = []
    for match in _ENTRY.finditer(ptx):
        place = _LOC.search(match[2])
        if place is None or place[1] in own:
            entries.append(match[1])
    return entries

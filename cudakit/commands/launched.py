"""The kernels of a `.cu` file, and the number of launches of each during a check."""

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
    """The kernels of one source file by name, with their launches. All instances of a template count as one kernel;
    each overload counts separately. Kernels of included headers are left out.

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
        """Count the launches of the file's kernels among `records`. Returns the records of these kernels."""
        mine = []
        for record in records:
            if not any(annotate.same_file(file, self._path) for file in {file for file, _ in record.counters.per_line}):
                continue  # a kernel of another file, perhaps with the same name
            name = _kernel_of(record.name)
            if name not in self._launches:
                if last_name(name) not in self._written:
                    continue  # a kernel of another file, into which code of this file is inlined
                self._launches.pop(last_name(name), None)
                self._launches[name] = 0
            self._launches[name] += record.counters.launches
            mine.append(record)
        return mine

    @property
    def launches(self) -> dict[str, int]:
        """Return the launches per kernel: first the kernels in the order of the file's PTX, then templates without an
        instance. The name of an overloaded kernel includes its parameter types."""
        short = [name.partition("(")[0] for name in self._launches]
        return {
            base if short.count(base) == 1 else name: count
            for base, (name, count) in zip(short, self._launches.items(), strict=True)
        }

    @property
    def checked(self) -> int:
        """The number of kernels that were launched."""
        return sum(count > 0 for count in self._launches.values())

    def lines(self) -> list[str]:
        """Return one line per kernel, and the number of checked kernels."""
        return [
            *(f"  {name}: {_times(count)}" for name, count in self.launches.items()),
            f"{self.checked} of {len(self._launches)} kernel{'s' * (len(self._launches) != 1)} checked",
        ]


def _times(count: int) -> str:
    return f"{count} launch{'es' * (count != 1)}" if count else "NEVER LAUNCHED"


def _kernel_of(mangled: str) -> str:
    """Return the kernel with this name in PTX; for a template instance, the template."""
    known = demangle(mangled)
    if known is None:
        return mangled
    return known.base if known.base != known.name else known.text


def _entries(ptx: str, path: Path) -> list[str]:
    """Return the kernels of a PTX text whose source is in `path`, or all kernels if the PTX has no line info."""
    own = {number for number, file in _FILE.findall(ptx) if annotate.same_file(file, path)}
    entries = []
    for match in _ENTRY.finditer(ptx):
        place = _LOC.search(match[2])
        if place is None or place[1] in own:
            entries.append(match[1])
    return entries

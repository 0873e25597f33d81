"""The target of `cudakit check`: a `.cu` file, or a family with the files of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudakit.commands import cli, files
from cudakit.commands.launched import FileKernels
from cudakit.compile import compiler, headers
from cudakit.show import outputs


@dataclass
class Source:
    """A `.cu` file. pairs: the (family, variant) pairs that launch its kernels. compiled: its code per architecture."""

    path: Path
    pairs: Sequence[tuple[Any, Any]]
    compiled: list[compiler.Compiled] = field(default_factory=list)
    _kernels: FileKernels | None = None

    @property
    def kernels(self) -> FileKernels:
        """Its kernels and their launches; valid after the file is compiled."""
        if self._kernels is None:
            self._kernels = FileKernels(self.path, outputs.read_text(self.path, "utf-8-sig"), self.compiled)
        return self._kernels


@dataclass
class Target:
    """A file or a family to check. name: as requested. sources: its files. family: None for a file."""

    name: str
    sources: list[Source]
    family: Any = None

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """All (family, variant) pairs, in the order of the files."""
        return [pair for source in self.sources for pair in source.pairs]

    @property
    def checked(self) -> int:
        """The number of kernels that were launched."""
        return sum(source.kernels.checked for source in self.sources)

    def count(self, records: Sequence[Any]) -> list[Any]:
        """Count the launches of these kernels among `records`. Returns the records of these kernels."""
        return [record for source in self.sources for record in source.kernels.count(records)]


def target_of(text: str) -> Target:
    """Return the target with this name: a file (in the working directory, then among cudakit's kernels), else a family.

    Raises FileNotFoundError if the `.cu` file does not exist, and Refused if the family does not exist.
    """
    if not text.endswith(".cu") and (text.endswith(".py") or not Path(text).is_file()):
        return _family_target(text)
    path = headers.find_source(text)
    return Target(str(path), [Source(path, files.declared(path))])


def _family_target(text: str) -> Target:
    family = cli.family(text)
    pairs: dict[Path, list[tuple[Any, Any]]] = {}
    for variant in family.variants:
        pairs.setdefault(headers.find_source(variant.source), []).append((family, variant))
    return Target(text, [Source(path, own) for path, own in pairs.items()], family)

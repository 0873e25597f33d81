"""The source lines that PTX was compiled from, for reports and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cudakit.sim.lockstep.report import SourcePlace
from cudakit.sim.ptx.ir import Instruction, Location, PtxError

SourceLookup = Callable[[str], "str | None"]


class SourceLines:
    """The source lines of a module's instructions. ``files`` are the module's files by number; ``lookup`` returns the
    text of a file by its name, or None to read it from disk."""

    def __init__(self, files: Mapping[int, str], lookup: SourceLookup | None = None) -> None:
        self.files = files
        self.lookup = lookup
        self._texts: dict[str, list[str] | None] = {}

    def place(self, instruction: Instruction) -> tuple[SourcePlace, ...]:
        """The source lines of an instruction: its own, then those it was inlined into. Lines of CUDA's headers are
        omitted if a line of the user's code follows."""
        return self._places(instruction.location)

    def explained(self, error: PtxError) -> PtxError:
        """Return the error with the name of its kernel or function and its source lines."""
        message = str(error)
        if error.function is not None:
            message += f"\n  in {error.function}"
        for place in self._places(error.location):
            message += f"\n  at {place.file}:{place.line}"
            if place.text is not None:
                message += f"\n      {place.text.strip()}"
        return type(error)(message, error.line)

    def _places(self, location: Location | None) -> tuple[SourcePlace, ...]:
        places = []
        while location is not None:
            file = self.files.get(location.file, f"file {location.file}")
            places.append(SourcePlace(file, location.line, self._line(file, location.line), location.function))
            location = location.inlined_at
        own = next((n for n, place in enumerate(places) if place.text is not None and not _is_toolkit(place.file)), 0)
        return tuple(places[own:])

    def texts(self) -> Iterator[str]:
        """The texts of the module's files, without CUDA's headers and files that are not available."""
        for file in self.files.values():
            lines = None if _is_toolkit(file) else self.lines(file)
            if lines is not None:
                yield "\n".join(lines)

    def _line(self, file: str, line: int) -> str | None:
        lines = self.lines(file)
        return lines[line - 1] if lines is not None and 0 < line <= len(lines) else None

    def lines(self, file: str) -> list[str] | None:
        """The lines of a source file; None if it is not available."""
        if file not in self._texts:
            text = self.lookup(file) if self.lookup is not None else None
            if text is None:
                try:
                    with open(file, encoding="utf-8", errors="replace") as handle:
                        text = handle.read()
                except OSError:
                    text = None
            self._texts[file] = text.splitlines() if text is not None else None
        return self._texts[file]


def _is_toolkit(file: str) -> bool:
    """Whether a source file is one of CUDA's headers."""
    folders = file.replace("\\", "/").split("/")[:-1]
    return "include" in folders and any(f == "nvidia" or f.startswith("cuda") for f in folders)

"""The findings of a check as data: one `Report` per fault, race, leak, wrong result, compile error or failed script.

JSON, SARIF and JUnit are written from these. `of_fault` converts the simulated device's report (`FaultReport`),
`of_error` an exception; no text is parsed.
"""

from __future__ import annotations

import inspect
import linecache
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from types import TracebackType
from typing import Any

from cudakit import tracebacks
from cudakit.errors import CompileError, CudakitError, LaunchError, OutOfMemory

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Place:
    """A source line, counted from 1. text: the line without its indentation, or None if the source is not available."""

    file: str
    line: int
    text: str | None = None


@dataclass(frozen=True)
class Other:
    """An access that a fault conflicts with ("shared store"), with its block, thread and line if known."""

    access: str
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    file: str | None = None
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Report:
    """One finding. Unknown fields are None.

    kind: its class, such as "out of bounds", "shared memory race", "uninitialised read", "leak", "wrong result" or
    "compile error". message: one sentence. severity: "error", or "warning" if it does not fail the check. file, line,
    column: the line at fault, counted from 1; text: that line. kernel: its C++ name. block, thread: the first at fault.
    allocation: the memory concerned, with the places that allocated and freed it. launched: the line that launched the
    kernel. inlined: the lines into which the line at fault was inlined. others: the accesses it conflicts with.
    step: the part of the check that found it, such as "run try.py"; arch, family, variant, script, problem and replay
    (the command that repeats it) belong to that step. full_text: the report as printed. fault: the simulated device's
    complete report.
    """

    kind: str
    message: str
    severity: str = ERROR
    file: str | None = None
    line: int | None = None
    column: int | None = None
    text: str | None = None
    kernel: str | None = None
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    allocation: dict[str, Any] | None = None
    launched: Place | None = None
    inlined: tuple[Place, ...] = ()
    others: tuple[Other, ...] = ()
    step: str | None = None
    arch: str | None = None
    family: str | None = None
    variant: str | None = None
    script: str | None = None
    problem: str | None = None
    replay: str | None = None
    full_text: str = ""
    fault: dict[str, Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Report({self.headline})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.full_text or self.headline)}</pre>"

    @property
    def headline(self) -> str:
        """The kind, the sentence and the place, on one line; a fault's kind is worded as in its text."""
        place = "" if self.file is None else f" at {self.file}" + ("" if self.line is None else f":{self.line}")
        first = self.full_text.partition("\n")[0] if self.fault is not None else f"{self.kind}: {self.message}"
        return " ".join(f"{first}{place}".split())

    def at(self, file: str | None, line: int | None = None) -> Report:
        """This report, with this place if its own is unknown."""
        if self.file is not None or file is None:
            return self
        return replace(self, file=file, line=line, text=_text(file, line))


def of_fault(fault: Any, **context: Any) -> Report:
    """The report of a fault that the simulated device found (`CudaError.report`, `LeakWarning.report`).

    context: further fields, such as `step` and `script`; if it has `launched`, it replaces the device's own line of the
    launch.
    """
    launched = getattr(fault, "launched", None)
    if "launched" in context and launched is not None:
        fault, launched = replace(fault, launched=None), None
    return Report(
        **{
            "kind": fault.kind,
            "message": fault.detail,
            "file": fault.file,
            "line": fault.line,
            "text": _stripped(fault.text),
            "kernel": fault.name,
            "block": getattr(fault, "block", None),
            "thread": getattr(fault, "thread", None),
            "allocation": None if fault.allocation is None else fault.allocation.as_dict(),
            "launched": None if launched is None else place(launched.file, launched.line),
            "inlined": tuple(Place(one.file, one.line, _stripped(one.text)) for one in fault.places[1:]),
            "others": tuple(_other(one) for one in fault.others),
            "full_text": str(fault),
            "fault": fault.as_dict(),
            **context,
        }
    )


def of_error(error: BaseException, **context: Any) -> list[Report]:
    """The reports of an exception: the simulated device's if it has one, one per diagnostic of a compile error,
    otherwise its own sentence at the innermost line of the user's code.

    context: further fields, such as `step` and `script`.
    """
    fault = getattr(error, "report", None)
    if fault is not None:
        return [of_fault(fault, **context)]
    if isinstance(error, CompileError):
        errors = [one for one in error.diagnostics if one.is_error]
        return of_diagnostics(errors, full_text=str(error), **context) or [
            Report("compile error", error.message, full_text=str(error), **context)
        ]
    message = str(error) if isinstance(error, CudakitError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    raised = _raised_at(error)
    return [
        Report(
            **{
                "kind": _kind(error),
                "message": message,
                "file": raised.file if raised else None,
                "line": raised.line if raised else None,
                "text": raised.text if raised else None,
                "full_text": message,
                **context,
            }
        )
    ]


def of_diagnostics(diagnostics: Sequence[Any], **context: Any) -> list[Report]:
    """The reports of the compiler's diagnostics (`CompileError.diagnostics`); warnings have severity "warning"."""
    return [
        Report(
            **{
                "kind": "compile error" if one.is_error else "compile warning",
                "message": "\n".join([one.message, *map(str.strip, one.more)]),
                "severity": ERROR if one.is_error else WARNING,
                "file": one.file,
                "line": one.line,
                "column": one.source_column,
                "text": _stripped(one.text),
                "full_text": f"{one.file}({one.line}): {one.kind}: {one.message}",
                **context,
            }
        )
        for one in diagnostics
    ]


def _kind(error: BaseException) -> str:
    if isinstance(error, LaunchError):
        return "refused launch"
    return "out of memory" if isinstance(error, OutOfMemory) else "failed script"


def _raised_at(error: BaseException) -> Place | None:
    """The innermost line of an error's traceback that is neither this package's nor of an installed module."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return place(error.filename, error.lineno)
    found, entry = None, tracebacks.trimmed(error.__traceback__)
    while entry is not None:
        if _is_users(entry):
            found = place(entry.tb_frame.f_code.co_filename, entry.tb_lineno)
        entry = entry.tb_next
    return found


def _is_users(entry: TracebackType) -> bool:
    file = entry.tb_frame.f_code.co_filename
    paths = sysconfig.get_paths()
    installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not file.startswith("<") and not any(file.startswith(folder) for folder in installed)


def _other(other: Any) -> Other:
    first = other.places[0] if other.places else None
    return Other(
        other.access,
        other.block,
        other.thread,
        first.file if first else None,
        first.line if first else None,
        _stripped(first.text) if first else None,
    )


def defined(function: Callable[..., Any]) -> Place | None:
    """The line that defines a function, such as a variant's launch."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else place(code.co_filename, code.co_firstlineno)


def place(file: str, line: int) -> Place:
    """A line with its current text."""
    return Place(file, line, _text(file, line))


def _text(file: str, line: int | None) -> str | None:
    return None if line is None else _stripped(linecache.getline(file, line))


def _stripped(text: str | None) -> str | None:
    return None if text is None else text.strip() or None

"""Hide this package's frames: find the caller's line, and show uncaught errors without frames of cudakit.

`python script.py` shows an uncaught error of cudakit at the script's own line. CUDAKIT_TRACEBACK=full shows all frames,
and so does a bug of cudakit itself (such as an AttributeError). Frames outside this package are always shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: The errors that a caller can cause; any other error indicates a bug. `errors` adds its own.
_meant: tuple[type[BaseException], ...] = (TypeError, ValueError, OSError, KeyboardInterrupt)
_MAGIC = ("run_cell_magic", "run_line_magic")  # the functions of IPython that run a magic

Error = TypeVar("Error", bound=BaseException)


def _as_it_is(file: str) -> str:
    return file


_name_of: Callable[[str], str] = _as_it_is


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def outside_level() -> int:
    """The stacklevel that attributes a warning of the caller to the first frame outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame):
        level, frame = level + 1, frame.f_back
    return level


def outside_place() -> str:
    """The line of the first frame outside this package, as FILE:LINE."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame):
        frame = frame.f_back
    return f"{_name_of(frame.f_code.co_filename)}:{frame.f_lineno}"


def name_files(name_of: Callable[[str], str]) -> None:
    """Make messages use name_of(file) as the name of each Python file, because a notebook cell has no path."""
    global _name_of
    _name_of = name_of


def line_in(error: BaseException, file: str = "") -> str:
    """Return " (FILE:LINE)" of an error's innermost frame in `file`, or else of the innermost frame outside this
    package; "" if there is neither."""
    lines = []
    entry = error.__traceback__
    while entry is not None:
        lines.append((entry.tb_frame.f_code.co_filename, entry.tb_lineno))
        entry = entry.tb_next
    files = [line for line in lines if not line[0].startswith(("<", _PACKAGE))]
    chosen = [line for line in files if line[0] == file] or files
    return f" ({chosen[-1][0]}:{chosen[-1][1]})" if chosen else ""


def trimmed(found: TracebackType | None) -> TracebackType | None:
    """A traceback without this package's frames; None if no frame is left."""
    return _joined([entry for entry in _entries(found) if not _is_own(entry.tb_frame)])


def _entries(found: TracebackType | None) -> Iterator[TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def _joined(entries: list[TracebackType]) -> TracebackType | None:
    made: TracebackType | None = None
    for entry in reversed(entries):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def rendered(error: BaseException) -> list[str]:
    """The lines that IPython shows of an error: the caller's own frames, if there are any, and the message.

    A `_render_traceback_` of an error, which IPython calls, returns this.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if ipython is None or shell is None:
        import traceback

        return traceback.format_exception(type(error), error, error.__traceback__)
    if not are_trimmed(error):
        return list(shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=1))
    trim(error)
    folder = os.path.dirname(str(ipython.__file__)) + os.sep
    kept: list[TracebackType] = []
    for entry in _entries(error.__traceback__):
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(folder):
            kept.append(entry)
        elif code.co_name in _MAGIC and kept:
            kept.pop()  # IPython's own call of a magic
    found = _joined(kept)
    if found is None:
        return list(shell.InteractiveTB.get_exception_only(type(error), error))
    return list(shell.InteractiveTB.structured_traceback(type(error), error, found))


def meant(kind: type[Error]) -> type[Error]:
    """Add a class to the errors that a caller can cause, and that are shown without this package's frames."""
    global _meant
    _meant = (*_meant, kind)
    return kind


def are_trimmed(error: BaseException) -> bool:
    """Whether an error is shown without this package's frames."""
    return isinstance(error, _meant) and os.environ.get("CUDAKIT_TRACEBACK", "").strip() != "full"


def trim(error: BaseException) -> None:
    """Remove this package's frames from an error's traceback, and from those of its causes and of a group's errors.

    An error with only this package's frames keeps them, and so do errors that show a bug.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            rest += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]  # of an ExceptionGroup
            if isinstance(one, _meant):
                left = trimmed(one.__traceback__)
                one.__traceback__ = one.__traceback__ if left is None and one is error else left


def install() -> None:
    """Show uncaught errors of the main thread without this package's frames, and pass them to the present
    excepthook."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, found: TracebackType | None) -> None:
        if os.environ.get("CUDAKIT_TRACEBACK", "").strip() != "full":
            error.__traceback__ = found
            trim(error)
            found = error.__traceback__
        show(kind, error, found)

    sys.excepthook = hook

"""The command of this process, for the results that it writes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

# Options that do not change a result: those that name output files, with their values, and --quiet.
_OUTPUTS = ("--json", "--plot", "--picture", "--markdown", "--ptx")
_SILENT = ("--quiet", "-q")


def command_line() -> str:
    """Return this process's command, such as `python -m cudakit bench softmax --shapes 64x64`, without options that
    name output files and without absolute paths; "" for an interactive interpreter."""
    program, *arguments = sys.argv or [""]
    if program in ("", "-c"):
        return ""
    return shlex.join(["python", *_program(program), *map(_shown, _kept(arguments))])


def _program(path: str) -> Sequence[str]:
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "-m", str(spec.name).removesuffix(".__main__")
    folder, name = os.path.split(path)
    if name.removesuffix(".exe") == "cudakit":  # the installed command
        return "-m", "cudakit"
    return ("-m", os.path.basename(folder)) if name == "__main__.py" else (_shown(path),)


def _kept(arguments: Sequence[str]) -> Iterator[str]:
    values = iter(arguments)
    for value in values:
        if value in _OUTPUTS:
            next(values, None)
        elif value not in _SILENT and not value.startswith(tuple(f"{name}=" for name in _OUTPUTS)):
            yield value


def _shown(value: str) -> str:
    """Return an argument; an absolute path is relative to the current folder, or only its last part."""
    name, equals, path = value.rpartition("=")
    if not os.path.isabs(path):
        return value
    inside = os.path.relpath(path)
    return name + equals + (os.path.basename(path) if inside.startswith(os.pardir) else inside)

"""Runs a Python script as `python script.py` does, in this process: most of a short script's time is otherwise the
start of an interpreter and the import of numpy. What ends with the process (exit handlers, a crash) is not tested so."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import traceback
from pathlib import Path
from subprocess import CompletedProcess


def run(script: Path, *arguments: str) -> CompletedProcess[str]:
    """The exit status and the output of `python script arguments`. stdout and stderr are texts of their own."""
    out, err = io.StringIO(), io.StringIO()
    status = run_into(out, err, script, *arguments)
    return CompletedProcess([str(script), *arguments], status, out.getvalue(), err.getvalue())


def run_into(out: io.StringIO, err: io.StringIO, script: Path, *arguments: str) -> int:
    """The exit status of `python script arguments`, which prints into `out` and `err`."""
    path, argv = sys.path.copy(), sys.argv
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                return _status(end)
            except BaseException:
                traceback.print_exc()
                return 1
    finally:
        sys.argv = argv
        sys.path[:] = path
    return 0


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1

"""Runs a Python script or a cudakit command in this process, as a shell would run it. That saves the start of an
interpreter and the import of numpy, most of a short script's time. Exit handlers do not run, and a crash ends the
caller."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from paths import ROOT


def run(script: Path, *arguments: str) -> CompletedProcess[str]:
    """Return the exit status, stdout and stderr of `python script arguments`."""
    out, err = io.StringIO(), io.StringIO()
    status = run_into(out, err, [str(script), *arguments])
    return CompletedProcess([str(script), *arguments], status, out.getvalue(), err.getvalue())


def run_into(out: io.StringIO, err: io.StringIO, words: list[str]) -> int:
    """Run a command, "cudakit" or a script with arguments, with output to `out` and `err`; return its exit status."""
    path, argv = sys.path.copy(), sys.argv
    script = ROOT / "cudakit" / "__main__.py" if words[0] == "cudakit" else Path(words[0])
    if words[0] != "cudakit":
        sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *words[1:]]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return _status(lambda: runpy.run_path(str(script), run_name="__main__"))
    finally:
        sys.argv = argv
        sys.path[:] = path


def _status(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

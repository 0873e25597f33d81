"""Runs a Python script or a cudakit command in this process, as a shell would run it. That saves the start of an
interpreter and the import of numpy, most of a short script's time. Exit handlers do not run, and a crash ends the
caller. `example` loads an example as a module instead."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from paths import ROOT


def example(name: str) -> Any:
    """Load an example as a module, without running it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "examples"))
        del sys.modules[name]
    return module


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

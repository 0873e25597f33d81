"""Compiles the recorded source of a module again with its variables (-G), for a debugger."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from cudakit.compile import compiler, headers
from cudakit.compile import options as nvrtc_options
from cudakit.compile.compiler import Compiled, Request
from cudakit.errors import CompileError
from cudakit.recording.code import FILE_LINE
from cudakit.recording.file import RecordingError
from cudakit.recording.launches import Build, RecordedModule

_INCLUDE = re.compile(r'(#\s*include\s*["<])([^">\n]+)(?=[">])')


def with_variables(code: RecordedModule, arch: str, kernel: str) -> Compiled:
    """Compile a module again with -G and its recorded headers; CUDA's own headers are those of this machine.

    Args:
        code: The module.
        arch: The architecture.
        kernel: The mangled name of a kernel that it must have.

    Raises:
        RecordingError: If that is not possible; the text is the reason.
    """
    build = code.build
    if build is None or not code.source:
        raise RecordingError(f"{code.name} has no source that NVRTC compiled")
    options = [option for option in build.options if option not in ("-lineinfo", "--generate-line-info", "-G")]
    # a file may be made to do harm: other options can write files, or read those of this machine
    refused = nvrtc_options.not_covered(options) or next(iter(nvrtc_options.pre_included(options)), None)
    if refused is not None:
        raise RecordingError(f"{code.name} was compiled with {refused}, which a recording may not do")
    with tempfile.TemporaryDirectory() as root:
        try:
            compiled = compiler.compile_in_threads(_request(code, build, arch, options, root))
        except (CompileError, OSError, ValueError) as error:
            why = _reason(error).replace(root, "")
            raise RecordingError(f"{code.name} does not compile here: {why}") from error
        places = {os.path.normpath(_inside(root, path)): path for path in (*build.headers, code.name)}
        ptx = FILE_LINE.sub(lambda found: f'{found[1]}"{_recorded(found[2], places)}"', compiled.ptx)
    if not re.search(rf"\.entry\s+{re.escape(kernel)}\b", ptx):
        raise RecordingError(f"{code.name}, compiled again, has no kernel {kernel}")
    return replace(compiled, ptx=ptx, name=code.name, source=code.source)


def _request(code: RecordedModule, build: Build, arch: str, options: list[str], root: str) -> Request:
    """Write the recorded headers below `root`, and return a request that finds them and no others but CUDA's.

    Raises RecordingError if the source includes others.
    """

    def moved(text: str) -> str:
        """Return a text whose includes of absolute paths name the files below `root`."""
        return _INCLUDE.sub(
            lambda found: f"{found[1]}{_inside(root, found[2])}" if found[2] in build.headers else found[0], text
        )

    for path, text in build.headers.items():
        place = _inside(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(moved(text), encoding="utf-8", newline="")
    folders = [_inside(root, folder) for folder in build.folders]
    # the source's folder too: it is searched for headers, and those of today may differ
    name = _inside(root, code.name)
    for folder in (*folders, name.parent):
        folder.mkdir(parents=True, exist_ok=True)
    request = Request(moved(code.source), str(name), arch, (*options, "-G"), build.names, tuple(map(str, folders)))
    found = headers.scan(request.source, request.name, request.directories, request.options, request.names)
    real = os.path.realpath(root)
    outside = [path for path in found.files if not Path(os.path.realpath(path)).is_relative_to(real)]
    if outside or found.unknown:
        raise RecordingError(f"{code.name} includes what is not in the recording: {[*outside, *found.unknown][0]}")
    return request


def _reason(error: Exception) -> str:
    """Return the first line of a failure, with the first error in the source."""
    first = next((one for one in getattr(error, "diagnostics", ()) if one.is_error), None)
    return str(error).splitlines()[0] + ("" if first is None else f" ({first.message})")


def _recorded(name: str, places: dict[str, str]) -> str:
    """Return the recorded path of a file in the PTX, which breakpoints and reports use. places: the recorded paths of
    the headers, by their paths here."""
    return places.get(os.path.normpath(name.replace("\\\\", "\\")), name)


def _inside(root: str, path: str) -> Path:
    """Return the place of an absolute path below `root`, which `..` cannot leave."""
    parts: list[str] = []
    for part in re.split(r"[/\\]+", path):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part.replace(":", ""))
    return Path(root, *parts)

"""Compiles the recorded source of a module again with its variables (-G), for a debugger."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from cudakit.compile import compiler
from cudakit.compile import options as nvrtc_options
from cudakit.compile.compiler import Compiled, Request
from cudakit.errors import CompileError
from cudakit.recording.file import RecordingError
from cudakit.recording.launches import RecordedModule

_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"((?:[^"\\]|\\.)*)"', re.MULTILINE)


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
            for path, text in build.headers.items():
                place = _inside(root, path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8", newline="")
            folders = [_inside(root, folder) for folder in build.folders]
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            directories = tuple(map(str, folders))
            # without the source's own folder, which may now have other headers
            again = (*options, "-G", "--no-source-include")
            request = Request(code.source, code.name, arch, again, build.names, directories)
            compiled = compiler.compile_in_threads(request)
        except (CompileError, OSError, ValueError) as error:
            raise RecordingError(f"{code.name} does not compile here: {str(error).splitlines()[0]}") from error
        places = {os.path.normpath(_inside(root, path)): path for path in build.headers}
        ptx = _FILE.sub(lambda found: f'{found[1]}"{_recorded(found[2], places)}"', compiled.ptx)
    if not re.search(rf"\.entry\s+{re.escape(kernel)}\b", ptx):
        raise RecordingError(f"{code.name}, compiled again, has no kernel {kernel}")
    return replace(compiled, ptx=ptx)


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

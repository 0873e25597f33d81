"""The code of a recorded kernel: its module in the file, the module's variables, the sources that reports quote, and
what a debugger needs to compile it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudakit.compile import compiler, headers
from cudakit.driver.context import Context
from cudakit.launch.mangling import demangle
from cudakit.recording.file import MemberWriter, digest
from cudakit.recording.launches import Build

#: The line of a file in PTX: the text before its name, and its name.
FILE_LINE = re.compile(r'^(\s*\.file\s+\d+\s+)"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_VARIABLE = re.compile(
    r"^\s*(?:\.(?:visible|weak|common)\s+)*\.(?:const|global)\s+(?:\.attribute\([^)]*\)\s+)?(?:\.align\s+\d+\s+)?"
    r"(?:\.v\d\s+)?\.\w+\s+([\w$]+)\s*(?:\[[^\]]*\])*\s*(?:=\s*([^;]*))?;",
    re.MULTILINE,
)
_FUNCTION = re.compile(r"\.(?:func|entry)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_MOST_TEXT = 1 << 18  # bytes of a source file that is saved
#: Sections of a cubin that hold variables.
_VARIABLE_SECTIONS = (b".nv.global\0", b".nv.global.init", b".nv.constant3")


@dataclass(frozen=True)
class Code:
    """A module as it was compiled; see `launches.RecordedModule`. handle: the driver's. compiled: NVRTC's result, if it
    compiled the module."""

    name: str
    arch: str
    ptx: str
    cubin: bytes
    source: str
    resources: Mapping[str, Mapping[str, int]]
    handle: Any
    compiled: compiler.Compiled | None = None


def write_module(file: MemberWriter, code: Code) -> str:
    """Write a module, and return its folder in the file."""
    folder = f"modules/{digest(b''.join((code.name.encode(), code.ptx.encode(), code.cubin)))}"
    if f"{folder}/module.json" in file:
        return folder
    files = {name: file.data("sources", text.encode()) for name, text in _sources(code).items() if text}
    build = None if code.compiled is None else _build(file, code.compiled)
    facts = {
        "name": code.name,
        "arch": code.arch,
        "cubin": bool(code.cubin),
        "source": code.source,
        "resources": code.resources,
        "files": files,
        "build": None if build is None else asdict(build),
    }
    file.text(f"{folder}/module.ptx", code.ptx)
    if code.cubin:
        file.bytes(f"{folder}/module.cubin", code.cubin)
    file.text(f"{folder}/module.json", facts)
    return folder


def _sources(code: Code) -> dict[str, str]:
    """Return the texts of the files that the PTX names, without CUDA's own headers."""
    found = {code.name: code.source}
    for name in dict.fromkeys(name for _, name in FILE_LINE.findall(code.ptx)):
        folders = name.replace("\\", "/").split("/")[:-1]
        own = not ("include" in folders and any(part == "nvidia" or part.startswith("cuda") for part in folders))
        if own and name not in found:
            try:
                if Path(name).stat().st_size <= _MOST_TEXT:
                    found[name] = Path(name).read_text(encoding="utf-8-sig", errors="replace")
            except (OSError, ValueError):
                continue
    return found


def _build(file: MemberWriter, compiled: compiler.Compiled) -> Build:
    """Return how a module was compiled, after writing its headers. Those that only the preprocessor can name are not
    written."""
    request = compiler.request_again(compiled, compiled.arch, tuple(compiled.lowered))
    found = headers.scan(request.source, request.name, request.directories, request.options, request.names)
    members = {name: file.data("sources", content) for name, content in found.files.items()}
    return Build(request.options, request.names, request.directories, members)


def variables(context: Context, code: Code) -> list[tuple[tuple[int, int], str]]:
    """Return the memory and the mangled name of each variable of a module.

    Variables that hold addresses of functions (tables of virtual functions) are left out: loading the module sets them.
    """
    found = []
    functions = set(_FUNCTION.findall(code.ptx))
    for name, initial in _VARIABLE.findall(code.ptx):
        if "$str" in name or functions & set(re.findall(r"[\w$]+", initial)):
            continue
        result, address, size = context.driver.cuModuleGetGlobal(code.handle, name.encode())
        if not result and int(size):  # the compiler may have removed it
            found.append(((int(address), int(address) + int(size)), name))
    return found


def unknown_variables(code: Code) -> list[str]:
    """Return why a module's variables cannot be saved, as a list of at most one sentence."""
    if code.ptx or not any(section in code.cubin for section in _VARIABLE_SECTIONS):
        return []
    return [f"{code.name} was loaded from machine code without PTX, so the variables of the module are unknown"]


def variable_name(mangled: str) -> str:
    """Return the C++ name of a variable."""
    found = demangle(mangled)
    return mangled if found is None else found.name

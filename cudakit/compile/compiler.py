"""NVRTC: from CUDA C++ text to a cubin, its PTX, and ptxas's report on each kernel.

`request` gathers everything that a compile depends on; `compile` runs it. One compile for the real architecture makes
both the cubin, which GPUs load, and the PTX, which the simulated device loads. NVRTC is loaded by the first compile
only: `nvrtc_identity` reads its version from its wheel or its file name, so that a warm cache never loads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cudakit import nvtx
from cudakit.compile import bundled, diagnostics, headers, hints, library, precompiled
from cudakit.compile import options as nvrtc_options
from cudakit.errors import CompileError, check

nvrtc_identity, nvrtc_label = library.identity, library.label

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_CLOCK = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)  # differs between runs


@dataclass(frozen=True)
class Resources:
    """ptxas's report on one function.

    Attributes:
        registers: Registers per thread.
        static_shared: Static shared memory per block, in bytes.
        stack: Stack per thread, in bytes.
        spill_stores: Bytes per thread that are spilled to local memory.
        spill_loads: Bytes per thread that are loaded back.
        barriers: Named barriers per block.
    """

    registers: int = 0
    static_shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    barriers: int = 0


@dataclass(frozen=True)
class Request:
    """Everything that one compile depends on. `name` is the path in diagnostics, line info and reports."""

    source: str
    name: str
    arch: str
    options: tuple[str, ...]  # in NVRTC's order, without include paths
    names: tuple[str, ...]  # name expressions
    directories: tuple[str, ...]  # include path, without CUDA's own


@dataclass(frozen=True)
class Compiled:
    """The results of one compile.

    Attributes:
        cubin: Machine code.
        ptx: PTX text.
        lowered: The mangled name of each name expression.
        log: The compiler's log.
        options: All options, in the compiler's order.
        resources: ptxas's report on each function, by mangled name.
        arch: The architecture, such as "sm_90a".
        nvrtc_version: (major, minor); (0, 0) for another compiler.
        name: The source's path or label.
        source: The source's text.
        launch: Launch requirements that another compiler reports for its kernel.
        precompiled: The use of precompiled headers: "made", "used", "not used: " and the reason, or "" if NVRTC did not
            run for this result.
    """

    cubin: bytes
    ptx: str
    lowered: dict[str, str]
    log: str
    options: tuple[str, ...]
    resources: dict[str, Resources]  # by mangled name
    arch: str
    nvrtc_version: tuple[int, int]
    name: str
    source: str
    launch: dict[str, Any] = field(default_factory=dict)
    precompiled: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"Compiled({self.name!r}, {self.arch!r}: {len(self.ptx)} bytes of PTX, {len(self.cubin)} of cubin)"


def chip_arch(major: int, minor: int) -> str:
    """Return NVRTC's name of a chip, with its chip-specific instructions if it has any: (9, 0) is "sm_90a"."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def request(
    source: str,
    *,
    name: str,
    arch: str,
    options: Sequence[str] = (),
    defines: Mapping[str, Any] | None = None,
    names: Sequence[str] = (),
    include: Sequence[str | os.PathLike[str]] = (),
    std: str = "c++17",
    fmad: bool = True,
    max_registers: int | None = None,
    line_info: bool = True,
) -> Request:
    """Gather a compile of `source`.

    Args:
        source: CUDA C++ text.
        name: The file's absolute path, or any label for text. Its folder is the first on the include path.
        arch: The architecture, such as "sm_90a".
        options: More NVRTC options.
        defines: Macros: text or numbers (True is 1, False is 0); None defines the bare name.
        names: Name expressions of templates to instantiate.
        include: Include folders, searched after the source's folder, before kernels/common and CUDA's own.
        std: The C++ standard.
        fmad: False forbids contraction of a*b+c.
        max_registers: Limit of registers per thread.
        line_info: Include line numbers.

    Raises:
        ValueError: If a define or option cannot be passed to NVRTC.
    """
    if isinstance(names, str) or isinstance(options, str):
        raise ValueError('names and options must be sequences of strings; write names=("k<4>",), not names="k<4>"')
    made = [f"--std={std}", "--ptxas-options=-v", f"--fmad={'true' if fmad else 'false'}"]
    if line_info:
        made.append("-G" if nvrtc_options.debug_code else "-lineinfo")
    if max_registers is not None:
        if not 16 <= max_registers <= 255:
            raise ValueError(f"max_registers must be 16 to 255, got {max_registers}")
        made.append(f"--maxrregcount={max_registers}")
    for key, value in (defines or {}).items():
        made.append(_define(key, value))
    extra, folders = nvrtc_options.split(options)
    directories: list[str] = []
    own = os.path.dirname(name)
    for folder in (own, *include, *folders, headers.common_directory()):
        if folder and (place := nvrtc_options.absolute(folder)) not in directories:
            directories.append(place)
    return Request(source, name, arch, (*made, *extra), tuple(names), tuple(directories))


def request_of(path: str | os.PathLike[str], **settings: Any) -> Request:
    """Return `request` of a `.cu` file, which `headers.find_source` finds. Raises FileNotFoundError, and CompileError
    if it is not UTF-8."""
    file = headers.find_source(path)
    return request(headers.read_source(file), name=str(file), **settings)


def request_again(compiled: Compiled, arch: str, names: Sequence[str]) -> Request:
    """Return the request that made `compiled`, for another architecture and with the name expressions `names`."""
    options = [option for option in compiled.options if not option.startswith(("-I", "--gpu-architecture="))]
    folders = [option[2:] for option in compiled.options if option.startswith("-I")]
    folders = [folder for folder in folders if not headers.is_cuda_directory(folder)]
    return Request(compiled.source, compiled.name, arch, tuple(options), tuple(names), tuple(folders))


def _define(key: str, value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise ValueError(f'defines: {key!r} is not a macro name; pass names with values, such as {{"TILE": 16}}')
    if value is None:
        return f"-D{key}"
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, (int, float, str)):
        raise ValueError(f"defines: {key} must be text, a number or a bool, got {value!r} ({type(value).__name__})")
    return f"-D{key}={value}"


@nvtx.range("NVRTC")
def compile(request: Request) -> Compiled:
    """Compile `request`. Raises CompileError with the log and the numbered source around each diagnostic."""
    nvrtc, included = _ready(request)
    options = full_options(request)
    result, how = precompiled.run(
        nvrtc,
        request.source,
        (nvrtc_identity(), request.name, *options),
        request.options,
        included,
        lambda: _scan(request),
        lambda more: _attempt(nvrtc, request, options, more),
    )
    return replace(result, precompiled=how)


@nvtx.range("NVRTC")
def compile_in_threads(request: Request) -> Compiled:
    """Compile without precompiled headers, which only one thread at a time may use; several threads may call this."""
    nvrtc, _ = _ready(request)
    result = _attempt(nvrtc, request, full_options(request), ()).result
    return replace(result, precompiled="not used: several threads compile")


def _ready(request: Request) -> tuple[Any, headers.Included]:
    """Return the NVRTC bindings and the headers of `request`; unpacks CUDA's if it may include them.

    Raises CompileError if NVRTC would read only a part of the source.
    """
    before, nul, _ = request.source.partition("\0")
    if nul:
        line = before.count("\n") + 1
        raise CompileError(f"{request.name}:{line} has a NUL character, at which NVRTC stops reading; remove it")
    nvrtc = library.load()
    included = _scan(request)
    if included.unknown or nvrtc_options.not_covered(request.options):
        bundled.unpack()  # the scan unpacks only if it finds a CUDA header; an unknown line may include one
    return nvrtc, included


def _scan(request: Request) -> headers.Included:
    return headers.scan(request.source, request.name, request.directories, request.options, request.names)


def _attempt(
    nvrtc: Any, request: Request, options: tuple[str, ...], more: tuple[str, ...]
) -> precompiled.Outcome[Compiled]:
    """Run NVRTC once, with `options`, which results and errors show, and with `more` options, which they do not."""
    program = check(
        nvrtc, "nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(request.source.encode(), request.name.encode(), 0, [], [])
    )
    try:
        for expression in request.names:
            check(nvrtc, "nvrtcAddNameExpression", nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        given = [option.encode() for option in (*options, *more)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = precompiled.without_messages(_CLOCK.sub("", _text(nvrtc, program, "ProgramLog"))).strip()
        if result:
            raise _failure(nvrtc, result, request, options, log)
        lowered: dict[str, str] = {}
        for expression in request.names:
            mangled = check(nvrtc, "nvrtcGetLoweredName", nvrtc.nvrtcGetLoweredName(program, expression.encode()))
            lowered[expression] = mangled.decode()
        compiled = Compiled(
            cubin=_bytes(nvrtc, program, "CUBIN"),
            ptx=_label_paths(_text(nvrtc, program, "PTX"), request.name),
            lowered=lowered,
            log=log,
            options=options,
            resources=parse_resources(log),
            arch=request.arch,
            nvrtc_version=library.version(nvrtc),
            name=request.name,
            source=request.source,
        )
        if not more:
            return precompiled.Outcome(compiled, None, 0)
        (status,) = nvrtc.nvrtcGetPCHCreateStatus(program)
        _, required = nvrtc.nvrtcGetPCHHeapSizeRequired(program)
        return precompiled.Outcome(compiled, status, int(required))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def full_options(request: Request) -> tuple[str, ...]:
    """Return every option of the compile, in NVRTC's order."""
    folders = (*request.directories, *headers.cuda_directories())
    return (f"--gpu-architecture={request.arch}", *request.options, *(f"-I{folder}" for folder in folders))


def _bytes(nvrtc: Any, program: Any, what: str) -> bytes:
    """Return one of a program's results. NVRTC writes to the buffer, so it must not be an (interned) bytes object."""
    routine = f"nvrtcGet{what}"
    size = check(nvrtc, routine + "Size", getattr(nvrtc, routine + "Size")(program))
    buffer = bytearray(size)
    if size:
        check(nvrtc, routine, getattr(nvrtc, routine)(program, buffer))
    return bytes(buffer)


def _text(nvrtc: Any, program: Any, what: str) -> str:
    return _bytes(nvrtc, program, what).rstrip(b"\0").decode(errors="replace")


def _label_paths(ptx: str, name: str) -> str:
    """Restore a label in `ptx`: NVRTC turns it into a path in the working directory."""
    if os.path.isabs(name):
        return ptx
    return ptx.replace(f'"{os.path.join(os.getcwd(), name)}"', f'"{name}"')


def _failure(nvrtc: Any, result: Any, request: Request, options: tuple[str, ...], log: str) -> CompileError:
    found = diagnostics.in_source(log, request.name, request.source)
    sentences = hints.of(found, request.name, request.source)
    if "gpu-architecture" in log:
        sentences = [f"{library.supported(nvrtc)}, not for {request.arch}"]
    errors = sum(one.is_error for one in found)
    count = f"{errors} error{'s' * (errors != 1)}" if errors else result.name
    return CompileError(
        ". ".join([f"{request.name} does not compile for {request.arch}: {count}", *sentences]),
        log=log,
        options=options,
        excerpt=diagnostics.excerpt(log, request.name, request.source),
        diagnostics=found,
    )


def parse_resources(log: str) -> dict[str, Resources]:
    """Return ptxas's report (`--ptxas-options=-v`), by mangled name of the kernel or called function."""
    found: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
            found.setdefault(entry, {})
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif function and (match := _STACK.search(line)):
            sizes = {"stack": int(match[1]), "spill_stores": int(match[2]), "spill_loads": int(match[3])}
            found.setdefault(function, {}).update(sizes)
        elif entry and (match := _USED.search(line)):
            values = found[entry]
            values["registers"] = int(match[1])
            if match := _BARRIERS.search(line):
                values["barriers"] = int(match[1])
            if match := _SHARED.search(line):
                values["static_shared"] = int(match[1])
    return {name: Resources(**values) for name, values in found.items()}

"""The kernels of an export: sources compiled for each architecture, and one entry per kernel.

`build` compiles a list of Sources. The result has one Image per source, with its machine code per architecture, and one
Entry per kernel, with the facts that a launcher needs.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cudakit.compile import cache, compiler, headers
from cudakit.errors import Refused
from cudakit.export import fatbin, identifiers
from cudakit.launch.cxx import Type
from cudakit.launch.declarations import plain_types
from cudakit.launch.mangling import demangle
from cudakit.launch.signature import Parameter, PtxParameter, parameters, ptx_entries
from cudakit.shipped import expect_architecture, forward_compatible, order


@dataclass(frozen=True)
class Usual:
    """The launch configuration of a kernel for one problem, which `title` names. shared: bytes of dynamic shared
    memory."""

    title: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Wanted:
    """One kernel to export. entry: its C++ name or name expression ("k<4>"). since: the first architecture that it is
    compiled for. idea: one line for its comment. cluster: whether a launch passes a cluster size. cooperative: whether
    all blocks must be resident at once. If these are None, they are read from the compiled code."""

    entry: str
    since: str = "sm_75"
    idea: str = ""
    cluster: bool | None = None
    cooperative: bool | None = None
    usual: tuple[Usual, ...] = ()


@dataclass(frozen=True)
class Source:
    """A `.cu` file and its kernels to export; all of them if `wanted` is empty. options: keywords of
    `compiler.request`, such as defines."""

    path: Path
    wanted: tuple[Wanted, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The file's name in messages: its path below cudakit's kernels, else its name."""
        root = headers.kernel_root().resolve()
        return str(self.path.relative_to(root)) if root in self.path.parents else self.path.name


@dataclass(frozen=True)
class Image:
    """The machine code of one source. stem: the stem of its files' names. compiled: by architecture, in ascending
    order. jit: the architecture whose PTX is in the fat binary, for later devices, or None. facts: lines of
    provenance."""

    stem: str
    source: Source
    compiled: Mapping[str, compiler.Compiled]
    fatbin: bytes
    jit: str | None
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One exported kernel. name: its name expression or C++ name. identifier: its name in C. image: the number of its
    Image. max_threads: the maximum threads per block that its launch bounds allow. block, required_cluster: the block
    and cluster sizes that it was compiled for; None if not fixed. cluster: whether a launch passes a cluster size.
    idea: one line. resources: by architecture."""

    name: str
    identifier: str
    mangled: str
    text: str
    image: int
    parameters: tuple[Parameter, ...]
    alignments: tuple[int, ...]
    max_threads: int | None
    block: tuple[int, int, int] | None
    required_cluster: tuple[int, int, int] | None
    cluster: bool
    cooperative: bool
    idea: str
    usual: tuple[Usual, ...]
    resources: Mapping[str, compiler.Resources]


@dataclass(frozen=True)
class Bundle:
    """All that is exported under one name."""

    name: str
    architectures: tuple[str, ...]
    images: tuple[Image, ...]
    entries: tuple[Entry, ...]

    def entry(self, image: int, name: str) -> Entry:
        """Return the entry called `name` of an image."""
        return next(one for one in self.entries if one.image == image and one.name == name)


def build(name: str, sources: Sequence[Source], architectures: Sequence[str], *, ptx: bool = True) -> Bundle:
    """Compile `sources` for `architectures` ("sm_80", "sm_90a"). ptx: whether to include PTX, for later devices.

    Raises Refused for unknown architectures, sources without kernels, and kernels with internal linkage; CompileError
    if a source does not compile.
    """
    chosen = tuple(sorted({expect_architecture(arch) for arch in architectures}, key=order))
    if not chosen:
        raise Refused("--arch names no architecture: write sm_80, sm_90a, ...")
    images: list[Image] = []
    entries: list[Entry] = []
    stems = identifiers.Unique(str.lower)
    names = identifiers.launcher_names()
    for source in sources:
        compiled = {arch: one for arch in chosen if (one := _compiled(source, arch)) is not None}
        if not compiled:
            raise Refused(f"{source.label} has no kernel for {', '.join(chosen)}: {_since(source)}")
        found = list(_entries(source, compiled, len(images), names))
        if not found:
            raise Refused(f"{source.label} has no kernels: name a template's instances, --names 'k<4>'")
        entries += found
        stem = stems(re.sub(r"[^\w.-]", "_", source.path.stem))
        jit = forward_compatible(compiled) if ptx else None
        binary = fatbin.make(stem, {arch: one.cubin for arch, one in compiled.items()}, jit, compiled)
        images.append(Image(stem, source, compiled, binary, jit, _provenance(source, compiled)))
    return Bundle(name, chosen, tuple(images), tuple(entries))


def _since(source: Source) -> str:
    return "; ".join(f"{one.entry} needs {one.since} or later" for one in source.wanted)


def _compiled(source: Source, arch: str) -> compiler.Compiled | None:
    """Return the source compiled for one architecture, with the kernels to export for it; None if there are no such
    kernels."""
    wanted = [one for one in source.wanted if order(one.since)[0] <= order(arch)[0]]
    if source.wanted and not wanted:
        return None
    names = sorted({one.entry for one in wanted if "<" in one.entry})
    text = headers.read_source(source.path)
    options = {"names": names, "line_info": False, **source.options}  # line info would include this machine's paths
    return cache.compiled(compiler.request(text, name=str(source.path), arch=arch, **options))


def _provenance(source: Source, compiled: Mapping[str, compiler.Compiled]) -> tuple[str, ...]:
    """The provenance of the machine code: hashes of the source and its headers, the compiler and its options."""
    first = next(iter(compiled.values()))
    request = compiler.request_again(first, first.arch, tuple(first.lowered))
    included = headers.scan(request.source, request.name, request.directories, request.options, request.names)
    folded = " ".join(option for option in first.options if not option.startswith(("-I", "--gpu-architecture=")))
    lines = [f"{source.label}: sha256 {hashlib.sha256(first.source.encode()).hexdigest()}"]
    licence = list(re.findall(r"(?:SPDX-License-Identifier:|Copyright)[^\n*]*", first.source))
    lines += [f"  {line.strip()}" for line in licence]
    for path, content in sorted(included.files.items(), key=lambda item: Path(item[0]).name):
        lines.append(f"  includes {Path(path).name}: sha256 {hashlib.sha256(content).hexdigest()}")
    lines.append(f"  NVRTC {compiler.nvrtc_label()} for {', '.join(compiled)}: {folded}")
    return tuple(lines)


# Entries --------------------------------------------------------------------------------------------------------------

_HEAD = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\([^)]*\))?([^{]*)\{")
_DIRECTIVE = re.compile(r"\.(maxntid|reqntid|reqnctapercluster)\s+([\d, ]+)")
_GRID_BARRIER = re.compile(r"%envreg[12]\b")  # the address of the grid's barrier, for cooperative_groups::this_grid()
_CLUSTER = re.compile(r"%(?:cluster_|nclusterid|clusterid)|barrier\.cluster|\bmapa\b")


def _entries(
    source: Source, compiled: Mapping[str, compiler.Compiled], image: int, names: identifiers.Unique
) -> Iterable[Entry]:
    """Yield the kernels of one source in the order of `wanted`, or, if that is empty, all kernels in the order of the
    PTX."""
    known: dict[str, tuple[str, compiler.Compiled]] = {}
    for one in compiled.values():
        for mangled in ptx_entries(one.ptx):
            key = _spelled(mangled)
            if known.setdefault(key, (mangled, one))[0] != mangled:
                raise Refused(
                    f"{source.label}: {key} is named differently on each architecture, as it has internal linkage; "
                    "move it out of its unnamed namespace, or remove static"
                )
    by_mangled = dict(known.values())
    if source.wanted:
        chosen = [(_lookup(source, wanted, compiled, by_mangled), wanted) for wanted in source.wanted]
    else:
        lowered = {mangled: name for one in compiled.values() for name, mangled in one.lowered.items()}
        called = {mangled: lowered.get(mangled) or _named(mangled) for mangled in by_mangled}
        shared = Counter(called.values())
        chosen = [
            (mangled, Wanted(name if shared[name] == 1 else _spelled(mangled)))  # overloads: with parameter types
            for mangled, name in called.items()
        ]
    for mangled, wanted in chosen:
        yield _entry(source, mangled, wanted, by_mangled[mangled], compiled, image, names)


def _spelled(mangled: str) -> str:
    known = demangle(mangled)
    return known.text if known is not None else mangled


def _named(mangled: str) -> str:
    known = demangle(mangled)
    return known.name if known is not None else mangled


def _lookup(source: Source, wanted: Wanted, compiled: Mapping[str, compiler.Compiled], known: Mapping[str, Any]) -> str:
    """The mangled name of a wanted kernel."""
    for one in compiled.values():
        if wanted.entry in one.lowered:
            return one.lowered[wanted.entry]
    matches = [mangled for mangled in known if wanted.entry in (mangled, _named(mangled), _spelled(mangled))]
    if len(matches) != 1:
        there = "; ".join(map(_spelled, known)) or "none"
        said = "has no kernel" if not matches else "has several kernels"
        raise Refused(f"{source.label} {said} {wanted.entry!r}; it has: {there}")
    return matches[0]


def _entry(
    source: Source,
    mangled: str,
    wanted: Wanted,
    one: compiler.Compiled,
    compiled: Mapping[str, compiler.Compiled],
    image: int,
    names: identifiers.Unique,
) -> Entry:
    in_ptx = ptx_entries(one.ptx)[mangled]
    head, body = _text_of(one.ptx, mangled)
    directives: dict[str, tuple[int, ...]] = {
        kind: tuple(int(extent) for extent in extents.split(",")) for kind, extents in _DIRECTIVE.findall(head)
    }
    fixed_cluster = _three(directives.get("reqnctapercluster"))
    most = directives.get("maxntid") or directives.get("reqntid")
    cluster, cooperative = wanted.cluster, wanted.cooperative
    typed = _parameters(mangled, in_ptx, one.source)
    if cluster is None:
        cluster = fixed_cluster is None and bool(_CLUSTER.search(body))
    if cooperative is None:
        cooperative = bool(_GRID_BARRIER.search(body))
    return Entry(
        name=wanted.entry,
        identifier=names(identifiers.identifier(wanted.entry)),
        mangled=mangled,
        text=f"{_named(mangled)}({', '.join(one.text for one in typed)})",
        image=image,
        parameters=typed,
        alignments=tuple(parameter.align for parameter in in_ptx),
        max_threads=math.prod(most) if most else None,
        block=_three(directives.get("reqntid")),
        required_cluster=fixed_cluster,
        cluster=cluster,
        cooperative=cooperative,
        idea=wanted.idea,
        usual=wanted.usual,
        resources={
            arch: each.resources[mangled] for arch, each in compiled.items() if mangled in ptx_entries(each.ptx)
        },
    )


def _three(extents: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if extents is None:
        return None
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _text_of(ptx: str, mangled: str) -> tuple[str, str]:
    """An entry's directives and its body."""
    matches = list(_HEAD.finditer(ptx))
    for number, match in enumerate(matches):
        if match[1] == mangled:
            end = matches[number + 1].start() if number + 1 < len(matches) else len(ptx)
            return match[2], ptx[match.end() : end]
    return "", ""


def _parameters(mangled: str, in_ptx: tuple[PtxParameter, ...], source: str) -> tuple[Parameter, ...]:
    """The parameters of a launch. If the mangled name has no types (`extern "C"`), the source's plain C types are used
    if their sizes match the PTX."""
    layout: list[tuple[int, int]] = []
    offset = 0
    for parameter in in_ptx:
        offset = -(-offset // parameter.align) * parameter.align
        layout.append((offset, parameter.size))
        offset += parameter.size
    known = parameters(mangled, layout, in_ptx, None, source)
    if demangle(mangled) is not None:
        return known
    declared: tuple[Type | None, ...] = plain_types(source, mangled, len(in_ptx))
    return tuple(
        Parameter(
            one.index, kind if kind is not None and kind.size == one.size else one.type, one.offset, one.size, one.name
        )
        for one, kind in zip(known, declared, strict=True)
    )

"""A kernel's parameter types: from its mangled name, or from its PTX if it has no mangled name (`extern "C"`).

`ptx_entries` reads the `.param` lines of a PTX text; `parameters` combines the name, the PTX and the sizes that the
driver reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cudakit.launch.cxx import BUILTIN, HALF, TENSOR_MAP, VOID, Type
from cudakit.launch.mangling import demangle
from cudakit.launch.parameter_names import parameter_names


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter. `offset` and `size` are bytes in the driver's parameter layout; `name` is its name in the
    source, "" if unknown. `copied`: a tensor map that the kernel copies to local memory (no __grid_constant__)."""

    index: int
    type: Type
    offset: int
    size: int
    name: str = ""
    copied: bool = False

    @property
    def label(self) -> str:
        """The parameter's text in errors: "parameter 0 (`x`)"."""
        return f"parameter {self.index}" + (f" (`{self.name}`)" if self.name else "")

    @property
    def text(self) -> str:
        """The type as C++ writes it: "const float*"."""
        return self.type.text

    @property
    def kind(self) -> str:
        """The kind of its type; see Type."""
        return self.type.kind

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PtxParameter:
    """One `.param` of an entry: `type` is PTX's ("u64", "f32", "b8" for a byte array), `size` is in bytes. `copied`: as
    in Parameter."""

    type: str
    size: int
    align: int
    pointer: bool  # marked .ptr
    array: bool
    copied: bool = False


_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(\.ptr\b(?:\s+\.\w+(?:\s+\d+)?)*\s+)?([\w$%]+)\s*(?:\[(\d+)\])?"
)
# Instructions that read a tensor map.
_TENSOR = re.compile(r"\.bulk(?:\.prefetch)?\.tensor\.|\bprefetch(?:\.\w+)*\.tensormap\b")


def ptx_entries(ptx: str) -> dict[str, tuple[PtxParameter, ...]]:
    """Return every kernel of a PTX text, by mangled name, with its parameters."""
    entries: dict[str, tuple[PtxParameter, ...]] = {}
    for match in _ENTRY.finditer(ptx):
        entry: list[PtxParameter] = []
        for align, kind, marked, name, count in _PARAM.findall(match[2] or ""):
            width = int(re.sub(r"\D", "", kind) or 8) // 8
            size = width * int(count) if count else width
            copied = bool(count) and size == TENSOR_MAP.size and _is_copied(ptx, match.end(), name)
            entry.append(PtxParameter(kind, size, int(align or width), bool(marked), bool(count), copied))
        entries[match[1]] = tuple(entry)
    return entries


def _is_copied(ptx: str, begin: int, name: str) -> bool:
    """Return whether the entry whose body begins there uses tensor maps and local memory, but not the parameter's
    address: NVRTC then copied the parameter to local memory to have an address."""
    body = ptx[begin : ptx.find("\n}", begin)]
    if "__local_depot" not in body or not _TENSOR.search(body):
        return False
    return re.search(rf"\bmov(?:\.\w+)+\s+%\w+,\s*{re.escape(name)}\s*;", body) is None


def _from_ptx(parameter: PtxParameter) -> Type:
    """Return the type of a parameter as far as PTX shows it: widths, floats, marked pointers."""
    if parameter.array:
        return Type(f"struct of {parameter.size} bytes", "struct", parameter.size)
    if parameter.pointer:
        return Type("void*", "pointer", 8, target=VOID)
    if parameter.type in ("f32", "f64"):
        return BUILTIN["f" if parameter.type == "f32" else "d"]
    if parameter.type == "f16":
        return HALF
    if parameter.size == 8:
        return Type("64 bits (a pointer or an integer)", "bits", 8)
    return Type(f"{8 * parameter.size}-bit integer", "int", parameter.size, None, f"int{8 * parameter.size}")


def parameters(
    mangled: str,
    layout: Sequence[tuple[int, int]],
    ptx: tuple[PtxParameter, ...] | None = None,
    reported: Sequence[Type] | None = None,
    source: str = "",
) -> tuple[Parameter, ...]:
    """Return a kernel's parameters.

    layout: the driver's offset and size of each, in bytes. ptx: the kernel's `.param` lines, if available. reported:
    the types, if the compiler reported them. source: the text that the parameters' names are read from, "" if it is
    not available.

    If types, reported or from the mangled name, contradict the driver's sizes, they are ignored: the PTX's types, or
    bare sizes, are used instead.
    """
    signature = demangle(mangled)
    declared = reported if reported is not None else signature.types if signature is not None else None
    if ptx is not None and [parameter.size for parameter in ptx] != [size for _, size in layout]:
        ptx = None
    fits = declared is not None and len(declared) == len(layout)
    if fits and declared is not None:
        fits = all(kind.size in (0, size) for kind, (_, size) in zip(declared, layout, strict=True))
    names = parameter_names(source, mangled if signature is None else signature.base, len(layout))
    typed: list[Parameter] = []
    for index, (offset, size) in enumerate(layout):
        from_ptx = ptx[index] if ptx is not None else None
        if fits and declared is not None:
            kind = _refined(declared[index], size, from_ptx)
        elif from_ptx is not None:
            kind = _from_ptx(from_ptx)
        elif size == 8:
            kind = Type("64 bits (a pointer or a number)", "bits", 8, dtype="any")
        else:
            kind = Type(f"{size} bytes", "struct", size)
        copied = from_ptx is not None and from_ptx.copied
        typed.append(Parameter(index, kind, offset, size, names[index], copied))
    return tuple(typed)


def _refined(kind: Type, size: int, ptx: PtxParameter | None) -> Type:
    """Return `kind` with the driver's size. A class that PTX passes as a number is an enum or a number's alias."""
    if kind.kind != "struct":
        return kind
    if ptx is not None and not ptx.array:
        if ptx.type in ("f32", "f64", "f16"):
            return replace(_from_ptx(ptx), text=kind.text)
        return Type(kind.text, "enum", size, None, f"int{8 * size}")
    return replace(kind, size=size)

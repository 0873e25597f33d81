"""C++ types as far as a launch needs them, and CUDA's own classes with a known layout."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """A C++ type as far as a launch needs it.

    kind: "int", "float", "bool", "pointer", "vector" (float4 and similar), "tensor map", "struct" (any other class:
    opaque), "enum", "void", or "bits" (known from PTX only: an integer or pointer of `size` bytes).
    size: in bytes, 0 if only the driver knows it. signed: None if unknown. dtype: numpy's name of a scalar, or
    ml_dtypes' "bfloat16". target: the type that a pointer points to, or a vector's component.
    """

    text: str
    kind: str
    size: int = 0
    signed: bool | None = None
    dtype: str | None = None
    const: bool = False
    target: Type | None = None
    lanes: int = 0


def _int(text: str, size: int, signed: bool) -> Type:
    return Type(text, "int", size, signed, f"{'' if signed else 'u'}int{8 * size}")


def _float(text: str, size: int, dtype: str) -> Type:
    return Type(text, "float", size, True, dtype)


VOID = Type("void", "void")
_LONG = ctypes.sizeof(ctypes.c_long)  # NVRTC follows the host: 4 bytes on Windows
BUILTIN = {
    "v": VOID,
    "b": Type("bool", "bool", 1, False, "bool"),
    "c": Type("char", "int", 1, None, "int8"),  # the host ABI defines its signedness, so both are accepted
    "a": _int("signed char", 1, True),
    "h": _int("unsigned char", 1, False),
    "s": _int("short", 2, True),
    "t": _int("unsigned short", 2, False),
    "i": _int("int", 4, True),
    "j": _int("unsigned int", 4, False),
    "l": _int("long", _LONG, True),
    "m": _int("unsigned long", _LONG, False),
    "x": _int("long long", 8, True),
    "y": _int("unsigned long long", 8, False),
    "n": Type("__int128", "struct", 16),
    "o": Type("unsigned __int128", "struct", 16),
    "w": _int("wchar_t", 4, True),
    "f": _float("float", 4, "float32"),
    "d": _float("double", 8, "float64"),
    "e": Type("long double", "struct"),
    "g": Type("__float128", "struct", 16),
    "z": Type("...", "void"),
}
BUILTIN_D = {
    "Dh": _float("half", 2, "float16"),
    "DF16_": _float("_Float16", 2, "float16"),
    "DF16b": _float("__bf16", 2, "bfloat16"),
    "Di": _int("char32_t", 4, False),
    "Ds": _int("char16_t", 2, False),
    "Du": _int("char8_t", 1, False),
    "Dn": Type("std::nullptr_t", "pointer", 8, target=VOID),
}

HALF = _float("__half", 2, "float16")
_BFLOAT16 = _float("__nv_bfloat16", 2, "bfloat16")


def _vectors() -> dict[str, Type]:
    """Return CUDA's classes with a known layout: vector types, halves and their pairs."""
    scalars = {
        "char": BUILTIN["a"], "uchar": BUILTIN["h"], "short": BUILTIN["s"], "ushort": BUILTIN["t"],
        "int": BUILTIN["i"], "uint": BUILTIN["j"], "long": BUILTIN["l"], "ulong": BUILTIN["m"],
        "longlong": BUILTIN["x"], "ulonglong": BUILTIN["y"], "float": BUILTIN["f"], "double": BUILTIN["d"],
    }  # fmt: skip
    known: dict[str, Type] = {"__half": HALF, "__nv_bfloat16": _BFLOAT16}

    def add(name: str, component: Type, lanes: int) -> None:
        known[name] = Type(name, "vector", component.size * lanes, target=component, lanes=lanes)

    for stem, component in scalars.items():
        for lanes in (1, 2, 3, 4):
            add(f"{stem}{lanes}", component, lanes)
        if component.size == 8:  # double4_16a and similar: the alignment is in the name
            for suffix in ("16a", "32a"):
                add(f"{stem}4_{suffix}", component, 4)
    add("dim3", BUILTIN["j"], 3)
    add("__half2", HALF, 2)
    add("__nv_bfloat162", _BFLOAT16, 2)
    return known


TENSOR_MAP = Type("CUtensorMap", "tensor map", 128)
# <cuda.h> calls the struct CUtensorMap_st; a source may declare its own.
KNOWN_CLASSES = {**_vectors(), "CUtensorMap": TENSOR_MAP, "CUtensorMap_st": TENSOR_MAP}

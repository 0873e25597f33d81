"""Parameter types for C and C++: the types of the kernel's signature, if both languages have them.

A class that is passed by value becomes an opaque struct of the same size and alignment. A pointer to a class becomes
`void *`, with two exceptions: <vector_types.h> declares CUDA's vector types, and the header declares the half types as
structs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cudakit.export import identifiers
from cudakit.launch.cxx import Type
from cudakit.launch.signature import Parameter

_SAME = frozenset(
    [
        "bool",
        "char",
        "short",
        "int",
        "float",
        "double",
        "signed char",
        "unsigned char",
        "unsigned short",
        "unsigned int",
        "long long",
        "unsigned long long",
    ]
)
# types whose width depends on the host, each with the fixed-width type that it is on the device
_OTHERWISE = {
    "long": "int64_t", "unsigned long": "uint64_t", "wchar_t": "int32_t", "char8_t": "unsigned char",
    "char16_t": "uint16_t", "char32_t": "uint32_t",
}  # fmt: skip
_HALVES = frozenset(["__half", "__half2", "__nv_bfloat16", "__nv_bfloat162"])
_HALF_ALIASES = {"half": "__half"}


@dataclass
class Types:
    """The types of one header. prefix: the prefix of its names. declared: the structs that the header declares for
    classes, by C++ name, with size and alignment. halves: the half types that it uses. vectors: whether it uses CUDA's
    vector types."""

    prefix: str
    unique: identifiers.Unique
    declared: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)
    vectors: bool = False

    def of(self, parameter: Parameter, alignment: int) -> str:
        """The C type of a parameter."""
        kind = parameter.type
        if kind.kind == "pointer":
            return self._pointer(kind)
        if kind.kind == "bits":
            return "uint64_t"
        if kind.kind == "tensor map":
            return kind.text
        if kind.kind == "enum" or (kind.kind == "int" and _scalar(kind.text) is None):
            return f"{'u' if kind.signed is False else ''}int{8 * parameter.size}_t"
        plain = _scalar(kind.text)
        if plain is not None:
            return plain
        if self._is_vector(kind):
            return kind.text
        return self._opaque(kind, parameter.size, alignment)

    @property
    def includes(self) -> str:
        """The #include lines and declarations that the types need."""
        lines = ["#include <vector_types.h>"] if self.vectors else []
        lines += [f"struct {name};" for name in sorted(self.halves)]
        return "".join(f"{line}\n" for line in lines)

    def _opaque(self, kind: Type, size: int, alignment: int) -> str:
        key = f"{kind.text} of {size} bytes"
        if key not in self.declared:
            stem = "struct" if kind.text.startswith("struct of") else identifiers.identifier(kind.text)
            self.declared[key] = (f"{self.prefix}_{self.unique(stem)}", size, alignment)
        return self.declared[key][0]

    def _is_vector(self, kind: Type) -> bool:
        """Whether the type is a vector type that <vector_types.h> declares without a deprecation warning."""
        found = kind.kind == "vector" and kind.text not in _HALVES
        if kind.target is not None and kind.target.size == 8 and kind.lanes == 4:
            found = False
        self.vectors = self.vectors or found
        return found

    def _pointer(self, kind: Type) -> str:
        target = kind.target
        if target is None:
            return "void *"
        return f"{self._target(target)} *".replace("* *", "**")

    def _target(self, target: Type) -> str:
        """A pointer's target, with const and volatile."""
        words, bare = [], target.text
        while (word := bare.partition(" ")[0]) in ("const", "volatile"):
            words.append(word)
            bare = bare.removeprefix(word).strip()
        if target.kind == "pointer":
            return self._pointer(target) + ("const" if target.const else "")
        qualifiers = "".join(f"{word} " for word in words)
        plain = _scalar(bare)
        if plain is not None:
            return qualifiers + plain
        half = _HALF_ALIASES.get(bare, bare)
        if half in _HALVES:
            self.halves.add(half)
            return f"{qualifiers}struct {half}"
        if target.kind == "vector":
            stripped = Type(bare, target.kind, target.size, target=target.target, lanes=target.lanes)
            if self._is_vector(stripped):
                return qualifiers + bare
        return f"{qualifiers}void"


def _scalar(text: str) -> str | None:
    """The C type of a C++ number type; None for other types."""
    return text if text in _SAME else _OTHERWISE.get(text)

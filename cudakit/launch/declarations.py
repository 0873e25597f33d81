"""Parameter types read from a source in plain C, for kernels whose name has no types (`extern "C"`)."""

from __future__ import annotations

import re
from dataclasses import replace

from cudakit.launch.cxx import BUILTIN, KNOWN_CLASSES, Type
from cudakit.launch.parameter_names import parameter_declarations

_BY_TEXT = {kind.text: kind for kind in BUILTIN.values() if kind.kind in ("int", "float", "bool", "void")}
_ALIASES = {
    "unsigned": "unsigned int", "long int": "long", "unsigned long int": "unsigned long", "short int": "short",
    "unsigned short int": "unsigned short", "long long int": "long long", "signed": "int", "signed int": "int",
    "unsigned long long int": "unsigned long long", "half": "__half",
    "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short", "uint16_t": "unsigned short",
    "int32_t": "int", "uint32_t": "unsigned int", "int64_t": "long", "uint64_t": "unsigned long",
    "size_t": "unsigned long", "ssize_t": "long", "ptrdiff_t": "long",
}  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z_]\w*|\*|\S")
_IGNORED = ("__restrict__", "__restrict", "__grid_constant__", "struct", "std", "cuda", ":")


def plain_types(source: str, kernel: str, count: int) -> tuple[Type | None, ...]:
    """Return the types of the `count` parameters of `kernel`, if its definition in `source` writes them in plain C or
    CUDA ("const float* __restrict__ x", "uint64_t n", "float4 v"); None for each other parameter, such as one with a
    typedef."""
    return tuple(_plain(text) for text in parameter_declarations(source, kernel, count))


def _plain(declaration: str) -> Type | None:
    tokens = [token for token in _TOKEN.findall(declaration) if token not in _IGNORED]
    stars = tokens.index("*") if "*" in tokens else len(tokens)
    base, rest = tokens[:stars], tokens[stars:]
    if not rest:
        base = base[:-1] if len(base) > 1 and base[-1] not in _BY_TEXT else base  # without the parameter's name
    constant = "const" in base
    words = [word for word in base if word not in ("const", "volatile")]
    kind = _base(" ".join(words))
    if kind is None or any(
        token not in ("*", "const") and not token[0].isalpha() and token[0] != "_" for token in rest
    ):
        return None
    if constant:
        kind = replace(kind, text=f"const {kind.text}", const=True)
    for number in range(rest.count("*")):
        kind = Type(f"{kind.text}*", "pointer", 8, False, target=kind)
        after = rest[_nth(rest, number) + 1 :]
        if after[:1] == ["const"]:
            kind = replace(kind, text=f"{kind.text} const", const=True)
    return kind if kind.kind != "void" else None


def _nth(tokens: list[str], number: int) -> int:
    return [place for place, token in enumerate(tokens) if token == "*"][number]


def _base(text: str) -> Type | None:
    if (unsigned := re.fullmatch(r"(long long|long|int|short|char) unsigned( int)?", text)) is not None:
        text = f"unsigned {unsigned[1]}"
    text = _ALIASES.get(text, text)
    return _BY_TEXT.get(text) or KNOWN_CLASSES.get(text)

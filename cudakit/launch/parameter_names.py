"""The names of a kernel's parameters, read from its source text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

_IGNORED = re.compile(
    r'R"([^()\s\\]{0,16})\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|^[ \t]*#[ \t]*(?!define)(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_LAST_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
# A pointer or reference to a function or an array: `void (*f)(int)`, `float (&tile)[4]`.
_INNER_NAME = re.compile(r"\(\s*[*&]+\s*(?:const\s+|__restrict__\s+)*([A-Za-z_]\w*)")
_TYPE_WORDS = frozenset(
    (
        "bool", "char", "short", "int", "long", "float", "double", "void", "signed", "unsigned", "const", "volatile",
        "size_t", "half", "auto", "__restrict__", "__restrict", "__grid_constant__",
    )
)  # fmt: skip
_SPECIFIERS = frozenset(["const", "volatile", "struct", "class", "enum", "union", "typename", "__grid_constant__"])
_BRACKETS = {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}


@functools.lru_cache(maxsize=64)
def without_comments(source: str) -> str:
    """Return a source without comments, strings and directives other than #define; lines keep their numbers."""
    return _IGNORED.sub(lambda found: " " + "\n" * found[0].count("\n"), source)


def parameter_names(source: str, kernel: str, count: int) -> tuple[str, ...]:
    """Return the names of the `count` parameters of `kernel` ("ns::k<4>"), from its definition in `source`.

    A name is "" if the parameter is unnamed, if the kernel is not found (made by a macro, or in a header), or if
    several definitions of that name disagree. Declarations are read if there is no definition.
    """
    named = ((_named(parts, count), defined) for parts, defined in _parameter_lists(source, kernel))
    return _agreed(((names, defined) for names, defined in named if names is not None), count)


def parameter_declarations(source: str, kernel: str, count: int) -> tuple[str, ...]:
    """Return the `count` parameters of `kernel` as its definition in `source` writes them ("const float* x"); "" for
    each that is not found, as for `parameter_names`."""
    return _agreed(
        ((tuple(parts), defined) for parts, defined in _parameter_lists(source, kernel) if len(parts) == count), count
    )


def _parameter_lists(source: str, kernel: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the parts of each parameter list of `kernel` in `source`, and whether it belongs to a definition."""
    text = without_comments(source)
    base = kernel.partition("<")[0].strip().rpartition("::")[2]
    for match in re.finditer(rf"\b__global__\b[^;{{}}]*?\b{re.escape(base)}\s*(?:<[^;{{}}()]*>\s*)?\(", text):
        parts, end = _split(text, match.end())
        if parts is not None:
            yield parts, text[end:].lstrip().startswith("{")


def _agreed(found: Iterable[tuple[tuple[str, ...], bool]], count: int) -> tuple[str, ...]:
    """Return the texts on which all definitions agree, or all declarations if there is no definition; else ""."""
    definitions: set[tuple[str, ...]] = set()
    declarations: set[tuple[str, ...]] = set()
    for texts, defined in found:
        (definitions if defined else declarations).add(texts)
    chosen = definitions or declarations
    columns = zip(*chosen, strict=True) if chosen else ()
    return tuple(column[0] if len(set(column)) == 1 else "" for column in columns) or ("",) * count


def _split(text: str, start: int) -> tuple[list[str] | None, int]:
    """Return the parts between commas up to the closing bracket, and the position after it; None if it is missing."""
    parts: list[str] = []
    depth = 0
    for at in range(start, len(text)):
        character = text[at]
        if depth == 0 and character in ",)":
            parts.append(text[start:at].strip())
            start = at + 1
            if character == ")":
                return ([] if parts in ([""], ["void"]) else parts), start
        elif character != ">" or text[at - 1] != "-":  # an arrow's > is not a bracket
            depth += _BRACKETS.get(character, 0)
    return None, start


def _named(parts: list[str], count: int) -> tuple[str, ...] | None:
    """Return the names in a parameter list, one per element of a pack; None if their count differs from `count`."""
    names = []
    for part in parts:
        packed = "..." in part
        names += [_name(part.replace("...", " "))] * (count - len(parts) + 1 if packed else 1)
    return tuple(names) if len(names) == count else None


def _name(declaration: str) -> str:
    """Return the name in a parameter's declaration, or "" if it has no name."""
    declaration = re.sub(r"(?<![=!<>])=(?!=).*$", "", declaration, flags=re.DOTALL).strip()
    inner = _INNER_NAME.search(declaration)
    if inner is not None:
        return inner[1]
    found = _LAST_NAME.search(declaration)
    if found is None or found[1] in _TYPE_WORDS:
        return ""
    before = declaration[: found.start()].rstrip()
    typed = before and not before.endswith("::") and not _SPECIFIERS.issuperset(before.split())
    return found[1] if typed else ""

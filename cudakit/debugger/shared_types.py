"""The types of static shared variables, which NVRTC's DWARF lacks, read from their declarations in the source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cudakit.debugger import expressions
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.types import BYTE, CType, array_of, pointer_to
from cudakit.launch.parameter_names import without_comments

_TEMPLATE = re.compile(r"\btemplate\s*<([^{};]*?)>[^{};]*$", re.DOTALL)
_CONSTANT = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$|\b(?:constexpr|const)\b[^;{}()=]*?\b(\w+)\s*=\s*([^;{}]+);",
    re.MULTILINE,
)
_DROPPED = re.compile(
    r"\b(?:static|volatile|const|constexpr|struct|typename|__align__\s*\([^)]*\)|alignas\s*\([^)]*\))"
)


def declared_type(sources: Iterable[str], function: str, name: str, size: int, types: Mapping[str, CType]) -> CType:
    """The type of a shared variable of `size` bytes, declared in one of `sources` in a function, given by its C++ name
    with template arguments ("reduce<float, 32>"). Bytes, if the declaration is not found or not understood."""
    for source in sources:
        text = without_comments(source)
        found = _declaration(text, function, name)
        if found is not None:
            words, bounds, before = found
            known = _template_values(before, function)
            element = _element(words, known, types)
            if element is not None and element.size:
                kind = _with_bounds(element, bounds, size, {**_constants(text), **known})
                if kind is not None:
                    return kind
    return array_of(BYTE, size)


def _declaration(text: str, function: str, name: str) -> tuple[str, list[str], str] | None:
    """The words before a shared variable's name, its bounds, and the text before the declaration; of the
    declaration in the function, if there are several."""
    plain = re.escape(function.split("<")[0].split("(")[0].rsplit("::", 1)[-1])
    starts = [match.start() for match in re.finditer(rf"\b{plain}\s*(?:<[^;{{}}()]*>\s*)?\(", text)] if plain else []
    candidates = []
    for match in re.finditer(r"\b__shared__\b([^;{}]*)", text):
        for words, declarator in _declarators(match[1]):
            found = re.match(rf"(\**)\s*{re.escape(name)}\s*((?:\[[^\]]*\]\s*)*)$", declarator)
            if found is not None:
                before = max((start for start in starts if start < match.start()), default=-1)
                bounds = re.findall(r"\[([^\]]*)\]", found[2])
                candidates.append((before, words + found[1], bounds, text[: max(before, 0)]))
    if not candidates:
        return None
    _, words, bounds, head = max(candidates, key=lambda one: one[0])
    return words, bounds, head


def _declarators(text: str) -> list[tuple[str, str]]:
    """The declarators of "float a[N], *b": the type's words and the rest of each."""
    parts, depth, part = [], 0, ""
    for character in text.split("=")[0]:
        depth += character in "([<"
        depth -= character in ")]>"
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    parts.append(part)
    first = re.match(r"(.*?)(\**\s*[A-Za-z_]\w*\s*(?:\[[^\]]*\]\s*)*)$", parts[0].strip(), re.DOTALL)
    if first is None:
        return []
    return [(first[1].strip(), part.strip()) for part in (first[2], *parts[1:])]


def _template_values(before: str, function: str) -> dict[str, str]:
    """The arguments of the function's template parameters, by name."""
    template = _TEMPLATE.search(before[-2000:])
    given = re.match(r"[^<]*<(.*)>[^>]*$", function)
    if template is None or given is None:
        return {}
    names = [re.split(r"[\s.]+", one.split("=")[0].strip())[-1] for one in _split(template[1])]
    return dict(zip(names, (one.strip() for one in _split(given[1])), strict=False))


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += character in "<(["
        depth -= character in ">)]"
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _constants(text: str) -> dict[str, str]:
    """The macros and constants of a source that have a value, by name."""
    return {match[1] or match[3]: (match[2] or match[4]).strip() for match in _CONSTANT.finditer(text)}


def _element(words: str, known: Mapping[str, str], types: Mapping[str, CType]) -> CType | None:
    stars = words.count("*")
    name = " ".join(_DROPPED.sub(" ", words.replace("*", " ")).split())
    name = known.get(name, name)
    found = types.get(name) or types.get(name.rsplit("::", 1)[-1])
    for _ in range(stars):
        found = pointer_to(found) if found is not None else None
    return found


def _with_bounds(element: CType, bounds: list[str], size: int, known: Mapping[str, str]) -> CType | None:
    """The type of an array of `size` bytes. One bound that cannot be computed follows from the size."""
    counts = [_bound(text, known) for text in bounds]
    missing = [place for place, count in enumerate(counts) if count is None]
    total = size // element.size
    if len(missing) == 1:
        product = 1
        for count in counts:
            product *= count or 1
        counts[missing[0]] = total // product if total % product == 0 else None
    product = 1
    for count in counts:
        product *= count or 0
    if product != total or product * element.size != size:
        # more than one bound is unknown, or the type has another size in this instance
        return array_of(element, total) if bounds and total * element.size == size else None
    found = element
    for count in reversed(counts):
        found = array_of(found, count or 0)
    return found


class _Constants:
    """The environment of a bound: template arguments, macros and constants."""

    count = 1

    def __init__(self, known: Mapping[str, str], depth: int) -> None:
        self.known, self.depth = known, depth

    def find(self, name: str) -> expressions.Value | None:
        text = self.known.get(name)
        if text is None or self.depth > 20:
            return None
        return expressions.evaluate(parse(text), _Constants(self.known, self.depth + 1))

    def register(self, name: str) -> None:
        return None

    def recalled(self, text: str) -> expressions.Value:
        raise ExpressionError(f"{text} is not a constant")

    def type(self, name: str) -> None:
        return None

    def missing(self, name: str) -> str:
        return f"{name} is not a constant"

    def load(self, addresses: Any, size: int) -> Any:
        raise ExpressionError("a bound is not in memory")

    def subset(self, mask: Any) -> _Constants:
        return self


def _bound(text: str, known: Mapping[str, str]) -> int | None:
    env = _Constants(known, 0)
    try:
        return int(expressions.numbers_of(expressions.evaluate(parse(text), env), env)[0])
    except ExpressionError:
        return None

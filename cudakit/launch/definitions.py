"""Finds kernel definitions in a source text."""

from __future__ import annotations

import re

from cudakit.launch.parameter_names import without_comments

#: A kernel's declaration. The kernel's name is the first name with a parameter list that is not an attribute.
KERNEL = re.compile(
    r"__global__\b(?:\s|\bvoid\b|\b(?:static|inline|extern)\b|\[\[[^\]]*\]\]"
    r"|\b__\w+__\s*(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?|::|\b\w+\s*::)*(?P<name>\w+)\s*(?:<[^;{}()]*>\s*)?\("
)

#: Matches a kernel, or a brace with the namespace that it opens, if any.
_SCOPE = re.compile(r"__global__|(?:\bnamespace\s+(?P<space>[\w:]+)\s*)?\{|\}")


def definition_line(text: str, kernel: str) -> int | None:
    """Return the line (from 1) of a source text at which a kernel is defined, or None. kernel: its name, with or
    without scopes, template arguments and parameters."""
    name = last_name(kernel.partition("<")[0])
    code = without_comments(text)
    for match in KERNEL.finditer(code):
        end = re.search(r"[{;]", code[match.end() :])
        if match["name"] == name and end is not None and end[0] == "{":
            return code.count("\n", 0, match.start("name")) + 1
    return None


def positions(text: str) -> dict[str, int]:
    """Return the position of each kernel's first declaration in a text, by name with and without namespaces."""
    code = without_comments(text)
    found: dict[str, int] = {}
    last: dict[str, int] = {}
    scopes: list[str] = []
    kernels = {match.start(): match["name"] for match in KERNEL.finditer(code)}
    for token in _SCOPE.finditer(code):
        if token[0] == "__global__":
            name = kernels.get(token.start(), "")
            found.setdefault("::".join([*filter(None, scopes), name]), token.start())
            last.setdefault(name, token.start())
        elif token[0] != "}":
            scopes.append(token["space"] or "")
        elif scopes:
            scopes.pop()
    return {**last, **found}


def last_name(name: str) -> str:
    """Return a name without scopes and parameters."""
    return name.partition("(")[0].rpartition("::")[2]

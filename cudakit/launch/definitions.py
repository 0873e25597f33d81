"""Where kernels are defined in a source text."""

from __future__ import annotations

import re

from cudakit.launch.parameter_names import without_comments

#: A kernel's declaration. The declarator is the first name with a parameter list that is not an attribute's.
KERNEL = re.compile(
    r"__global__\b(?:\s|\bvoid\b|\b(?:static|inline|extern)\b|\[\[[^\]]*\]\]"
    r"|\b__\w+__\s*(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?|::|\b\w+\s*::)*(?P<name>\w+)\s*(?:<[^;{}()]*>\s*)?\("
)


def definition_line(text: str, kernel: str) -> int | None:
    """The line (from 1) of a source text at which a kernel of this name is defined, or None. kernel: its name, with or
    without scopes, template arguments and parameters."""
    name = last_name(kernel.partition("<")[0])
    code = without_comments(text)
    for match in KERNEL.finditer(code):
        end = re.search(r"[{;]", code[match.end() :])
        if match["name"] == name and end is not None and end[0] == "{":
            return code.count("\n", 0, match.start("name")) + 1
    return None


def last_name(name: str) -> str:
    """A name without scopes and parameters."""
    return name.partition("(")[0].rpartition("::")[2]

"""Parses compute-sanitizer's output: blocks, their class, and the source lines that they name.

The tools print blocks: a title after "========= ", then lines indented by four more columns:

    ========= Invalid __global__ write of size 4 bytes
    =========     at wrong(const float *, float *, int)+0x70 in guard_store.cu:7
    =========     by thread (100,0,0) in block (0,0,0)
    =========     Access at 0x7f8efe000190 is out of bounds

Older versions write "at 0x70 in FILE:LINE:KERNEL". racecheck names both accesses in the title and the lines below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"^=========(.*)$")
_PLACE = re.compile(r"([^\s:()]+\.(?:cuh|cu|py|h|hpp)):(\d+)")
_REASON = re.compile(
    r"(is out of bounds|is misaligned|was already freed|is freed|not initialized|by thread .* of cluster|"
    r"stack overflow)", re.IGNORECASE
)  # fmt: skip
# not findings: headings, totals, and calls by which Python's bindings look up the driver's functions
_NOISE = re.compile(
    r"^(COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application returned|Error: process didn't terminate|"
    r"No attachable process|This can happen|Consider using|Unable to|Host Frame|and \d+ more|\(\d+ errors)|"
    r"cuGetProcAddress|^$"
)


@dataclass(frozen=True)
class Verdict:
    """One tool's verdict on one half. finding: the class of its first error, "" if there is none, "hang" if it was
    stopped at the time limit. places: "FILE:LINE" of the kernel's sources that the first error names. errors: the
    number of blocks. raw: the first lines as printed."""

    finding: str = ""
    places: tuple[str, ...] = ()
    errors: int = 0
    raw: tuple[str, ...] = ()


def read(output: str, *, keep: int = 24) -> Verdict:
    """Return the verdict in the output of one run, with its first `keep` lines."""
    lines = [found.group(1) for text in output.splitlines() if (found := _LINE.match(text.strip()))]
    found: list[list[str]] = []
    inside = False
    for line in lines:
        title = not line.startswith("     ")
        if title:
            inside = not _NOISE.search(line.strip())
            if inside:
                found.append([])
        if inside:
            found[-1].append(line.strip())
    raw = tuple(f"========={line}" for line in lines[:keep])
    if not found:
        return Verdict(raw=raw)
    # An invalid access makes later calls fail: prefer its block, and fall back to the first failed call.
    first = next((block for block in found if not block[0].startswith("Program hit")), found[0])
    places = dict.fromkeys(f"{_base(file)}:{line}" for file, line in _PLACE.findall("\n".join(first)))
    return Verdict(_class(first), tuple(place for place in places if not place.startswith("<")), len(found), raw)


def by_case(output: str) -> dict[str, str]:
    """Split the output of a run of many cases at the lines "case NAME half"; return the parts by name."""
    parts = re.split(r"^case (\w+) \w+$", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]


def _class(block: list[str]) -> str:
    title = block[0]
    if found := re.search(r"Race reported between (\w+) access", title):
        others = re.findall(r"and (\w+) access", " ".join(block))
        return f"Race between {found.group(1)} and {others[0] if others else 'other'} access"
    if found := re.search(r"(Potential )?(\w+) hazard", title):
        return found.group(0)
    if found := re.search(r"Program hit (\w+)", title):
        call = re.search(r"API call to (\w+)", title)
        return found.group(1) + (f" in {call.group(1)}" if call else "")
    if title.startswith("Leaked"):
        return "Leaked bytes"
    title = re.sub(r"0x[0-9a-f]+", "...", title).rstrip(".")
    if reason := _REASON.search("\n".join(block[1:6])):
        return f"{title}: {reason.group(1)}"
    return title

"""CUTLASS's headers, made usable with NVRTC and the installed CCCL."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

HOW = "pip install --no-deps nvidia-cutlass, or set CUDAKIT_CUTLASS to the folder that has cutlass/cutlass.h"

# Declarations of CUTLASS 4.2 for NVRTC in namespace std. CCCL 3.5 has its own, with other parameters.
_DECLARED_TWICE = re.compile(r"template <(?:size_t _Ip, )?class\.\.\. _Tp>\s*struct tuple_(?:size|element);")
# Its get() for sequences of integers is as special as one of CCCL 3.5, so that a call is ambiguous. For
# this type it is more special.
_GET = re.compile(
    r"template <size_t I, class T, T\.\.\. Ints>[^{}]*\bget\(integer_sequence<T, Ints\.\.\.>\) \{"
    r".*?\n\}",
    re.S,
)
_SEQUENCES = ("int", "size_t")


def installed() -> Path | None:
    """The include folder of CUTLASS; None if it is not installed."""
    given = os.environ.get("CUDAKIT_CUTLASS")
    found = importlib.util.find_spec("cutlass_library")
    places = [Path(given)] if given else []
    places += [Path(folder) / "source" / "include" for folder in (found and found.submodule_search_locations) or ()]
    return next((place for place in places if (place / "cutlass" / "cutlass.h").is_file()), None)


def overlay(include: Path, folder: Path) -> Path:
    """Write changed copies of the headers that do not compile with the installed CCCL, for a folder that comes first on
    the include path."""
    for header in sorted((include / "cute").rglob("*.hpp")):
        text = header.read_text(encoding="utf-8")
        changed = _GET.sub(_with_more_special, _DECLARED_TWICE.sub("", text))
        if changed != text:
            place = folder / header.relative_to(include)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(changed, encoding="utf-8")
    return folder


def _with_more_special(found: re.Match[str]) -> str:
    of = [
        found[0].replace("class T, T... Ints", f"{kind}... Ints").replace("sequence<T,", f"sequence<{kind},")
        for kind in _SEQUENCES
    ]
    return "\n\n".join((found[0], *of))

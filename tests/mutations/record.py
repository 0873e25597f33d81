"""The record of mutations that change no behaviour, held against the text of the tree."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.json")


def read() -> dict[tuple[str, str, str], str]:
    """The reason of each recorded mutation, by its key."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {(entry["file"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def stale(root: Path, entries: dict[tuple[str, str, str], str]) -> list[str]:
    """What the record says of lines that are no longer there, and entries without a reason."""
    found = []
    for (file, before, _), why in entries.items():
        path = root / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        first = before.splitlines()[0]
        if not any(line.strip() == first for line in text.splitlines()):
            found.append(f"{file} has no line {first!r} any more: take the entry out, or write it for the new text")
        if len(why.split()) < 4:
            found.append(f"{file}: {first!r}: give the reason why nothing changes")
    return found

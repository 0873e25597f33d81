"""The record of mutations that change no behaviour, and the check that it matches the tree."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.json")


def read() -> dict[tuple[str, str, str], str]:
    """Return the reason of each recorded mutation, by its key."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {(entry["file"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def stale(root: Path, entries: dict[tuple[str, str, str], str]) -> list[str]:
    """Return messages on entries whose line is no longer in the file, or that have no reason."""
    found = []
    for (file, before, _), why in entries.items():
        path = root / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        first = before.splitlines()[0]
        if not any(line.strip() == first for line in text.splitlines()):
            found.append(f"{file} no longer has the line {first!r}: remove the entry, or update it")
        if len(why.split()) < 4:
            found.append(f"{file}: {first!r}: write the reason why behaviour does not change")
    return found

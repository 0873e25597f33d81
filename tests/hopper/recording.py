"""An H200's results of the cases, in a small file, for machines without a GPU.

The file has one hash per case, and a short checksum of each of its parts, so that a difference is located without a
GPU. It has neither inputs nor results: the inputs are derived from the case's name.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .case import Bytes, Case

RECORDED = Path(__file__).resolve().parent.parent / "data" / "hopper_h200.npz"
PARTS = 32  # checksums per case

Entry = tuple[int, NDArray[np.uint16]]


def digest(result: Bytes) -> int:
    return int.from_bytes(hashlib.blake2b(result.tobytes(), digest_size=8).digest(), "little")


def bounds(size: int) -> list[tuple[int, int]]:
    """Return the first byte and the end of each part of a result."""
    step = -(-size // PARTS)
    return [(min(k * step, size), min((k + 1) * step, size)) for k in range(PARTS)]


def checksums(result: Bytes) -> NDArray[np.uint16]:
    """Return one checksum per part."""
    return np.array([zlib.crc32(result[a:b].tobytes()) & 0xFFFF for a, b in bounds(len(result))], np.uint16)


def save(path: Path, results: Iterable[tuple[Case, Bytes]], about: dict[str, Any], kept: Recording | None) -> None:
    """Write the recording. about: the machine and the date. kept: an earlier one, whose other cases are kept."""
    found = dict(kept.entries) if kept is not None else {}
    found |= {case.key: (digest(result), checksums(result)) for case, result in results}
    np.savez_compressed(
        path,
        about=np.array(json.dumps(about)),
        keys=np.array(list(found), np.uint32),
        digests=np.array([digested for digested, _ in found.values()], np.uint64),
        checksums=np.array([parts for _, parts in found.values()], np.uint16).reshape(-1, PARTS),
    )


def keep(folder: Path, family: str, results: Iterable[tuple[Case, Bytes]]) -> None:
    """Write the results of a family themselves, for comparisons without a GPU; they are too large for the tree."""
    found = list(results)
    np.savez_compressed(
        folder / f"{family}.npz",
        keys=np.array([case.key for case, _ in found], np.uint32),
        sizes=np.array([len(result) for _, result in found], np.uint32),
        results=np.concatenate([result for _, result in found]) if found else np.zeros(0, np.uint8),
    )


def kept(folder: Path, family: str) -> dict[int, Bytes]:
    """Return the results that `keep` wrote, by key."""
    with np.load(folder / f"{family}.npz") as data:
        parts = np.split(data["results"], np.cumsum(data["sizes"])[:-1])
        return dict(zip(data["keys"].tolist(), parts, strict=True))


class Recording:
    """A recording in memory. about: the machine and the date. entries: hash and checksums by the key of the case."""

    def __init__(self, path: Path = RECORDED) -> None:
        with np.load(path) as data:
            self.about: dict[str, Any] = json.loads(str(data["about"]))
            values = zip(data["digests"].tolist(), data["checksums"], strict=True)
            self.entries: dict[int, Entry] = dict(zip(data["keys"].tolist(), values, strict=True))

    def __contains__(self, case: Case) -> bool:
        return case.key in self.entries

    def difference(self, case: Case, result: Bytes) -> str:
        """Return the place at which a result differs from the recorded one, as text; "" if it does not."""
        if case not in self:
            return "not recorded"
        digested, parts = self.entries[case.key]
        if digested == digest(result):
            return ""
        wrong = np.flatnonzero(parts != checksums(result))
        if not wrong.size:
            return "differs"
        first, end = bounds(len(result))[int(wrong[0])]
        return f"differs in {len(wrong)} of {PARTS} parts, first in bytes {first} to {end - 1} of {len(result)}"

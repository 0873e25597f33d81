"""An H200's results of every form, in a small file, for machines without a GPU.

The file has all results of arithmetic, and one checksum per form of the rest, which only moves bits. It has no
operands: they are derived from the form's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .forms import Form, bits
from .operands import Words, vectors

RECORDED = Path(__file__).resolve().parent.parent / "data" / "forms_h200.npz"
COUNT = 64  # operand vectors
_CHECKSUMS = ("ld ", "st ", "atom", "red ", "cp.async", "cvta", "prefetch", "module", "special", "wmma", "ldmatrix")


def key(form: Form) -> int:
    """Return a number for a form that changes with its text."""
    return zlib.crc32(f"{form.name}|{form.declare}|{form.outside}".encode())


def keeps_values(form: Form) -> bool:
    return not form.group.startswith(_CHECKSUMS)


def operands(form: Form) -> Words:
    return vectors(form, COUNT)


def _dtype(kind: str) -> str:
    return "u1" if kind == "pred" else f"u{bits(kind) // 8}"


def pack(form: Form, results: Words) -> bytes:
    """Return the results as bytes, each in its own width."""
    return b"".join(row.astype(_dtype(kind)).tobytes() for kind, row in zip(form.outputs, results, strict=True))


def checksum(form: Form, results: Words) -> int:
    return zlib.crc32(pack(form, results))


def save(path: Path, forms: Sequence[Form], results: Sequence[Words]) -> None:
    checksums = [checksum(form, made) for form, made in zip(forms, results, strict=True)]
    values = b"".join(pack(form, made) for form, made in zip(forms, results, strict=True) if keeps_values(form))
    np.savez_compressed(
        path,
        keys=np.array([key(form) for form in forms], np.uint32),
        checksums=np.array(checksums, np.uint32),
        sizes=np.array(
            [len(pack(f, r)) if keeps_values(f) else 0 for f, r in zip(forms, results, strict=True)], np.uint32
        ),
        values=np.frombuffer(values, np.uint8),
    )


class Recording:
    """A recording in memory. results(form): the form's results, None if only a checksum was recorded. checksums: one
    per key."""

    def __init__(self, path: Path = RECORDED) -> None:
        with np.load(path) as data:
            keys, sums, sizes = (data[name].tolist() for name in ("keys", "checksums", "sizes"))
            self._values = data["values"].tobytes()
        self.checksums: dict[int, int] = dict(zip(keys, sums, strict=True))
        self._places: dict[int, tuple[int, int]] = {}
        at = 0
        for number, size in zip(keys, sizes, strict=True):
            self._places[number] = (at, size)
            at += size

    def __contains__(self, form: Form) -> bool:
        return key(form) in self.checksums

    def results(self, form: Form) -> Words | None:
        at, size = self._places[key(form)]
        if not size:
            return None
        rows = []
        for kind in form.outputs:
            row = np.frombuffer(self._values, _dtype(kind), COUNT, at)
            at += row.nbytes
            rows.append(row.astype(np.uint64))
        return np.array(rows)

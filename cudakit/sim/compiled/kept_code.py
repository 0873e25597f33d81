"""Machine code kept between processes, so that the next process does not compile a kernel again.

A file of the store holds one module's code: the digest of what LLVM compiled (text, processor, LLVM itself), the digest
of the code, and the code. The file's name depends on what the text is written from, the PTX and the kernel: it shows
without LLVM, and before the text is written, whether there may be code.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

_DIGEST = hashlib.sha256().digest_size


class CodeStore(Protocol):
    """Files by name. A file that cannot be read or written is like one that does not exist."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, content: bytes) -> None: ...


_store: CodeStore | None = None


def keep_in(store: CodeStore | None) -> None:
    """Keep the machine code of this process in a store from now on; None: keep none."""
    global _store
    _store = store


def name_of(*parts: str) -> str:
    """The name of the file of a module that is written from ``parts``."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def has(name: str) -> bool:
    """Whether there is a file of this name."""
    return _store is not None and _store.has(name)


def read(name: str, text: str) -> bytes | None:
    """The code of a module; ``text`` is all that it depends on. None if there is none."""
    found = _store.read(name) if _store is not None else None
    if found is None:
        return None
    code = found[2 * _DIGEST :]
    whole = found[: 2 * _DIGEST] == _digest(text.encode()) + _digest(code)
    return code if whole else None


def write(name: str, text: str, code: bytes) -> None:
    """Keep the code of a module."""
    if _store is not None:
        _store.write(name, _digest(text.encode()) + _digest(code) + code)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()

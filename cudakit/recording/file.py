"""The file of a recording: a zip archive of JSON and memory, written so that a crash leaves a readable file.

    recording.json              format, version, device, limits
    modules/DIGEST/...          module.json, module.ptx, module.cubin
    sources/DIGEST              text of a source file or a header
    memory/DIGEST               bytes of an array; equal bytes are stored once
    launches/000001/before.json, after.json
    end.json                    the exception that ended the block, and what was not recorded

Each member is complete on disk before the launch that it belongs to starts. `python -m zipfile -l` lists a file that
was closed. A file that was not closed has no directory at its end: `MemberReader` reads the members' own headers.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cudakit.errors import CudakitError
from cudakit.recording.fields import printable
from cudakit.tracebacks import meant

#: Memory above this size is compressed only if a sample of it becomes smaller.
_SAMPLE = 1 << 16
_WORTH = 0.9  # compressed to at most this fraction
_FAST = 1  # deflate's level
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_WIDE = 0xFFFFFFFF  # the size is in the extra field
_STREAMED = 8  # flag: the sizes follow the data
_EXPANSION = 1040  # deflate's largest factor, rounded up
_MOST_JSON = 1 << 28  # bytes
_GARBAGE = 1 << 24  # bytes of dropped launches below which a file is not rewritten


@meant
class RecordingError(CudakitError):
    """A launch cannot be recorded, or a file cannot be read or replayed; the text is the reason."""


def digest(data: Any) -> str:
    """Return the name of some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class MemberWriter:
    """Writes the members of a file. Members whose launches were dropped are removed when they take up most of it.

    memory: bytes of arrays in use, before compression. Raises RecordingError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._stream: IO[bytes] = open(path, "w+b")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from error
        self._zip = zipfile.ZipFile(self._stream, "w")
        self._sizes: dict[str, int] = {}  # of live members, uncompressed
        self._uses: dict[str, int] = {}  # of members that launches share
        self._live = self._garbage = self.memory = 0

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def text(self, name: str, content: Any) -> None:
        """Write a JSON member, or a text."""
        text = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
        self._write(name, text.encode(errors="replace"), zipfile.ZIP_DEFLATED)

    def data(self, folder: str, data: Any) -> str:
        """Write bytes once, and return their name."""
        name = f"{folder}/{digest(data)}"
        if name not in self._sizes:
            self._write(name, data, _method(data))
        return name

    def bytes(self, name: str, data: bytes) -> None:
        """Write bytes under a name of their own."""
        self._write(name, data, _method(data))

    def use(self, names: list[str]) -> None:
        """Count a use of members by a launch."""
        for name in names:
            self._uses[name] = self._uses.get(name, 0) + 1

    def drop(self, names: list[str], own: list[str]) -> None:
        """Drop a launch's uses of members, and its `own` members."""
        for name in names:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                own = [*own, name]
        for name in own:
            self._garbage -= self._count(name, -self._sizes.pop(name, 0))
        if self._garbage > max(self._live, _GARBAGE):
            self._rewrite()

    def flush(self) -> None:
        """Put what was written on disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Write the directory and close the file."""
        if self._stream.closed:
            return
        if len(self._sizes) < len(self._zip.infolist()):
            self._rewrite()
        self._zip.close()
        self._stream.close()

    def _write(self, name: str, data: Any, method: int) -> None:
        self._zip.writestr(zipfile.ZipInfo(name), data, method, _FAST)
        size = len(memoryview(data).cast("B")) if len(data) else 0
        self._sizes[name] = self._count(name, size)

    def _count(self, name: str, size: int) -> int:
        self._live += size
        if name.startswith("memory/"):
            self.memory += size
        return size

    def _rewrite(self) -> None:
        """Copy the live members to a new file, which replaces this one."""
        aside = self.path.with_name(self.path.name + ".part")
        with zipfile.ZipFile(aside, "w") as new:
            for info in self._zip.infolist():
                if info.filename in self._sizes:
                    new.writestr(zipfile.ZipInfo(info.filename), self._zip.read(info), info.compress_type, _FAST)
        self._zip.close()
        self._stream.close()
        os.replace(aside, self.path)
        self._stream = open(self.path, "r+b")  # noqa: SIM115 (closed by close)
        self._zip = zipfile.ZipFile(self._stream, "a")
        self._garbage = 0


def _method(data: Any) -> int:
    """Return the compression for some memory: random floats do not become smaller."""
    sample = bytes(memoryview(data).cast("B")[:_SAMPLE]) if len(data) else b""
    small = len(zlib.compress(sample, _FAST)) <= _WORTH * len(sample)
    return zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED


@dataclass(frozen=True)
class _Member:
    """A member's place in the file, its bytes there and uncompressed, its CRC, and whether it is compressed."""

    start: int
    packed: int
    size: int
    crc: int
    deflated: bool


class MemberReader:
    """Reads the members of a file, each by name and size. No member is extracted to disk.

    complete: whether the file has its directory. Raises RecordingError if it is not a recording.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self._members: dict[str, _Member] = {}
        try:
            self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            self._scan()
            if "recording.json" not in self._members:
                raise RecordingError(f"{path} is not a recording of cudakit: name a file that cudakit.record() wrote")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def names(self) -> list[str]:
        """Return the names of the members, in the order they were written."""
        return list(self._members)

    def json(self, name: str) -> Any:
        """Return a JSON member. Raises RecordingError if it is damaged."""
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise RecordingError(f"{self.path}: {name} is damaged ({error})") from error

    def text(self, name: str) -> str:
        """Return a text member, without control characters."""
        size = self._member(name).size
        if size > _MOST_JSON:
            raise RecordingError(f"{self.path}: {name} is damaged: it has {size} bytes")
        return printable(self.data(name, size).decode(errors="replace"))

    def size(self, name: str) -> int:
        """Return the bytes of a member."""
        return self._member(name).size

    def data(self, name: str, size: int) -> bytes:
        """Return a member, which must have `size` bytes: sizes are compared before memory is allocated."""
        member = self._member(name)
        limit = member.packed * _EXPANSION + 64 if member.deflated else member.packed
        if member.size != size or size > limit:
            raise RecordingError(f"{self.path}: {name} is damaged: it has {member.size} bytes instead of {size}")
        self._file.seek(member.start)
        packed = self._file.read(member.packed)
        try:
            found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1) if member.deflated else packed
        except zlib.error as error:
            raise RecordingError(f"{self.path}: {name} is damaged ({error})") from error
        if len(found) != size or zlib.crc32(found) != member.crc:
            raise RecordingError(f"{self.path}: {name} is damaged: its checksum differs")
        return found

    def _member(self, name: str) -> _Member:
        try:
            return self._members[name]
        except KeyError:
            cut = "" if self.complete else ", because its end is missing"
            raise RecordingError(f"{self.path}: {name} is not in the file{cut}") from None

    def _scan(self) -> None:
        """Read the members' headers, up to the directory or the first incomplete one."""
        length = os.fstat(self._file.fileno()).st_size
        place = 0
        while True:
            self._file.seek(place)
            header = self._file.read(_HEADER.size)
            self.complete = header.startswith(_CENTRAL)
            if len(header) < _HEADER.size or not header.startswith(_LOCAL):
                return
            _, _, flags, method, _, _, crc, packed, size, named, more = _HEADER.unpack(header)
            name = self._file.read(named).decode(errors="replace")
            extra = self._file.read(more)
            if _WIDE in (packed, size):
                if len(extra) < 20 or extra[:2] != b"\x01\0":
                    return
                size, packed = struct.unpack_from("<QQ", extra, 4)
            start = place + _HEADER.size + named + more
            if flags & _STREAMED or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or start + packed > length:
                return
            if not packed and (size or crc or not self._follows(start)):
                return  # its header was written, its data was not finished
            self._members[name] = _Member(start, packed, size, crc, method == zipfile.ZIP_DEFLATED)
            place = start + packed

    def _follows(self, place: int) -> bool:
        """Return whether another header follows there."""
        self._file.seek(place)
        return self._file.read(4) in (_LOCAL, _CENTRAL)

"""Read figures of kernels from a cubin: registers, instructions, block size. Needs no GPU and no disassembler."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

_HEADER = struct.Struct("<40xQ10xHHH")  # offset of the section headers, bytes per header, their count, index of names
_SECTION = struct.Struct("<II8x8xQQ8x8x8x")  # name, type, offset, size; a header has 64 bytes
_SYMBOL = struct.Struct("<I2xH8x8x")  # name, section
_SYMBOLS = 2  # SHT_SYMTAB
_SIZED = 4  # format of an attribute that is followed by a payload
_REGISTERS = 0x2F  # attribute: registers of a function
_THREADS = 0x10  # attribute: required threads per block
_INSTRUCTION = 16  # bytes, from sm_70 on
_NOP = 0x918  # the lowest 12 bits of a NOP, which pads code


@dataclass(frozen=True)
class Code:
    """Figures of one kernel's machine code.

    registers: per thread. instructions: without the NOPs that pad it. threads: required per block; 0 if not stated.
    """

    registers: int
    instructions: int
    threads: int


def kernels(cubin: bytes) -> dict[str, Code]:
    """Return the kernels of a cubin by name. Raises ValueError if it is not a cubin, such as a fat binary."""
    try:
        return _kernels(cubin)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"this cubin is incomplete or damaged: {error}") from error


def _kernels(cubin: bytes) -> dict[str, Code]:
    if not cubin.startswith(b"\x7fELF\x02\x01"):
        raise ValueError("this is not a cubin: a cubin is a 64-bit ELF file")
    start, size, count, names_at = _HEADER.unpack_from(cubin)
    sections = [_SECTION.unpack_from(cubin, start + size * index) for index in range(count)]

    def content(section: tuple[int, ...]) -> bytes:
        return cubin[section[2] : section[2] + section[3]]

    names = content(sections[names_at])
    by_name = {_text(names, section[0]): section for section in sections}
    symbols = [
        symbol for section in sections if section[1] == _SYMBOLS for symbol in _SYMBOL.iter_unpack(content(section))
    ]

    def attributes(name: str, wanted: int) -> list[bytes]:
        section = by_name.get(name)
        return _attributes(content(section), wanted) if section is not None else []

    registers: dict[int, int] = {}  # by section
    for payload in attributes(".nv.info", _REGISTERS):
        index, used = struct.unpack("<II", payload)
        registers[symbols[index][1]] = used
    found = {}
    for index, section in enumerate(sections):
        name = _text(names, section[0])
        if name.startswith(".text.") and index in registers:
            kernel = name.removeprefix(".text.")
            block = [struct.unpack("<III", payload) for payload in attributes(f".nv.info.{kernel}", _THREADS)]
            threads = math.prod(block[0]) if block else 0
            found[kernel] = Code(registers[index], _instructions(content(section)), threads)
    return found


def _text(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()


def _attributes(section: bytes, wanted: int) -> list[bytes]:
    """Return the payloads of one kind of attribute in a `.nv.info` section."""
    found: list[bytes] = []
    position = 0
    while position < len(section):
        kind, attribute, size = struct.unpack_from("<BBH", section, position)
        position += 4
        if kind == _SIZED:
            if attribute == wanted:
                found.append(section[position : position + size])
            position += size
    return found


def _instructions(code: bytes) -> int:
    words = np.frombuffer(code, "<u2").reshape(-1, _INSTRUCTION // 2)
    return int(((words[:, 0] & 0xFFF) != _NOP).sum())

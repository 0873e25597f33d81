"""Functions that kernels call and the module does not define: printf, assert, malloc and free."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, MemoryFault
from cudakit.sim.ptx.ir import Instruction

Call = Callable[[Fragment, "tuple[Any, ...]"], Any]


def _pointers(f: Fragment, value: Any) -> Array:
    """A 64-bit parameter of a call, for each lane."""
    if value.ndim == 0:
        return np.full(f.lanes.count, int.from_bytes(value.tobytes()[:8], "little"), np.uint64)
    return np.ascontiguousarray(value[:, :8]).view(np.uint64)[:, 0]


def _read(f: Fragment, lane: int, address: int, size: int, instruction: Instruction) -> bytes:
    """Bytes at a lane's generic address, global or local."""
    batch = f.batch
    if address >= LOCAL_WINDOW and batch.local is not None and address < LOCAL_WINDOW << 1:
        start = int(f.lanes.lanes[lane]) * batch.local.stride + address - LOCAL_WINDOW
        return batch.local.bytes[start : start + size].tobytes()
    try:
        return batch.run.space.bytes(address, size).tobytes()
    except MemoryFault as fault:
        f.fail(instruction, fault.kind, f"printf or assert reads {fault.where}", lane, address=address, size=size)


def _text(f: Fragment, lane: int, address: int, instruction: Instruction) -> str:
    """The zero-terminated string at an address."""
    if address == 0:
        return "(null)"
    out = bytearray()
    while len(out) < 1 << 16:
        byte = _read(f, lane, address + len(out), 1, instruction)
        if byte == b"\0":
            break
        out += byte
    return out.decode("utf-8", "replace")


_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcspn%])")


def _format(f: Fragment, lane: int, text: str, arguments: int, instruction: Instruction) -> str:
    position = 0

    def next_bytes(size: int) -> bytes:
        nonlocal position
        position = -(-position // size) * size
        position += size
        return _read(f, lane, arguments + position - size, size, instruction)

    def one(match: re.Match[str]) -> str:
        flags, wide, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if wide == "*":
            wide = str(struct.unpack("<i", next_bytes(4))[0])
        if precision == "*":
            precision = str(struct.unpack("<i", next_bytes(4))[0])
        points = "." in match.group(0)
        spec = f"%{flags}{wide or ''}{'.' + (precision or '0') if points else ''}"
        if kind in "eEfFgG":
            return str((spec + kind) % struct.unpack("<d", next_bytes(8))[0])
        if kind in "aA":
            number = _hexadecimal(struct.unpack("<d", next_bytes(8))[0], int(precision or 0) if points else None)
            return f"%{flags.replace('0', '')}{wide or ''}s" % (number.upper() if kind == "A" else number)
        if kind == "s":
            return (spec + "s") % _text(f, lane, struct.unpack("<Q", next_bytes(8))[0], instruction)
        if kind == "p":
            pointer = struct.unpack("<Q", next_bytes(8))[0]
            return f"%{flags.replace('0', '')}{wide or ''}s" % (f"0x{pointer:x}" if pointer else "(nil)")
        if kind == "c":
            return (spec + "c") % chr(next_bytes(4)[0])
        size = 8 if length in ("l", "ll", "j", "z", "t") else 4
        data = next_bytes(size)[: {"hh": 1, "h": 2}.get(length, size)]
        integer = int.from_bytes(data, "little", signed=kind in "di")
        if kind not in "di":
            # flags for signs apply to signed numbers only, and zero has no prefix
            spec = spec.replace("+", "").replace(" ", "")
            spec = spec.replace("#", "") if integer == 0 or kind == "u" else spec
        if kind == "o" and "#" in spec:
            return f"%{spec.replace('#', '')[1:]}s" % f"0{integer:o}"
        return (spec + ("d" if kind in "diu" else kind)) % integer

    return _CONVERSION.sub(one, text)


def _hexadecimal(value: float, digits: int | None) -> str:
    """A number in the format of %a, with ``digits`` after the point, or as many as it needs."""
    mantissa, mark, exponent = value.hex().partition("p")
    if not mark:
        return mantissa  # inf, nan
    sign, lead, fraction = re.fullmatch(r"(-?)0x(\d)\.(\w+)", mantissa).groups()  # type: ignore[union-attr]
    if digits is None:
        fraction = fraction.rstrip("0")
    elif digits < len(fraction):
        # round to nearest, ties to even
        whole, rest = divmod(int(lead + fraction, 16), 1 << 4 * (len(fraction) - digits))
        half = 1 << 4 * (len(fraction) - digits) - 1
        whole += rest > half or (rest == half and whole & 1)
        lead, fraction = f"{whole >> 4 * digits:x}", f"{whole & ((1 << 4 * digits) - 1):0{digits}x}" if digits else ""
    else:
        fraction = fraction.ljust(digits, "0")
    return f"{sign}0x{lead}{'.' if fraction else ''}{fraction}p{exponent}"


def _vprintf(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        formats, arguments = _pointers(f, values[0]), _pointers(f, values[1])
        texts: dict[int, str] = {}
        for lane in range(f.lanes.count):
            where = int(formats[lane])
            if where not in texts:
                texts[where] = _text(f, lane, where, instruction)
            f.batch.run.services.printf(_format(f, lane, texts[where], int(arguments[lane]), instruction))
        f.batch.progress += 1
        return np.frombuffer((1).to_bytes(8, "little"), "V8")[0]

    return run


def _assertfail(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        message, file, function = (_text(f, 0, int(_pointers(f, values[k])[0]), instruction) for k in (0, 1, 3))
        line = int(_pointers(f, values[2])[0]) & 0xFFFFFFFF
        f.fail(
            instruction,
            "assertion",
            f"assertion `{message}` failed in {function}, {file}:{line}",
            lanes=f.lanes.count,
        )

    return run


def _malloc(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        heap, places = f.batch.run.services.heap, f.batch.run.place(instruction)
        where = f" at {places[0].file}:{places[0].line}" if places else ""
        origin = f"by malloc() in the kernel{where}"
        f.batch.progress += 1
        found = [heap.allocate(size, origin) for size in _pointers(f, values[0]).tolist()]
        return np.array(found, np.uint64)[:, None].view(np.uint8)

    return run


def _free(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> None:
        places = f.batch.run.place(instruction)
        where = f" at {places[0].file}:{places[0].line}" if places else ""
        f.batch.progress += 1
        for lane, address in enumerate(_pointers(f, values[0]).tolist()):
            try:
                f.batch.run.services.heap.free(address, f"by free() in the kernel{where}")
            except MemoryFault as fault:
                kind = "double free" if fault.kind == "double free" else "invalid free"
                f.fail(instruction, kind, f"free of {fault.where}", lane, address=address, allocation=fault.allocation)

    return run


SYSTEM_CALLS: dict[str, Callable[[Emitter, Instruction], Call]] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    "malloc": _malloc,
    "free": _free,
}
PARAMETERS = {
    "vprintf": ((4,), (8, 8)),
    "__assertfail": ((), (8, 8, 4, 8, 8)),
    "malloc": ((8,), (8,)),
    "free": ((), (8,)),
}
"""Bytes of the results and of the parameters of each."""

"""Functions that kernels call and the module does not define: printf, assert, malloc and free."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.printf import formatted
from cudakit.sim.lockstep.fragment import Fragment, Store
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, SHARED_START, SHARED_WINDOW, MemoryFault
from cudakit.sim.lockstep.owners import own_offset
from cudakit.sim.lockstep.report import Index3
from cudakit.sim.ptx.ir import Instruction

Call = Callable[[Fragment, "tuple[Any, ...]"], Any]

# the result of printf without a format
_NO_FORMAT = -2


def _pointers(f: Fragment, value: Any) -> Array:
    """A 64-bit parameter of a call, for each lane."""
    if value.ndim == 0:
        return np.full(f.lanes.count, int.from_bytes(value.tobytes()[:8], "little"), np.uint64)
    return np.ascontiguousarray(value[:, :8]).view(np.uint64)[:, 0]


def _read(f: Fragment, lane: int, address: int, size: int, instruction: Instruction) -> bytes:
    """Bytes at a lane's generic address: global, local, or shared of a block that is not in a cluster."""
    batch, run = f.batch, f.batch.run
    if LOCAL_WINDOW <= address < LOCAL_WINDOW << 1:
        offset = own_offset(f, lane, address)
        found = _part(batch.local, int(f.lanes.lanes[lane]), offset, size, run.local_bytes)
        if found is not None and batch.guard is not None:
            batch.guard.expect_defined(f, lane, offset, size, instruction)
    elif SHARED_WINDOW <= address < SHARED_WINDOW << 1 and run.cluster_size == 1:
        offset = address - SHARED_WINDOW - SHARED_START
        found = _part(batch.shared, int(f.lanes.block[lane]), offset, size, run.shared_bytes)
    else:
        found = None
    if found is not None:
        return found
    try:
        return run.space.bytes(address, size).tobytes()
    except MemoryFault as fault:
        f.fail(instruction, fault.kind, f"printf or assert reads {fault.where}", lane, address=address, size=size)


def _part(store: Store | None, owner: int, offset: int, size: int, limit: int) -> bytes | None:
    """Bytes of the local memory of a lane, or of the shared memory of a block; None if they are out of bounds."""
    if store is None or not 0 <= offset <= limit - size:
        return None
    start = owner * store.stride + offset
    return store.bytes[start : start + size].tobytes()


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


def _vprintf(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        formats, arguments = _pointers(f, values[0]), _pointers(f, values[1])
        texts: dict[int, str] = {}
        results = np.full(f.lanes.count, _NO_FORMAT, np.int64)
        for lane in range(f.lanes.count):
            where, start = int(formats[lane]), int(arguments[lane])
            if where == 0:
                continue
            if where not in texts:
                texts[where] = _text(f, lane, where, instruction)
            read = partial(_read, f, lane, instruction=instruction)
            string = partial(_text, f, lane, instruction=instruction)
            text, results[lane] = formatted(texts[where], start, read, string)
            f.batch.run.services.printf(text)
        f.batch.progress += 1
        return results[:, None].view(np.uint8)

    return run


def _assertfail(c: Emitter, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        message, file, function = (_text(f, 0, int(_pointers(f, values[k])[0]), instruction) for k in (0, 1, 3))
        line = int(_pointers(f, values[2])[0]) & 0xFFFFFFFF
        block, thread = map(_index, f.lane_place(0))
        f.fail(
            instruction,
            "assertion",
            f"{file}:{line}: {function}: block: {block}, thread: {thread} Assertion `{message}` failed.",
            lanes=f.lanes.count,
        )

    return run


def _index(index: Index3) -> str:
    return "[{},{},{}]".format(*index)


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

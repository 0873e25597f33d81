"""Special registers, and the functions that a kernel calls and a module does not define: printf and assert."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.fragment import Fragment
from cudakit.sim.ir import Instruction, UnsupportedPtx
from cudakit.sim.lanes import Array
from cudakit.sim.lowering import Compiler
from cudakit.sim.memory import LOCAL_WINDOW, MemoryFault

Getter = Callable[[Fragment], Any]

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)
_ZERO, _ONE = np.uint32(0), np.uint32(1)
# what reading the clock adds to it: loops that wait for time to pass come to an end
_TICK = 512


def special(name: str) -> tuple[Getter, np.dtype[Any]]:
    """How to read a special register, and its dtype; UnsupportedPtx for one that is not there."""
    stem, _, axis = name.lstrip("%").partition(".")
    if axis in ("x", "y", "z"):
        number = "xyz".index(axis)
        if stem in _VECTORS:
            return _VECTORS[stem](number), _U32
    elif stem in _SCALARS:
        return _SCALARS[stem], _U64 if stem in ("clock64", "globaltimer", "gridid") else _U32
    if stem.startswith("lanemask_") and stem[9:] in _MASKS:
        return _lane_value(name, _MASKS[stem[9:]]), _U32
    if stem.startswith("envreg"):
        register = int(stem[6:])
        return (lambda f: np.uint32(f.batch.run.environment.get(register, 0))), _U32
    raise UnsupportedPtx(f"the special register {name} is not supported")


def _lane_value(key: str, make: Callable[[Array], Array]) -> Getter:
    """A value that depends on the lane number alone."""

    def get(f: Fragment) -> Any:
        found = f.lanes.cache.get(key)
        if found is None:
            found = f.lanes.cache[key] = make(f.lanes.laneid.astype(np.uint64)).astype(np.uint32)
        return found

    return get


def _tid(axis: int) -> Getter:
    key = ("tid", axis)

    def get(f: Fragment) -> Any:
        lanes = f.lanes
        geometry = lanes.geometry
        dims = geometry.dims
        if dims[axis] == 1:
            return _ZERO
        found = lanes.cache.get(key)
        if found is None:
            below = (1, dims[0], dims[0] * dims[1])[axis]
            values = (geometry.thread // below % dims[axis]).astype(np.uint32)
            found = lanes.cache[key] = lanes.pick(values)
        return found

    return get


def _ctaid(axis: int) -> Getter:
    key = f"ctaid{axis}"

    def get(f: Fragment) -> Any:
        batch = f.batch
        grid = batch.run.grid
        if grid[axis] == 1:
            return _ZERO
        geometry = batch.geometry
        found = batch.specials.get(key)
        if found is None:
            below = (1, grid[0], grid[0] * grid[1])[axis]
            values = (batch.first_block + np.arange(geometry.blocks)) // below % grid[axis]
            found = batch.specials[key] = np.repeat(values.astype(np.uint32), geometry.threads)
        if geometry.blocks == 1:
            return found[0]
        return f.lanes.pick(found)

    return get


def _warpid(f: Fragment) -> Any:
    geometry = f.lanes.geometry
    if geometry.warps_per_block == 1:
        return _ZERO
    found = f.lanes.cache.get("warpid")
    if found is None:
        found = f.lanes.cache["warpid"] = f.lanes.pick((geometry.thread // 32).astype(np.uint32))
    return found


def _smid(f: Fragment) -> Any:
    batch = f.batch
    return ((f.lanes.block + batch.first_block) % batch.run.properties.multiprocessors).astype(np.uint32)


def _clock(dtype: Any, shift: int = 0) -> Getter:
    def get(f: Fragment) -> Any:
        run = f.batch.run
        run.ticks += _TICK
        f.batch.progress += 1
        return dtype((run.ticks >> shift) & int(np.iinfo(dtype).max))

    return get


def _zeros(axis: int) -> Getter:
    return lambda f: _ZERO


def _ones(axis: int) -> Getter:
    return lambda f: _ONE


_VECTORS: dict[str, Callable[[int], Getter]] = {
    "tid": _tid,
    "ctaid": _ctaid,
    "ntid": lambda axis: lambda f: np.uint32(f.batch.geometry.dims[axis]),
    "nctaid": lambda axis: lambda f: np.uint32(f.batch.run.grid[axis]),
    # every block is a cluster of its own
    "clusterid": _ctaid,
    "nclusterid": lambda axis: lambda f: np.uint32(f.batch.run.grid[axis]),
    "cluster_ctaid": _zeros,
    "cluster_nctaid": _ones,
}
_SCALARS: dict[str, Getter] = {
    "laneid": _lane_value("laneid32", lambda lane: lane),
    "warpid": _warpid,
    "nwarpid": lambda f: np.uint32(f.batch.run.properties.max_threads_per_multiprocessor // 32),
    "smid": _smid,
    "nsmid": lambda f: np.uint32(f.batch.run.properties.multiprocessors),
    "gridid": lambda f: np.uint64(1),
    "clock": _clock(np.uint32),
    "clock_hi": _clock(np.uint32, 32),
    "clock64": _clock(np.uint64),
    "globaltimer": _clock(np.uint64),
    "globaltimer_lo": _clock(np.uint32),
    "globaltimer_hi": _clock(np.uint32, 32),
    "cluster_ctarank": _zeros(0),
    "cluster_nctarank": _ones(0),
    "is_explicit_cluster": lambda f: np.bool_(False),
    "dynamic_smem_size": lambda f: np.uint32(f.batch.run.dynamic_shared),
    "total_smem_size": lambda f: np.uint32(f.batch.run.shared_bytes),
}
_MASKS: dict[str, Callable[[Array], Array]] = {
    "eq": lambda lane: np.uint64(1) << lane,
    "lt": lambda lane: (np.uint64(1) << lane) - np.uint64(1),
    "le": lambda lane: (np.uint64(2) << lane) - np.uint64(1),
    "gt": lambda lane: np.uint64(0xFFFFFFFF) - ((np.uint64(2) << lane) - np.uint64(1)),
    "ge": lambda lane: np.uint64(0xFFFFFFFF) - ((np.uint64(1) << lane) - np.uint64(1)),
}


# ---- printf and assert ----

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
        f.fail(instruction, fault.kind, f"printf or assert reads {fault}", lane, address=address, size=size)


def _text(f: Fragment, lane: int, address: int, instruction: Instruction) -> str:
    """A string that ends with a zero byte."""
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
            number = float(struct.unpack("<d", next_bytes(8))[0]).hex()
            return number.upper() if kind == "A" else number
        if kind == "s":
            return (spec + "s") % _text(f, lane, struct.unpack("<Q", next_bytes(8))[0], instruction)
        if kind == "p":
            return f"0x{struct.unpack('<Q', next_bytes(8))[0]:x}"
        if kind == "c":
            return (spec + "c") % chr(next_bytes(4)[0])
        size = 8 if length in ("l", "ll", "j", "z", "t") else 4
        integer = int.from_bytes(next_bytes(size), "little", signed=kind in "di")
        return (spec + ("d" if kind in "diu" else kind)) % integer

    return _CONVERSION.sub(one, text)


def _vprintf(c: Compiler, instruction: Instruction) -> Call:
    def run(f: Fragment, values: tuple[Any, ...]) -> Any:
        formats, arguments = _pointers(f, values[0]), _pointers(f, values[1])
        texts: dict[int, str] = {}
        for lane in range(f.lanes.count):
            where = int(formats[lane])
            if where not in texts:
                texts[where] = _text(f, lane, where, instruction)
            f.batch.run.printf(_format(f, lane, texts[where], int(arguments[lane]), instruction))
        f.batch.progress += 1
        return np.frombuffer((1).to_bytes(8, "little"), "V8")[0]

    return run


def _assertfail(c: Compiler, instruction: Instruction) -> Call:
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


SYSTEM_CALLS: dict[str, Callable[[Compiler, Instruction], Call]] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
}

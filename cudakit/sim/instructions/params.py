"""Parameters of kernels and of calls, for ld.param and st.param.

A call's parameter is a register that holds bytes: a numpy void scalar if all lanes have the same bytes, else a uint8
array of shape (lanes, bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.pieces import ELEMENTS, LOCAL
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Address, Instruction, Symbol


def entry_param(offset: int, size: int, count: int) -> Callable[[Fragment], Any]:
    dtype = ELEMENTS[size]

    def get(f: Fragment) -> Any:
        store = f.batch.run.param_store
        found = np.frombuffer(store, dtype, count, offset)
        return found[0] if count == 1 else tuple(found)

    return get


def get_param(offset: int, size: int, count: int) -> Callable[[Any], Any]:
    """A function that reads part of a call's parameter from its bytes."""
    dtype = ELEMENTS[size]

    def get(value: Any) -> Any:
        if value.ndim == 0:
            found = np.frombuffer(value.tobytes(), dtype, count, offset)
            return found[0] if count == 1 else tuple(found)
        columns = [
            np.ascontiguousarray(value[:, offset + k * size :][:, :size]).view(dtype)[:, 0] for k in range(count)
        ]
        return columns[0] if count == 1 else tuple(columns)

    return get


def put_param(offset: int, size: int) -> Callable[[Any, int, tuple[Any, ...]], Any]:
    def put(old: Any, lanes: int, values: tuple[Any, ...]) -> Any:
        if old.ndim == 0 and all(v.ndim == 0 for v in values):
            data = bytearray(old.tobytes())
            for k, value in enumerate(values):
                data[offset + k * size : offset + (k + 1) * size] = value.tobytes()
            return np.frombuffer(bytes(data), old.dtype)[0]
        if old.ndim == 0:
            out = np.tile(np.frombuffer(old.tobytes(), np.uint8), (lanes, 1))
        else:
            out = old.copy()
        for k, value in enumerate(values):
            column = np.broadcast_to(value, (lanes,))
            out[:, offset + k * size : offset + (k + 1) * size] = np.ascontiguousarray(column)[:, None].view(np.uint8)
        return out

    return put


def addressed(instruction: Instruction) -> list[str]:
    """The names whose address an instruction takes."""
    if instruction.opcode not in ("mov", "cvta"):
        return []
    bases = [o.base if isinstance(o, Address) else o for o in instruction.operands[1:]]
    return [base.name for base in bases if isinstance(base, Symbol)]


def keep_param(site: Site, offset: int, size: int) -> Callable[[Fragment, Any], None]:
    """A function that writes a parameter of ``size`` bytes to the local memory of its function, word by word."""
    words = [(MemoryAccess(site, LOCAL, offset + at, 8, 1), get_param(at, 8, 1)) for at in range(0, size, 8)]

    def keep(f: Fragment, value: Any) -> None:
        base: Any = np.uint64(f.frames[-1].local_base)
        for access, get in words:
            access.store(f, base, get(value))

    return keep

"""Tensor maps as kernels name them: 128 bytes in parameter, constant or global memory."""

from __future__ import annotations

from typing import NoReturn

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Allocation, MemoryFault
from cudakit.sim.lockstep.pieces import GLOBAL
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.tensor_map_rules import mistakes
from cudakit.sim.lockstep.tensor_maps import SIZE, InvalidTensorMap, TensorMap

ALIGN = 64
_ADVICE = "declare the parameter as const __grid_constant__ CUtensorMap, and take its address without a copy of it"


def map_bytes(f: Fragment, position: int, address: int, site: Site) -> tuple[bytes, Allocation | None]:
    """The 128 bytes at a generic address, for the lane at a position of the fragment, and the allocation of global
    memory that they are in. Memory that cannot hold a tensor map is reported."""
    run = f.batch.run
    if address >= PARAM_WINDOW:
        offset = address - PARAM_WINDOW
        data = run.config.params[offset : offset + SIZE]
        if len(data) < SIZE or offset % ALIGN:
            _fail(f, position, site, "invalid tensor map", f"byte {offset} of the parameters holds no tensor map")
        return data, None
    if address >= SHARED_WINDOW:
        space = "local" if address >= LOCAL_WINDOW else "shared"
        what = f"a tensor map in {space} memory: it must be in parameter, constant or global memory"
        _fail(f, position, site, "tensor map in the wrong memory", what, _ADVICE)
    try:
        allocation = run.space.covering(address, SIZE)
        if address % ALIGN:
            raise MemoryFault("misaligned", address, ALIGN, allocation)
    except MemoryFault as fault:
        f.fail_access(site, fault, GLOBAL, position, 1)
    start = address - allocation.base
    return allocation.store[start : start + SIZE].tobytes(), allocation


def read_map(f: Fragment, position: int, address: int, rank: int, site: Site) -> TensorMap:
    """The tensor map at a generic address, for an instruction of ``rank`` dimensions. Anything else than a tensor map
    of that rank that obeys its rules is reported."""
    data, allocation = map_bytes(f, position, address, site)
    try:
        found = TensorMap.decode(data)
    except InvalidTensorMap as error:
        _fail(f, position, site, "invalid tensor map", str(error))
    wrong = next(mistakes(found), None)
    if wrong is not None:
        _fail(f, position, site, "invalid tensor map", f"the tensor map breaks a rule: {wrong}")
    if found.rank != rank:
        what = f"the instruction is for {rank} dimensions, the tensor map has {found.rank} ({found})"
        _fail(f, position, site, "invalid tensor map", what)
    guard = f.batch.guard
    if allocation is not None and guard is not None:
        guard.map_read(f, position, site, allocation, address)
    return found


def _fail(f: Fragment, position: int, site: Site, kind: str, detail: str, *notes: str) -> NoReturn:
    f.fail(site.instruction, kind, f"{site.kind}: {detail}", position, access=site.kind, notes=list(notes))

"""Special registers: indices of threads and blocks, lane masks, and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.clusters import ranks
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import RESERVED_BYTES, SHARED_START
from cudakit.sim.ptx.ir import NotSimulated

Getter = Callable[[Fragment], Any]

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)
_DTYPES = {"clock64": _U64, "globaltimer": _U64, "gridid": _U64, "is_explicit_cluster": np.dtype(np.bool_)}
_RESERVED = {
    "reserved_smem_offset_begin": SHARED_START,
    "reserved_smem_offset_end": SHARED_START + RESERVED_BYTES,
    "reserved_smem_offset_cap": RESERVED_BYTES,
    "reserved_smem_offset_0": SHARED_START,
    "reserved_smem_offset_1": SHARED_START + RESERVED_BYTES // 2,
}
_WHY = {"pm": ": there are no performance counters", "current_graph_exec": ": kernels do not launch graphs"}
_ZERO = np.uint32(0)


def special(name: str, place: tuple[int, int]) -> tuple[Getter, np.dtype[Any]]:
    """A function that reads a special register, and its dtype. ``place``: the basic block of the instruction, and the
    number of the block's instructions up to this one. Raises NotSimulated for other registers."""
    stem, _, axis = name.lstrip("%").partition(".")
    if axis in ("x", "y", "z"):
        number = "xyz".index(axis)
        if stem in _VECTORS:
            return _VECTORS[stem](number), _U32
    elif stem in _CLOCKS:
        return _clock(_CLOCKS[stem], place), _DTYPES.get(stem, _U32)
    elif stem in _SCALARS:
        return _SCALARS[stem], _DTYPES.get(stem, _U32)
    if stem.startswith("lanemask_") and stem[9:] in _MASKS:
        return _lane_value(name, _MASKS[stem[9:]]), _U32
    if stem.startswith("envreg"):
        register = int(stem[6:])
        return (lambda f: np.uint32(f.batch.run.environment.get(register, 0))), _U32
    if stem in _RESERVED:
        address = np.uint32(_RESERVED[stem])
        return (lambda f: address), _U32
    raise NotSimulated(f"the special register {name} is not supported{_WHY.get(stem.rstrip('0123456789'), '')}")


def _lane_value(key: str, make: Callable[[Array], Array]) -> Getter:
    """A value that depends only on the lane number."""

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
        if batch.run.config.grid[axis] == 1:
            return _ZERO
        found = batch.specials.get(key)
        if found is None:
            found = batch.specials[key] = _per_block(batch, batch.indices[:, axis])
        if batch.geometry.blocks == 1:
            return found[0]
        return f.lanes.pick(found)

    return get


def _per_block(batch: Batch, values: Array) -> Array:
    """One value per block, expanded to all lanes of the batch, as uint32."""
    return np.repeat(values.astype(np.uint32), batch.geometry.threads)


def _in_cluster(name: str, axis: int) -> Getter:
    """clusterid and cluster_ctaid: the index of the cluster in the grid, and of the block in the cluster."""
    key = f"{name}{axis}"

    def get(f: Fragment) -> Any:
        batch = f.batch
        if batch.run.config.cluster[axis] == 1 and name == "cluster_ctaid":
            return _ZERO
        found = batch.specials.get(key)
        if found is None:
            values = batch.indices[:, axis]
            group = batch.run.config.cluster[axis]
            inside = name == "cluster_ctaid"
            found = batch.specials[key] = _per_block(batch, values % group if inside else values // group)
        return f.lanes.pick(found)

    return get


def _rank(f: Fragment) -> Any:
    if f.batch.run.cluster_size == 1:
        return _ZERO
    return ranks(f.batch, f.lanes).astype(np.uint32)


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
    return ((f.lanes.block + batch.first_block) % batch.run.services.chip.multiprocessors).astype(np.uint32)


def _clock(bits: tuple[int, int], place: tuple[int, int]) -> Getter:
    """The bits ``bits`` of the launch's clock, from the first to before the last."""
    shift, end = bits
    dtype = np.uint64 if end - shift > 32 else np.uint32
    block, before = place

    def get(f: Fragment) -> Any:
        run = f.batch.run
        # the rest of the block is counted already
        executed = run.executed() - (run.block_sizes[block] - before) * f.lanes.warp_count
        f.batch.progress += 1
        return dtype((run.clock.read(executed, get) & ((1 << end) - 1)) >> shift)

    return get


_VECTORS: dict[str, Callable[[int], Getter]] = {
    "tid": _tid,
    "ctaid": _ctaid,
    "ntid": lambda axis: lambda f: np.uint32(f.batch.geometry.dims[axis]),
    "nctaid": lambda axis: lambda f: np.uint32(f.batch.run.config.grid[axis]),
    # without clusters every block is its own cluster
    "clusterid": lambda axis: _in_cluster("clusterid", axis),
    "nclusterid": lambda axis: lambda f: np.uint32(f.batch.run.config.grid[axis] // f.batch.run.config.cluster[axis]),
    "cluster_ctaid": lambda axis: _in_cluster("cluster_ctaid", axis),
    "cluster_nctaid": lambda axis: lambda f: np.uint32(f.batch.run.config.cluster[axis]),
}
_SCALARS: dict[str, Getter] = {
    "laneid": _lane_value("laneid32", lambda lane: lane),
    "warpid": _warpid,
    "nwarpid": lambda f: np.uint32(f.batch.run.services.chip.max_threads_per_multiprocessor // 32),
    "smid": _smid,
    "nsmid": lambda f: np.uint32(f.batch.run.services.chip.multiprocessors),
    "gridid": lambda f: np.uint64(1),
    "cluster_ctarank": _rank,
    "cluster_nctarank": lambda f: np.uint32(f.batch.run.cluster_size),
    "is_explicit_cluster": lambda f: np.bool_(f.batch.run.config.explicit_cluster),
    "dynamic_smem_size": lambda f: np.uint32(f.batch.run.config.dynamic_shared),
    "total_smem_size": lambda f: np.uint32(f.batch.run.shared_bytes),
}
# the bits of the count that each clock returns
_CLOCKS = {"clock": (0, 32), "clock_hi": (32, 64), "clock64": (0, 64)}
_CLOCKS |= {"globaltimer": (0, 64), "globaltimer_lo": (0, 32), "globaltimer_hi": (32, 64)}
_MASKS: dict[str, Callable[[Array], Array]] = {
    "eq": lambda lane: np.uint64(1) << lane,
    "lt": lambda lane: (np.uint64(1) << lane) - np.uint64(1),
    "le": lambda lane: (np.uint64(2) << lane) - np.uint64(1),
    "gt": lambda lane: np.uint64(0xFFFFFFFF) - ((np.uint64(2) << lane) - np.uint64(1)),
    "ge": lambda lane: np.uint64(0xFFFFFFFF) - ((np.uint64(1) << lane) - np.uint64(1)),
}

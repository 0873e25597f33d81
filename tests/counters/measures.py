"""The ncu counters that correspond to the simulated device's, and the permitted difference.

Bank conflicts and shared-memory wavefronts come from ncu's source counters, which are computed from the addresses of
each instruction, as on the simulated device. The hardware's own counter of conflicts
(`l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld` and `_op_st`) also counts passes lost to other traffic in the
data stage, mainly for stores: it is in the table, but not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

NEAR = 0.05  # relative to the GPU's figure; absolute for the branch efficiency

Counts = Mapping[str, float]

_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
WAVEFRONTS = "memory_l1_wavefronts_shared"
_IDEAL = "memory_l1_wavefronts_shared_ideal"
_UNIFORM = "smsp__sass_branch_targets_threads_uniform.sum"
DIVERGENT = "smsp__sass_branch_targets_threads_divergent.sum"
CONFLICTS = tuple(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum" for kind in ("ld", "st"))
BRANCHES = "smsp__inst_executed_op_branch.sum"
PASSES = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
COPIES = PASSES.format("ldgsts")
COPIED_SECTORS = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum"

# The metrics that ncu collects.
METRICS = (
    *(name.format(kind) for kind in ("ld", "st", "red", "atom") for name in (_REQUESTS, SECTORS)),
    WAVEFRONTS,
    _IDEAL,
    *CONFLICTS,
    *(PASSES.format(kind) for kind in ("ld", "st", "ldsm", "ldgsts", "atom")),
    "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    COPIED_SECTORS,
    "smsp__sass_inst_executed_op_dshared.sum",
    "smsp__sass_inst_executed_op_shared.sum",
    "l1tex__t_requests_pipe_lsu_mem_dshared.sum",
    _UNIFORM,
    DIVERGENT,
    BRANCHES,
    "smsp__inst_executed.sum",
)


@dataclass(frozen=True)
class Measure:
    """A figure that both devices have. sim, gpu: functions of the device's counts; their result is None if a launch has
    no such figure (0 / 0). absolute: whether `NEAR` is an absolute difference instead of a relative one."""

    name: str
    sim: Callable[[Counts], float | None]
    gpu: Callable[[Counts], float | None]
    absolute: bool = False

    def apart(self, sim: float | None, gpu: float | None) -> float:
        """Return the relative (or absolute) difference of two figures; infinite if one is None."""
        if sim is None or gpu is None:
            return 0.0 if sim is gpu else float("inf")
        if sim == gpu:
            return 0.0
        if self.absolute:
            return abs(sim - gpu)
        return abs(sim - gpu) / gpu if gpu else float("inf")


def _of(name: str) -> Callable[[Counts], float | None]:
    return lambda counts: counts.get(name, 0)


def _ratio(part: str, whole: str) -> Callable[[Counts], float | None]:
    return lambda counts: counts.get(part, 0) / counts[whole] if counts.get(whole) else None


def _kept_divergent(counts: Counts) -> float:
    """Return the number of divergent branches, among those that the simulated device expects ptxas to keep."""
    return counts["divergent_branches"] - counts["divergent_short_branches"]


def _kept_efficiency(counts: Counts) -> float:
    """Return the fraction of kept branches that are uniform; 1 if there are none."""
    kept = counts["branches"] - counts["short_branches"]
    return 1.0 - _kept_divergent(counts) / kept if kept else 1.0


def _efficiency(counts: Counts) -> float:
    """Return the fraction of branches that are uniform; 1 if there are none."""
    branches = counts.get(_UNIFORM, 0) + counts.get(DIVERGENT, 0)
    return counts.get(_UNIFORM, 0) / branches if branches else 1.0


def _wavefronts(counts: Counts) -> float:
    """Return the wavefronts, accesses to other blocks of the cluster included, as ncu counts them."""
    own = counts["shared_load_wavefronts"] + counts["shared_store_wavefronts"]
    return own + counts["distributed_requests"]


MEASURES = (
    Measure("load requests", _of("global_load_requests"), _of(_REQUESTS.format("ld"))),
    Measure(
        "sectors per load",
        _ratio("global_load_sectors", "global_load_requests"),
        _ratio(SECTORS.format("ld"), _REQUESTS.format("ld")),
    ),
    Measure("store requests", _of("global_store_requests"), _of(_REQUESTS.format("st"))),
    Measure(
        "sectors per store",
        _ratio("global_store_sectors", "global_store_requests"),
        _ratio(SECTORS.format("st"), _REQUESTS.format("st")),
    ),
    Measure("shared wavefronts", _wavefronts, _of(WAVEFRONTS)),
    Measure("bank conflicts", _of("bank_conflicts"), lambda gpu: gpu.get(WAVEFRONTS, 0) - gpu.get(_IDEAL, 0)),
    Measure("divergent branches", _kept_divergent, _of(DIVERGENT)),
    Measure("branch efficiency", _kept_efficiency, _efficiency, absolute=True),
)

"""Known differences between the two devices' counters, with their reasons. Any other difference is a bug."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .launches import Counted
from .measures import COPIED_SECTORS, COPIES, DIVERGENT, PASSES, SECTORS, WAVEFRONTS, Counts


@dataclass(frozen=True)
class Explanation:
    """rungs: a pattern that the whole of a name such as `softmax.split_row/kernel` must match. measures: the figures
    that differ. reason: the text in the table. `where`: a condition on (simulated counts, the GPU's counts)."""

    rungs: str
    measures: tuple[str, ...]
    reason: str
    where: Callable[[Counts, Counts], bool] = lambda sim, gpu: True

    def speaks_for(self, measure: str, sim: Counted, gpu: Counted) -> bool:
        """Return whether it explains the difference in this figure of a variant's kernel."""
        rung = f"{sim.family}.{sim.variant}/{sim.kernel}"
        named = measure in self.measures and re.fullmatch(self.rungs, rung) is not None
        return named and self.where(sim.counts, gpu.counts)


def _same_divergence(sim: Counts, gpu: Counts) -> bool:
    return sim["divergent_branches"] - sim["divergent_short_branches"] == gpu[DIVERGENT]


def _within_all_branches(sim: Counts, gpu: Counts) -> bool:
    return gpu[DIVERGENT] <= sim["divergent_branches"]


def _all_in_copies(sim: Counts, gpu: Counts) -> bool:
    """Loads take equally many passes on both devices. The simulated device's store passes are between the GPU's for
    stores alone and the GPU's for stores and copies."""
    loads = gpu[PASSES.format("ld")] + gpu[PASSES.format("ldsm")]
    stores = gpu[PASSES.format("st")]
    return sim["shared_load_wavefronts"] == loads and stores < sim["shared_store_wavefronts"] < gpu[COPIES] + stores


def _copies_lie_across(sim: Counts, gpu: Counts) -> bool:
    """The GPU counts more load sectors than the simulated device, and still more sectors for the copies alone."""
    return sim["global_load_sectors"] < gpu[SECTORS.format("ld")] < gpu[COPIED_SECTORS]


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        r"(gemm\.packed/stream_k|gemm_half\.(pipelined|packed)/pipelined)",
        ("shared wavefronts", "bank conflicts"),
        "16-byte cp.async.cg (LDGSTS.BYPASS): ncu's source counters include passes for inactive lanes: 34 for an "
        "instruction with one active lane (single instructions, tests/data/wavefronts_h200.npz). The passes of "
        "all loads are the same on both devices.",
        _all_in_copies,
    ),
    Explanation(
        r"gemm\.packed/stream_k",
        ("sectors per load",),
        "16-byte cp.async.cg (LDGSTS.BYPASS) from rows that start in the middle of a sector: the GPU counts a sector "
        "again if source and destination have different offsets in 32 bytes. The simulated device counts by the "
        "source.",
        _copies_lie_across,
    ),
    Explanation(
        r"gemm_half\.wmma/wmma_tile",
        ("shared wavefronts",),
        "wmma.load of a row-major B: the machine code reads pairs of neighbours by four 32-bit loads and transposes "
        "them in registers (MOVM.16.MT88); the simulated device reads eight 16-bit elements one by one.",
        lambda sim, gpu: gpu[WAVEFRONTS] < sim["shared_load_wavefronts"] + sim["shared_store_wavefronts"],
    ),
    Explanation(
        r"blur\.walking/walking",
        ("branch efficiency",),
        "The same number of branches diverges on both devices. Before each shuffle ptxas adds a branch that never "
        "diverges (BRA.DIV, a test for divergence); the GPU counts these as uniform branches.",
        _same_divergence,
    ),
    Explanation(
        r"(softmax\.(span/span|split_row/split_row)|gemm\.vec4/vec4)",
        ("divergent branches",),
        "The simulated device predicts by a heuristic which branches ptxas keeps (`cudakit/sim/lockstep/branches.py`). "
        "Here ptxas kept one more, or one fewer, of those for the last part of a row. All branches of the PTX together "
        "diverge more often than the GPU's.",
        _within_all_branches,
    ),
)

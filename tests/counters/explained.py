"""Differences between the two devices' counters that are understood, with their reasons. All others are bugs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .launches import Counted
from .measures import COPIED_SECTORS, COPIES, DIVERGENT, PASSES, SECTORS, WAVEFRONTS, Counts


@dataclass(frozen=True)
class Explanation:
    """rungs: a pattern that `softmax.split_row/kernel` must match as a whole. measures: the figures that differ.
    reason: what a reader of the table is told. where: what (simulated counts, the GPU's) must show for it to hold."""

    rungs: str
    measures: tuple[str, ...]
    reason: str
    where: Callable[[Counts, Counts], bool] = lambda sim, gpu: True

    def speaks_for(self, measure: str, sim: Counted, gpu: Counted) -> bool:
        """Whether it explains how far this figure of a rung's kernel is off."""
        rung = f"{sim.family}.{sim.variant}/{sim.kernel}"
        named = measure in self.measures and re.fullmatch(self.rungs, rung) is not None
        return named and self.where(sim.counts, gpu.counts)


def _same_divergence(sim: Counts, gpu: Counts) -> bool:
    return sim["divergent_branches"] - sim["divergent_short_branches"] == gpu[DIVERGENT]


def _within_all_branches(sim: Counts, gpu: Counts) -> bool:
    return gpu[DIVERGENT] <= sim["divergent_branches"]


def _all_in_copies(sim: Counts, gpu: Counts) -> bool:
    """Loads take as many passes on both devices, and stores fewer on the GPU than all of the simulated device's."""
    loads = gpu[PASSES.format("ld")] + gpu[PASSES.format("ldsm")]
    stores = gpu[PASSES.format("st")]
    return sim["shared_load_wavefronts"] == loads and stores < sim["shared_store_wavefronts"] < gpu[COPIES] + stores


def _copies_lie_across(sim: Counts, gpu: Counts) -> bool:
    """The copies' sectors, counted by source and destination, are more than those of all loads by source."""
    return sim["global_load_sectors"] < gpu[SECTORS.format("ld")] < gpu[COPIED_SECTORS]


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        r"(gemm\.packed/stream_k|gemm_half\.(pipelined|packed)/pipelined)",
        ("shared wavefronts", "bank conflicts"),
        "16-byte cp.async.cg (LDGSTS.BYPASS): ncu's source counters have passes for lanes that copy nothing, 34 for an "
        "instruction of which one lane takes part (single instructions, tests/data/wavefronts_h200.npz). The passes of "
        "all loads are the same on both devices.",
        _all_in_copies,
    ),
    Explanation(
        r"gemm\.packed/stream_k",
        ("sectors a load",),
        "16-byte cp.async.cg (LDGSTS.BYPASS) from rows that start in the middle of a sector: the GPU counts a sector "
        "again where source and destination lie differently within 32 bytes. The simulated device goes by the source.",
        _copies_lie_across,
    ),
    Explanation(
        r"gemm_half\.wmma/wmma_tile",
        ("shared wavefronts",),
        "wmma.load of a row-major B: the machine code reads pairs of neighbours in four 32-bit loads and transposes "
        "them in registers (MOVM.16.MT88); the simulated device reads eight 16-bit elements, one after another.",
        lambda sim, gpu: gpu[WAVEFRONTS] < sim["shared_load_wavefronts"] + sim["shared_store_wavefronts"],
    ),
    Explanation(
        r"blur\.walking/walking",
        ("branch efficiency",),
        "As many branches split a warp on both devices. ptxas adds one that never does before each shuffle (BRA.DIV, "
        "which looks whether the lanes have parted), and they count as uniform ones.",
        _same_divergence,
    ),
    Explanation(
        r"(softmax\.(span/span|split_row/split_row)|gemm\.vec4/vec4)",
        ("divergent branches",),
        "Which branches ptxas keeps is foreseen by a rule of thumb (`cudakit/sim/lockstep/branches.py`); here it kept "
        "one more, or one fewer, of those at the ragged end. All branches of the PTX together split more warps than "
        "the GPU's.",
        _within_all_branches,
    ),
)

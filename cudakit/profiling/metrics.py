"""ncu's metrics that a profile is reduced to, by the name they have in a row.

A row's figure comes from one metric, or from a few by the formula in `reduction`. Shares are fractions of one.
"""

from __future__ import annotations

# Shares of a peak, that ncu gives in percent: of the whole launch ("elapsed"), or while a multiprocessor has work.
SHARES = {
    "dram_share": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "compute_share": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_share": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "l1_share": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "shared_share": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",
    "fma_share": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_share": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "alu_share": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    "xu_share": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue_share": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1_hit": "l1tex__t_sector_hit_rate.pct",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "occupancy_theoretical": "sm__maximum_warps_per_active_cycle_pct",
    "branch_efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
}

# Figures that are ncu's own.
COUNTS = {
    "dram_bytes_read": "dram__bytes_read.sum",
    "dram_bytes_written": "dram__bytes_write.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "global_sectors": "memory_l2_theoretical_sectors_global",
    "global_sectors_ideal": "memory_l2_theoretical_sectors_global_ideal",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
    "lanes": "smsp__thread_inst_executed_per_inst_executed.ratio",
}

# Accesses of warps to local memory: registers that did not fit, and arrays that are indexed.
LOCAL = ("l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum")

DURATION = "gpu__time_duration.sum"  # ns
CYCLES = "smsp__cycles_elapsed.avg"
BUSY = "sm__cycles_active.avg"
ELAPSED = "sm__cycles_elapsed.max"

# Sectors and requests of global memory, whose quotient is a row's sectors_per_load and sectors_per_store.
GLOBAL = {
    "sectors_per_load": "op_ld",
    "sectors_per_store": "op_st",
}
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_{}.sum"

# What holds back a multiprocessor's blocks: the smallest of these limits, in blocks.
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "blocks": "launch__occupancy_limit_blocks",
    "block size": "launch__occupancy_limit_warps",
    "barriers": "launch__occupancy_limit_barriers",
}

# Lanes that executed a floating point instruction, a cycle; and how many operations one is. float16 outside of tensor
# cores is left out: the compiler moves constants with HFMA2, which would count as arithmetic.
ARITHMETIC = {
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": 2,
    "smsp__sass_thread_inst_executed_op_dadd_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum.per_cycle_elapsed": 2,
}

# Operations of tensor cores, by what they multiply; an fp8 product counts once, dense or sparse.
TENSOR = (
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp64.sum",
    "sm__ops_path_tensor_src_fp8_sparsity_off.sum",
    "sm__ops_path_tensor_src_fp8_sparsity_on.sum",
    "sm__ops_path_tensor_src_int8.sum",
)

# Warps that wait, by why, for each instruction issued. What they add up to is what a warp spends between two.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "data from global or local memory",
    "lg_throttle": "a place in the queue of global memory instructions",
    "short_scoreboard": "data from shared memory, or a special function",
    "mio_throttle": "a place in the queue of shared memory and special functions",
    "barrier": "other warps of the block at a barrier",
    "membar": "a memory fence",
    "wait": "the result of the instruction before, some fixed cycles",
    "math_pipe_throttle": "an arithmetic pipe that is taken",
    "dispatch_stall": "the dispatcher, which register reads hold up",
    "branch_resolving": "a branch's target",
    "no_instruction": "the next instruction to be fetched",
    "imc_miss": "a constant that is not in its cache",
    "drain": "stores to leave before it ends",
    "sleeping": "its own __nanosleep",
    "tex_throttle": "a place in the texture queue",
    "gmma": "a product of wgmma",
    "misc": "something rare",
    "not_selected": "nothing: it was ready, and another warp was taken",
    "selected": "nothing: it issued",
}
# No reason to wait: the warp issued, or could have.
READY = ("selected", "not_selected")

# Peaks of the data sheet at the clock of the launch, for a roofline where none was measured: bytes, and lanes that
# multiply and add, a cycle; and cycles a second.
PEAKS = {
    "dram": ("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
    "fma": ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", "sm__cycles_elapsed.avg.per_second"),
}

FACTS = ("device__attribute_display_name",)
ARCH = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")


# ncu's sections that hold what it does not take by name (--metrics): these metrics, which begin so.
SECTIONS = ("LaunchStats", "Occupancy", "SourceCounters")
_OF_SECTIONS = ("launch__", "device__", "memory_", "sm__maximum_")


def used() -> list[str]:
    """Every metric that a row is made of, in order."""
    names = [*SHARES.values(), *COUNTS.values(), *LOCAL, DURATION, CYCLES, BUSY, ELAPSED, *LIMITS.values()]
    names += [*ARITHMETIC, *TENSOR]
    for operation in GLOBAL.values():
        names += [SECTORS.format(operation), REQUESTS.format(operation)]
    names += [STALL.format(reason) for reason in STALLS]
    names += [name for pair in PEAKS.values() for name in pair]
    names += [f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"]
    return [*dict.fromkeys([*names, *ARCH, *FACTS])]


def by_name() -> list[str]:
    """Those that ncu takes by name; `SECTIONS` hold the others."""
    return [name for name in used() if not name.startswith(_OF_SECTIONS)]

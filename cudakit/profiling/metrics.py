"""The metrics of ncu from which a row is computed, by their names in the row.

A figure is one metric, or is computed from several in `reduction`. Shares are fractions of 1.
"""

from __future__ import annotations

# Fractions of a peak, in percent in ncu: over the whole launch ("elapsed"), or while a multiprocessor is active.
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

# Figures taken from ncu unchanged.
COUNTS = {
    "dram_bytes_read": "dram__bytes_read.sum",
    "dram_bytes_written": "dram__bytes_write.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l2_sectors_read": "lts__t_sectors_srcunit_tex_op_read.sum",
    "global_sectors": "memory_l2_theoretical_sectors_global",
    "global_sectors_ideal": "memory_l2_theoretical_sectors_global_ideal",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
    "lanes": "smsp__thread_inst_executed_per_inst_executed.ratio",
}

# Accesses of warps to local memory: spilled registers, and arrays with indices unknown at compile time.
LOCAL = ("l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum")

DURATION = "gpu__time_duration.sum"  # ns
CYCLES = "smsp__cycles_elapsed.avg"
BUSY = "sm__cycles_active.avg"
ELAPSED = "sm__cycles_elapsed.max"

# Sectors and requests of global memory; sectors / requests is a row's sectors_per_load and sectors_per_store.
GLOBAL = {
    "sectors_per_load": "op_ld",
    "sectors_per_store": "op_st",
}
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_{}.sum"

# Limits on the resident blocks per multiprocessor; the smallest applies.
LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "blocks": "launch__occupancy_limit_blocks",
    "block size": "launch__occupancy_limit_warps",
    "barriers": "launch__occupancy_limit_barriers",
}

# Lanes that executed a floating point instruction, per cycle, and its FLOPs. float16 outside of tensor cores is left
# out: the compiler moves constants with HFMA2, which would count as arithmetic.
ARITHMETIC = {
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed": 2,
    "smsp__sass_thread_inst_executed_op_dadd_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_dmul_pred_on.sum.per_cycle_elapsed": 1,
    "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum.per_cycle_elapsed": 2,
}

# Operations of tensor cores by operand type; an fp8 product counts once, dense or sparse.
TENSOR = (
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp16.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "sm__ops_path_tensor_src_fp64.sum",
    "sm__ops_path_tensor_src_fp8_sparsity_off.sum",
    "sm__ops_path_tensor_src_fp8_sparsity_on.sum",
    "sm__ops_path_tensor_src_int8.sum",
)

# Warps per stall reason and issued instruction; the sum is the number of cycles between two instructions of a warp.
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    "long_scoreboard": "data from global or local memory",
    "lg_throttle": "space in the queue of global memory instructions",
    "short_scoreboard": "data from shared memory, or the result of a special function",
    "mio_throttle": "space in the queue of shared memory and special functions",
    "barrier": "other warps of the block at a barrier",
    "membar": "a memory fence",
    "wait": "the result of the previous instruction, a fixed number of cycles",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "dispatch_stall": "the dispatcher, delayed by register reads",
    "branch_resolving": "the target of a branch",
    "no_instruction": "the fetch of the next instruction",
    "imc_miss": "a constant that is not in its cache",
    "drain": "its last stores, before it exits",
    "sleeping": "its own __nanosleep",
    "tex_throttle": "space in the texture queue",
    "gmma": "a wgmma product",
    "misc": "another, rare reason",
    "not_selected": "nothing: it was ready, and another warp was selected",
    "selected": "nothing: it issued",
}
# Not stalls: the warp issued an instruction, or was ready to.
READY = ("selected", "not_selected")

# Data sheet peaks at the clock of the launch, for a roofline without measured ceilings: bytes per cycle, lanes that
# execute an FFMA per cycle, and cycles per second.
PEAKS = {
    "dram": ("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
    "fma": ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", "sm__cycles_elapsed.avg.per_second"),
}

FACTS = ("device__attribute_display_name",)
ARCH = ("device__attribute_compute_capability_major", "device__attribute_compute_capability_minor")


# ncu's sections with the metrics that it does not accept by name (--metrics), and the prefixes of these metrics.
SECTIONS = ("LaunchStats", "Occupancy", "SourceCounters")
_OF_SECTIONS = ("launch__", "device__", "memory_", "sm__maximum_")


def used() -> list[str]:
    """All metrics that a row is computed from, in order."""
    names = [*SHARES.values(), *COUNTS.values(), *LOCAL, DURATION, CYCLES, BUSY, ELAPSED, *LIMITS.values()]
    names += [*ARITHMETIC, *TENSOR]
    for operation in GLOBAL.values():
        names += [SECTORS.format(operation), REQUESTS.format(operation)]
    names += [STALL.format(reason) for reason in STALLS]
    names += [name for pair in PEAKS.values() for name in pair]
    names += [f"launch__{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"]
    return [*dict.fromkeys([*names, *ARCH, *FACTS])]


def by_name() -> list[str]:
    """The metrics that ncu accepts by name; `SECTIONS` contain the others."""
    return [name for name in used() if not name.startswith(_OF_SECTIONS)]

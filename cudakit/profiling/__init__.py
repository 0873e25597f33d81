"""Profiles by Nsight Compute: run it, read its report, reduce it to one row per launch with its bottleneck.

    profiling.run_ncu([sys.executable, "examples/gemm.py"], Path("gemm.ncu-rep"))
    for row in profiling.reduce(profiling.read_report("gemm.ncu-rep")):
        print(row["range"], row["time_us"], row["sentence"])

`cudakit profile SCRIPT` does all of it, and draws a roofline. Needs ncu and its Python reader, which are installed
together.
"""

from __future__ import annotations

from cudakit.profiling.reading import ProfiledLaunch, find_reader, read_report
from cudakit.profiling.reduction import reduce, summed
from cudakit.profiling.runner import ProfilerError, find_ncu, ncu_version, run_ncu

__all__ = [
    "ProfiledLaunch",
    "ProfilerError",
    "find_ncu",
    "find_reader",
    "ncu_version",
    "read_report",
    "reduce",
    "run_ncu",
    "summed",
]

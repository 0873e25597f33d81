"""Profiles under Nsight Compute: run, read back, reduced to a row a launch, put in a sentence, drawn as a roofline.

    profiling.run_ncu([sys.executable, "examples/gemm.py"], Path("gemm.ncu-rep"))
    for row in profiling.reduce(profiling.read_report("gemm.ncu-rep")):
        print(row["range"], row["time_us"], row["sentence"])

`cudakit profile SCRIPT` does all of it. Needs ncu, whose reader of reports comes along with it.
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

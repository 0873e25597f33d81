"""The parser of compute-sanitizer's output, with the formats of several versions, and the table of its results."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from planted import sanitize
from planted.table import table
from planted.verdicts import by_case, read

MEMCHECK = """case guard_store wrong
========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_NOT_FOUND (error 500) due to "named symbol not found" on CUDA API call to cuGetProcAddress_v2.
=========     Saved host backtrace up to driver entry point at error
=========
========= Invalid __global__ write of size 4 bytes
=========     at wrong(const float *, float *, float, int)+0x70 in guard_store.cu:7
=========     by thread (232,0,0) in block (3,0,0)
=========     Access at 0x7f8efe000190 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f8efe000000 of size 4,000 bytes
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to cuCtxSynchronize.
=========
========= ERROR SUMMARY: 3 errors
"""  # noqa: E501
OLD_MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 16 bytes
=========     at 0x130 in /here/tests/planted/shared_vector.cu:14:row_sums(float const*, float*)
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x84 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at wrong(const float *, float *)+0x1b0 in tree_reduce_barrier.cu:9
=========     and Write access at wrong(const float *, float *)+0x200 in tree_reduce_barrier.cu:9 [512 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at wrong(const int *, int *, int)+0xa0 in barrier_in_branch.cu:9
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at wrong(const float *, const float *, float *, int, int)+0x2b0 in output_accumulated.cu:10
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f65e5204710
=========
========= ERROR SUMMARY: 50 errors
"""
LEAK = """========= COMPUTE-SANITIZER
========= Leaked 4,000 bytes at 0x7b95b4000000
=========     Saved host backtrace up to driver entry point at allocation time
=========
========= LEAK SUMMARY: 4000 bytes leaked in 1 allocations
========= ERROR SUMMARY: 1 error
"""
FREED_TWICE = """========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to cuMemFree_v2.
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("output", "finding", "places"),
    [
        (MEMCHECK, "Invalid __global__ write of size 4 bytes: is out of bounds", ("guard_store.cu:7",)),
        (OLD_MEMCHECK, "Invalid __shared__ read of size 16 bytes: is misaligned", ("shared_vector.cu:14",)),
        (RACECHECK, "Race between Read and Write access", ("tree_reduce_barrier.cu:9",)),
        (SYNCCHECK, "Barrier error detected. Divergent thread(s) in warp", ("barrier_in_branch.cu:9",)),
        (INITCHECK, "Uninitialized __global__ memory read of size 4 bytes", ("output_accumulated.cu:10",)),
        (LEAK, "Leaked bytes", ()),
        (FREED_TWICE, "CUDA_ERROR_INVALID_VALUE in cuMemFree_v2", ()),
        (CLEAN, "", ()),
        ("", "", ()),
    ],
)
def test_the_first_error_is_the_verdict(output: str, finding: str, places: tuple[str, ...]) -> None:
    verdict = read(output)
    assert (verdict.finding, verdict.places) == (finding, places)
    assert verdict.errors == (0 if not finding else 2 if output is MEMCHECK else 1)


def test_raw_lines_are_kept() -> None:
    assert read(RACECHECK).raw[1].startswith("========= Error: Race reported between Read access at wrong(")


def test_a_run_of_many_cases_is_cut_by_their_names() -> None:
    parts = by_case(f"case one right\n{CLEAN}case two right\n{RACECHECK}")
    assert [read(parts[name]).finding for name in ("one", "two")] == ["", "Race between Read and Write access"]


# Runs the program, reports an error in one case, and hangs in another.
TOOL = """#!{python}
import subprocess, sys, time
if "--help" in sys.argv: sys.exit(print("--print-limit"))
if "--version" in sys.argv: sys.exit(print("Version 2026.1"))
program = sys.argv[sys.argv.index({python!r}):]
subprocess.run(program)
if program[3:5] == ["wrong", "guard_store"] and "memcheck" in sys.argv: print({memcheck!r})
if program[3:5] == ["wrong", "spin_unset_flag"]: time.sleep(600)
"""


@pytest.mark.long
def test_the_runner_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a stand-in tool that only runs the program, on the simulated device."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL.format(python=sys.executable, memcheck=MEMCHECK))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "out" / "planted.json"
    arguments = ["--json", str(out), "--only", "guard_store", "spin_unset_flag", "--device", "sim", "--jobs", "2"]
    more = ["--tools", "memcheck", "--timeout", "5", "--sanitizer", str(tool)]
    monkeypatch.setattr(sys, "argv", ["sanitize", *arguments, *more])
    assert sanitize.main() == 0
    rows = {row["name"]: row for row in json.loads(out.read_text())["cases"]}
    assert rows["guard_store"]["wrong"]["sim"]["finding"] == "out of bounds"
    assert rows["guard_store"]["wrong"]["memcheck"]["places"] == ["guard_store.cu:7"]
    assert rows["guard_store"]["right"]["memcheck"]["finding"] == ""
    assert rows["spin_unset_flag"]["wrong"]["memcheck"]["finding"] == "hang"
    text = table(json.loads(out.read_text()))
    assert "2 bugs" in text
    assert "reports 2 with the class and the line" in text
    assert (
        "| Off-by-one guard on a store | out of bounds | out of bounds, guard_store.cu:7 | Invalid __global__" in text
    )

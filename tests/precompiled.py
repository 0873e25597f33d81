"""Measures NVRTC's time per kernel with precompiled headers and without, on this machine.

`python -m tests.precompiled --json profiles/sim/precompiled.json` compiles each source with different bodies, in one
process: five times without a precompiled header; three times creating it; four times with it. The minimum of each is
written, in seconds of processor time, because other processes can only increase it. The disk cache is not used.
docs/compiling.md shows the result.
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from typing import Any

from cudakit.compile import compiler, headers, precompiled
from cudakit.measure.command import command_line
from cudakit.show import outputs, terminal

SOURCES = {
    "cub": """#include <cub/block/block_reduce.cuh>
__global__ void k(const float* x, float* y) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ typename Reduce::TempStorage storage;
    const float sum = Reduce(storage).Sum(x[threadIdx.x] * BODY);
    if (threadIdx.x == 0) y[0] = sum;
}
""",
    "barrier": """#include <cuda/barrier>
__global__ void k(float* y) { y[0] = BODY; }
""",
    "cooperative_groups": """#include <cooperative_groups.h>
__global__ void k(float* y) { y[cooperative_groups::this_grid().thread_rank()] = BODY; }
""",
    "fp16": """#include <cuda_fp16.h>
__global__ void k(__half* y) { y[0] = __float2half(BODY); }
""",
}


def seconds(name: str, body: int, wanted: str) -> float:
    """Return the processor seconds of one compile; fail unless its use of precompiled headers begins with `wanted`."""
    text = SOURCES[name].replace("BODY", f"{body}.0f")
    request = compiler.request(text, name=f"{name}.cu", arch="sm_90a")
    start = time.process_time()
    compiled = compiler.compile(request)
    took = time.process_time() - start
    if not compiled.precompiled.startswith(wanted):
        raise SystemExit(f"{name}: {compiled.precompiled}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    compiler.compile(compiler.request("", name="first.cu", arch="sm_90a"))  # load NVRTC
    rows: list[dict[str, Any]] = []
    for name in SOURCES:
        os.environ["CUDAKIT_PCH"] = "never"
        without = min(seconds(name, body, "not used") for body in range(5))
        os.environ["CUDAKIT_PCH"] = "always"
        made = float("inf")
        for body in range(5, 8):
            precompiled.clear()
            made = min(made, seconds(name, body, "made"))
        used = min(seconds(name, body, "used") for body in range(8, 12))
        rows.append({"source": name, "without_s": without, "made_s": made, "used_s": used})
        terminal.say(f"{name}: {without:.2f} s without, {made:.2f} s when made, {used:.2f} s when used")
    outputs.write_json(
        {
            "nvrtc": compiler.nvrtc_label(),
            "date": datetime.date.today().isoformat(),
            "command": command_line(),
            "headers": headers.cuda_version(),
            "cores": os.cpu_count(),
            "rows": rows,
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()

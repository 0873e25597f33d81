"""Sessions of the debugger for tests: kernels that are stopped by commands, and the console's replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paths import ROOT

import cudakit
from cudakit.debugger import attached
from cudakit.debugger.console import Console, Quit

DATA = ROOT / "tests" / "data" / "debugger"
SMOOTH = DATA / "script.cu"
TYPES = DATA / "types.cu"


def line_of(mark: str, file: Path = SMOOTH) -> int:
    """The line of a source with `// MARK`."""
    lines = file.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"// {mark}"))


def at(mark: str, file: Path = SMOOTH) -> str:
    return f"{file.name}:{line_of(mark, file)}"


def launched(kernel: str = "smooth", grid: int = 2) -> tuple[Any, Any]:
    """Launch a kernel of 64 threads per block, and return its values and results."""
    device = cudakit.Device("sim", fresh=True)
    values = np.arange(64 * grid, dtype=np.float32)
    out = device.zeros(64 * grid)
    function = device.compile(SMOOTH)[kernel]
    function.launch(device.default_stream, grid=grid, block=64, args=(device.array(values), out, 64 * grid))
    return values, out.numpy()


def session(commands: Sequence[str], run: Callable[[], object] = launched, *, variables: bool = True) -> list[str]:
    """The lines that a console prints for some commands. The kernel's last stop is followed by `quit`."""
    lines: list[str] = []
    console = Console(commands, read=lambda prompt: None, write=lambda text: lines.extend(text.split("\n")))
    with attached.attached(console, variables=variables):
        try:
            console.start()
            run()
        except Quit:
            pass
    return lines


def replies(commands: Sequence[str], run: Callable[[], object] = launched, *, variables: bool = True) -> dict[str, str]:
    """The text that a console prints after each command, up to the next one; of equal commands, after the last one."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in session(commands, run, variables=variables):
        if line.startswith("(cudakit) "):
            current = found[line.removeprefix("(cudakit) ")] = []
        else:
            current.append(line)
    return {command: "\n".join(lines).strip() for command, lines in found.items()}


FLOW = """
struct Bits { unsigned a : 3; int b : 5; };
struct Pair { int x, y; };
__device__ Bits bits;
namespace one { __device__ int total; enum class Kind { small = 3, large = 9 }; }
namespace two { __device__ int total; }
__device__ __noinline__ void bump(int& r, Pair* p) {
    r += 5; // BYREF
    p->y = 3;
}
__global__ void flow(int* out, int n) {
    int i = threadIdx.x;
    int sum = 0, found = -1;
    for (int k = 0; k < n; k++) {
        if (k == i) {
            found = k;
            continue;
        }
        sum += k * i; // SUM
        if (sum > 20)
            break;
    }
    bool large = sum > 20;
    if (i == 2) bits.a = 1; // A
    if (i == 2) bits.b = 2; // B
    if (i == 2) one::total = 11;
    if (i == 2) two::total = 22;
    Pair pair = {1, 2};
    one::Kind kind = large ? one::Kind::large : one::Kind::small;
    bump(sum, &pair); // CALL
    out[i] = sum + found + pair.x + pair.y + large + int(kind); // END
}
__global__ void brief(int* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; } // BRIEF
"""


def flow(commands: Sequence[str], tmp_path: Path, kernel: str = "flow") -> dict[str, str]:
    """The replies of a session on one of the kernels of FLOW, with 8 threads and n = 4."""
    (tmp_path / "flow.cu").write_text(FLOW)

    def launch() -> None:
        device = cudakit.Device("sim", fresh=True)
        out = device.zeros(8, "int32")
        device.compile(tmp_path / "flow.cu")[kernel].launch(device.default_stream, grid=1, block=8, args=(out, 4))
        device.synchronize()

    marks = {mark: str(line_of(mark, tmp_path / "flow.cu")) for mark in re.findall(r"// (\w+)\n", FLOW)}
    filled = [re.sub(r"@(\w+)", lambda match: f"flow.cu:{marks[match[1]]}", one) for one in commands]
    found = replies(filled, launch)
    return {command: found[line] for command, line in zip(commands, filled, strict=True)}

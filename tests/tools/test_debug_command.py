"""`cudakit debug` and `cudakit.debug()`: scripts with breakpoints, traps, shadows and write histories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from debug_sessions import SMOOTH, at, line_of
from paths import ROOT


def test_debug_opens_the_prompt_in_a_script(tmp_path: Path) -> None:
    script = tmp_path / "uses_debug.py"
    script.write_text(
        "import cudakit, numpy as np\n"
        "device = cudakit.Device('sim')\n"
        f"cudakit.debug('break {at('STORE')} if i == 7', 'run')\n"
        f"kernel = device.compile({str(SMOOTH)!r})['smooth']\n"
        "x, out = device.array(np.arange(64, dtype='f')), device.zeros(64)\n"
        "kernel.launch(device.default_stream, grid=1, block=64, args=(x, out, 64))\n"
        "print('sum', out.numpy().sum())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], input="print result\ncontinue\n", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "$1 = -7" in done.stdout
    assert "sum " in done.stdout


SCRIPT = f"""
import sys, cudakit, numpy as np
device = cudakit.Device()
kernel = device.compile({str(SMOOTH)!r})["smooth"]
out = device.zeros(128)
kernel.launch(device.default_stream, grid=2, block=64, args=(device.array(np.arange(128, dtype="f")), out, 128))
print("arguments", sys.argv[1:], "sum", out.numpy().sum())
"""


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cudakit debug` on a script with these arguments."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "cudakit", "debug", str(script), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, cwd=ROOT)


def test_the_command_runs_a_script_with_breakpoints_and_commands(tmp_path: Path) -> None:
    done = command(
        tmp_path,
        *("--break", at("STORE"), "--if", "i == 70", "--block", "1,0,0", "--thread", "6,0,0"),
        *("-ex", "print result", "-ex", "continue", "--", "--size", "3"),
    )
    assert done.returncode == 0, done.stderr
    assert "$1 = 423" in done.stdout
    assert "arguments ['--size', '3'] sum" in done.stdout


def test_a_breakpoint_that_stops_nothing_is_a_failure(tmp_path: Path) -> None:
    for location, why in (
        (at("STORE"), "no thread came to this line with a true condition"),
        ("elsewhere.cu:3", "no launched kernel has code there; the kernels' files: script.cu"),
    ):
        done = command(tmp_path, "--break", location, "--if", "i == 1000")
        assert done.returncode == 1
        assert why in " ".join(done.stderr.split())


STENCIL = """
// the mean of an element and its neighbours; the left one is wrong at the start of a row
__global__ void blur(const float* x, float* y, int rows, int columns) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    const int column = i % columns;
    const float left = i > 0 ? x[i - 1] : 0.0f;
    const float right = column < columns - 1 ? x[i + 1] : 0.0f;
    y[i] = logf((left + x[i] + right) / 3.0f); // BLUR
}
"""
NUMBERS = """
import cudakit, numpy as np
device = cudakit.Device()
x = np.ones((4, 8), np.float32)
x[2] = [{row}] * 8
y = device.zeros((4, 8))
kernel = device.compile("stencil.cu")["blur"]
kernel.launch(device.default_stream, grid=1, block=32, args=(device.array(x), y, 4, 8))
print(y.numpy()[3, 0])
"""


def numbers(tmp_path: Path, row: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cudakit debug` on a stencil over rows of ones; `row`: the elements of row 2."""
    (tmp_path / "stencil.cu").write_text(STENCIL)
    (tmp_path / "blurred.py").write_text(NUMBERS.format(row=row))
    line = [sys.executable, "-m", "cudakit", "debug", "blurred.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)


def test_who_names_the_wrong_neighbour_of_a_stencil(tmp_path: Path) -> None:
    done = numbers(tmp_path, 7, "--who", "y[3, 0]")
    assert done.returncode == 0, done.stderr
    written = done.stdout.split("kernel store: y[3, 0]")[1]
    assert "thread (24, 0, 0)" in written
    assert f"stencil.cu:{line_of('BLUR', tmp_path / 'stencil.cu')}" in written
    assert "x[2, 7] = 7.0" in written  # of the row above
    assert "x[3, 0] = 1.0" in written


def test_a_trap_stops_the_script_at_the_line(tmp_path: Path) -> None:
    assert numbers(tmp_path, 7, "--trap", "nan,division").returncode == 0
    done = numbers(tmp_path, -9, "--trap", "nan,inf")
    assert done.returncode == 1
    assert f"stencil.cu:{line_of('BLUR', tmp_path / 'stencil.cu')}" in done.stderr
    assert "NaN made" in done.stderr


def test_a_comparison_with_float64_names_the_line_that_loses(tmp_path: Path) -> None:
    assert "no line loses accuracy" in numbers(tmp_path, 7, "--compare", "float64").stdout.lower()
    done = numbers(tmp_path, 7, "--trap", "everything")
    assert done.returncode == 2
    assert "everything" in done.stderr


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    assert "expected a value" in command(tmp_path, "--break", at("STORE"), "--if", "i ==").stderr
    assert "a block index is needed" in command(tmp_path, "--break", at("STORE"), "--block", "x").stderr
    missing = subprocess.run(
        [sys.executable, "-m", "cudakit", "debug", "missing.py"], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert missing.returncode == 2
    assert "there is no script 'missing.py'" in missing.stderr

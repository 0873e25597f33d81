"""Scripts that end without waiting for the simulated device: queued work runs, and a failure is the exit status."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RACY = """\
__global__ void racy(float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""
SPIN = "__global__ void spin(volatile int* x) { while (x[0] == 0) x[1] = 1; }"
# Imports once, then forks a child per script, which ends like a separate Python process.
RUNNER = """\
import atexit, gc, os, sys, threading
import cudakit, numpy
from cudakit.sim import Driver

for name, script in SCRIPTS.items():
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(("out", "err"), 1):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        device = cudakit.Device("sim")
        kernel = device.compile("racy.cu")["racy"]
        y = device.zeros(64)
        def launch():
            kernel.launch(device.default_stream, grid=1, block=64, args=(y,))
        exec(script)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
FAULT = "data race"

# name: the rest of the script, its exit status, and the number of fault reports on stderr
SCRIPTS = {
    "ends": ("launch()\nprint('printed')", 1, 1),
    "exits": ("launch()\nsys.exit(3)", 3, 1),
    "exits well": ("launch()\nsys.exit(0)", 1, 1),
    "raises": ("launch()\nraise ValueError('its own')", 1, 1),
    # an exit handler registered before cudakit's drops the last reference to the device
    "lets go": (
        "launch()\nheld = [device, kernel, y]\ndel device, kernel, y, launch\n"
        "held.clear()\ngc.collect()\nprint('printed')",
        1,
        1,
    ),
    "closes": ("launch()\natexit.register(device.close)", 1, 1),
    "launches as it exits": ("atexit.register(launch)", 1, 1),
    "leaves a thread": ("threading.Timer(0.05, launch).start()", 1, 1),
    "exits within": ("with device:\n    launch()\n    sys.exit()", 1, 1),
    "passes over what is told": (
        "try:\n    with device:\n        launch()\n        raise ValueError\nexcept ValueError: pass",
        0,
        0,
    ),
    "has caught it": ("launch()\ntry: device.synchronize()\nexcept cudakit.DeviceFault: print('printed')", 0, 0),
    "forks": (
        "launch()\nif os.fork() == 0: sys.exit(5)\nassert os.waitstatus_to_exitcode(os.wait()[1]) == 5\nsys.exit(4)",
        4,
        1,
    ),
    "is interrupted as it ends": (
        "import signal\n"
        "x = device.zeros(2, 'int32')\n"
        f"device.compile(source={SPIN!r})['spin'].launch(device.default_stream, grid=1, block=1, args=(x,))\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)",
        130,
        0,
    ),
    "ends by os._exit": ("launch()\nos._exit(0)", 0, 0),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return exit status, stdout and stderr of each script, by name."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "racy.cu").write_text(RACY)
    scripts = {name: body for name, (body, *_) in SCRIPTS.items()}
    command = [sys.executable, "-c", f"SCRIPTS = {scripts!r}\n{RUNNER}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    texts = [[(folder / f"{name}.{stream}").read_text() for stream in ("out", "err")] for name in SCRIPTS]
    return {name: (int(status), *text) for name, status, text in zip(SCRIPTS, done.stdout.split(), texts, strict=True)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_fails_unseen_is_reported_and_is_the_status(ended, name):
    body, status, times = SCRIPTS[name]
    found, out, err = ended[name]
    assert found == status, err
    assert err.count(FAULT) == times
    assert ("printed" in out) == ("print(" in body)
    assert ("\nValueError: its own" in err) == (name == "raises")
    assert ("was not finished" in err) == (status == 130)

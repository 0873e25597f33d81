"""The simulated device's machine code on disk: its folder, owners, and the next process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudakit.compile.machine_code import MachineCode

LAUNCH = '''
import numpy as np
import cudakit
from cudakit.sim.machine import engine

# __sinf is numpy's, at an address of the process
source = """extern "C" __global__ void twice(float* x, int n) {
    if (threadIdx.x < n) x[threadIdx.x] = 2 * x[threadIdx.x] + __sinf(0 * x[threadIdx.x]);
}"""
with cudakit.Device("sim", fresh=True) as device:
    kernel = device.compile(source=source, name="twice.cu")["twice"]
    x = device.array(np.arange(40, dtype=np.float32))
    kernel.launch(device.default_stream, grid=1, block=64, args=(x, 40))
    assert (x.numpy() == 2 * np.arange(40)).all()
    print(sum(one.compiled_launches for one in engine._engines.values()))
'''


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineCode:
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path / "cache"))
    return MachineCode()


def test_files_are_found_again_and_replaced(code: MachineCode, tmp_path: Path) -> None:
    assert not code.has("a")
    assert code.read("a") is None
    code.write("a", b"one")
    code.write("a", b"two")
    assert code.has("a")
    assert code.read("a") == b"two"
    (folder,) = (tmp_path / "cache").iterdir()
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("which", ["cache", "cache/machine-code", "cache/machine-code/a"])
def test_files_that_others_may_write_are_not_used(code: MachineCode, tmp_path: Path, which: str) -> None:
    code.write("a", b"code")
    (tmp_path / which).chmod(0o777)
    assert code.read("a") is None


def test_a_folder_that_cannot_be_made_keeps_nothing(code: MachineCode, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    code.write("a", b"code")
    assert code.read("a") is None


def test_the_next_process_runs_machine_code_at_once(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

    def launch(how: str) -> str:
        environment = {**os.environ, "CUDAKIT_CACHE_DIR": str(tmp_path), "CUDAKIT_SIM_ENGINE": how}
        done = subprocess.run([sys.executable, "-c", LAUNCH], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [launch("auto"), launch("compiled"), launch("auto")] == ["0", "1", "1"]

"""Machine code kept between processes: it runs from the first launch on, and only if it is that of the same kernel."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.compiled import kept_code
from cudakit.sim.machine import engine

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
extern "C" __global__ void smooth(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) y[i] = 0.25f * x[i - 1] + 0.5f * x[i] + 0.25f * x[i + 1];
}
"""


class Files(dict[str, bytes]):
    """A store in memory."""

    def has(self, name: str) -> bool:
        return name in self

    def read(self, name: str) -> bytes | None:
        return self.get(name)

    def write(self, name: str, content: bytes) -> None:
        self[name] = content


@pytest.fixture
def files(monkeypatch) -> Files:
    monkeypatch.setattr(kept_code, "_store", None)
    store = Files()
    kept_code.keep_in(store)
    return store


def launched(monkeypatch, how: str = "auto", source: str = SOURCE) -> tuple[bytes, engine.Engine]:
    """The result of one launch of a kernel that is loaded for it, and the kernel's engine."""
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
    device = SimDevice(source)
    x, y = np.random.default_rng(1).standard_normal(500, dtype=np.float32), np.zeros(500, np.float32)
    device.launch("smooth", 2, 256, x, y, 500, checks=ALL_CHECKS)
    return y.tobytes(), engine.engine_of(device.kernel("smooth"))


def test_kept_code_runs_from_the_first_launch_on(monkeypatch, files: Files) -> None:
    expected, interpreted = launched(monkeypatch)
    assert interpreted.compiled_launches == 0
    launched(monkeypatch, "compiled")
    assert files
    result, found = launched(monkeypatch)
    assert found.compiled_launches == 1
    assert result == expected


def test_kept_code_is_loaded_and_not_compiled_again(monkeypatch, files: Files) -> None:
    from cudakit.sim.compiled import machine

    expected, _ = launched(monkeypatch, "compiled")
    monkeypatch.setattr(machine, "_compile", lambda *arguments: pytest.fail("compiled again"))
    assert launched(monkeypatch, "compiled")[0] == expected


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda content: content[:-9] + bytes(9), id="its end is zeros"),
        pytest.param(lambda content: content[:90], id="cut off"),
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: bytes(32) + content[32:], id="the code of another text"),
    ],
)
def test_other_code_is_compiled_again(monkeypatch, files: Files, change) -> None:
    expected, _ = launched(monkeypatch, "compiled")
    kept = dict(files)
    files.update({name: change(content) for name, content in kept.items()})
    assert launched(monkeypatch, "compiled")[0] == expected
    # the runtime's code is loaded once per process
    assert sum(files[name] == content for name, content in kept.items()) >= 1


def test_another_processor_compiles_again(monkeypatch, files: Files) -> None:
    from cudakit.sim.compiled import machine

    expected, _ = launched(monkeypatch, "compiled")
    before = dict(files)
    monkeypatch.setattr(machine, "_circumstances", lambda: "another processor")
    assert launched(monkeypatch, "compiled")[0] == expected
    assert dict(files) != before


def test_a_kernel_of_other_ptx_has_its_own_file(monkeypatch, files: Files) -> None:
    launched(monkeypatch, "compiled")
    names = set(files)
    _, found = launched(monkeypatch, source=SOURCE.replace("0.5f", "0.75f"))
    assert found.compiled_launches == 0
    launched(monkeypatch, "compiled", SOURCE.replace("0.5f", "0.75f"))
    assert set(files) > names

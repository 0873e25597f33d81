"""Device: properties, objects it creates, simulated counters, fast import, a warm first launch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit.errors import Closed, CudakitError, DeviceUnavailable

SCALE = "__global__ void scale(float* x, float s, int n) { if (threadIdx.x < n) x[threadIdx.x] *= s; }"


def test_what_it_is(device: cudakit.Device) -> None:
    info = device.info()
    assert set(info) == {"name", "kind", "arch", "driver", "nvrtc"}
    assert info["kind"] == device.kind
    assert info["arch"] == device.arch
    assert device.arch.startswith("sm_")
    assert info["name"] == device.name
    assert "CUDA 1" in info["driver"]
    assert info["nvrtc"].startswith("13.")
    assert device.multiprocessors == device.attribute("MULTIPROCESSOR_COUNT") > 0
    free, total = device.memory_info()
    assert 0 < free <= total
    assert device.ordinal == 0


def test_the_simulated_device_has_the_arch_asked_for() -> None:
    with cudakit.Device("sim:sm_80", fresh=True) as old:
        assert old.arch == "sm_80"
        x = old.full((4,), 3, np.float32)
        old.compile(source=SCALE, name="scale.cu")["scale"].launch(
            old.default_stream, grid=1, block=4, args=(x, 2.0, 4)
        )
        assert list(x.numpy()) == [6] * 4


def test_what_it_makes(device: cudakit.Device) -> None:
    host = np.arange(12, dtype=np.float64).reshape(3, 4)
    np.testing.assert_array_equal(device.array(host).numpy(), host)
    np.testing.assert_array_equal(device.array([1, 2, 3], np.int16).numpy(), np.array([1, 2, 3], np.int16))
    assert device.empty((2, 3), np.int8).shape == (2, 3)
    assert device.empty(5).dtype == np.float32
    assert (device.zeros((7,), np.int64).numpy() == 0).all()
    assert (device.full((7,), 2.5).numpy() == 2.5).all()
    like = device.empty_like(host)
    assert (like.shape, like.dtype) == (host.shape, host.dtype)
    pinned = device.pinned((3, 4), np.float64)
    pinned[:] = host
    with device.stream() as stream:
        x = device.array(pinned, stream=stream)
        assert x.stream is stream
        np.testing.assert_array_equal(x.numpy(stream), host)
        before, after = device.event(), device.event()
        before.record(stream)
        x.fill(1, stream)
        after.record(stream)
        after.synchronize()
        assert before.done
    low, high = device.context.stream_priorities()
    with device.stream(priority=high) as urgent:
        assert urgent.priority == high <= low


def test_the_default_stream_is_one_and_comes_back(device: cudakit.Device) -> None:
    stream = device.default_stream
    assert device.default_stream is stream
    stream.close()
    assert device.default_stream is not stream
    assert device.full((2,), 1, np.float32).numpy().sum() == 2


def test_of_gives_the_device_of_a_context(device: cudakit.Device) -> None:
    assert cudakit.Device.of(device.context) is device
    context = cudakit.Context("sim")
    made = cudakit.Device.of(context)
    assert made.context is context
    assert cudakit.Device.of(context) is made


@pytest.mark.gpu
def test_of_gpu_is_shared(gpu: cudakit.Device) -> None:
    assert cudakit.Device.of_gpu(0) is cudakit.Device.of_gpu(0)


def test_close_is_idempotent_and_final() -> None:
    device = cudakit.Device("sim", fresh=True)
    kernel = device.compile(source=SCALE, name="scale.cu")["scale"]
    x = device.full((4,), 3, np.float32)
    stream = device.default_stream
    kernel.launch(stream, grid=1, block=4, args=(x, 2.0, 4))
    device.close()
    device.close()
    for use in (
        lambda: kernel.launch(stream, grid=1, block=4, args=(x, 2.0, 4)),
        lambda: device.empty(3),
        lambda: device.compile(source=SCALE, name="scale.cu"),
        lambda: device.synchronize(),
    ):
        with pytest.raises(Closed):
            use()
    assert device.context.driver.simStats().modules == 0


def test_a_reopened_device_has_the_settings_of_the_old_one() -> None:
    kept = {"checks": frozenset({"init"}), "memory": 1 << 24, "order": "random", "seed": 5, "step_limit": 1000}
    with cudakit.Device("sim:sm_80", fresh=True, **kept) as old, old.reopened() as new:
        assert new.context.driver is not old.context.driver
        assert new.arch == "sm_80"
        assert kept.items() <= new.context.driver.settings.items()
        assert new.context.driver.cuMemGetInfo()[2] == 1 << 24


def test_wrong_specs() -> None:
    with pytest.raises(ValueError, match="tpu"):
        cudakit.Device("tpu")
    with pytest.raises((DeviceUnavailable, CudakitError)):
        cudakit.Device("gpu:99")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAKIT_DEVICE", "sim:sm_86")
    assert cudakit.Device().arch == "sm_86"


# Counters -------------------------------------------------------------------------------------------------------------


def test_counters_add_up_by_kernel(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=SCALE, name="scale.cu")["scale"]
    x = sim.full((32,), 3, np.float32)
    launch: Any = lambda: kernel.launch(sim.default_stream, grid=1, block=32, args=(x, 2.0, 32))  # noqa: E731
    launch()
    with sim.counters() as outer:
        launch()
        with sim.counters() as inner:
            launch()
        launch()
    assert not sim.context.driver.simStats().pending
    assert list(outer) == list(inner) == ["scale"]
    assert (inner["scale"].launches, outer["scale"].launches) == (1, 3)
    assert inner["scale"].global_load_sectors == 4
    assert outer["scale"].global_load_bytes == 3 * 128
    with sim.counters() as nothing:
        pass
    assert nothing == {}


def test_counting_on_one_device_leaves_anothers_counters(sim: cudakit.Device) -> None:
    other = cudakit.Device(cudakit.driver.context.Context(sim.context._opened))
    with other:
        works = []
        for d in (sim, other):
            works.append((d, d.compile(source=SCALE, name="scale.cu")["scale"], d.full((32,), 3, np.float32)))

        def launch(which: int) -> None:
            d, kernel, x = works[which]
            kernel.launch(d.default_stream, grid=1, block=32, args=(x, 2.0, 32))

        with sim.counters() as outer:
            launch(0)
            with other.counters() as inner:
                launch(1)
            launch(0)
        launch(0)
        assert inner["scale"].launches == 1
        assert outer["scale"].launches == 3, "both are over one context"


def test_a_count_ends_where_its_block_fails(sim: cudakit.Device) -> None:
    def fail() -> None:
        with sim.counters():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sim.context.driver._counts == [], "nothing is kept while nobody counts"


def test_counters_need_a_simulated_device(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.context, "kind", "gpu")
    with pytest.raises(CudakitError, match="profile with ncu"), sim.counters():
        pass


# Importing ------------------------------------------------------------------------------------------------------------


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


def test_importing_imports_next_to_nothing() -> None:
    heavy = ["numpy", "cuda.bindings.driver", "cuda.bindings.nvrtc", "cuda.pathfinder", "nvtx", "ml_dtypes", "rich"]
    done = run(f"import sys, cudakit; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_is_there() -> None:
    for name in cudakit.__all__:
        assert getattr(cudakit, name) is not None
        assert name in dir(cudakit)
    with pytest.raises(AttributeError, match="nothing_such"):
        cudakit.nothing_such  # noqa: B018


WARM = f"""
import sys
import numpy as np
import cudakit
device = cudakit.Device("sim")
x = device.full((4,), 3, np.float32)
kernel = device.compile(source={SCALE!r}, name="scale.cu")["scale"]
kernel.launch(device.default_stream, grid=1, block=4, args=(x, 2.0, 4))
assert list(x.numpy()) == [6] * 4
device.info()
print("cuda.bindings.nvrtc" in sys.modules, "libnvrtc" in open("/proc/self/maps").read())
"""


def test_a_warm_process_launches_without_nvrtc(tmp_path: Path) -> None:
    cold = run(WARM, CUDAKIT_CACHE_DIR=str(tmp_path), CUDAKIT_COMPILE="never")
    assert "CUDAKIT_COMPILE=never forbids compiling scale.cu for sm_90a" in cold.stderr
    first = run(WARM, CUDAKIT_CACHE_DIR=str(tmp_path))
    assert first.stdout.split() == ["True", "True"], first.stderr
    second = run(WARM, CUDAKIT_CACHE_DIR=str(tmp_path), CUDAKIT_COMPILE="never")
    assert second.stdout.split() == ["False", "False"], second.stderr

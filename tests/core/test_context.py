"""Contexts: choice of driver and device, properties, closing."""

from __future__ import annotations

import argparse
import gc
import re
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest
from core_fixtures import DEVICES, opened
from cuda.bindings import driver as cu

from cudakit import Device
from cudakit import __main__ as command_line
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, ContextLost, DeviceFault, DeviceMismatch, DeviceUnavailable
from cudakit.memory import makers

R = cu.CUresult


@pytest.fixture(params=DEVICES)
def context(request):
    with opened(request.param) as made:
        yield made


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    inherited = {key: value for key, value in os.environ.items() if key != "CUDAKIT_DEVICE"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Choosing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "arch"), [("sim", (9, 0)), ("sim:sm_80", (8, 0)), ("sim:sm_75", (7, 5))])
def test_sim_by_name(spec, arch):
    with Context(drivers.open(spec, fresh=True)) as context:
        assert context.kind == "sim"
        assert context.compute_capability == arch


@pytest.mark.parametrize(
    ("spec", "arch"), [("sim", "sm_90a"), ("sim:sm_90a", "sm_90a"), ("sim:sm_90", "sm_90"), ("sim:sm_100f", "sm_100f")]
)
def test_code_is_compiled_for_exactly_the_simulated_architecture(spec, arch):
    with Device(spec, fresh=True) as device:
        assert device.arch == arch
        assert device.name.endswith(f"({arch})")
        assert f".target {arch}\n" in device.compile(source="__global__ void k() {}").ptx


def test_sim_is_shared_until_a_fresh_one_is_asked_for():
    assert drivers.open("sim").driver is drivers.open("sim:sm_90a").driver
    assert drivers.open("sim").driver is not drivers.open("sim", fresh=True).driver
    assert drivers.open("sim").driver is not drivers.open("sim:sm_80").driver
    assert drivers.open("sim", memory=1 << 20).driver is not drivers.open("sim").driver


@pytest.mark.parametrize("spec", ["cuda", "gpu:x", "sim:90", "sim:sm_9", "", "gpu:-1"])
def test_a_name_of_no_device_is_refused(spec, monkeypatch):
    monkeypatch.delenv("CUDAKIT_DEVICE", raising=False)
    with pytest.raises((ValueError, DeviceUnavailable), match=r"sim:sm_80|there are sm_75"):
        drivers.open(spec)


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("CUDAKIT_DEVICE", "sim:sm_80")
    assert drivers.open().spec == "sim:sm_80"
    assert drivers.open("auto").spec == "sim:sm_80"
    assert drivers.open("sim").spec == "sim:sm_90a"
    monkeypatch.setenv("CUDAKIT_DEVICE", "nonsense")
    with pytest.raises(ValueError, match="CUDAKIT_DEVICE=nonsense"):
        drivers.open()


class NoDriver:
    """cuda.bindings.driver as on a machine without a GPU, in one of two ways."""

    @staticmethod
    def no_library(monkeypatch):
        def cuInit(flags):
            raise RuntimeError('"cuda" is an NVIDIA driver library and can only be found via system search.')

        monkeypatch.setattr(cu, "cuInit", cuInit)

    @staticmethod
    def failing(monkeypatch, code):
        monkeypatch.setattr(cu, "cuInit", lambda flags: (code,))
        monkeypatch.setattr(cu, "cuGetErrorName", lambda error: (R.CUDA_SUCCESS, error.name.encode()))
        monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (R.CUDA_SUCCESS, b"the driver's text"))

    @staticmethod
    def counting(monkeypatch, count):
        monkeypatch.setattr(cu, "cuInit", lambda flags: (R.CUDA_SUCCESS,))
        monkeypatch.setattr(cu, "cuDeviceGetCount", lambda: (R.CUDA_SUCCESS, count))


@pytest.mark.parametrize("how", ["no library", "no device", "stub", "none counted"])
def test_without_a_gpu_the_choice_is_sim_and_a_gpu_is_an_error_that_says_why(monkeypatch, capsys, how):
    monkeypatch.delenv("CUDAKIT_DEVICE", raising=False)
    monkeypatch.setattr(drivers, "_said", False)
    if how == "no library":
        NoDriver.no_library(monkeypatch)
        why = "libcuda"
    elif how == "none counted":
        NoDriver.counting(monkeypatch, 0)
        why = "CUDA_VISIBLE_DEVICES"
    else:
        code = R.CUDA_ERROR_NO_DEVICE if how == "no device" else R.CUDA_ERROR_STUB_LIBRARY
        NoDriver.failing(monkeypatch, code)
        why = code.name
    assert drivers.open().kind == "sim"
    assert drivers.open().kind == "sim"
    said = capsys.readouterr().err
    assert said == "cudakit: no GPU found, using the simulated H200 (`cudakit info` shows the reason)\n", "said once"
    command_line.info(argparse.Namespace(json=None))
    assert re.search(rf"gpu  none: .*{why}", capsys.readouterr().out)
    with pytest.raises(DeviceUnavailable, match="CUDAKIT_DEVICE=sim") as caught:
        drivers.open("gpu")
    assert why in str(caught.value)
    monkeypatch.setenv("CUDAKIT_DEVICE", "gpu")
    with pytest.raises(DeviceUnavailable, match="CUDAKIT_DEVICE=gpu"):
        drivers.open()


def test_a_broken_gpu_is_not_passed_over(monkeypatch):
    monkeypatch.delenv("CUDAKIT_DEVICE", raising=False)
    NoDriver.failing(monkeypatch, R.CUDA_ERROR_SYSTEM_NOT_READY)
    with pytest.raises(DeviceUnavailable, match=r"CUDA_ERROR_SYSTEM_NOT_READY.*fabric manager"):
        drivers.open()


def test_a_gpu_number_that_is_not_there(monkeypatch):
    NoDriver.counting(monkeypatch, 2)
    assert drivers.open("gpu:1").ordinal == 1
    assert drivers.open(1).spec == "gpu:1"
    with pytest.raises(DeviceUnavailable, match="there are 2 GPUs"):
        drivers.open("gpu:2")
    with pytest.raises(ValueError, match="simulated device only"):
        drivers.open("gpu", memory=5)


def test_the_note_on_stderr_in_a_process_of_its_own():
    done = run(
        """
        from cudakit.driver import driver
        print(driver.open().kind, driver.open().kind)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cudakit: ") == 1
    kind = done.stdout.split()[0]
    assert ("using the simulated H200" if kind == "sim" else "using gpu:0") in done.stderr


def test_importing_the_core_loads_no_bindings():
    done = run(
        """
        import sys
        import cudakit.driver.context, cudakit.driver.stream, cudakit.memory.array, cudakit.nvtx
        names = ("cuda.bindings", "nvtx", "ml_dtypes", "cudakit.sim.driver.api")
        print([name for name in names if name in sys.modules])
        """
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# Properties -----------------------------------------------------------------------------------------------------------


def test_attributes(context):
    assert context.attribute("WARP_SIZE") == 32
    assert context.attribute("warp_size") == 32
    assert context.attribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE) == 32
    assert context.attribute("MAX_THREADS_PER_BLOCK") == 1024
    assert context.attribute("MULTIPROCESSOR_COUNT") > 0
    with pytest.raises(ValueError, match="unknown device attribute 'WRAP_SIZE'"):
        context.attribute("WRAP_SIZE")


def test_name_memory_and_priorities(context):
    assert context.name.strip("\0") == context.name != ""
    free, total = context.memory_info()
    assert 0 < free <= total
    assert context.memory_info().total == total
    least, greatest = context.stream_priorities()
    assert greatest <= least


def test_limits(context):
    context.set_limit("STACK_SIZE", 2048)
    assert context.limit("STACK_SIZE") >= 2048
    assert context.limit("CU_LIMIT_PRINTF_FIFO_SIZE") > 0
    with pytest.raises(ValueError, match="unknown limit 'NOTHING'"):
        context.limit("NOTHING")


def test_contexts_of_one_device_are_the_same_device(context):
    with Context(drivers.Opened(context.driver, context.ordinal, context.kind, context.spec)) as other:
        assert other.same_device(context)
        assert int(other.handle) == int(context.handle)
        assert context.can_access(other)
        # Closing one leaves the primary context to the other.
        other.close()
        context.synchronize()


# Threads and several devices ------------------------------------------------------------------------------------------


def test_each_thread_gets_the_context(context):
    seen = []

    def work():
        context.synchronize()
        seen.append(int(context.driver.cuCtxGetCurrent()[1]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [int(context.handle)] * 4


def counting(monkeypatch, context):
    """Count calls of cuCtxSetCurrent."""
    calls = []
    real = context.driver.cuCtxSetCurrent
    monkeypatch.setattr(context.driver, "cuCtxSetCurrent", lambda ctx: calls.append(ctx) or real(ctx), raising=False)
    return calls


def test_on_one_device_the_context_is_set_once_a_thread(monkeypatch):
    with opened("sim") as context:
        calls = counting(monkeypatch, context)
        for _ in range(5):
            context.synchronize()
        assert len(calls) == 1


def test_on_two_devices_another_library_may_have_changed_the_context():
    with opened("sim", devices=2) as first:
        second = Context(drivers.Opened(first.driver, 1, "sim", "sim:sm_90a:1"))
        stream = Stream(first)
        assert int(first.driver.cuCtxGetCurrent()[1]) == int(first.handle)
        # as torch.cuda.set_device(1) does, without cudakit's knowledge
        first.driver.cuCtxSetCurrent(second.handle)
        other = Stream(first)
        assert int(first.driver.cuStreamGetCtx(other.handle)[1]) == int(first.handle)
        made = makers.zeros(second, Stream(second), (4,))
        assert int(made.numpy().sum()) == 0
        assert makers.zeros(first, stream, (4,)).numpy().shape == (4,)
        # A finalizer does not change the current context.
        first.driver.cuCtxSetCurrent(second.handle)
        other.close()
        del stream
        gc.collect()
        first.driver.cuCtxSetCurrent(second.handle)
        first.attempt("cuCtxSynchronize")
        assert int(first.driver.cuCtxGetCurrent()[1]) == int(second.handle)
        second.close()


def test_peer_access():
    with opened("sim", devices=2) as first, Context(drivers.Opened(first.driver, 1, "sim", "sim:sm_90a:1")) as second:
        assert not first.can_access(second)
        first.enable_peer(second)
        first.enable_peer(second)
        assert first.can_access(second)
        assert not second.can_access(first)
        with opened("sim") as stranger, pytest.raises(DeviceMismatch, match="have different drivers"):
            first.enable_peer(stranger)


def test_peer_access_that_something_else_enabled_already():
    with opened("sim", devices=2) as first, Context(drivers.Opened(first.driver, 1, "sim", "sim:sm_90a:1")) as second:
        first.call("cuCtxEnablePeerAccess", second.handle, 0)
        first.enable_peer(second)
        assert first.can_access(second)


@pytest.mark.parametrize("access", [False, True])
@pytest.mark.parametrize("to", [np.s_[:, :4], np.s_[:, 1:8:2], np.s_[::2, ::-1]])
def test_strided_copies_between_devices(to: Any, access: bool) -> None:
    """With peer access the rows are copied directly, else through contiguous memory; both have the same result."""
    with opened("sim", devices=2) as first, Context(drivers.Opened(first.driver, 1, "sim", "sim:sm_90a:1")) as second:
        if access:
            first.enable_peer(second)
        stream, other = Stream(first), Stream(second)
        host = np.arange(60, dtype=np.int32).reshape(6, 10)
        expected = np.zeros((6, 10), np.int32)
        shape = expected[to].shape
        expected[to] = host[: shape[0], : shape[1]]
        source = makers.array(second, other, host)[: shape[0], : shape[1]]
        target = makers.zeros(first, stream, (6, 10), np.int32)
        stream.wait(other)
        target[to].copy_from(source, stream)
        np.testing.assert_array_equal(target.numpy(stream), expected)


# The end --------------------------------------------------------------------------------------------------------------


def test_close_is_idempotent_and_frees_what_was_made():
    with opened("sim") as context:
        driver = context.driver
        stream = Stream(context)
        event = stream.record()
        held = makers.zeros(context, stream, (100,))
        view = held[3:]
        context.close()
        context.close()
        assert driver.simStats().allocations == driver.simStats().streams == driver.simStats().events == 0
        assert driver.simStats().contexts == 0
        assert driver.simLeaks() == []
        for use in (stream.synchronize, event.query, view.numpy, context.synchronize, lambda: Stream(context)):
            with pytest.raises(Closed, match="closed"):
                use()
        # and closing the rest afterwards is harmless
        stream.close()
        event.close()
        held.close()


def test_dropping_everything_frees_everything():
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "sim", "sim"))
    stream = Stream(context)
    held = makers.zeros(context, stream, (100,))
    held.copy_from(makers.pinned(context, (100,)))
    kept = [stream.record()]
    del context, stream, held, kept
    gc.collect()
    stats = driver.simStats()
    assert (stats.allocations, stats.pinned, stats.streams, stats.events, stats.contexts) == (0, 0, 0, 0, 0)
    assert driver.simLeaks() == []


def test_a_child_holds_its_context():
    with opened("sim") as context:
        stream = Stream(context)
        del context
        gc.collect()
        stream.synchronize()


def test_pinned_arrays_outlive_the_context():
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "sim", "sim"))
    array = makers.pinned(context, (4,), "int32")
    view = array[1:]
    array[:] = 7
    context.close()
    del context, array
    gc.collect()
    assert view.tolist() == [7, 7, 7]
    assert driver.simStats().pinned == 1
    del view
    gc.collect()
    assert driver.simStats().pinned == 0
    assert driver.simStats().contexts == 0


def test_a_lost_context_says_so_at_once_and_ever_after():
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "sim", "sim"))
    stream = Stream(context)
    array = makers.zeros(context, stream, (4,))
    driver.simInject("context_lost")
    with pytest.raises(DeviceFault) as first:
        context.synchronize()
    assert context.lost is first.value
    before = driver.simStats()
    for use in (array.numpy, stream.synchronize, lambda: Stream(context), context.memory_info):
        with pytest.raises(ContextLost, match="lost after an earlier failure") as again:
            use()
        assert again.value.__cause__ is first.value
        assert first.value.text in str(again.value)
    assert driver.simStats() == before, "nothing reached the driver"
    array.close()
    stream.close()
    context.close()


def test_a_lost_simulated_device_is_replaced_by_a_fresh_one():
    lost = Context("sim:sm_86")
    lost.driver.simInject("context_lost")
    with pytest.raises(DeviceFault, match="open a new Device"):
        lost.synchronize()
    with Context("sim:sm_86") as fresh:
        assert fresh.driver is not lost.driver
        fresh.synchronize()
    lost.close()


def test_a_finalizer_that_meets_a_sticky_error_loses_the_context():
    with opened("sim") as context:
        event = Stream(context).record()
        context.driver.simInject("cuEventDestroy", code=R.CUDA_ERROR_ILLEGAL_ADDRESS)
        event.close()
        with pytest.raises(ContextLost):
            context.synchronize()

"""Modules, functions, occupancy and launches on the simulated driver."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from simulated import INVALID_HANDLE, INVALID_VALUE, OK, Host, address_of, start

from cudakit.sim.driver.regions import POISON


@pytest.fixture
def host() -> Host:
    return start()


# ---- modules and launches ----

PTX = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .global .align 4 .u32 counter = 7;
.visible .const .align 8 .b8 table[24];

// out[i] = i * factor for i < n
.visible .entry scale(.param .u64 out, .param .f32 factor, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    cvt.rn.f32.u32 %f2, %r5;
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd4], %f3;
done:
    ret;
}

.visible .entry bounded(.param .u32 unused)
.maxntid 64, 1, 1
{
    .shared .align 4 .b8 room[1024];
    ret;
}

.visible .entry nothing()
{
    ret;
}
"""

PTX_PRINT = b"""
.version 7.0
.target sm_75
.address_size 64

.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[4] = {104, 105, 10, 0};

.visible .entry speak()
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    mov.u64 %rd3, 0;
    {
    .param .b64 first;
    st.param.b64 [first], %rd2;
    .param .b64 second;
    st.param.b64 [second], %rd3;
    .param .b32 back;
    call.uni (back), vprintf, (first, second);
    ld.param.b32 %r1, [back];
    }
    ret;
}
"""


class Launcher:
    """The module above in a new driver."""

    def __init__(self, **options: Any) -> None:
        self.host = start(**options)
        self.driver = self.host.driver
        self.count = self.driver.simCount()
        self.module = self.host.cuModuleLoadData(PTX)
        self.scale, self.bounded, self.nothing = (
            self.host.cuModuleGetFunction(self.module, name) for name in (b"scale", b"bounded", b"nothing")
        )

    def arguments(self, out: Any, factor: float, n: int) -> tuple[Any, Any]:
        """Return the address of the pointer array, and the objects that must stay alive."""
        values = (ctypes.c_uint64(int(out)), ctypes.c_float(factor), ctypes.c_uint32(n))
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        return ctypes.addressof(pointers), (pointers, values)

    def launch(self, function: Any, grid: Any, block: Any, params: Any = 0, *, shared: int = 0, stream: Any = 0) -> Any:
        return self.driver.cuLaunchKernel(function, *grid, *block, shared, stream, params, 0)[0]


@pytest.fixture(scope="module")
def shared_launcher() -> Launcher:
    """A launcher for tests that do not cause faults."""
    return Launcher()


def test_a_kernel_runs_on_its_stream_with_the_values_of_the_call() -> None:
    it = Launcher()
    stream, out = it.host.stream(), it.host.cuMemAlloc(4 * 100)
    address, (_, values) = it.arguments(out, 0.5, 100)
    assert it.launch(it.scale, (4, 1, 1), (32, 1, 1), address, stream=stream) == OK
    values[1].value = 99.0  # the launch has copied it: this change has no effect
    it.host.cuStreamSynchronize(stream)
    assert (it.host.download(out, 100) == np.arange(100) * 0.5).all()
    (record,) = it.driver.simEndCount(it.count)
    assert (record.name, record.grid, record.block) == ("scale", (4, 1, 1), (32, 1, 1))
    assert record.counters.global_store_bytes == 400


def test_launches_are_recorded_while_somebody_counts_and_for_each_who_does() -> None:
    it = Launcher(devices=2)
    driver = it.driver
    ran = lambda: (it.launch(it.nothing, (1, 1, 1), (32, 1, 1)), driver.cuCtxSynchronize())  # noqa: E731
    assert [record.name for record in driver.simEndCount(it.count)] == []
    ran()
    assert driver._counts == [], "nobody counts, so nothing is kept"
    outer = driver.simCount()
    ran()
    inner = driver.simCount(it.host.cuCtxGetCurrent())
    elsewhere = driver.simCount(int(it.host.cuDevicePrimaryCtxRetain(1)))
    ran()
    assert len(driver.simEndCount(inner)) == 1
    ran()
    assert len(driver.simEndCount(inner)) == 1, "it was ended before"
    assert len(driver.simEndCount(outer)) == 3
    assert driver.simEndCount(elsewhere) == []


def test_every_form_of_parameters_is_taken(shared_launcher: Launcher) -> None:
    it = shared_launcher
    out = it.host.cuMemAlloc(4 * 32)
    address, (pointers, _) = it.arguments(out, 2.0, 32)
    buffer = np.zeros(16, np.uint8)
    buffer[:8].view(np.uint64)[0] = int(out)
    buffer[8:12].view(np.float32)[0] = 2.0
    buffer[12:].view(np.uint32)[0] = 32
    size = ctypes.c_size_t(16)
    extra = (ctypes.c_void_p * 5)(1, buffer.ctypes.data, 2, ctypes.addressof(size), 0)
    forms = [
        (address, 0),
        (np.array(list(pointers), np.uint64), 0),
        (((out, 2.0, 32), (None, ctypes.c_float, ctypes.c_uint32)), 0),
        ((((ctypes.c_uint64(int(out))), ctypes.c_float(2), ctypes.c_uint32(32)), (None, None, None)), 0),
        (0, ctypes.addressof(extra)),
    ]
    for params, more in forms:
        it.host.cuMemsetD32(out, 0, 32)
        it.host.cuLaunchKernel(it.scale, 1, 1, 1, 32, 1, 1, 0, 0, params, more)
        assert (it.host.download(out, 32) == np.arange(32) * 2).all()


def test_parameters_are_described(shared_launcher: Launcher) -> None:
    it = shared_launcher
    assert [it.host.cuFuncGetParamInfo(it.scale, i) for i in range(3)] == [(0, 8), (8, 4), (12, 4)]
    assert it.driver.cuFuncGetParamInfo(it.scale, 3) == (INVALID_VALUE, None, None)
    assert it.host.cuFuncGetName(it.scale) == b"scale"
    assert it.host.cuModuleGetFunction(it.module, b"scale") == it.scale


@pytest.mark.parametrize(
    ("grid", "block", "shared", "says"),
    [
        ((1, 1, 1), (1025, 1, 1), 0, "block.x must be 1 to 1024, got 1025"),
        ((1, 1, 1), (32, 33, 1), 0, "a block of 1056 threads"),
        ((1, 1, 1), (1, 1, 65), 0, "block.z must be 1 to 64, got 65"),
        ((1, 1, 1), (0, 1, 1), 0, "block.x must be 1 to 1024, got 0"),
        ((0, 1, 1), (32, 1, 1), 0, "grid.x must be 1 to 2147483647, got 0"),
        ((1, 65536, 1), (32, 1, 1), 0, "grid.y must be 1 to 65535, got 65536"),
        ((1, 1, 65536), (32, 1, 1), 0, "grid.z must be 1 to 65535, got 65536"),
        ((2**31, 1, 1), (32, 1, 1), 0, "grid.x must be 1 to 2147483647, got 2147483648"),
        ((1, 1, 1), (32, 1, 1), 49153, "49153 bytes of dynamic shared memory"),
    ],
)
def test_an_impossible_launch_is_refused(
    shared_launcher: Launcher, grid: Any, block: Any, shared: int, says: str
) -> None:
    it = shared_launcher
    assert it.launch(it.nothing, grid, block, shared=shared) == INVALID_VALUE
    assert says in it.driver.simLastMessage()
    assert it.driver.simStats().pending == 0


def test_missing_parameters_are_refused(shared_launcher: Launcher) -> None:
    it = shared_launcher
    assert it.launch(it.scale, (1, 1, 1), (32, 1, 1), 0) == INVALID_VALUE
    assert "takes 3 parameters" in it.driver.simLastMessage()


def test_launch_bounds_are_kept(shared_launcher: Launcher) -> None:
    it = shared_launcher
    unused = ctypes.c_uint32(0)
    params = ((unused,), (None,))
    assert it.launch(it.bounded, (1, 1, 1), (65, 1, 1), params) == INVALID_VALUE
    assert it.launch(it.bounded, (1, 1, 1), (64, 1, 1), params) == OK
    assert it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor(it.bounded, 64, 0) > 0
    assert it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor(it.bounded, 65, 0) == 0
    attributes = cu.CUfunction_attribute
    assert it.host.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, it.bounded) == 64
    assert it.host.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, it.bounded) == 1024
    assert all(
        isinstance(it.host.cuFuncGetAttribute(attribute, it.bounded), int)
        for attribute in attributes
        if attribute != attributes.CU_FUNC_ATTRIBUTE_MAX
    )


@pytest.mark.parametrize(("arch", "most"), [("sm_75", 65536), ("sm_80", 166912), ("sm_90", 232448)])
def test_shared_memory_past_48_kib_wants_the_attribute(arch: str, most: int) -> None:
    it = Launcher(arch=arch)
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1), shared=most) == INVALID_VALUE
    assert "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES" in it.driver.simLastMessage()
    assert it.driver.cuFuncSetAttribute(it.nothing, attribute, most + 1) == (INVALID_VALUE,)
    it.host.cuFuncSetAttribute(it.nothing, attribute, most)
    assert it.host.cuFuncGetAttribute(attribute, it.nothing) == most
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1), shared=most) == OK


def test_bad_modules_are_refused_with_a_reason(host: Host) -> None:
    driver = host.driver
    broken = PTX.replace(b"mul.f32 %f3, %f2, %f1;", b"mull.f32 %f3, %f2, %f1;")
    assert driver.cuModuleLoadData(broken) == (cu.CUresult.CUDA_ERROR_INVALID_PTX, None)
    assert "mull" in driver.simLastMessage()
    elf = (cu.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, None)
    assert driver.cuModuleLoadData(b"\x7fELF and so on") == elf
    assert driver.cuModuleLoadData(PTX.replace(b"sm_75", b"sm_100"))[0] == cu.CUresult.CUDA_ERROR_INVALID_PTX
    hopper = PTX.replace(b"sm_75", b"sm_90a")
    assert driver.cuModuleLoadData(hopper)[0] == cu.CUresult.CUDA_ERROR_INVALID_PTX
    assert "8.0" in driver.simLastMessage()
    hopper = hopper.replace(b".version 7.0", b".version 8.0")
    assert driver.cuModuleLoadData(hopper)[0] == OK
    with pytest.raises(TypeError):
        driver.cuModuleLoadData("text")


@pytest.mark.parametrize(
    ("target", "runs", "refused"),
    [
        ("sm_80", "sm_80 sm_89 sm_90 sm_90a sm_100 sm_120a", "sm_75"),
        ("sm_90", "sm_90 sm_90a sm_100 sm_100a", "sm_89"),
        ("sm_90a", "sm_90a", "sm_89 sm_90 sm_100 sm_100a sm_120a"),
        ("sm_100a", "sm_100a", "sm_90a sm_100 sm_100f sm_120a"),
        ("sm_100f", "sm_100a sm_100f", "sm_90a sm_100 sm_120f"),
    ],
)
def test_a_target_with_a_letter_runs_only_on_the_chips_that_it_names(target: str, runs: str, refused: str) -> None:
    image = PTX.replace(b"sm_75", target.encode()).replace(b".version 7.0", b".version 8.8")
    for arch in runs.split():
        assert start(arch=arch).driver.cuModuleLoadData(image)[0] == OK, arch
    for arch in refused.split():
        driver = start(arch=arch).driver
        assert driver.cuModuleLoadData(image)[0] == cu.CUresult.CUDA_ERROR_INVALID_PTX, arch
        assert f"PTX for {target} does not run on {arch}" in driver.simLastMessage()


def test_names_that_a_module_lacks_are_not_found(shared_launcher: Launcher) -> None:
    it, not_found = shared_launcher, cu.CUresult.CUDA_ERROR_NOT_FOUND
    assert it.driver.cuModuleGetFunction(it.module, b"scal") == (not_found, None)
    assert "scale" in it.driver.simLastMessage()
    assert it.driver.cuModuleGetGlobal(it.module, b"tables") == (not_found, None, None)
    with pytest.raises(TypeError):
        it.driver.cuModuleGetFunction(it.module, "scale")


def test_globals_and_constants_are_memory(shared_launcher: Launcher) -> None:
    it = shared_launcher
    pointer, size = it.host.cuModuleGetGlobal(it.module, b"counter")
    assert size == 4
    assert it.host.download(pointer, 1, np.uint32)[0] == 7
    assert it.host.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) == 0
    assert it.driver.cuMemFree(pointer) == (INVALID_VALUE,)
    table, size = it.host.cuModuleGetGlobal(it.module, b"table")
    assert size == 24
    assert (it.host.download(table, 24, np.uint8) == 0).all()
    it.host.cuMemcpyHtoD(table, np.arange(24, dtype=np.uint8), 24)
    assert it.host.download(table, 24, np.uint8)[23] == 23
    assert it.driver.cuMemcpyDtoH(np.zeros(25, np.uint8), table, 25) == (INVALID_VALUE,)


def test_an_unloaded_module_takes_its_kernels_with_it() -> None:
    it = Launcher()
    pointer, _ = it.host.cuModuleGetGlobal(it.module, b"counter")
    it.host.cuLaunchKernel(it.nothing, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)
    it.host.cuModuleUnload(it.module)
    assert len(it.count.records) == 1  # work queued before it ran
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1)) == INVALID_HANDLE
    assert it.driver.cuModuleUnload(it.module) == (INVALID_HANDLE,)
    assert it.driver.cuMemcpyDtoH(np.zeros(1, np.uint32), pointer, 4) == (INVALID_VALUE,)
    assert it.driver.simStats().modules == 0


def test_a_kernel_out_of_bounds_ends_the_context_with_a_report() -> None:
    it = Launcher()
    stream = it.host.stream()
    line = sys._getframe().f_lineno + 1
    out = it.driver.cuMemAlloc(4 * 31)[1]
    address, keep = it.arguments(out, 1.0, 32)
    seen = it.host.pinned(31)
    assert it.launch(it.scale, (1, 1, 1), (32, 1, 1), address, stream=stream) == OK
    it.host.cuMemcpyDtoHAsync(address_of(seen), out, 4 * 31, stream)
    illegal = cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert it.driver.cuStreamSynchronize(stream) == (illegal,)
    assert (seen.view(np.uint16) == POISON).all()  # work queued after it did not run
    report = str(it.driver.simLastReport())
    assert "scale" in report
    assert "(31, 0, 0)" in report
    assert f"{os.path.basename(__file__)}:{line}" in report  # the place of the allocation
    for answer in (it.driver.cuMemAlloc(16), it.driver.cuCtxSynchronize(), it.driver.cuStreamSynchronize(stream)):
        assert answer[0] == illegal
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1)) == illegal
    assert it.count.records == []
    assert keep


def test_a_misaligned_kernel_has_its_own_error() -> None:
    it = Launcher()
    out = int(it.host.cuMemAlloc(4 * 33))
    address, keep = it.arguments(out + 2, 1.0, 32)
    assert it.launch(it.scale, (1, 1, 1), (32, 1, 1), address) == OK
    assert it.driver.cuCtxSynchronize() == (cu.CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,)
    assert keep


def test_a_kernel_may_read_and_write_pinned_memory() -> None:
    it = Launcher()
    out = it.host.pinned(32)
    out[:] = -1
    address, keep = it.arguments(address_of(out), 3.0, 32)
    stream = it.host.stream()
    assert it.launch(it.scale, (1, 1, 1), (32, 1, 1), address, stream=stream) == OK
    # the kernel before the copy writes its source: not a race
    pointer = it.host.cuMemAlloc(128)
    it.host.cuMemcpyHtoDAsync(pointer, address_of(out), 128, stream)
    it.host.cuStreamSynchronize(stream)
    assert (it.host.download(pointer, 32) == np.arange(32) * 3).all()
    assert keep


def test_an_injected_launch_failure_comes_when_the_kernel_runs() -> None:
    it = Launcher()
    it.driver.simInject("launch_failure", after=1)
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1)) == OK
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1)) == OK
    assert it.driver.cuCtxSynchronize() == (cu.CUresult.CUDA_ERROR_LAUNCH_FAILED,)
    assert "injected" in it.driver.simLastMessage()
    assert len(it.count.records) == 1


def config(grid: int, block: int, *, cluster: int = 0, cooperative: bool = False, shared: int = 0) -> Any:
    made = cu.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = grid, 1, 1
    made.blockDimX, made.blockDimY, made.blockDimZ = block, 1, 1
    made.sharedMemBytes = shared
    attributes = []
    if cluster:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        attributes.append(attribute)
    if cooperative:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    made.attrs, made.numAttrs = attributes, len(attributes)
    return made


def with_attribute(name: str, field: str, value: Any) -> Any:
    """A CUlaunchConfig with one attribute."""
    made, attribute = config(1, 32), cu.CUlaunchAttribute()
    attribute.id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    if field:
        setattr(attribute.value, field, value)
    made.attrs, made.numAttrs = [attribute], 1
    return made


def test_attributes_of_launches_are_checked(shared_launcher: Launcher) -> None:
    it, refused = shared_launcher, cu.CUresult.CUDA_ERROR_NOT_SUPPORTED
    dependent = ("PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed")
    for name, field, value in (
        (*dependent, 1),
        (*dependent, 0),
        ("PRIORITY", "priority", -5),
        ("PRIORITY", "priority", 0),
        ("PRIORITY", "priority", 1),  # outside the range: clamped, as by a GPU's driver
        ("PRIORITY", "priority", -6),
        ("IGNORE", "", 0),
        ("PREFERRED_SHARED_MEMORY_CARVEOUT", "sharedMemCarveout", 50),
    ):
        it.host.cuLaunchKernelEx(with_attribute(name, field, value), it.nothing, 0, 0)
    for name in ("PROGRAMMATIC_EVENT", "LAUNCH_COMPLETION_EVENT", "DEVICE_UPDATABLE_KERNEL_NODE"):
        assert it.driver.cuLaunchKernelEx(with_attribute(name, "", 0), it.nothing, 0, 0) == (refused,)
        assert f"CU_LAUNCH_ATTRIBUTE_{name} is not simulated" in it.driver.simLastMessage()
    it.host.cuCtxSynchronize()
    old = Launcher(arch="sm_89")
    assert old.driver.cuLaunchKernelEx(with_attribute(*dependent, 1), old.nothing, 0, 0) == (refused,)
    assert "programmatic dependent launches: sm_90 and later do" in old.driver.simLastMessage()
    old.host.cuLaunchKernelEx(with_attribute(*dependent, 0), old.nothing, 0, 0)


def test_cooperative_launches_must_fit_at_once(shared_launcher: Launcher) -> None:
    it, too_large = shared_launcher, cu.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    room = 132 * it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor(it.nothing, 1024, 0)
    assert room == 264
    assert it.driver.cuLaunchKernelEx(config(room + 1, 1024, cooperative=True), it.nothing, 0, 0) == (too_large,)
    assert it.driver.cuLaunchCooperativeKernel(it.nothing, room + 1, 1, 1, 1024, 1, 1, 0, 0, 0) == (too_large,)
    it.host.cuLaunchKernelEx(config(room + 1, 1024), it.nothing, 0, 0)
    it.host.cuCtxSynchronize()


def test_clusters_are_checked() -> None:
    it = Launcher()
    size = cu.CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE
    assert it.driver.cuLaunchKernelEx(config(16, 32, cluster=16), it.nothing, 0, 0) == (size,)
    allow = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    it.host.cuFuncSetAttribute(it.nothing, allow, 1)
    assert it.host.cuOccupancyMaxActiveClusters(it.nothing, config(16, 1024, cluster=16, shared=0)) == 16
    assert it.driver.cuLaunchKernelEx(config(17, 32, cluster=16), it.nothing, 0, 0) == (INVALID_VALUE,)
    it.host.cuLaunchKernelEx(config(16, 32, cluster=16), it.nothing, 0, 0)
    it.host.cuLaunchKernelEx(config(16, 32, cluster=1), it.nothing, 0, 0)
    old = Launcher(arch="sm_80")
    assert old.driver.cuLaunchKernelEx(config(16, 32, cluster=2), old.nothing, 0, 0)[0] != OK
    assert "not support clusters" in old.driver.simLastMessage()


def test_device_attributes_of_the_stream_and_the_kernel_must_agree() -> None:
    it = Launcher(devices=2)
    it.host.cuCtxPushCurrent(it.host.cuDevicePrimaryCtxRetain(1))
    foreign = it.host.stream()
    assert it.launch(it.nothing, (1, 1, 1), (32, 1, 1), stream=foreign) == INVALID_HANDLE
    assert "different contexts" in it.driver.simLastMessage()


# (arch, registers, threads, dynamic shared bytes, blocks): from NVIDIA's occupancy calculator
OCCUPANCY = [
    ("sm_90", 32, 256, 0, 8),
    ("sm_90", 40, 256, 0, 6),
    ("sm_90", 64, 256, 0, 4),
    ("sm_90", 255, 256, 0, 1),
    ("sm_90", 88, 32, 0, 20),
    ("sm_90", 32, 32, 0, 32),
    ("sm_90", 32, 1024, 0, 2),
    ("sm_90", 65, 1024, 0, 0),
    ("sm_90", 32, 128, 48 * 1024, 4),
    ("sm_90", 32, 128, 227 * 1024, 1),
    ("sm_80", 32, 128, 32 * 1024, 4),
    ("sm_86", 32, 1024, 0, 1),
    ("sm_86", 40, 512, 0, 3),
    ("sm_89", 24, 64, 0, 24),
    ("sm_75", 32, 256, 0, 4),
    ("sm_75", 32, 32, 4096, 16),
]


@pytest.mark.parametrize(("arch", "registers", "threads", "shared", "blocks"), OCCUPANCY)
def test_occupancy(arch: str, registers: int, threads: int, shared: int, blocks: int) -> None:
    it = Launcher(arch=arch)
    it.driver.simSetResources(it.nothing, registers=registers)
    assert it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor(it.nothing, threads, shared) == blocks
    if blocks and not shared:
        room = it.host.cuOccupancyAvailableDynamicSMemPerBlock(it.nothing, blocks, threads)
        fits = it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor
        assert fits(it.nothing, threads, room) == blocks
        assert blocks == 1 or fits(it.nothing, threads, room + 128 * 8) < blocks


def test_the_block_size_for_the_most_threads(shared_launcher: Launcher) -> None:
    it = shared_launcher
    blocks, threads = it.host.cuOccupancyMaxPotentialBlockSize(it.bounded, None, 0, 0)
    assert threads == 64
    assert blocks == 132 * it.host.cuOccupancyMaxActiveBlocksPerMultiprocessor(it.bounded, 64, 0)


def test_a_module_lists_its_kernels(shared_launcher: Launcher) -> None:
    it = shared_launcher
    count = it.host.cuModuleGetFunctionCount(it.module)
    functions = it.host.cuModuleEnumerateFunctions(count, it.module)
    assert {it.host.cuFuncGetName(f) for f in functions} == {b"scale", b"bounded", b"nothing"}
    assert all(it.host.cuFuncGetModule(f) == it.module for f in functions)
    it.host.cuFuncLoad(it.scale)
    assert it.host.cuFuncIsLoaded(it.scale) == cu.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED


def test_device_printf_goes_where_it_is_told() -> None:
    texts: list[str] = []
    it = Launcher(printf=texts.append)
    it.host.cuModuleLoadData(PTX_PRINT)
    kernel = it.host.cuModuleGetFunction(it.host.cuModuleLoadData(PTX_PRINT), b"speak")
    assert it.launch(kernel, (1, 1, 1), (2, 1, 1)) == OK
    assert texts == []
    it.host.cuCtxSynchronize()
    assert "".join(texts) == "hi\nhi\n"


def test_a_block_with_more_registers_than_there_are_is_refused() -> None:
    it = Launcher()
    it.driver.simSetResources(it.nothing, registers=100)
    assert it.launch(it.nothing, (1, 1, 1), (1024, 1, 1)) == cu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    assert "registers" in it.driver.simLastMessage()
    limit = it.host.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, it.nothing)
    assert it.launch(it.nothing, (1, 1, 1), (limit, 1, 1)) == OK

"""Guard zones of the simulated device: a kernel's access outside an array is a fault that names the line."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit.memory.bounds import lift, restrict

SOURCE = """
__global__ void put(float* out, int first, int step, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[first + i * step] = 1.0f;
}
__global__ void get(float4* out, const float4* x, int n) {
    const int i = threadIdx.x;
    if (i < n) out[i] = x[i];
}
__global__ void add(float* out, int at) { atomicAdd(out + at, 1.0f); }
"""


def guarded(device: cudakit.Device, view: slice, length: int = 64) -> tuple[cudakit.DeviceArray, cudakit.DeviceArray]:
    buffer = device.array(np.zeros(length, np.float32))
    restrict(buffer, buffer[view])
    return buffer, buffer[view]


def fault(device: cudakit.Device, name: str, *args: object) -> cudakit.DeviceFault:
    device.compile(source=SOURCE)[name].launch(device.default_stream, grid=1, block=32, args=args)
    with pytest.raises(cudakit.DeviceFault) as caught:
        device.synchronize()
    return caught.value


@pytest.mark.parametrize(
    ("view", "first", "step", "where", "thread"),
    [
        (slice(8, 24), 0, 1, "0 bytes past the end of the array of 64 bytes in the device allocation of 256 bytes", 16),
        (slice(8, 24), -3, 1, "12 bytes before the start of the array of 64 bytes", 0),
        (slice(8, 24), 5, 2, "4 bytes past the end of the array of 64 bytes", 6),
        (slice(8, 40, 2), 0, 1, "in a gap between elements, 4 bytes into the array of 124 bytes", 1),
        (slice(40, 8, -2), -35, 1, "20 bytes before the start of the array of 124 bytes", 0),
        (slice(8, 24), 60, 1, "176 bytes past the end of the array of 64 bytes", 0),  # and outside the allocation
    ],
)
def test_a_store_beside_the_array_is_named_by_line(
    sim: cudakit.Device, view: slice, first: int, step: int, where: str, thread: int
) -> None:
    _, array = guarded(sim, view)
    report = fault(sim, "put", cudakit.strided(array), first, step, 18).report
    assert report.kind == "out of bounds"
    assert where in report.detail
    assert "out[first + i * step] = 1.0f" in report.text
    assert "kernel put, block (0, 0, 0)" in str(report)
    assert report.thread == (thread, 0, 0)
    assert report.parameter == "parameter 0 (`out`)"


def test_a_vector_load_that_ends_beside_the_array_is_named(sim: cudakit.Device) -> None:
    _, x = guarded(sim, slice(16, 30))
    report = fault(sim, "get", sim.zeros(16, np.float32), x, 4).report
    assert "global load of 16 bytes" in report.detail
    assert "of which the last 8 bytes are past the end of the array of 56 bytes" in report.detail
    assert report.parameter == "parameter 1 (`x`)"


def test_an_atomic_of_one_address_is_named(sim: cudakit.Device) -> None:
    _, array = guarded(sim, slice(8, 24))
    report = fault(sim, "add", array, 16).report
    assert "0 bytes past the end of the array of 64 bytes" in report.detail
    assert report.lanes == 32


def test_kernels_within_the_array_and_copies_of_the_whole_buffer_are_allowed(device: cudakit.Device) -> None:
    buffer, array = guarded(device, slice(8, 40, 2))
    kernel = device.compile(source=SOURCE)["put"]
    kernel.launch(device.default_stream, grid=1, block=32, args=(cudakit.strided(array), 0, 2, 16))
    expected = np.zeros(64, np.float32)
    expected[8:40:2] = 1
    np.testing.assert_array_equal(buffer.numpy(), expected)
    buffer.fill(0)
    copied = device.empty(64, np.float32)
    copied.copy_from(buffer)
    assert not copied.numpy().any()
    lift(buffer)
    kernel.launch(device.default_stream, grid=2, block=32, args=(buffer, 0, 1, 64))
    assert buffer.numpy().all()


def test_an_array_elsewhere_is_refused(sim: cudakit.Device) -> None:
    buffer, other = sim.zeros(4, np.float32), sim.zeros(4, np.float32)
    with pytest.raises(ValueError, match="is not within the allocation of 16 bytes"):
        restrict(buffer, other)

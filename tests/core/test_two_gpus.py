"""Two GPUs in one process, from one thread and from two: launches, copies and refusals find their own device."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import cudakit
from cudakit import ops

pytestmark = pytest.mark.gpu

SCALE = """
__global__ void scale(const float* x, float* y, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * s;
}
"""
N = 10_000


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[cudakit.Device, cudakit.Device]]:
    try:
        first, second = cudakit.Device("gpu:0"), cudakit.Device("gpu:1")
    except cudakit.CudakitError as error:
        pytest.skip(f"two GPUs are not here: {str(error).splitlines()[0]}")
    with first, second:
        yield first, second


def test_launches_alternate_between_devices_on_one_thread(pair) -> None:
    sides = []
    for device in pair:
        kernel = device.compile(source=SCALE, name="scale.cu")["scale"]
        stream = device.stream()
        x = device.array(np.arange(N, dtype=np.float32), stream=stream)
        y = device.zeros(N, np.float32, stream=stream)
        prepared = kernel.prepare(grid=40, block=256, args=(x, y, 5.0, N))
        sides.append((kernel, stream, x, y, prepared))
    for factor in (2.0, 3.0, 3.0, 4.0):
        for kernel, stream, x, y, _ in sides:
            kernel.launch(stream, grid=40, block=256, args=(x, y, factor, N))
        for _, stream, _, y, _ in sides:
            np.testing.assert_array_equal(y.numpy(stream), np.arange(N, dtype=np.float32) * factor)
    for _ in range(2):
        for _, stream, _, y, prepared in sides:
            y.fill(0, stream)
            pair[0].context.make_current()  # for one of the two sides the wrong one
            prepared.launch(stream)
        for _, stream, _, y, _ in sides:
            np.testing.assert_array_equal(y.numpy(stream), np.arange(N, dtype=np.float32) * 5)


def test_threads_on_their_own_devices(pair) -> None:
    failures: list[BaseException] = []

    def work(device: cudakit.Device, seed: int) -> None:
        try:
            host = np.random.default_rng(seed).standard_normal((64, 1000), dtype=np.float32)
            with device.stream() as stream:
                for _ in range(50):
                    y = ops.softmax(device.array(host, stream=stream), stream=stream).numpy(stream)
                    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device, seed)) for seed, device in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_copies_between_devices(pair) -> None:
    first, second = pair
    host = np.arange(1 << 20, dtype=np.float32)
    there = second.array(first.array(host), stream=second.default_stream)
    np.testing.assert_array_equal(there.numpy(), host)
    strided = second.empty((1 << 10, 1 << 9), np.float32)
    source = first.array(host).reshape(1 << 10, 1 << 10)[:, ::2]
    first.synchronize()
    strided.copy_from(source)
    np.testing.assert_array_equal(strided.numpy(), host.reshape(1 << 10, 1 << 10)[:, ::2])


@pytest.mark.parametrize("columns", [np.s_[:512], np.s_[1:1000:3]])
def test_strided_copies_with_peer_access(pair, columns) -> None:
    first, second = pair
    second.enable_peer(first)
    host = np.arange(1 << 20, dtype=np.float32).reshape(1 << 10, 1 << 10)
    source, target = first.array(host), second.zeros((1 << 10, 1 << 10), np.float32)
    first.synchronize()
    target[:, columns].copy_from(source[:, columns])
    expected = np.zeros_like(host)
    expected[:, columns] = host[:, columns]
    np.testing.assert_array_equal(target.numpy(), expected)


def test_an_array_of_the_other_device_is_refused(pair) -> None:
    first, second = pair
    kernel = first.compile(source=SCALE, name="scale.cu")["scale"]
    theirs, ours = second.zeros(N, np.float32), first.zeros(N, np.float32)
    with pytest.raises(cudakit.LaunchError, match="gpu:1"):
        kernel.launch(first.default_stream, grid=40, block=256, args=(theirs, ours, 1.0, N))
    with pytest.raises(cudakit.LaunchError, match="stream"):
        kernel.launch(second.default_stream, grid=40, block=256, args=(ours, ours, 1.0, N))

"""The simulated driver's memory: allocations, pools, pinned memory, copies and fills."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from simulated import INVALID_VALUE, OK, Host, address_of, start

from cudakit.sim.driver.regions import POISON


@pytest.fixture
def host() -> Host:
    return start()


# ---- memory ----


def test_memory_is_counted_and_runs_out() -> None:
    host = start(memory=1 << 20)
    free, total = host.cuMemGetInfo()
    assert free == total == 1 << 20
    pointer = host.cuMemAlloc(600_000)
    assert host.cuMemGetInfo()[0] <= total - 600_000
    code, nothing = host.driver.cuMemAlloc(600_000)
    assert (code, nothing) == (cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    host.cuMemFree(pointer)
    assert host.cuMemGetInfo()[0] == total
    host.cuMemAlloc(600_000)


@pytest.mark.parametrize("name", ["cuMemAlloc", "cuMemHostAlloc", "cuMemAllocAsync"])
def test_an_allocation_of_nothing_is_refused(host: Host, name: str) -> None:
    args = (0,) if name == "cuMemAlloc" else (0, 0)
    assert getattr(host.driver, name)(*args) == (INVALID_VALUE, None)


def test_freeing_twice_or_inside_or_elsewhere_is_refused(host: Host) -> None:
    driver = host.driver
    pointer = int(host.cuMemAlloc(64))
    assert driver.cuMemFree(pointer + 4) == (INVALID_VALUE,)
    assert "4 bytes into" in driver.simLastMessage()
    driver.cuMemFree(pointer)
    assert driver.cuMemFree(pointer) == (INVALID_VALUE,)
    assert "freed already" in driver.simLastMessage()
    assert os.path.basename(__file__) in driver.simLastMessage()  # names the place
    assert driver.cuMemFree(0x1234) == (INVALID_VALUE,)
    queued = host.cuMemAllocAsync(64, 0)
    host.cuMemFreeAsync(queued, 0)
    assert driver.cuMemFreeAsync(queued, 0) == (INVALID_VALUE,)


def test_a_copy_may_not_leave_its_allocation(host: Host) -> None:
    data = np.zeros(17, np.uint8)
    pointer = int(host.cuMemAlloc(16))
    driver = host.driver
    assert driver.cuMemcpyHtoD(pointer, data, 17) == (INVALID_VALUE,)
    assert "16 bytes" in driver.simLastMessage()
    assert driver.cuMemcpyDtoH(data, pointer - 1, 4) == (INVALID_VALUE,)
    assert driver.cuMemcpyDtoH(np.zeros(3, np.uint8), pointer, 4) == (INVALID_VALUE,)
    assert "needs 4 bytes, the buffer has 3" in driver.simLastMessage()
    assert driver.cuMemsetD32(pointer, 0, 5) == (INVALID_VALUE,)
    assert driver.cuMemsetD32(pointer + 2, 0, 1) == (INVALID_VALUE,)
    host.cuMemcpyHtoD(pointer, data, 16)
    host.cuMemcpyHtoD(pointer, data, 0)


def test_host_and_device_pointers_are_told_apart(host: Host) -> None:
    pointer = int(host.cuMemAlloc(16))
    pinned = host.pinned(4)
    pageable = np.zeros(4, np.float32)
    assert host.driver.cuMemcpyHtoD(pointer, pointer, 16) == (INVALID_VALUE,)
    assert "device memory, but host memory is required" in host.driver.simLastMessage()
    assert host.driver.cuMemcpyDtoD(pointer, address_of(pageable), 16) == (INVALID_VALUE,)
    # unified addressing: the device pointer of pinned memory has the same value
    pinned[:] = 7
    host.cuMemcpyDtoD(pointer, address_of(pinned), 16)
    assert (host.download(pointer, 4) == 7).all()
    kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert host.cuPointerGetAttribute(kind, pointer + 3) == cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert host.cuPointerGetAttribute(kind, address_of(pinned)) == cu.CUmemorytype.CU_MEMORYTYPE_HOST
    assert host.driver.cuPointerGetAttribute(kind, address_of(pageable))[0] == INVALID_VALUE
    start_address, size = host.cuMemGetAddressRange(pointer + 5)
    assert (int(start_address), size) == (pointer, 16)


def test_memory_is_not_zero_until_written(host: Host) -> None:
    assert not (host.download(host.cuMemAlloc(64), 64, np.uint8) == 0).any()


def test_fills_of_every_width_and_of_rows(host: Host) -> None:
    pointer = int(host.cuMemAlloc(64))
    host.cuMemsetD8(pointer, 0x11, 64)
    host.cuMemsetD16(pointer, 0x2233, 2)
    host.cuMemsetD32(pointer + 8, 0x44556677, 1)
    assert host.download(pointer, 16, np.uint8).tobytes().hex() == "33223322" + "11" * 4 + "77665544" + "11" * 4
    host.cuMemsetD2D16Async(pointer + 16, 16, 0xFFFF, 2, 3, 0)
    rows = host.download(pointer + 16, 48, np.uint8).reshape(3, 16)
    assert (rows[:, :4] == 0xFF).all()
    assert (rows[:, 4:] == 0x11).all()


def two_d(**fields: Any) -> Any:
    copy = cu.CUDA_MEMCPY2D()
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def test_rows_are_copied_with_their_pitches(host: Host) -> None:
    kinds = cu.CUmemorytype
    data = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8)
    pointer = int(host.cuMemAlloc(4 * 32))
    host.cuMemsetD8(pointer, 0xEE, 4 * 32)
    host.cuMemcpy2DAsync(
        two_d(
            srcMemoryType=kinds.CU_MEMORYTYPE_HOST, srcHost=data, srcPitch=8, srcXInBytes=2, srcY=1,
            dstMemoryType=kinds.CU_MEMORYTYPE_DEVICE, dstDevice=pointer, dstPitch=32, dstXInBytes=4, dstY=0,
            WidthInBytes=5, Height=4,
        ),
        0,
    )  # fmt: skip
    got = host.download(pointer, 4 * 32, np.uint8).reshape(4, 32)
    assert (got[:, 4:9] == data[1:5, 2:7]).all()
    assert (np.delete(got, range(4, 9), axis=1) == 0xEE).all()


def test_rows_that_do_not_fit_are_refused(host: Host) -> None:
    kinds = cu.CUmemorytype
    pointer = int(host.cuMemAlloc(4 * 8 - 3))
    data = np.zeros((4, 8), np.uint8)
    fields: dict[str, Any] = {
        "srcMemoryType": kinds.CU_MEMORYTYPE_HOST, "srcHost": data, "srcPitch": 8, "WidthInBytes": 5, "Height": 4,
        "dstMemoryType": kinds.CU_MEMORYTYPE_DEVICE, "dstDevice": pointer, "dstPitch": 8,
    }  # fmt: skip
    host.cuMemcpy2D(two_d(**fields))  # the last row ends before its pitch does
    assert host.driver.cuMemcpy2D(two_d(**{**fields, "WidthInBytes": 6})) == (INVALID_VALUE,)
    assert host.driver.cuMemcpy2D(two_d(**{**fields, "dstPitch": 4})) == (INVALID_VALUE,)
    assert "dstPitch" in host.driver.simLastMessage()


def test_arguments_are_converted_as_the_bindings_convert_them(host: Host) -> None:
    driver = host.driver
    with pytest.raises(OverflowError):
        driver.cuMemAlloc(-1)
    with pytest.raises(OverflowError):
        driver.cuMemsetD8(host.cuMemAlloc(4), 300, 4)
    with pytest.raises(TypeError):
        driver.cuMemcpyHtoD(host.cuMemAlloc(4), "text", 4)
    with pytest.raises(ValueError, match="contiguous"):
        driver.cuMemcpyHtoD(host.cuMemAlloc(4), np.zeros((4, 4))[:, ::2], 4)
    pool = host.cuDeviceGetDefaultMemPool(0)
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    with pytest.raises(AttributeError):
        driver.cuMemPoolSetAttribute(pool, threshold, 5)
    host.cuMemPoolSetAttribute(pool, threshold, cu.cuuint64_t(2**64 - 1))
    assert int(host.cuMemPoolGetAttribute(pool, threshold)) == 2**64 - 1


def test_pitched_allocations_have_aligned_rows(host: Host) -> None:
    pointer, pitch = host.cuMemAllocPitch(100, 3, 4)
    assert pitch >= 100
    assert pitch % 256 == 0
    host.cuMemsetD2D8(pointer, pitch, 1, 100, 3)
    host.cuMemsetD2D32Async(pointer, pitch, 2, 25, 3, 0)
    assert host.download(int(pointer) + 2 * pitch, 25, np.uint32).tolist() == [2] * 25
    assert host.driver.cuMemAllocPitch(100, 3, 5)[0] == INVALID_VALUE


def test_copies_between_any_two_places_by_address_alone(host: Host) -> None:
    pinned, pageable = host.pinned(4), np.arange(4, dtype=np.float32)
    pointer, stream = host.cuMemAlloc(16), host.stream(0)
    host.cuMemcpy(pointer, address_of(pageable), 16)
    host.cuMemcpyAsync(address_of(pinned), pointer, 16, stream)
    host.cuCtxSynchronize()
    assert (pinned == pageable).all()
    host.cuMemcpyAsync(address_of(pageable), address_of(pinned), 16, stream)
    assert host.driver.cuMemcpy(pointer, 0, 16) == (INVALID_VALUE,)


def test_pinned_memory_describes_itself(host: Host) -> None:
    address = host.cuMemHostAlloc(100, cu.CU_MEMHOSTALLOC_PORTABLE)
    assert host.cuMemHostGetFlags(address) == cu.CU_MEMHOSTALLOC_PORTABLE
    assert int(host.cuMemHostGetDevicePointer(address, 0)) == address
    wanted = cu.CUpointer_attribute
    kinds = [wanted.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, wanted.CU_POINTER_ATTRIBUTE_RANGE_SIZE]
    assert host.cuPointerGetAttributes(2, kinds, address) == [cu.CUmemorytype.CU_MEMORYTYPE_HOST, 100]
    assert host.cuPointerGetAttributes(2, kinds, 0x1234) == [0, 0]
    for attribute in wanted:
        code, _ = host.driver.cuPointerGetAttribute(attribute, address)
        assert code in (OK, cu.CUresult.CUDA_ERROR_NOT_SUPPORTED), attribute
    assert host.driver.cuMemFree(address) == (INVALID_VALUE,)
    host.cuMemFreeHost(address)
    assert host.driver.cuMemFreeHost(address) == (INVALID_VALUE,)
    assert host.driver.cuMemFreeHost(host.cuMemAlloc(4)) == (INVALID_VALUE,)
    host.cuMemFreeHost(host.cuMemAllocHost(10))


# ---- the pool ----


def test_a_pool_of_ones_own(host: Host) -> None:
    properties = cu.CUmemPoolProps()
    properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    pool = host.cuMemPoolCreate(properties)
    pointer = host.cuMemAllocFromPoolAsync(1000, pool, 0)
    mine = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert host.cuPointerGetAttribute(mine, pointer) == pool
    host.cuDeviceSetMemPool(0, pool)
    assert host.cuPointerGetAttribute(mine, host.cuMemAllocAsync(8, 0)) == pool
    reuse = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
    host.cuMemPoolSetAttribute(pool, reuse, 0)
    assert host.cuMemPoolGetAttribute(pool, reuse) == 0
    host.cuMemPoolDestroy(pool)
    assert host.cuDeviceGetMemPool(0) == host.cuDeviceGetDefaultMemPool(0)
    assert host.driver.cuMemPoolDestroy(host.cuDeviceGetDefaultMemPool(0)) == (INVALID_VALUE,)


def pool_bytes(host: Host, name: str) -> int:
    attribute = getattr(cu.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
    return int(host.cuMemPoolGetAttribute(host.cuDeviceGetDefaultMemPool(0), attribute))


@pytest.mark.parametrize("keep", [False, True])
def test_the_pool_keeps_what_its_threshold_says(keep: bool) -> None:
    host = start(memory=1 << 20)
    if keep:
        threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        host.cuMemPoolSetAttribute(host.cuDeviceGetDefaultMemPool(0), threshold, cu.cuuint64_t(2**64 - 1))
    stream = host.stream()
    pointer = host.cuMemAllocAsync(300_000, stream)
    host.cuMemFreeAsync(pointer, stream)
    assert pool_bytes(host, "USED_MEM_CURRENT") >= 300_000  # the free is queued
    host.cuStreamSynchronize(stream)
    assert pool_bytes(host, "USED_MEM_CURRENT") == 0
    assert (pool_bytes(host, "RESERVED_MEM_CURRENT") > 0) == keep
    assert (host.cuMemGetInfo()[0] < 1 << 20) == keep
    # the pool reuses kept memory, and returns it to the device before an allocation fails
    host.cuMemFreeAsync(host.cuMemAllocAsync(900_000, stream), stream)
    host.cuStreamSynchronize(stream)
    host.cuMemFree(host.cuMemAlloc(1 << 20))
    host.cuMemPoolTrimTo(host.cuDeviceGetDefaultMemPool(0), 0)
    assert host.cuMemGetInfo()[0] == 1 << 20


def test_memory_freed_while_another_stream_uses_it_is_gone() -> None:
    host = start(checks=())
    one, two = host.stream(), host.stream()
    pointer = host.cuMemAllocAsync(64, one)
    host.cuStreamSynchronize(one)
    assert host.driver.cuMemsetD8Async(pointer, 0, 64, two) == (OK,)
    host.cuMemFreeAsync(pointer, one)  # `one` does not wait for `two`
    assert host.driver.cuCtxSynchronize() == (cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
    report = str(host.driver.simLastReport())
    assert "use after free" in report
    assert os.path.basename(__file__) in report


def test_memory_freed_after_an_event_of_the_other_stream_is_fine(host: Host) -> None:
    one, two, done = host.stream(), host.stream(), host.event()
    pointer = host.cuMemAllocAsync(64, one)
    host.cuStreamSynchronize(one)
    host.cuMemsetD8Async(pointer, 0, 64, two)
    host.cuEventRecord(done, two)
    host.cuStreamWaitEvent(one, done, 0)
    host.cuMemFreeAsync(pointer, one)
    host.cuCtxSynchronize()
    assert host.driver.simStats().allocations == 0


def test_host_code_can_look_at_device_memory(host: Host) -> None:
    pointer = host.upload(np.arange(4, dtype=np.float32))
    view = host.driver.simHostView(pointer + 4, 8).view(np.float32)
    assert view.tolist() == [1, 2]
    host.cuMemsetD32Async(pointer, 0, 4, 0)
    assert view.tolist() == [1, 2]
    host.cuCtxSynchronize()
    assert view.tolist() == [0, 0]
    with pytest.raises(ValueError, match="16 bytes"):
        host.driver.simHostView(pointer, 17)


# ---- copies to and from the host ----


def test_a_pinned_destination_read_too_early_shows_poison(host: Host) -> None:
    stream, out = host.stream(), host.pinned(8, np.uint8)
    pointer = host.upload(np.arange(8, dtype=np.uint8))
    out[:] = 0
    other = host.stream()
    host.cuMemsetD8Async(host.cuMemAlloc(8), 0, 8, other)
    host.cuMemcpyDtoHAsync(address_of(out), pointer, 8, stream)
    host.cuStreamSynchronize(other)  # waits for the wrong stream
    assert (out.view(np.uint16) == POISON).all()
    host.cuStreamSynchronize(stream)
    assert (out == np.arange(8)).all()


def test_a_copy_to_pageable_memory_is_waited_for(host: Host) -> None:
    stream, out = host.stream(), np.zeros(8, np.uint8)
    pointer = host.upload(np.arange(8, dtype=np.uint8))
    host.cuMemsetD8Async(pointer, 7, 4, stream)
    host.cuMemcpyDtoHAsync(out, pointer, 8, stream)
    assert out.tolist() == [7, 7, 7, 7, 4, 5, 6, 7]


def test_pageable_memory_may_change_right_after_an_async_copy(host: Host) -> None:
    stream, data = host.stream(), np.full(8, 1, np.uint8)
    pointer = host.cuMemAlloc(8)
    host.cuMemcpyHtoDAsync(pointer, data, 8, stream)
    data[:] = 2
    host.cuStreamSynchronize(stream)
    assert (host.download(pointer, 8, np.uint8) == 1).all()


@pytest.mark.parametrize("waited", [False, True])
def test_a_plain_copy_from_pageable_memory_may_return_before_it_is_done(waited: bool) -> None:
    # CUDA guarantees only that the source was read: a stream that is not ordered after the copy must not use its result
    host = start(checks=())
    stream = host.stream()
    source, target = host.cuMemAlloc(4), host.upload(np.zeros(1, np.uint32))
    host.cuMemcpyHtoD(source, np.array([5], np.uint32), 4)
    if waited:
        host.cuStreamSynchronize(0)
    host.cuMemcpyDtoDAsync(target, source, 4, stream)
    host.cuStreamSynchronize(stream)
    assert (host.download(target, 1, np.uint32)[0] == 5) == waited


def test_a_pinned_source_changed_in_flight_is_reported_once(host: Host) -> None:
    stream, data = host.stream(), host.pinned(8, np.uint8)
    data[:] = 1
    pointer = host.cuMemAlloc(8)
    assert host.driver.cuMemcpyHtoDAsync(pointer, address_of(data), 8, stream) == (OK,)
    data[3] = 2
    assert host.driver.cuStreamSynchronize(stream) == (cu.CUresult.CUDA_ERROR_ILLEGAL_STATE,)
    report = str(host.driver.simLastReport())
    assert "source changed in flight" in report
    assert os.path.basename(__file__) in report
    host.cuStreamSynchronize(stream)
    assert host.download(pointer, 8, np.uint8)[3] == 2  # as on hardware: the contents when the copy runs


def test_a_pinned_buffer_used_both_ways_in_one_stream_is_correct(host: Host) -> None:
    # copy in, compute, copy out to the same buffer, copy in again: valid, although the buffer changed before each copy
    stream, buffer = host.stream(), host.pinned(4, np.uint32)
    first, second = host.cuMemAlloc(16), host.cuMemAlloc(16)
    buffer[:] = 1
    host.cuMemcpyHtoDAsync(first, address_of(buffer), 16, stream)
    host.cuMemsetD32Async(first, 5, 2, stream)
    host.cuMemcpyDtoHAsync(address_of(buffer), first, 16, stream)
    host.cuMemcpyHtoDAsync(second, address_of(buffer), 16, stream)
    host.cuStreamSynchronize(stream)
    assert buffer.tolist() == [5, 5, 1, 1]
    assert host.download(second, 4, np.uint32).tolist() == [5, 5, 1, 1]
    assert host.driver.simLastReport() is None


def test_unordered_copies_on_one_pinned_buffer_are_reported(host: Host) -> None:
    buffer = host.pinned(4, np.uint32)
    one, two = host.stream(), host.stream()
    pointer, other = host.upload(np.zeros(4, np.uint32)), host.upload(np.zeros(4, np.uint32))
    host.cuMemcpyHtoDAsync(pointer, address_of(buffer), 16, one)
    host.cuMemcpyDtoHAsync(address_of(buffer), other, 16, two)
    assert host.driver.cuCtxSynchronize() == (cu.CUresult.CUDA_ERROR_ILLEGAL_STATE,)
    assert "race on pinned memory" in host.driver.simLastMessage()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("first", [0, 1])
def test_a_result_read_too_early_is_not_close_to_any_number(host: Host, kind: type, first: int) -> None:
    values = np.zeros(9, kind)
    pinned = host.pinned(9 * values.itemsize, np.uint8).view(kind)
    pointer = host.upload(values)
    stream = host.stream()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        host.cuMemcpyDtoHAsync(address_of(pinned[first:]), pointer, values[first:].nbytes, stream)
        assert np.isnan(pinned[first:] + 1).all()
    host.cuStreamSynchronize(stream)
    assert (pinned[first:] == 0).all()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("pitch", [7, 8])
def test_rows_that_are_poisoned_keep_the_bytes_between_them(host: Host, offset: int, pitch: int) -> None:
    out, pointer, stream = host.pinned(40, np.uint8), host.upload(np.arange(15, dtype=np.uint8)), host.stream()
    out[:] = 1
    kinds = cu.CUmemorytype
    source = {"srcMemoryType": kinds.CU_MEMORYTYPE_DEVICE, "srcDevice": pointer, "srcPitch": 5}
    target = {"dstMemoryType": kinds.CU_MEMORYTYPE_HOST, "dstHost": address_of(out) + offset, "dstPitch": pitch}
    copy = two_d(**source, **target, WidthInBytes=5, Height=3)
    host.cuMemcpy2DAsync(copy, stream)
    inside = np.zeros(40, np.bool_)
    for row in range(3):
        inside[offset + row * pitch : offset + row * pitch + 5] = True
    expected = np.where(inside, np.tile([POISON & 0xFF, POISON >> 8], 20), 1)
    assert out.tolist() == expected.tolist()
    host.cuStreamSynchronize(stream)
    assert out[inside].tolist() == list(range(15))
    assert (out[~inside] == 1).all()


def test_registered_memory_is_pinned_until_unregistered(host: Host) -> None:
    stream, out = host.stream(), np.zeros(4096, np.uint8)
    pointer = host.upload(np.ones(16, np.uint8))
    host.cuMemHostRegister(address_of(out), out.nbytes, 0)
    again = host.driver.cuMemHostRegister(address_of(out), 16, 0)
    assert again == (cu.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,)
    host.cuMemcpyDtoHAsync(out, pointer, 16, stream)
    assert (out[:16].view(np.uint16) == POISON).all()
    host.cuMemHostUnregister(address_of(out))
    assert (out[:16] == 1).all()
    gone = host.driver.cuMemHostUnregister(address_of(out))
    assert gone == (cu.CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,)


def test_a_range_past_pinned_memory_is_refused(host: Host) -> None:
    data = host.pinned(8, np.uint8)
    pointer = host.cuMemAlloc(64)
    assert host.driver.cuMemcpyHtoDAsync(pointer, address_of(data) + 4, 8, 0) == (INVALID_VALUE,)
    assert "past the end of the pinned memory" in host.driver.simLastMessage()

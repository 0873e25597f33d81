"""The simulated device's address space: addresses, bounds, freed memory, host memory."""

from itertools import pairwise

import numpy as np
import pytest

from cudakit.sim.lockstep.memory import AddressSpace, MemoryFault


@pytest.fixture
def space():
    return AddressSpace()


def test_bytes_are_kept_and_writable(space):
    a = space.allocate(100)
    space.bytes(a.address + 4, 8)[:] = np.arange(8, dtype=np.uint8)
    assert space.bytes(a.address, 100)[4:12].tolist() == list(range(8))
    assert a.data[5] == 1
    assert a.size == 100
    assert a.data.size == 100


def test_fresh_memory_is_not_zero(space):
    assert np.isnan(space.allocate(64).data.view(np.float32)).all()


def test_addresses_never_repeat_and_gaps_belong_to_nobody(space):
    spans = []
    for size in (1, 511, 512, 513, 4096, 100_000):
        a = space.allocate(size)
        spans.append((a.address, a.end))
        assert a.address % 512 == 0
        space.free(a.address)
    for (_, end), (start, _) in pairwise(spans):
        assert start - end >= 4096


@pytest.mark.parametrize(
    ("offset", "size", "distance"), [(100, 1, 1), (97, 4, 1), (-1, 1, 1), (-4, 4, 4), (1000, 8, 908)]
)
def test_out_of_bounds_names_the_nearest_allocation(space, offset, size, distance):
    space.allocate(10)
    a = space.allocate(100, origin="by the model")
    with pytest.raises(MemoryFault, match="by the model") as caught:
        space.bytes(a.address + offset, size)
    assert caught.value.kind == "out of bounds"
    assert caught.value.allocation is a
    assert caught.value.distance == distance
    assert caught.value.address == a.address + offset


def test_one_past_the_end_says_so(space):
    a = space.allocate(400)
    with pytest.raises(MemoryFault, match="0 bytes past the end of the device allocation of 400 bytes"):
        space.bytes(a.end, 4)


def test_null_pointer_says_so(space):
    space.allocate(4)
    with pytest.raises(MemoryFault, match="null pointer"):
        space.bytes(16, 4)


def test_empty_space(space):
    assert space.find(123) is None
    with pytest.raises(MemoryFault, match="no memory is allocated"):
        space.bytes(1 << 20, 4)


def test_use_after_free_and_double_free(space):
    a = space.allocate(64, origin="at line 3")
    view = space.bytes(a.address, 64)
    assert space.free(a.address, "at line 9") is a
    assert a.free_origin == "at line 9"
    with pytest.raises(MemoryFault, match=r"at line 3 and freed at line 9") as caught:
        space.bytes(a.address + 8, 4)
    assert caught.value.kind == "use after free"
    with pytest.raises(MemoryFault) as caught:
        space.free(a.address)
    assert caught.value.kind == "double free"
    view[:] = 1  # a view that is still referenced stays valid


def test_free_of_what_was_never_allocated(space):
    a = space.allocate(64)
    for address in (a.address + 4, 12345):
        with pytest.raises(MemoryFault):
            space.free(address)
    assert list(space.allocations()) == [a]


def test_allocations_are_the_live_ones(space):
    a, b = space.allocate(10), space.allocate(20)
    assert list(space.allocations()) == [a, b]
    space.free(a.address)
    assert list(space.allocations()) == [b]


def test_find_covers_live_and_freed(space):
    a, b = space.allocate(100), space.allocate(100)
    space.free(a.address)
    assert space.find(a.address + 50) is a
    assert space.find(b.end + 5) is b
    assert space.find(0) is a


def test_many_freed_allocations_are_forgotten(space):
    first = space.allocate(1)
    space.free(first.address)
    keep = space.allocate(8)
    for _ in range(9000):
        space.free(space.allocate(1).address)
    assert space.find(keep.address) is keep
    assert space.find(first.address) is not first
    assert len(space._starts) < 8500


@pytest.mark.parametrize("skip", [0, 1, 4, 24])
def test_host_memory_is_shared_both_ways(space, skip):
    buffer = np.zeros(256, np.uint8)[skip : skip + 100]
    a = space.register_host(buffer, "pinned by the test")
    assert a.address == buffer.ctypes.data
    buffer[3] = 7
    assert space.bytes(a.address, 100)[3] == 7
    space.bytes(a.address + 5, 1)[:] = 9
    assert buffer[5] == 9
    aligned = -(-a.address // 4) * 4
    a.view(np.uint32)[(aligned - a.base) // 4] = 0x01020304
    assert buffer[aligned - a.address : aligned - a.address + 4].tolist() == [4, 3, 2, 1]
    with pytest.raises(MemoryFault):
        space.bytes(a.address + 99, 2)
    space.free(a.address)
    space.register_host(buffer)


def test_host_memory_over_memory_that_was_freed(space):
    whole = np.zeros(4096, np.uint8)
    for part in (whole[1024:1536], whole[2048:2056]):
        space.free(space.register_host(part).address)
    made = space.register_host(whole)
    space.bytes(made.address + 1100, 2000)[:] = 7
    assert (whole[1100:3100] == 7).all()
    assert space.covering(made.address + 2050, 1) is made


def test_host_registration_is_refused(space):
    buffer = np.zeros((16, 16), np.float32)
    with pytest.raises(ValueError, match="contiguous"):
        space.register_host(buffer[:, :3])
    with pytest.raises(ValueError, match="empty"):
        space.register_host(buffer[:0])
    space.register_host(buffer)
    with pytest.raises(ValueError, match="already registered"):
        space.register_host(buffer[2:4])


def test_allocation_needs_a_size(space):
    with pytest.raises(ValueError, match="at least one byte"):
        space.allocate(0)

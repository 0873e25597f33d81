"""Device arrays: dtypes, views, copies in every layout, fills, pinned memory, and other libraries' arrays."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from core_fixtures import DEVICES, opened
from hypothesis import given
from hypothesis import strategies as st
from test_layout import views

from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, CudaError, DeviceMismatch, OutOfMemory
from cudakit.memory import allocation, copies, dlpack, makers
from cudakit.memory import array as memory

STRUCT = np.dtype([("a", "i4"), ("b", "f8"), ("c", "u1", (3,))])
DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "float8_e4m3fn", "datetime64[s]", "S5", "V3", STRUCT,
]  # fmt: skip


@pytest.fixture(scope="module", params=DEVICES)
def context(request):
    with opened(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def stream(context):
    with Stream(context) as made:
        yield made


@pytest.fixture
def sim():
    with opened("sim") as made:
        yield made


def values(shape, dtype, seed=0):
    """Every bit pattern is as good as another: copies must not look at them."""
    dtype = memory.as_dtype(dtype)
    size = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def same(left, right):
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    assert np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


# Shapes and dtypes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (3, 0, 2)], ids=str)
def test_there_and_back(context, stream, dtype, shape):
    host = values(shape, dtype)
    array = makers.array(context, stream, host)
    assert (array.shape, array.dtype, array.size, array.ndim) == (host.shape, host.dtype, host.size, host.ndim)
    assert (array.nbytes, array.itemsize) == (host.nbytes, host.itemsize)
    assert array.is_contiguous
    if host.size:
        assert array.strides == host.strides
        assert array.pointer % 256 == 0
    else:
        assert array.pointer == 0
    same(array.numpy(), host)


def test_names_of_small_floats(context, stream):
    assert memory.as_dtype("bfloat16") == ml_dtypes.bfloat16
    assert memory.empty(context, stream, (2,), "float8_e5m2").dtype == ml_dtypes.float8_e5m2
    array = makers.array(context, stream, [1.5, 2.5], "bfloat16")
    assert array.numpy().astype("f4").tolist() == [1.5, 2.5]


def test_dtypes_that_no_kernel_reads(context, stream):
    with pytest.raises(TypeError, match="Python objects"):
        memory.empty(context, stream, (2,), object)
    with pytest.raises(TypeError, match="native byte order"):
        makers.array(context, stream, np.zeros(3, ">f4"))
    with pytest.raises(TypeError, match="Python objects"):
        makers.pinned(context, (2,), object)


def test_shapes(context, stream):
    assert memory.empty(context, stream, 5).shape == (5,)
    assert memory.empty(context, stream, np.int64(5)).shape == (5,)
    assert memory.empty(context, stream, [2, 3]).shape == (2, 3)
    with pytest.raises(ValueError, match="negative"):
        memory.empty(context, stream, (2, -1))
    with pytest.raises(TypeError):
        memory.empty(context, stream, 2.5)


def test_python_values(context, stream):
    assert makers.array(context, stream, [[1, 2], [3, 4]], np.int32).numpy().tolist() == [[1, 2], [3, 4]]
    assert makers.array(context, stream, 3.5).numpy() == 3.5
    assert makers.full(context, stream, (2,), 7).dtype == np.array(7).dtype
    assert makers.zeros(context, stream, (2, 2), STRUCT).numpy().tobytes() == bytes(4 * STRUCT.itemsize)


def test_numpy_does_not_take_it_by_itself(context, stream):
    array = makers.zeros(context, stream, (3,))
    with pytest.raises(TypeError, match=r"\.numpy\(stream\)"):
        np.asarray(array)
    with pytest.raises(TypeError):
        np.ones(3) + array
    assert len(array) == 3
    with pytest.raises(TypeError, match="at least one dimension"):
        len(array[0])
    assert "shape=(3,)" in repr(array)
    assert "float32" in repr(array)


# Views ----------------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_views_are_numpys(context, stream, data):
    host = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    array = makers.array(context, stream, host)
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            axes = data.draw(st.permutations(range(host.ndim)))
            host, array = host.transpose(axes), array.transpose(*axes)
        else:
            slices = tuple(data.draw(st.slices(extent)) for extent in host.shape)
            host, array = host[slices], array[slices]
    assert array.shape == host.shape
    same(array.numpy(), host)
    same(array.copy().numpy(), host)
    same(array.T.numpy(), host.T)


def test_index_elements_and_new_axes(context, stream):
    host = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    array = makers.array(context, stream, host)
    for key in [1, (1, 2), (1, 2, 3), (0, -1), (..., 1), (None, 0), (slice(None), None, 1), (1, ..., 2, None), ()]:
        same(array[key].numpy(), np.asarray(host[key]))
    assert array[1, 2, 3].shape == ()
    with pytest.raises(IndexError):
        array[2]
    with pytest.raises(IndexError):
        array[0, 0, 0, 0]
    with pytest.raises(TypeError, match="cannot index"):
        array[[0, 1]]
    assert [row.numpy().tolist() for row in array[0]] == host[0].tolist()


def test_an_empty_array_or_view_has_no_address(context, stream):
    array = makers.zeros(context, stream, (5,), np.int32)
    for key in (slice(5, 5), slice(5, None), slice(3, 2)):
        assert array[key].pointer == 0
    assert array[::-1].pointer == array.pointer + 16
    empty = makers.zeros(context, stream, (0, 5), np.int32)
    assert (empty.pointer, empty[:, 2:].pointer, empty.T[3:].reshape(0).pointer) == (0, 0, 0)
    assert makers.over(context, stream, array.pointer, (0,), np.int32, owner=array).pointer == 0


def test_views_share_memory(context, stream):
    array = makers.zeros(context, stream, (4, 4), np.int32)
    array[1:3, ::2].fill(5)
    array.T[3].copy_from(np.array([1, 2, 3, 4], np.int32))
    assert array.numpy().tolist() == [[0, 0, 0, 1], [5, 0, 5, 2], [5, 0, 5, 3], [0, 0, 0, 4]]
    assert array[1:].pointer == array.pointer + 16
    assert array[::-1].pointer == array.pointer + 48
    assert array[::-1].strides == (-16, 4)
    assert array[::-1].strides_elements == (-4, 1)


def test_a_view_keeps_the_memory(sim):
    stream = Stream(sim)
    view = makers.array(sim, stream, np.arange(10))[3:5]
    gc.collect()
    assert view.numpy().tolist() == [3, 4]
    assert sim.driver.simStats().allocations == 1
    del view
    assert sim.driver.simStats().allocations == 0


def test_reshape(context, stream):
    array = makers.array(context, stream, np.arange(12))
    assert array.reshape(3, 4)[1].numpy().tolist() == [4, 5, 6, 7]
    assert array.reshape((2, -1)).shape == (2, 6)
    assert array.reshape(3, 4).reshape(-1).numpy().tolist() == list(range(12))
    with pytest.raises(ValueError, match=r"copy\(\) it first"):
        array.reshape(3, 4).T.reshape(12)
    with pytest.raises(ValueError, match="cannot be reshaped"):
        array.reshape(5, 3)
    with pytest.raises(ValueError, match="each of the 2 axes"):
        array.reshape(3, 4).transpose(0, 0)


def test_view_as_another_dtype(context, stream):
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = makers.array(context, stream, host)
    same(array.view("int32").numpy(), host.view("int32"))
    same(array.view("uint8").numpy(), host.view("uint8"))
    same(array.view("uint8").view("float64").numpy(), host.view("float64"))
    same(array[:, ::2].view("int32").numpy(), host[:, ::2].copy().view("int32"))
    with pytest.raises(ValueError, match="last axis must be contiguous"):
        array.T.view("uint8")
    with pytest.raises(ValueError, match="whole number"):
        array[:, :3].view("float64")


def test_strides_in_elements_of_what_is_not_whole(context, stream):
    array = makers.over(context, stream, makers.zeros(context, stream, (100,)).pointer, (3,), "f4", strides=(6,))
    with pytest.raises(ValueError, match="not multiples of the element size"):
        _ = array.strides_elements


# Copies ---------------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_copies_between_any_two_layouts(context, stream, data):
    """Host to device, device to device and back, each side sliced, reversed and transposed in its own way."""
    source = data.draw(views())
    shape = source.shape
    steps = tuple(data.draw(st.sampled_from([1, 2, -1, -2])) for _ in shape)
    axes = data.draw(st.permutations(range(len(shape))))

    def laid_out(make):
        """(all of it, a view of `shape` of it): gaps are there to be left alone."""
        backing = make(tuple(shape[axis] * abs(steps[axis]) for axis in axes))
        view = backing.transpose(*np.argsort(axes).tolist()) if axes else backing
        view = view[(*(slice(None, None, step) for step in steps), ...)]
        return backing, view[(*(slice(0, extent) for extent in shape), ...)]

    expected, target = laid_out(lambda wide: np.full(wide, 0x5A, source.dtype))
    target[...] = source
    first, first_view = laid_out(lambda wide: makers.full(context, stream, wide, 0x5A, source.dtype))
    first_view.copy_from(source)
    same(first.numpy(), expected)
    second = makers.zeros(context, stream, shape, source.dtype)
    second.copy_from(first_view)
    same(second.numpy(), source)
    third, third_view = laid_out(lambda wide: makers.full(context, stream, wide, 0x5A, source.dtype))
    third_view.copy_from(second)
    same(third.numpy(), expected)
    back, back_view = laid_out(lambda wide: np.full(wide, 0x5A, source.dtype))
    third_view.copy_to(back_view)
    stream.synchronize()
    same(back, expected)


def test_many_separate_pieces_go_through_the_host_rightly(context, stream, monkeypatch):
    monkeypatch.setattr(copies, "MANY", 4)
    host = np.arange(6 * 7 * 8 * 9, dtype=np.int32).reshape(6, 7, 8, 9)
    array = makers.array(context, stream, host)
    scattered = array.transpose(3, 1, 0, 2)[::2, :, ::-1]
    same(scattered.numpy(), host.transpose(3, 1, 0, 2)[::2, :, ::-1])
    same(scattered.copy().numpy(), host.transpose(3, 1, 0, 2)[::2, :, ::-1])
    into = makers.zeros(context, stream, (9, 7, 6, 8), np.int32)
    into.transpose(2, 1, 3, 0).copy_from(array)
    same(into.numpy(), host.transpose(3, 1, 0, 2))
    out = np.zeros((9, 7, 6, 8), np.int32)
    array.copy_to(out.transpose(2, 1, 3, 0))
    stream.synchronize()
    same(out, host.transpose(3, 1, 0, 2))


def test_a_destination_in_too_many_pieces_is_refused(context, stream, monkeypatch):
    monkeypatch.setattr(copies, "MOST", 4)
    array = makers.zeros(context, stream, (6, 7, 8), np.int32)
    with pytest.raises(ValueError, match="rearrange it with a kernel"):
        array.transpose(1, 0, 2)[:, :, ::2].copy_from(np.ones((7, 6, 4), np.int32))
    assert not array.numpy().any()


def test_mismatches_are_refused(context, stream):
    array = makers.zeros(context, stream, (2, 3))
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2, 3\)"):
        array.copy_from(np.zeros((3, 2), np.float32))
    with pytest.raises(TypeError, match=r"float64.*float32.*astype"):
        array.copy_from(np.zeros((2, 3)))
    with pytest.raises(TypeError, match="int32"):
        array.copy_from(makers.zeros(context, stream, (2, 3), np.int32))
    with pytest.raises(ValueError, match="shape"):
        array.copy_to(np.zeros(6, np.float32))
    with pytest.raises(TypeError, match="float16"):
        array.copy_to(np.zeros((2, 3), np.float16))
    with pytest.raises(TypeError, match="as its destination, got list"):
        array.copy_to([[0] * 3] * 2)
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        array.copy_to(frozen)
    with pytest.raises(TypeError, match="use a kernel"):
        makers.array(context, stream, array, np.float64)


def test_a_destination_that_overlaps_itself_is_refused(context, stream):
    base = makers.zeros(context, stream, (8,))
    same_place = makers.over(context, stream, base.pointer, (4,), "f4", strides=(0,), owner=base)
    assert (same_place.numpy() == 0).all()
    for write in (lambda: same_place.fill(1), lambda: same_place.copy_from(np.zeros(4, np.float32))):
        with pytest.raises(ValueError, match="elements overlap"):
            write()
    with pytest.raises(ValueError, match="elements overlap"):
        base[:4].copy_to(np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4,), (0,)))


def test_a_repeated_source_is_read_as_often_as_it_says(context, stream):
    base = makers.array(context, stream, np.array([3, 4], np.int32))
    repeated = makers.over(context, stream, base.pointer, (3, 2), "i4", strides=(0, 4), owner=base)
    assert repeated.numpy().tolist() == [[3, 4]] * 3
    assert repeated.copy().numpy().tolist() == [[3, 4]] * 3
    host = np.broadcast_to(np.float32(2.5), (4, 5))
    assert (makers.array(context, stream, host).numpy() == 2.5).all()


@pytest.mark.parametrize(
    ("to", "from_"),
    [
        (slice(0, 8), slice(2, 10)),
        (slice(2, 10), slice(0, 8)),
        (slice(None, None, -1), slice(None)),
        (slice(0, 10, 2), slice(5, 10)),
        (slice(None), slice(None)),
    ],
    ids=str,
)
def test_overlapping_copies_are_as_numpys(context, stream, to, from_):
    host = np.arange(10 * 3, dtype=np.int32).reshape(10, 3)
    array = makers.array(context, stream, host)
    array[to].copy_from(array[from_])
    expected = host.copy()
    expected[to] = host[from_]
    same(array.numpy(), expected)


def test_copies_between_devices_of_two_drivers():
    with opened("sim") as one, opened("sim:sm_80") as other:
        host = np.arange(12, dtype=np.float32).reshape(3, 4)
        there = makers.array(other, Stream(other), makers.array(one, Stream(one), host).T)
        same(there.numpy(), host.T)


@pytest.mark.parametrize("to", [lambda a: a, lambda a: a.T], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("from_", [lambda a: a, lambda a: a.T], ids=["contiguous", "transposed"])
def test_copies_between_devices_of_one_driver(to, from_):
    with opened("sim", devices=2) as one, Context(drivers.Opened(one.driver, 1, "sim", "sim:sm_90a:1")) as other:
        host = np.arange(16, dtype=np.float32).reshape(4, 4)
        stream = Stream(one)
        source = makers.array(one, stream, host)
        stream.synchronize()
        target = makers.zeros(other, Stream(other), (4, 4))
        to(target).copy_from(from_(source))
        same(to(target).numpy(), from_(host).copy())


def test_copies_queue_on_the_stream_that_is_given(sim):
    """The copy is on that stream, and does not run before the first wait."""
    home, other = Stream(sim), Stream(sim)
    array = makers.zeros(sim, home, (4,), np.int32)
    home.synchronize()
    source = makers.pinned(sim, (4,), np.int32)
    source[:] = 5
    array.copy_from(source, other)
    assert not other.query()
    other.synchronize()
    assert array.numpy().tolist() == [5] * 4


# Fills ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fill_every_dtype_and_layout(context, stream, dtype):
    element = values((1,), dtype, seed=3)[0]
    for make in (
        lambda a: a,
        lambda a: a[:, 1:4],
        lambda a: a[::2, ::-2],
        lambda a: a.T[1:, ::3],
        lambda a: a[2, 3, ...],
    ):
        host = values((6, 7), dtype)
        array = makers.array(context, stream, host)
        make(array).fill(element)
        make(host)[...] = element
        same(array.numpy(), host)


def test_fills_and_copies_at_odd_addresses(context, stream):
    """Strides that are not multiples of four: the words of a fill must fit every row, not only the first."""
    base = makers.zeros(context, stream, (200,), np.uint8)
    for strides in [(50, 16, 4), (54, 18, 4), (51, 17, 4), (64, 16, 6)]:
        base.fill(0)
        for offset in (0, 1, 2):
            place = base.pointer + offset
            odd = makers.over(context, stream, place, (2, 3, 2), "i4", strides=strides, owner=base)
            odd.fill(-1)
            assert (odd.numpy() == -1).all()
            host = np.zeros(200, np.uint8)
            np.ndarray((2, 3, 2), "i4", host, offset, strides)[...] = -1
            same(base.numpy(), host)
            odd.copy_from(np.arange(12, dtype=np.int32).reshape(2, 3, 2))
            assert odd.numpy().ravel().tolist() == list(range(12))
            base.fill(0)


def test_fill_large(context, stream):
    """Past the first block of a fill that copies itself."""
    array = memory.empty(context, stream, (100_003,), np.float64)
    array.fill(np.pi)
    assert (array.numpy() == np.pi).all()
    assert np.isnan(makers.full(context, stream, (100_003,), np.nan, np.float64).numpy()).all()
    array[1::3].fill(-1)
    expected = np.full(100_003, np.pi)
    expected[1::3] = -1
    same(array.numpy(), expected)


def test_fill_zeros_in_four_dimensions(context, stream):
    array = makers.full(context, stream, (3, 4, 5, 6), 7, np.int16)
    array[::2, 1:3, ::-2, 1:5].fill(0)
    host = np.full((3, 4, 5, 6), 7, np.int16)
    host[::2, 1:3, ::-2, 1:5] = 0
    same(array.numpy(), host)


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        ("int32", 1.5, ValueError),
        ("int32", float("nan"), ValueError),
        ("uint8", 300, OverflowError),
        ("uint8", -1, OverflowError),
        ("float32", 1j, TypeError),
        ("float32", [1, 2], ValueError),
        ("float32", "x", ValueError),
    ],
)
def test_fill_refuses_what_the_dtype_is_not(context, stream, dtype, value, error):
    array = makers.zeros(context, stream, (3,), dtype)
    with pytest.raises(error):
        array.fill(value)
    assert not array.numpy().any()


def test_fill_takes_whole_floats_for_ints(context, stream):
    assert makers.zeros(context, stream, (2,), np.int32).fill(3.0).numpy().tolist() == [3, 3]
    assert makers.zeros(context, stream, (2,), np.float16).fill(np.inf).numpy().tolist() == [np.inf] * 2


# Pinned memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pinned_arrays_are_numpy_arrays(context, stream, dtype):
    host = values((5, 6), dtype)
    array = makers.pinned(context, (5, 6), dtype)
    assert type(array) is np.ndarray
    assert array.flags.writeable
    assert array.flags.c_contiguous
    array[...] = host
    same(makers.array(context, stream, array).numpy(), host)
    out = makers.pinned(context, (6, 5), dtype)
    makers.array(context, stream, array).copy_to(out.T)
    stream.synchronize()
    same(out.T, host)


def test_empty_pinned(context):
    assert makers.pinned(context, (0, 3)).shape == (0, 3)
    assert makers.pinned(context, ()).shape == ()


def test_pinned_memory_lives_as_long_as_a_view_or_a_copy(sim):
    stream = Stream(sim)
    array = makers.pinned(sim, (8,), np.int32)
    array[:] = range(8)
    view = array[2:4].view(np.uint8)
    del array
    gc.collect()
    assert sim.driver.simStats().pinned == 1
    assert view[0] == 2
    target = memory.empty(sim, stream, (8,), np.uint8)
    target.copy_from(view)
    del view
    gc.collect()
    assert sim.driver.simStats().pinned == 1, "the copy is still to come"
    stream.synchronize()
    gc.collect()
    assert sim.driver.simStats().pinned == 0
    assert target.numpy().tolist() == [2, 0, 0, 0, 3, 0, 0, 0]


def test_pinned_memory_in_flight_when_the_context_is_closed():
    with opened("sim") as context:
        source = makers.pinned(context, (4,), np.int32)
        source[:] = 3
        memory.empty(context, Stream(context), (4,), np.int32).copy_from(source)
        del source
        gc.collect()
        driver = context.driver
    gc.collect()
    assert driver.simStats().pinned == 0


def test_many_copies_in_flight_do_not_pile_up(sim):
    stream = Stream(sim)
    array = memory.empty(sim, stream, (4,), np.int32)
    for _ in range(500):
        source = makers.pinned(sim, (4,), np.int32)
        source[:] = 1
        array.copy_from(source)
    assert len(sim.in_flight) < 300
    stream.synchronize()
    assert len(sim.in_flight) == 0


def test_a_pinned_source_is_read_when_its_turn_comes(sim):
    stream = Stream(sim)
    source = makers.pinned(sim, (4,), np.int32)
    source[:] = 1
    memory.empty(sim, stream, (4,), np.int32).copy_from(source)
    source[:] = 2
    with pytest.raises(CudaError, match="changed"):
        stream.synchronize()


def test_a_pageable_source_has_been_read(context, stream):
    source = np.full(1000, 5, np.int32)
    array = memory.empty(context, stream, (1000,), np.int32)
    array.copy_from(source)
    source[:] = 6
    assert (array.numpy() == 5).all()


def test_a_pinned_destination_is_filled_when_its_turn_comes(sim):
    stream = Stream(sim)
    out = makers.pinned(sim, (4,), np.int32)
    out[:] = 0
    makers.full(sim, stream, (4,), 9, np.int32).copy_to(out)
    assert out.tolist() != [9] * 4
    stream.synchronize()
    assert out.tolist() == [9] * 4


# Life -----------------------------------------------------------------------------------------------------------------


def test_close(context, stream):
    array = makers.zeros(context, stream, (4,))
    view = array[1:]
    assert not array.closed
    with array:
        pass
    array.close()
    assert array.closed
    assert view.closed
    for use in (array.numpy, lambda: array.fill(1), view.copy, lambda: view.copy_to(np.zeros(3, np.float32))):
        with pytest.raises(Closed, match="was closed and its memory freed"):
            use()
    with pytest.raises(Closed):
        makers.zeros(context, stream, (4,)).copy_from(array)


def test_the_free_is_in_stream_order(sim):
    """Memory dropped at once is still there for the work that was queued before."""
    stream = Stream(sim)
    source = makers.full(sim, stream, (1000,), 3, np.int32)
    target = makers.zeros(sim, stream, (1000,), np.int32)
    target.copy_from(source)
    source.close()
    assert (target.numpy() == 3).all()


def test_used_on_orders_the_free_after_another_stream(sim):
    home, other = Stream(sim), Stream(sim)
    source = makers.full(sim, home, (1000,), 3, np.int32)
    target = makers.zeros(sim, other, (1000,), np.int32)
    other.wait(home)
    # Queued by a direct driver call, so cudakit knows of it only by used_on().
    sim.call("cuMemcpyDtoDAsync", target.pointer, source.pointer, source.nbytes, other.handle)
    source.used_on(other)
    source.close()
    home.synchronize()
    assert (target.numpy() == 3).all()


def test_used_on_a_stream_that_was_closed_since(sim):
    home = Stream(sim)
    source = makers.full(sim, home, (1000,), 3, np.int32)
    target = makers.zeros(sim, home, (1000,), np.int32)
    with Stream(sim) as other:
        other.wait(home)
        target.copy_from(source, other)
    source.close()
    home.wait(other.last)
    assert (target.numpy() == 3).all()


def test_used_on_a_foreign_stream_whose_owner_is_unknown(sim):
    home = Stream(sim)
    theirs = Stream(sim)
    array = makers.zeros(sim, home, (10,))
    array.used_on(Stream(sim, handle=int(theirs)))
    array.used_on(Stream(sim, handle=int(theirs)))
    assert len(array.allocation.uses.others) == 1
    theirs.close()
    array.close()
    sim.synchronize()
    assert sim.driver.simStats().allocations == 0


def test_used_on_a_stream_of_another_driver():
    with opened("sim") as one, opened("sim") as other, pytest.raises(DeviceMismatch):
        makers.zeros(one, Stream(one), (2,)).used_on(Stream(other))


def test_nothing_is_left(sim):
    host = np.arange(100.0)

    def work():
        stream = Stream(sim)
        array = makers.array(sim, stream, host)
        array[::-1].copy_from(array)
        array.copy().copy_to(makers.pinned(sim, (100,), float))
        array.view("u1").fill(3)
        np.from_dlpack(array).sum()
        makers.wrap(sim, stream, host).numpy()
        stream.synchronize()

    work()
    gc.collect()
    sim.synchronize()
    before = sim.driver.simStats()
    assert (before.allocations, before.pinned, before.streams) == (0, 0, 0)
    for _ in range(3):
        work()
    gc.collect()
    sim.synchronize()
    # Events are kept for the next copy, and are as many as were in flight at once.
    assert sim.driver.simStats() == before
    assert not dlpack._exports


def test_out_of_memory_says_how_much_there_is():
    with opened("sim", memory=1 << 20) as context:
        stream = Stream(context)
        with pytest.raises(OutOfMemory, match=r"2097152 bytes were requested on sim:sm_90a, \d+ of 1048576"):
            memory.empty(context, stream, (1 << 21,), np.uint8)
        held = memory.empty(context, stream, (1 << 19,), np.uint8)
        with pytest.raises(OutOfMemory):
            memory.empty(context, stream, (1 << 20,), np.uint8)
        held.close()
        stream.synchronize()
        memory.empty(context, stream, (1 << 20,), np.uint8).close()


def test_the_pool_keeps_what_is_freed_until_it_is_trimmed(sim):
    stream = Stream(sim)
    memory.empty(sim, stream, (1 << 20,), np.uint8).close()
    stream.synchronize()
    held = sim.memory_info().free
    allocation.trim(sim)
    assert sim.memory_info().free == held + (1 << 20)


def test_a_device_without_a_pool(monkeypatch):
    with opened("sim") as context:
        context._attributes["MEMORY_POOLS_SUPPORTED"] = 0
        stream = Stream(context)
        array = makers.array(context, stream, np.arange(10))
        assert array.numpy().tolist() == list(range(10))
        array.close()
        assert context.driver.simStats().allocations == 0
        allocation.trim(context)


# Other libraries ------------------------------------------------------------------------------------------------------


class Exporter:
    """Another library's array, by DLPack only; `old` knows no max_version, as before 2023."""

    def __init__(self, array, old=False):
        self.array = array
        self.old = old

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **named):
        if self.old:
            if "max_version" in named:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self.array.__dlpack__(**named)
        return self.array.__dlpack__(**named)


@pytest.mark.parametrize("old", [False, True], ids=["versioned", "unversioned"])
@pytest.mark.parametrize("dtype", DTYPES[:16], ids=str)
def test_dlpack_round_trip(context, stream, dtype, old):
    host = values((4, 6), dtype)
    array = makers.array(context, stream, host)
    taken = makers.wrap(context, stream, Exporter(array[::-1, 1::2], old))
    same(taken.numpy(), host[::-1, 1::2])
    taken[0].fill(host[0, 0])
    assert array.numpy()[3, 1].tobytes() == host[0, 0].tobytes()
    del array
    gc.collect()
    assert taken.numpy()[0, 0].tobytes() == host[0, 0].tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 5)], ids=str)
def test_dlpack_of_unusual_shapes(context, stream, shape):
    host = values(shape, "float32")
    taken = makers.wrap(context, stream, Exporter(makers.array(context, stream, host)))
    same(taken.numpy(), host)


def test_numpy_takes_an_array_of_the_simulated_device(sim):
    stream = Stream(sim)
    array = makers.full(sim, stream, (3, 4), 2.5)
    view = np.from_dlpack(array.T)
    assert (view == 2.5).all(), "exporting waits for what is queued"
    if np.from_dlpack(np.zeros(1)).flags.writeable:  # numpy 2.1 imports every array as read-only
        view[1, 2] = 7
        assert array.numpy()[2, 1] == 7
    copied = np.from_dlpack(array, copy=True)
    array.fill(0)
    stream.synchronize()
    assert view.sum() == 0
    assert copied.sum() != 0
    array.close()
    del array
    assert view.shape == (4, 3)


def test_work_on_other_streams_is_waited_for_before_export(sim):
    home, other = Stream(sim), Stream(sim)
    array = makers.zeros(sim, home, (64,), np.int32)
    other.wait(home)
    array.fill(5, other)
    assert (np.from_dlpack(array) == 5).all()


def test_a_capsule_that_nobody_takes_is_freed(context, stream):
    array = makers.zeros(context, stream, (3,))
    count = len(dlpack._exports)
    for version in (None, (1, 0), (0, 8), (2, 0)):
        capsule = array.__dlpack__(max_version=version)
        assert len(dlpack._exports) == count + 1
        assert ("versioned" in repr(capsule)) == (version is not None and version[0] >= 1)
        del capsule
        assert len(dlpack._exports) == count


def test_a_capsule_is_taken_once(context, stream):
    array = makers.zeros(context, stream, (3,))

    class Once:
        capsule = array.__dlpack__()

        def __dlpack_device__(self):
            return array.__dlpack_device__()

        def __dlpack__(self, **named):
            return self.capsule

    once = Once()
    assert makers.wrap(context, stream, once).shape == (3,)
    with pytest.raises(TypeError, match="an unused DLPack capsule"):
        makers.wrap(context, stream, once)


def test_what_dlpack_cannot_say(context, stream):
    for dtype in (STRUCT, "datetime64[s]", "S5"):
        with pytest.raises(BufferError, match="no data type"):
            makers.zeros(context, stream, (3,), dtype).__dlpack__()
    array = makers.zeros(context, stream, (3,))
    with pytest.raises(BufferError, match="to"):
        array.__dlpack__(dl_device=(2, 17))
    odd = makers.over(context, stream, array.pointer, (2,), "f4", strides=(6,), owner=array)
    with pytest.raises(BufferError, match="whole elements"):
        odd.__dlpack__()


def test_codes_of_dlpack():
    for dtype, expected in [("float16", (2, 16)), ("bool", (6, 8)), ("complex64", (5, 64)), ("uint32", (1, 32))]:
        assert dlpack.data_type(np.dtype(dtype)) == expected
        assert dlpack.numpy_dtype(*expected, 1) == np.dtype(dtype)
    assert dlpack.data_type(np.dtype(ml_dtypes.bfloat16)) == (4, 16)
    assert dlpack.numpy_dtype(12, 8, 1) == ml_dtypes.float8_e5m2
    for wrong in [(2, 16, 2), (3, 64, 1), (0, 4, 1), (2, 128, 1), (4, 32, 1)]:
        with pytest.raises(BufferError, match="no dtype"):
            dlpack.numpy_dtype(*wrong)
    if np.dtype(np.longdouble).itemsize == 16:
        with pytest.raises(BufferError):
            dlpack.data_type(np.dtype(np.longdouble))


def test_wrapping_host_memory_on_the_simulated_device(sim):
    stream = Stream(sim)
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = makers.wrap(sim, stream, host)
    assert array.pointer == host.ctypes.data
    same(array.T.numpy(), host.T)
    array[1].fill(9)
    stream.synchronize()
    assert host[1].tolist() == [9] * 4
    again = makers.wrap(sim, stream, host)
    del array
    again.fill(1)
    stream.synchronize()
    assert (host == 1).all()
    assert sim.driver.simStats().pinned == 1
    del again
    assert sim.driver.simStats().pinned == 0


def test_wrapping_pinned_memory(sim):
    stream = Stream(sim)
    host = makers.pinned(sim, (4,), np.int32)
    host[:] = 3
    array = makers.wrap(sim, stream, host)
    assert array.numpy().tolist() == [3] * 4
    del host
    gc.collect()
    assert array.numpy().tolist() == [3] * 4
    del array
    gc.collect()
    stream.synchronize()
    assert sim.driver.simStats().pinned == 0


def test_read_only_memory_stays_so(sim):
    stream = Stream(sim)
    host = np.arange(4.0)
    host.flags.writeable = False
    array = makers.wrap(sim, stream, host)
    assert array.readonly
    assert array[1:].readonly
    for write in (lambda: array.fill(0), lambda: array.copy_from(np.zeros(4))):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert not np.from_dlpack(array).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    assert not array.copy().readonly


def test_what_cannot_be_wrapped(context, stream):
    for wrong in (3, [1, 2], "x"):
        with pytest.raises(TypeError, match="neither __dlpack__"):
            makers.wrap(context, stream, wrong)
    array = makers.zeros(context, stream, (3,))
    assert makers.wrap(context, stream, array) is array
    with opened("sim") as other, pytest.raises(DeviceMismatch, match=r"copy it there with array\(\)"):
        makers.wrap(other, Stream(other), array)


class Placed:
    """An exporter that says it is on some device."""

    def __init__(self, kind, number=0):
        self.place = kind, number

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, **named):
        raise AssertionError("asked for its memory though it is elsewhere")


def test_memory_of_other_devices_is_refused():
    with opened("sim") as context:
        for kind in (2, 3, 13, 8, 10):
            with pytest.raises(DeviceMismatch, match="in GPU memory"):
                makers.wrap(context, Stream(context), Placed(kind))

        class Interface:
            __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012

        with pytest.raises(DeviceMismatch, match="in GPU memory"):
            makers.wrap(context, Stream(context), Interface())


@pytest.mark.gpu
def test_memory_of_other_devices_is_refused_on_a_gpu():
    with opened("gpu") as context, Stream(context) as stream:
        with pytest.raises(DeviceMismatch, match="gpu:1"):
            makers.wrap(context, stream, Placed(2, 1))
        with pytest.raises(DeviceMismatch, match="type 8"):
            makers.wrap(context, stream, Placed(8))
        with pytest.raises(DeviceMismatch, match="host memory"):
            makers.wrap(context, stream, np.zeros(3))


def test_the_simulated_device_has_no_cuda_array_interface(sim):
    array = makers.zeros(sim, Stream(sim), (3,))
    assert not hasattr(array, "__cuda_array_interface__")


class ByInterface:
    """Another library's array, by __cuda_array_interface__ only."""

    def __init__(self, array, **changes):
        self.array = array
        self.changes = changes

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, **self.changes}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128", STRUCT], ids=str)
def test_cuda_array_interface_round_trip(dtype):
    with opened("gpu") as context, Stream(context) as stream, Stream(context) as other:
        host = values((4, 6), dtype)
        array = makers.array(context, stream, host)
        taken = makers.wrap(context, other, ByInterface(array[::-1, ::2]))
        same(taken.numpy(), host[::-1, ::2])
        assert array.__cuda_array_interface__["strides"] is None
        assert array.__cuda_array_interface__["stream"] == int(stream)
        with pytest.raises(BufferError, match="mask"):
            makers.wrap(context, other, ByInterface(array, mask=1))


@pytest.mark.gpu
def test_dlpack_orders_the_consumers_stream():
    with opened("gpu") as context, Stream(context) as producer, Stream(context) as consumer:
        array = makers.zeros(context, producer, (1 << 24,), np.int32)
        for _ in range(20):
            array.fill(1)
        array.fill(5)
        taken = makers.wrap(context, consumer, Exporter(array))
        assert (taken.numpy() == 5).all()
        with pytest.raises(BufferError, match="stream=0"):
            array.__dlpack__(stream=0)
        for number in (None, -1, 1, 2):
            array.__dlpack__(stream=number)
        on_host = np.from_dlpack(array, device="cpu")
        assert (on_host == 5).all()
        with pytest.raises(BufferError, match="copy"):
            array.__dlpack__(dl_device=(1, 0), copy=False)


def test_reading_an_interface():
    """The interface of another library's array, read without a GPU."""
    described = {"shape": (2, 3), "typestr": "<f4", "data": (4096, True), "version": 3, "strides": None}
    found = dlpack.take_interface("theirs", described)
    assert (found.pointer, found.shape, found.strides, found.readonly) == (4096, (2, 3), (12, 4), True)
    assert found.owner == "theirs"
    found = dlpack.take_interface("theirs", {**described, "strides": (-4, 8), "data": (8192, False)})
    assert (found.strides, found.readonly) == ((-4, 8), False)
    fields = [("a", "<i4"), ("b", "<f8")]
    assert dlpack.interface_dtype({"typestr": "|V12", "descr": fields}) == np.dtype(fields)
    assert dlpack.interface_dtype({"typestr": "|V12", "descr": [("", "|V12")]}) == np.dtype("V12")
    with pytest.raises(BufferError, match="mask"):
        dlpack.take_interface("theirs", {**described, "mask": object()})


def test_a_tensor_of_torch():
    torch = pytest.importorskip("torch")
    with opened("sim") as context:
        stream = Stream(context)
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        array = makers.wrap(context, stream, tensor)
        assert array.dtype == ml_dtypes.bfloat16
        array[1].fill(9)
        stream.synchronize()
        assert tensor[1].tolist() == [9] * 3
        assert torch.from_dlpack(array).tolist() == tensor.tolist()


# Sizes that cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [memory.empty, makers.zeros, makers.full, makers.pinned])
def test_more_bytes_than_64_bits_count_is_out_of_memory(context, stream, make):
    before = () if make is makers.pinned else (stream,)
    after = (1.0, np.float32) if make is makers.full else (np.float32,)
    for shape in ((2**62,), (2**63 - 1,), (2**31, 2**31, 2**31), 2**62 + 1):
        with pytest.raises(OutOfMemory, match=r"\d{20,} bytes"):
            make(context, *before, shape, *after)
    for shape in ((2**63,), 2**70, (2**64, 0), (2, -1)):
        with pytest.raises(ValueError, match="extent"):
            make(context, *before, shape, *after)


def test_a_shape_is_not_reshaped_beyond_64_bits(context, stream):
    array = memory.empty(context, stream, (0,))
    assert array.reshape(0, 2**62).shape == (0, 2**62)
    with pytest.raises(ValueError, match="below 2\\*\\*63"):
        array.reshape(2**63, 0)
    with pytest.raises(ValueError, match="cannot be reshaped to 5"):
        array.reshape(5)


class Nonsense:
    """Exports zeros under any shape and number of axes."""

    owner = np.zeros(8, np.float32)

    def __init__(self, shape, axes=None):
        self.shape, self.axes = shape, axes

    def __dlpack_device__(self):
        return dlpack.CPU, 0

    def __dlpack__(self, **named):
        capsule = dlpack.export(
            self.owner.ctypes.data, self.shape, (4,) * len(self.shape), self.owner.dtype,
            device=(dlpack.CPU, 0), owner=self.owner, versioned=True,
        )  # fmt: skip
        if self.axes is not None:
            managed, *_ = list(dlpack._exports.values())[-1]
            managed.tensor.ndim = self.axes
        return capsule


@pytest.mark.parametrize("shape", [(-1,), (3, -2), (-(2**62), 0)])
def test_an_exporter_with_a_negative_extent_is_refused(sim, shape):
    """A capsule may say anything; one that was refused is given back to its owner."""
    held = len(dlpack._exports)
    with Stream(sim) as stream, pytest.raises(BufferError, match=r"Nonsense exports shape .*negative"):
        makers.wrap(sim, stream, Nonsense(shape))
    with pytest.raises(BufferError, match=r"exports shape .*negative"):
        dlpack.take_interface(Nonsense(shape), {"shape": shape, "typestr": "<f4", "data": (4096, False), "version": 3})
    assert len(dlpack._exports) == held


@pytest.mark.parametrize("axes", [-1, 65, -(2**31)])
def test_an_exporter_with_a_nonsensical_number_of_axes_is_refused(sim, axes):
    with Stream(sim) as stream, pytest.raises(BufferError, match=f"Nonsense exports {axes} axes; 0 to 64"):
        makers.wrap(sim, stream, Nonsense((2, 2), axes))

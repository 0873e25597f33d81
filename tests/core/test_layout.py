"""Index, span and copy plans against numpy, which has the same rules."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudakit.memory import layout


@st.composite
def views(draw, max_dims=4, max_extent=5):
    """A numpy view of bytes that lie anyhow: sliced, reversed, transposed."""
    dims = draw(st.integers(0, max_dims))
    shape = tuple(draw(st.integers(0, max_extent)) for _ in range(dims))
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    base = np.arange(int(np.prod(shape, dtype=int)), dtype=f"u{itemsize}").reshape(shape)
    steps = tuple(slice(None, None, draw(st.sampled_from([1, 1, 2, -1, -2]))) for _ in range(dims))
    return base[(*steps, ...)].transpose(draw(st.permutations(range(dims))))


def keys(dims):
    entry = st.one_of(st.integers(-3, 2), st.slices(6), st.none(), st.just(Ellipsis), st.integers(-6, 6))
    return st.one_of(st.lists(entry, max_size=dims + 2).map(tuple), entry)


@given(st.data())
def test_index_is_numpys(data):
    array = data.draw(views())
    key = data.draw(keys(array.ndim))
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises(IndexError):
            layout.index(array.shape, array.strides, key)
        return
    offset, shape, strides = layout.index(array.shape, array.strides, key)
    assert shape == np.shape(expected)
    if isinstance(expected, np.ndarray) and expected.size:
        assert offset == expected.ctypes.data - array.ctypes.data
        for extent, ours, theirs in zip(shape, strides, expected.strides, strict=True):
            assert extent == 1 or ours == theirs


@pytest.mark.parametrize("key", [[0, 1], np.array([0, 1]), True, 1.0, "a", (slice(None), [0])])
def test_what_numpy_would_copy_is_refused(key):
    with pytest.raises(TypeError, match="cannot index a device array"):
        layout.index((3, 3), (12, 4), key)


def test_two_ellipses():
    with pytest.raises(IndexError, match="only one Ellipsis"):
        layout.index((3, 3), (12, 4), (Ellipsis, Ellipsis))


@given(views())
def test_contiguity_and_span_are_numpys(array):
    assert layout.is_contiguous(array.shape, array.strides, array.itemsize) == (
        array.flags.c_contiguous or array.size == 0
    )
    low, high = layout.span(array.shape, array.strides, array.itemsize)
    places = [sum(map(math.prod, zip(place, array.strides, strict=True))) for place in np.ndindex(array.shape)]
    assert (low, high) == ((min(places), max(places) + array.itemsize) if places else (0, 0))


@given(views())
def test_sliced_views_never_overlap_themselves(array):
    assert not layout.overlaps_itself(array.shape, array.strides, array.itemsize)


@pytest.mark.parametrize(
    ("shape", "strides"), [((3,), (0,)), ((2, 3), (4, 4)), ((5, 4), (8, 4)), ((3,), (2,)), ((3,), (-2,))]
)
def test_overlap_is_seen(shape, strides):
    assert layout.overlaps_itself(shape, strides, 4)


@given(st.data())
def test_a_plan_copies_every_element_to_its_place(data):
    source = data.draw(views())
    order = data.draw(st.permutations(range(source.ndim)))
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in range(source.ndim))
    # A destination of the same shape with another layout, whose gaps must not be written.
    wide = tuple(source.shape[axis] * abs(steps[axis].step) for axis in order)
    backing = np.zeros(wide, source.dtype)
    inverse = np.argsort(order) if source.ndim else ()
    destination = backing.transpose(inverse)[(*steps, ...)][(*(slice(0, extent) for extent in source.shape), ...)]
    assert destination.shape == source.shape
    plan = layout.plan(source.shape, source.itemsize, destination.strides, source.strides)
    if source.size == 0:
        assert plan is None
        return
    expected = backing.copy()
    expected.transpose(inverse)[(*steps, ...)][(*(slice(0, extent) for extent in source.shape), ...)] = source
    moved = 0
    for to, from_ in plan.offsets():
        for row in range(plan.rows):
            target = destination.ctypes.data + to + row * plan.destination_pitch
            origin = source.ctypes.data + from_ + row * plan.source_pitch
            copy_bytes(target, origin, plan.width)
            moved += plan.width
    assert moved == source.nbytes
    assert (backing == expected).all()
    assert plan.rows == 1 or min(plan.destination_pitch, plan.source_pitch) >= plan.width


def copy_bytes(target: int, origin: int, count: int) -> None:
    ctypes.memmove(target, origin, count)


def test_contiguous_copies_are_one_row():
    plan = layout.plan((3, 4, 5), 4, (80, 20, 4), (80, 20, 4))
    assert (plan.width, plan.rows, plan.count) == (240, 1, 1)


def test_a_matrix_with_a_pitch_is_one_2d_copy():
    plan = layout.plan((100, 7), 4, (28, 4), (512, 4))
    assert (plan.width, plan.rows, plan.destination_pitch, plan.source_pitch, plan.count) == (28, 100, 28, 512, 1)


def test_reversed_on_both_sides_is_one_row():
    plan = layout.plan((10,), 4, (-4,), (-4,))
    assert (plan.width, plan.rows, plan.destination_offset, plan.source_offset) == (40, 1, -36, -36)


def test_a_pitch_beyond_the_device_is_looped_over():
    plan = layout.plan((10, 4), 4, (16, 4), (1 << 32, 4))
    assert plan.rows == 1
    assert plan.count == 10


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        ((6,), (2, 3), (2, 3)),
        ((2, 3), -1, (6,)),
        ((2, 3), (3, -1), (3, 2)),
        ((0, 3), (3, 0), (3, 0)),
        ((), (1, 1), (1, 1)),
    ],
)
def test_reshape(shape, wanted, result):
    assert layout.reshaped(shape, wanted) == result


@pytest.mark.parametrize(
    ("shape", "wanted"), [((6,), (4,)), ((6,), (-1, -1)), ((6,), (4, -1)), ((6,), (-2, -3)), ((0,), (0, -1))]
)
def test_reshape_refuses(shape, wanted):
    with pytest.raises(ValueError, match="cannot be reshaped"):
        layout.reshaped(shape, wanted)

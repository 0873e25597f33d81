"""Streams and events: order, waiting, priorities, other libraries' streams."""

from __future__ import annotations

import numpy as np
import pytest
from core_fixtures import DEVICES, opened

from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import LEGACY_DEFAULT, PER_THREAD_DEFAULT, Event, Stream
from cudakit.errors import Closed, CudaError, DeviceMismatch
from cudakit.memory import array as memory
from cudakit.memory import makers


@pytest.fixture(params=DEVICES)
def context(request):
    with opened(request.param) as made:
        yield made


class Theirs:
    """A stream of another library, by the protocol."""

    def __init__(self, handle: int, version: int = 0) -> None:
        self.handle = handle
        self.version = version

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.version, self.handle


def test_priorities_are_clamped(context):
    least, greatest = context.stream_priorities()
    assert Stream(context).priority == least == 0
    assert Stream(context, greatest).priority == greatest
    assert Stream(context, priority=-100).priority == greatest


def test_streams_are_not_ordered_with_the_default_stream_unless_asked(context):
    flags = context.driver.CUstream_flags
    assert context.call("cuStreamGetFlags", Stream(context).handle) == int(flags.CU_STREAM_NON_BLOCKING)
    assert context.call("cuStreamGetFlags", Stream(context, blocking=True).handle) == int(flags.CU_STREAM_DEFAULT)


def test_work_is_done_once_waited_for(context):
    stream = Stream(context)
    assert stream.done
    array = makers.zeros(context, stream, (1 << 20,), np.int32)
    array.fill(5)
    stream.synchronize()
    assert stream.query()
    assert stream.done
    assert (array.numpy() == 5).all()


def test_polling_ends(context):
    stream = Stream(context)
    makers.zeros(context, stream, (1 << 20,)).fill(1.5)
    event = stream.record()
    for _ in range(10_000_000):
        if event.done:
            break
    assert event.query()
    for _ in range(10_000_000):
        if stream.done:
            break
    assert stream.query()


def test_an_event_orders_two_streams(context):
    first, second = Stream(context), Stream(context)
    source = makers.full(context, first, (1 << 16,), 3, np.int32)
    target = makers.zeros(context, second, (1 << 16,), np.int32)
    second.wait(first.record(timing=False))
    target.copy_from(source, second)
    assert (target.numpy(second) == 3).all()


def test_a_stream_waits_for_all_of_another(context):
    first, second = Stream(context), Stream(context)
    source = makers.full(context, first, (1 << 16,), 3, np.int32)
    target = makers.zeros(context, second, (1 << 16,), np.int32)
    second.wait(first)
    target.copy_from(source, second)
    assert (target.numpy() == 3).all()


def test_without_an_event_nothing_orders_them():
    """The simulated device takes the order that is least expected, so that a missing event shows."""
    with opened("sim", checks=()) as context:
        first, second = Stream(context), Stream(context)
        source = makers.full(context, first, (64,), 3, np.int32)
        target = makers.zeros(context, second, (64,), np.int32)
        target.copy_from(source, second)
        assert not (target.numpy() == 3).all()


def test_an_event_waits_and_knows(context):
    stream = Stream(context)
    event = Event(context)
    assert event.done, "never recorded: nothing to wait for"
    makers.zeros(context, stream, (1 << 20,)).fill(2)
    event.record(stream)
    event.synchronize()
    assert event.done


@pytest.mark.gpu
def test_elapsed_time():
    with opened("gpu") as context, Stream(context) as stream:
        array = memory.empty(context, stream, (1 << 26,), np.float32)
        start = stream.record()
        array.fill(1.5)
        middle = stream.record()
        for _ in range(9):
            array.fill(1.5)
        end = stream.record()
        end.synchronize()
        parts = middle.elapsed_since(start) + end.elapsed_since(middle)
        assert end.elapsed_since(start) == pytest.approx(parts, rel=1e-3)
        assert end.elapsed_since(start) > 0
        assert start.elapsed_since(start) == 0
        with pytest.raises(ValueError, match="timing"):
            stream.record(timing=False).elapsed_since(start)


def test_the_simulated_device_has_no_clock():
    with opened("sim") as context, Stream(context) as stream:
        start, end = stream.record(), stream.record()
        stream.synchronize()
        with pytest.raises(CudaError, match=r"no clock.*counters"):
            end.elapsed_since(start)
        context.synchronize()


def test_elapsed_time_of_work_that_is_not_done():
    with opened("sim") as context, Stream(context) as stream:
        start = stream.record()
        with pytest.raises(CudaError, match=r"NOT_READY.*synchronize"):
            stream.record().elapsed_since(start)


# Other libraries' ----------------------------------------------------------------------------------------------------


@pytest.fixture
def raw(context):
    """The handle of a stream that another library made."""
    handle = context.call("cuStreamCreateWithPriority", 1, 0)
    yield int(handle)
    context.call("cuStreamSynchronize", handle)
    context.call("cuStreamDestroy", handle)


def test_a_foreign_stream_is_used_and_left_alone(context, raw):
    theirs = Stream.of(context, Theirs(raw))
    assert theirs.__cuda_stream__() == (0, raw)
    assert theirs.foreign
    array = makers.zeros(context, theirs, (1000,), np.int32)
    array.fill(4, theirs)
    assert array.numpy(theirs).tolist() == [4] * 1000
    array.close()
    theirs.close()
    # Letting go of it leaves it alone: work queued on it still runs.
    assert makers.full(context, Stream.of(context, Theirs(raw)), (3,), 7).numpy().tolist() == [7, 7, 7]


def test_our_own_stream_comes_back_from_a_wrapper_as_itself(context):
    stream = Stream(context)
    assert stream.__cuda_stream__() == (0, int(stream))
    assert not stream.foreign
    wrapped = Theirs(int(stream))
    assert Stream.of(context, wrapped) is stream
    array = makers.zeros(context, Stream.of(context, wrapped), (1000,), np.int32)
    stream.close()
    assert array.numpy().tolist() == [0] * 1000, "an array outlives the closing of its stream"


def test_protocol_as_an_attribute(context):
    stream = Stream(context)

    class Attribute:
        __cuda_stream__ = (0, int(stream))

    assert int(Stream.of(context, Attribute())) == int(stream)


@pytest.mark.parametrize("handle", [0, LEGACY_DEFAULT, PER_THREAD_DEFAULT])
def test_default_streams_of_the_driver(context, handle):
    stream = Stream.of(context, Theirs(handle))
    array = makers.full(context, stream, (10,), 1.5)
    assert array.numpy().tolist() == [1.5] * 10


def test_a_foreign_stream_is_kept_alive(context, raw):
    theirs = Theirs(raw)
    assert Stream.of(context, theirs).owner is theirs


def test_what_is_no_stream(context):
    for wrong in (None, 7, "stream", object()):
        with pytest.raises(TypeError, match="__cuda_stream__"):
            Stream.of(context, wrong)
    with pytest.raises(TypeError, match="version 1"):
        Stream.of(context, Theirs(0, version=1))


def test_streams_of_another_device():
    with opened("sim") as context, opened("sim") as other:
        with pytest.raises(DeviceMismatch, match="a stream of"):
            Stream.of(context, Stream(other))
        with pytest.raises(DeviceMismatch, match="an event of"):
            Stream(context).wait(Stream(other).record())
        with pytest.raises(DeviceMismatch, match="an event of"):
            Event(context).record(Stream(other))


def test_events_order_streams_of_two_devices_of_one_driver():
    with opened("sim", devices=2) as first, Context(drivers.Opened(first.driver, 1, "sim", "sim:sm_90a:1")) as second:
        here, there = Stream(first), Stream(second)
        here.wait(there.record(timing=False))
        here.wait(there)
        here.synchronize()
        with pytest.raises(DeviceMismatch):
            Stream.of(first, there)


# The end --------------------------------------------------------------------------------------------------------------


def test_close(context):
    with Stream(context) as stream, stream.record() as event:
        pass
    stream.close()
    event.close()
    assert stream.closed
    for use in (stream.synchronize, stream.record, stream.__cuda_stream__, lambda: stream.priority):
        with pytest.raises(Closed, match=r"make another with the device's stream\(\)"):
            use()
    for use in (event.synchronize, event.query, lambda: Stream(context).wait(event)):
        with pytest.raises(Closed):
            use()


def test_closing_does_not_drop_queued_work(context):
    with Stream(context) as stream:
        array = makers.zeros(context, stream, (1 << 16,), np.int32)
        array.fill(9)
    # The stream is gone; its array goes on, in order after it, on the default stream.
    assert (array.numpy() == 9).all()
    assert array.copy().numpy().tolist() == array.numpy().tolist()


def test_an_array_may_be_freed_after_its_stream_was_closed():
    with opened("sim") as context:
        with Stream(context) as stream:
            array = makers.zeros(context, stream, (100,), np.int32)
            array.fill(1)
        array.close()
        context.synchronize()
        assert context.driver.simStats().allocations == 0


def test_nothing_is_left_of_dropped_streams_and_events():
    with opened("sim") as context:
        before = context.driver.simStats()
        for _ in range(10):
            stream = Stream(context)
            Stream(context).wait(stream.record())
            del stream
        context.synchronize()
        after = context.driver.simStats()
        assert (after.streams, after.events) == (before.streams, before.events)


def test_after_its_device_was_closed_the_device_is_what_was_closed():
    with opened("sim") as context:
        stream, event = Stream(context), Event(context)
    for use in (stream.synchronize, lambda: makers.zeros(context, stream, 3, "float32"), event.query, stream.record):
        with pytest.raises(Closed, match="sim:sm_90a was closed; open the device again"):
            use()


def test_what_is_no_stream_or_event_is_refused(context):
    with Stream(context) as stream, Event(context) as event:
        with pytest.raises(TypeError, match=r"record\(\) needs a Stream, got NoneType; pass a stream"):
            event.record(None)
        with pytest.raises(TypeError, match=r"wait\(\) needs an Event or a Stream, got NoneType; pass another stream"):
            stream.wait(None)

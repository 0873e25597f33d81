"""Reprs of arrays: values in numpy's format, or only the state if reading them would have to wait."""

from __future__ import annotations

import threading
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest

import cudakit

SOURCE = """
extern "C" __global__ void increment(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void overrun(float* x, int n) { x[n + threadIdx.x] = 1.0f; }
"""


def values(array: cudakit.DeviceArray) -> str:
    """Return the part of a repr between "DeviceArray(" and the shape."""
    shown = repr(array)
    assert shown.startswith("DeviceArray(")
    assert shown.endswith(")")
    assert f"shape={array.shape}, dtype={array.dtype}, device={array.context.spec!r}" in shown
    return shown.removeprefix("DeviceArray(").partition("shape=")[0].rstrip().removesuffix(",")


def numpys(host: np.ndarray) -> str:
    return np.array2string(host, separator=", ", prefix="DeviceArray(", suffix=",")


HOSTS = {
    "small": np.arange(12, dtype=np.float32).reshape(3, 4) / 3,
    "zero-dimensional": np.array(-7, np.int64),
    "no elements": np.empty((0, 3), np.float32),
    "bfloat16": np.array([1.5, -2, np.nan], ml_dtypes.bfloat16),
    "bool": np.array([True, False]),
    "complex": np.arange(6).astype(np.complex64) * (1 - 2j),
    "structured": np.zeros(2, [("a", "f4"), ("b", "i4", (2,))]),
    "long": np.arange(100_000, dtype=np.int32) - 50_000,
    "wide rows": np.arange(300_000, dtype=np.float64).reshape(3, 100_000) / 7,
    "three axes": np.arange(30 * 5 * 40, dtype=np.int16).reshape(30, 5, 40),
}


@pytest.mark.parametrize("name", HOSTS)
def test_values_are_shown_as_numpy_shows_them(device: cudakit.Device, name: str) -> None:
    host = HOSTS[name]
    array = device.array(host)
    device.synchronize()
    assert values(array) == numpys(host)
    assert str(array) == repr(array)


def test_views_are_shown_without_gaps(device: cudakit.Device) -> None:
    host = np.arange(200_000, dtype=np.int32).reshape(400, 500)
    array = device.array(host)
    device.synchronize()
    for key in ((slice(None, None, -7), slice(3, None, 2)), (5, slice(None, None, 90)), (slice(1, 4), slice(2, 5))):
        assert values(array[key]) == numpys(host[key])
    assert values(array.T) == numpys(host.T)


def test_numpys_printing_options_hold(device: cudakit.Device) -> None:
    host = np.arange(100, dtype=np.float32) / 3
    array = device.array(host)
    device.synchronize()
    with np.printoptions(threshold=10, edgeitems=2, precision=2):
        assert values(array) == numpys(host)
        assert values(array).count(",") == 4


def test_only_the_ends_of_a_huge_array_are_read(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    array = sim.zeros((1 << 12, 1 << 12))
    read = []
    peek = sim.context.driver.simPeek
    monkeypatch.setattr(
        sim.context.driver, "simPeek", lambda c, ranges, s: read.extend(ranges) or peek(c, ranges, s), raising=False
    )
    with np.printoptions(threshold=1 << 60, edgeitems=1 << 30):
        repr(array)
    assert read
    assert sum(size for _, size in read) <= 40_000
    assert len(read) <= 1024


def test_an_array_of_many_axes_is_cut_to_what_may_be_read(sim: cudakit.Device) -> None:
    array = sim.zeros((8,) * 7)
    assert len(repr(array)) < 50_000


def test_a_closed_array_shows_its_shape_and_state(device: cudakit.Device) -> None:
    array = device.zeros((3, 4))
    view = array[1]
    array.close()
    assert repr(view) == f"DeviceArray(shape=(4,), dtype=float32, device={device.context.spec!r}, closed)"


def test_an_array_of_a_closed_device_is_closed() -> None:
    with cudakit.Device("sim") as device:
        array = device.zeros(3)
        device.synchronize()
    assert repr(array).endswith("closed)")


def test_work_in_flight_is_neither_run_nor_waited_for(sim: cudakit.Device) -> None:
    array = sim.zeros(4)
    increment = sim.compile(source=SOURCE, name="repr.cu")["increment"]
    increment.launch(sim.default_stream, grid=1, block=4, args=(array,))
    pending = sim.context.driver.simStats().pending
    assert repr(array) == "DeviceArray(shape=(4,), dtype=float32, device='sim:sm_90a', work in flight)"
    assert sim.context.driver.simStats().pending == pending
    sim.synchronize()
    assert values(array) == "[1., 1., 1., 1.]"


def test_a_queued_copy_or_fill_is_shown_and_not_run(sim: cudakit.Device) -> None:
    array = sim.array(np.arange(6, dtype=np.float32))
    array[1:3].fill(9)
    array[::2].fill(0.5)
    pending = sim.context.driver.simStats().pending
    assert pending
    assert values(array) == "[0.5, 9. , 0.5, 3. , 0.5, 5. ]"
    assert sim.context.driver.simStats().pending == pending
    assert (array.numpy() == np.array([0.5, 9, 0.5, 3, 0.5, 5])).all()


def test_a_queued_copy_from_pinned_memory_is_work_in_flight(sim: cudakit.Device) -> None:
    pinned = sim.pinned(3)
    pinned[:] = 1
    array, other = sim.zeros(3), sim.zeros(3)
    array.copy_from(pinned)
    assert repr(array).endswith("work in flight)")
    assert values(other) == "[0., 0., 0.]"
    sim.synchronize()


def test_uninitialised_elements_are_question_marks_and_no_fault(sim: cudakit.Device) -> None:
    array = sim.empty(6)
    array[1:3].fill(-3.25)
    assert values(array) == "[    ?, -3.25, -3.25,     ?,     ?,     ?]"
    assert values(sim.empty((2000, 2)))[:8] == "[[?, ?],"
    assert values(sim.empty(())) == "?"
    sim.synchronize()
    assert not sim.context.driver.simReports()


def test_a_repr_hides_no_uninitialised_read(sim: cudakit.Device) -> None:
    array = sim.empty(4)
    increment = sim.compile(source=SOURCE, name="repr.cu")["increment"]
    repr(array)
    increment.launch(sim.default_stream, grid=1, block=4, args=(array,))
    repr(array)
    with pytest.raises(cudakit.DeviceFault, match="uninitialised"):
        sim.synchronize()
    assert repr(array).endswith("device lost)")


def test_a_fault_that_no_call_has_raised_is_left_to_the_next_call(sim: cudakit.Device) -> None:
    array = sim.zeros(4)
    sim.compile(source=SOURCE, name="repr.cu")["overrun"].launch(sim.default_stream, 1, 1, args=(array, 4))
    assert repr(array).endswith("work in flight)")
    assert not sim.default_stream.query()
    assert repr(array).endswith(")")
    with pytest.raises(cudakit.DeviceFault, match="out-of-bounds access"):
        sim.synchronize()


def test_a_repr_within_a_capture_does_not_break_it(device: cudakit.Device) -> None:
    array, other = device.zeros(4), device.zeros(4)
    increment = device.compile(source=SOURCE, name="repr.cu")["increment"]
    device.synchronize()
    with device.stream() as stream:
        with stream.capture() as graph:
            increment.launch(stream, grid=1, block=4, args=(array,))
            assert repr(array).endswith("being captured)")
            assert values(other) == "[0., 0., 0., 0.]"
            repr(stream), repr(graph), repr(increment)
        graph.instantiate().launch(stream)
        stream.synchronize()
    device.synchronize()
    assert values(array) == "[1., 1., 1., 1.]"


def test_a_repr_in_another_thread_does_not_wait_for_a_running_kernel(sim: cudakit.Device) -> None:
    """The simulated driver's lock is held while a kernel runs: a debugger's repr must not hang on it."""
    array = sim.zeros(4)
    with sim.context.driver._lock.raw:
        shown: list[str] = []
        thread = threading.Thread(target=lambda: shown.append(repr(array)))
        thread.start()
        thread.join(timeout=20)
    assert shown
    assert shown[0].endswith("work in flight)")


def test_a_repr_never_raises(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("numpy failed")

    array = sim.zeros(4)
    monkeypatch.setattr(np, "array2string", broken)
    assert "DeviceArray object" in repr(array)
    assert "DeviceArray object" in array._repr_html_()


def test_html_is_valid_and_escaped(sim: cudakit.Device) -> None:
    array = sim.array(np.zeros(2, [("<b>", "f4")]))
    for shown in (array._repr_html_(), sim.empty((2, 2))._repr_html_()):
        ElementTree.fromstring(f"<div>{shown}</div>")
    assert "<b>'" not in array._repr_html_()
    assert "&lt;b&gt;" in array._repr_html_()
    array.close()
    assert "closed" in array._repr_html_()
    assert "<pre>" not in array._repr_html_()


def test_errors_name_an_array_without_its_values(sim: cudakit.Device) -> None:
    array = sim.zeros(3)
    array.close()
    with pytest.raises(cudakit.Closed, match=r"\(shape=\(3,\), dtype=float32, device='sim:sm_90a', closed\)"):
        array.numpy()

"""`cudakit.debugger.writes` and `cudakit.debugger.who`: histories of writes as text and data, and by name."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest

import cudakit
from cudakit.debugger.who import Expression, watch_parameter
from cudakit.debugger.writes import trace_writes

SOURCE = """\
__global__ void smooth(const float* in, float* out, int w) {
    int x = threadIdx.x, y = blockIdx.x;
    int right = x + 1 < w ? x + 1 : x;
    float sum = in[y * w + x] + in[right];  // the row is missing
    out[y * w + x] = 0.5f * sum;
}
__global__ void clear(float* data) { data[threadIdx.x + blockDim.x * blockIdx.x] = 0; }
"""


@pytest.fixture
def module(sim):
    return sim.compile(source=SOURCE, name="smooth.cu")


@pytest.fixture
def field(sim):
    return sim.array(np.arange(32, dtype=np.float32).reshape(4, 8))


def launch(module, name, *args):
    module[name].launch(cudakit.Device.of(module.context).default_stream, grid=4, block=8, args=args)


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def test_the_text_of_a_history_names_the_values_of_a_wrong_result(sim, module, field):
    out = sim.zeros((4, 8))
    with trace_writes(out, (2, 3), reads=True, name="out") as history:
        launch(module, "smooth", field, out, 8)
    here, made = __file__, line(test_the_text_of_a_history_names_the_values_of_a_wrong_result, 1)
    assert str(history).splitlines() == [
        "2 writes to out[2, 3] (float32, shape (4, 8))",
        "write 1, fill: out[2, 3] = 0.0 (was uninitialised)",
        "  host call cuMemsetD32Async",
        f"  at {here}:{made}",
        "      out = sim.zeros((4, 8))",
        "write 2, kernel store: out[2, 3] = 11.5 (was 0.0)",
        "  kernel smooth, block (2, 0, 0), thread (3, 0, 0)",
        f"  launch 1, at {here}:{line(launch, 1)}",
        "  at smooth.cu:5",
        "      out[y * w + x] = 0.5f * sum;",
        "  computed from",
        "    in[2, 3] = 19.0, at smooth.cu:4",
        "    in[0, 4] = 4.0, at smooth.cu:4",
    ]
    assert repr(history) == "WriteHistory(out, 2 writes)"


def test_a_history_as_data_is_json(sim, module, field):
    out = sim.zeros((4, 8))
    history = trace_writes(out, (-1, slice(5, 7)), reads=True)
    launch(module, "smooth", field, out, 8)
    data = json.loads(json.dumps(history.end().as_dict()))
    assert data["array"] == {"name": "array", "shape": [4, 8], "dtype": "float32"}
    assert [(w["kind"], w["index"], w["after"]) for w in data["writes"]] == [
        ("fill", [3, 5], 0), ("fill", [3, 6], 0), ("kernel store", [3, 5], 17.5), ("kernel store", [3, 6], 18.5),
    ]  # fmt: skip
    assert [r["name"] for r in data["writes"][2]["reads"]] == ["in[3, 5]", "in[0, 6]"]


def test_all_elements_of_a_view_and_of_a_large_array_are_traced_without_an_index(sim, module):
    data = sim.zeros(5000)
    sim.synchronize()
    with trace_writes(data[24:40:2]) as history:
        launch(module, "clear", data[:32])
    assert [w.index for w in history.writes] == [(i,) for i in range(4)]
    assert [w.thread[0] + 8 * w.block[0] for w in history.writes] == [24, 26, 28, 30]


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        ((4, 0), IndexError, "index 4 is out of bounds for axis 0, which has 4 elements"),
        ((0, 0, 0), IndexError, "3"),
        (1.5, TypeError, "1.5"),
        (slice(3, 3), IndexError, "selects no elements"),
    ],
)
def test_a_wrong_index_is_refused(field, index, error, text):
    with pytest.raises(error, match=text):
        trace_writes(field, index)


def test_arrays_that_cannot_be_traced_are_refused_with_advice(sim, monkeypatch):
    with pytest.raises(TypeError, match=r"got numpy.ndarray: copy it with Device\('sim'\).array\(x\)"):
        trace_writes(np.zeros(3))
    large = sim.zeros((50, 50))
    with pytest.raises(ValueError, match=r"has 2500 elements, but the values .* at most 1024: pass the index"):
        trace_writes(large, reads=True)
    with pytest.raises(IndexError, match=r"\[:, 0:40\] selects 2000 elements; at most 1024"):
        trace_writes(large, (slice(None), slice(0, 40)))
    with pytest.raises(ValueError, match="no elements"):
        trace_writes(sim.zeros((0, 3)))
    monkeypatch.setattr(sim.context, "kind", "gpu")
    with pytest.raises(cudakit.CudakitError, match="only on the simulated device"):
        trace_writes(large)
    monkeypatch.undo()
    large.close()
    with pytest.raises(cudakit.errors.Closed):
        trace_writes(large)


def test_nothing_is_recorded_after_the_end_and_the_driver_forgets_the_history(sim, module):
    data, driver = sim.zeros(32), sim.context.driver
    with trace_writes(data, 3, reads=True) as history:
        launch(module, "clear", data)
    launch(module, "clear", data)
    sim.synchronize()
    assert [w.kind for w in history.end().writes] == ["fill", "kernel store"]
    assert not (driver._watches)
    assert not (driver._probes)
    assert not (driver._listeners)


# ---- by name ----


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("out[12,7]", (12, 7)),
        (" out [ -1 ] ", (-1,)),
        ("out[3, 4:6]", (3, slice(4, 6))),
        ("out[::2,...]", (slice(None, None, 2), Ellipsis)),
        ("out", ()),
    ],
)
def test_expressions(text, index):
    assert Expression.parse(text) == Expression("out", index)
    assert Expression.parse(str(Expression.parse(text))) == Expression("out", index)


@pytest.mark.parametrize("text", ["", "out[", "out[x]", "out[]", "out[1][2]", "out.a", "2", "f(out)", "out[1.5]"])
def test_other_expressions_are_refused(text):
    with pytest.raises(ValueError, match=r"write the name of a kernel's parameter or of a variable, .* out\[12, 7\]"):
        Expression.parse(text)


def test_a_slice_with_step_0_is_refused_before_a_launch():
    with pytest.raises(ValueError, match=r"'out\[3, ::0\]' has a slice with step 0, which selects no elements"):
        Expression.parse("out[3, ::0]")


def run_script(device, field):
    module = device.compile(source=SOURCE, name="smooth.cu")
    other = device.zeros((4, 8))
    launch(module, "clear", other)
    device.synchronize()
    for source, result in ((field, other), (other, device.empty((4, 8)))):
        launch(module, "smooth", source, result, 8)


def test_a_parameter_is_watched_from_its_first_launch(sim, field):
    with watch_parameter("out[2, 3]", sim) as who:
        run_script(sim, field)
    first, second = who.histories
    assert [(w.kind, w.before, w.after) for w in first.writes] == [("fill", None, None), ("kernel store", 0, 11.5)]
    note, freed = first.all_notes()
    assert freed.startswith("the memory was freed at")
    assert note.startswith(f"kernel clear, launched at {__file__}:")
    assert note.endswith("before the history began with a pointer to this memory: its writes are not recorded")
    [store] = second.writes
    assert (store.launch, store.reads[0].name, store.reads[0].value) == (2, "in[2, 3]", 11.5)
    assert str(who).count("writes to out[2, 3] (float32, shape (4, 8))") == 1
    assert len(json.loads(json.dumps(who.as_dict()))["histories"]) == 2


def test_the_value_of_the_last_copy_before_the_first_launch_is_known(sim, module, field):
    with watch_parameter("in[1,1]", sim) as who:
        field.fill(3)
        field.copy_from(np.full((4, 8), 7, np.float32))
        sim.synchronize()
        launch(module, "smooth", field, sim.empty((4, 8)), 8)
    assert [(w.kind, w.after) for w in who.histories[0].writes] == [
        ("copy from host", None), ("fill", None), ("copy from host", 7),
    ]  # fmt: skip
    assert who.histories[0].all_notes() == []


def test_a_variable_of_the_script_and_devices_that_are_opened_later(field):
    with watch_parameter("mine[2,3]", reads=False) as who, cudakit.Device("sim", fresh=True) as device:
        mine = device.zeros((4, 8))
        launch(device.compile(source=SOURCE, name="smooth.cu"), "smooth", device.array(field.numpy()), mine, 8)
        device.synchronize()
    assert [w.after for w in who.histories[0].writes] == [0, 11.5]
    assert "freed" in who.histories[0].all_notes()[0]


def test_the_array_with_as_many_axes_as_the_index_is_chosen(sim, module, field):
    with watch_parameter("out[19]", sim) as who:
        out = sim.empty((4, 8))
        flat = out.reshape(32)
        launch(module, "smooth", field, out, 8)
    assert [w.index for w in who.histories[0].writes] == [(19,)]
    assert flat.shape == (32,)


def test_memory_without_a_known_array_is_one_row_of_the_parameters_type(sim, module, field):
    large = sim.empty(100)
    with watch_parameter("out[19]", sim) as who:
        launch(module, "smooth", field, ctypes.c_void_p(large.pointer + 40), 8)
    assert [(w.index, w.after) for w in who.histories[0].writes] == [((19,), 11.5)]


def test_stores_to_pinned_memory(sim, module, field):
    pinned = sim.pinned((4, 8), np.float32)
    pinned[:] = 1
    with watch_parameter("out[2,3]", sim) as who, trace_writes(pinned, (2, 3)) as history:
        launch(module, "smooth", field, pinned, 8)
        sim.synchronize()
        pinned[:] = 2
        launch(module, "smooth", field, pinned, 8)
    stores = [("kernel store", 1, 11.5), ("kernel store", 2, 11.5)]
    assert [(w.kind, w.before, w.after) for w in history.writes] == stores
    assert who.histories[0].writes[0].reads[0].name == "in[2, 3]"


def test_names_and_indices_that_fit_no_launch_have_a_note(sim, module, field):
    with watch_parameter("output[0]", sim) as who:
        launch(module, "smooth", field, sim.empty((4, 8)), 8)
    assert str(who) == "no launch had a parameter or variable named output, so no writes were recorded"
    with watch_parameter("out[9, 9]", sim) as who:
        launch(module, "smooth", field, sim.empty((4, 8)), 8)
    assert who.notes[0].startswith("parameter out of kernel smooth has shape (4, 8): index 9 is out of bounds")
    assert str(who) == f"note: {who.notes[0]}"


def test_a_fault_ends_the_block_with_the_history_until_then(sim, module, field):
    who = None
    out = sim.zeros((4, 8))

    def fail():
        nonlocal who
        with watch_parameter("out[2,3]", sim) as who:
            launch(module, "smooth", field, out, 8)
            launch(module, "smooth", field, out, 1000)
            sim.synchronize()

    with pytest.raises(cudakit.DeviceFault):
        fail()
    assert [w.kind for w in who.histories[0].writes][:2] == ["fill", "kernel store"]
    assert not sim.context.driver._watches

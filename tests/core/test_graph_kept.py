"""Lifetime of objects that a graph uses, and explicit closing."""

from __future__ import annotations

import ctypes
import gc
import weakref

import numpy as np
import pytest
from graph_work import BLOCK, GRID, N, add, module, numbers, scale

import cudakit
from cudakit.errors import Closed, GraphError


def test_a_graph_keeps_its_arrays_and_pinned_memory(sim):
    stats = sim.context.driver.simStats
    with sim.stream() as s:
        before = stats()
        x, y = sim.array(numbers(), stream=s), sim.empty((N,), stream=s)
        source, target = sim.pinned((N,)), sim.pinned((N,))
        address = target.ctypes.data
        source[:] = numbers(1)
        unused = sim.empty((N,), stream=s)
        with s.capture() as graph:
            x.copy_from(source, s)
            scale(sim, s, x[::1], y, 2.0)
            y.copy_to(target, s)
        del x, y, source, target, unused
        gc.collect()
        s.synchronize()
        assert stats().allocations == before.allocations + 2
        assert stats().pinned == before.pinned + 2
        ready = graph.instantiate()
        ready.launch(s)
        graph.close()
        del graph
        gc.collect()
        ready.launch(s)
        s.synchronize()
        view = np.frombuffer((np.ctypeslib.ctypes.c_char * (4 * N)).from_address(address), np.float32)
        assert np.array_equal(view, 2 * numbers(1))
        ready.launch(s)
        ready.close()
        del ready
        gc.collect()
        assert stats().pinned == before.pinned + 2, "the launch is queued, and writes to it still"
        s.synchronize()
        assert (stats().allocations, stats().pinned) == (before.allocations, before.pinned)
    assert sim.context.driver.simUnseenReports(sim.context.handle) == []


def test_arrays_are_freed_after_launches_on_every_stream(sim):
    """Otherwise the simulated device reports memory freed while another stream uses it."""
    with sim.stream() as s, sim.stream() as t:
        x, y = sim.array(numbers(), stream=s), sim.empty((N,), stream=s)
        result = sim.pinned((N,))
        with s.capture() as graph:
            scale(sim, s, x, y, 2.0)
            y.copy_to(result, s)
        ready = graph.instantiate()
        t.wait(s)
        ready.launch(t)
        late = sim.array(numbers(7), stream=s)
        t.wait(s)
        ready.update("scale", args=(late, y, 2.0, N))
        ready.launch(t)
        del ready, graph, late
        gc.collect()
        del x, y
        s.synchronize()
        t.synchronize()
        assert np.array_equal(result, 2 * numbers(7))


def test_a_graph_keeps_the_pinned_memory_and_the_variables_that_kernels_are_given(sim):
    stats = sim.context.driver.simStats
    text = 'extern "C" __global__ void nothing() {} __device__ float table[300];'
    with sim.stream() as s:
        y = sim.empty((N,), stream=s)
        pinned = sim.pinned((N,))
        pinned[:] = numbers()
        theirs = sim.load(sim.compile(source=text, name="table.cu", names=("&table",)).ptx)
        table = theirs.variable("table", dtype="float32", stream=s)
        table.copy_from(numbers(1), s)
        before = stats()
        with s.capture() as graph:
            scale(sim, s, pinned, y, 2.0)
            add(sim, s, table, y)
        del pinned, table, theirs
        gc.collect()
        assert (stats().pinned, stats().modules) == (before.pinned, before.modules + 1)
        with graph, graph.instantiate() as ready:
            ready.launch(s)
            assert np.array_equal(y.numpy(s), 2 * numbers() + numbers(1))
        del graph, ready
        gc.collect()
        s.synchronize()
        gc.collect()
        assert (stats().pinned, stats().modules) == (before.pinned - 1, before.modules)


def test_a_graph_keeps_what_a_librarys_stand_in_works_on(sim):
    driver = sim.context.driver
    with sim.stream() as s:
        x, y = sim.array(numbers(), stream=s), sim.zeros((N,), stream=s)
        rows = [(array.pointer, array.nbytes, 1, array.nbytes) for array in (x, y)]

        def double():
            source, target = (driver.simHostView(*row[:2], define=False).view(np.float32) for row in rows)
            target += 2 * source

        with s.capture() as graph:
            code = driver.simLaunchHost(s.handle, double, "double", reads=rows, writes=rows[1:])
        assert int(code[0]) == 0
        assert [(node.kind, len(node.kept)) for node in graph.nodes] == [("host", 2)]
        del x
        gc.collect()
        with graph, graph.instantiate() as ready:
            ready.launch(s)
            ready.launch(s)
            assert np.array_equal(y.numpy(s), 4 * numbers())
        y.close()


class Theirs:
    """Another library's kernel, which cudakit knows only by the driver's function, and the failed questions about it.

    counted: whether the driver reports the number of parameters, as since CUDA 13.2. seen: the number of parameters
    that it describes; None for all.
    """

    def __init__(self, sim, patch, *, counted):
        self.context, driver = sim.context, sim.context.driver
        code = module(sim)
        self.image = self.context.call("cuModuleLoadData", code.ptx.encode() + b"\0")
        self.function = self.context.call("cuModuleGetFunction", self.image, code["scale"].mangled.encode())
        self.failed, self.seen = 0, None
        describe = driver.cuFuncGetParamInfo

        def described(function, index):
            answer = describe(function, index if self.seen is None or index < self.seen else 99)
            self.failed += bool(answer[0])
            return answer

        patch.setattr(driver, "cuFuncGetParamInfo", described)
        success = driver.CUresult.CUDA_SUCCESS
        if counted:
            patch.setattr(driver, "cuFuncGetParamCount", lambda function: (success, 4), raising=False)

    def launch(self, stream, x, y):
        args = (x.pointer, y.pointer, 2.0, N), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int)
        self.context.call("cuLaunchKernel", self.function, GRID, 1, 1, BLOCK, 1, 1, 0, stream.handle, args, 0)

    def close(self):
        self.context.call("cuModuleUnload", self.image)


def kept_by_nodes(graph):
    """Return the addresses of the arrays that each node keeps."""
    return [[owner.span[0] for owner in node.kept] for node in graph.nodes]


@pytest.mark.parametrize("counted", [False, True])
def test_a_graph_keeps_the_arrays_of_another_librarys_kernel(sim, monkeypatch, counted):
    """compute-sanitizer reports each failed call: at most one per function, none since CUDA 13.2."""
    theirs = Theirs(sim, monkeypatch, counted=counted)
    with sim.stream() as s:
        y = sim.zeros((N,), stream=s)
        for seed in range(3):
            x, middle = sim.array(numbers(seed), stream=s), sim.empty((N,), stream=s)
            with s.capture() as graph:
                theirs.launch(s, x, middle)
                theirs.launch(s, middle, y)
            assert kept_by_nodes(graph) == [[x.pointer, middle.pointer], [middle.pointer, y.pointer]]
            del x, middle
            gc.collect()
            with graph, graph.instantiate() as ready:
                ready.launch(s)
                assert np.array_equal(y.numpy(s), 4 * numbers(seed))
    assert theirs.failed == (0 if counted else 1)
    theirs.close()


def test_a_function_that_has_taken_the_handle_of_another_is_asked_again(sim, monkeypatch):
    theirs = Theirs(sim, monkeypatch, counted=False)
    with sim.stream() as s:
        x, y = sim.zeros((N,), stream=s), sim.zeros((N,), stream=s)
        for seen, kept in ((None, [x, y]), (1, [x]), (1, [x])):
            theirs.seen = seen
            with s.capture() as graph:
                theirs.launch(s, x, y)
            assert kept_by_nodes(graph) == [[array.pointer for array in kept]]
            graph.close()
    theirs.close()


def test_a_graph_keeps_host_memory_that_somebody_else_pinned(sim):
    with sim.stream() as s:
        x, host = sim.empty((N,), stream=s), numbers()
        sim.context.call("cuMemHostRegister", host.ctypes.data, host.nbytes, 0)
        address, alive = host.ctypes.data, weakref.ref(host)
        with s.capture() as graph:
            x.copy_from(host, s)
        del host
        s.synchronize()
        gc.collect()
        assert alive() is not None
        with graph, graph.instantiate() as ready:
            ready.launch(s)
            assert np.array_equal(x.numpy(s), numbers())
        sim.context.call("cuMemHostUnregister", address)
        del graph, ready
        s.synchronize()
        gc.collect()
        assert alive() is None


def test_what_is_dropped_during_the_capture_is_kept_if_the_graph_names_it(sim):
    stats = sim.context.driver.simStats
    with sim.stream() as s:
        y = sim.zeros((N,), stream=s)
        temporary, unrelated = sim.array(numbers(), stream=s), sim.zeros((N,), stream=s)
        closed = sim.array(numbers(3), stream=s)
        s.synchronize()
        assert stats().allocations == 4
        with s.capture() as graph:
            scale(sim, s, temporary, y, 2.0)
            add(sim, s, closed, y)
            del temporary, unrelated
            closed.close()
            gc.collect()
        s.synchronize()
        assert stats().allocations == 3
        with graph, graph.instantiate() as ready:
            ready.launch(s)
            assert np.array_equal(y.numpy(s), 2 * numbers() + numbers(3))
        del ready, graph
        gc.collect()
        s.synchronize()
        assert stats().allocations == 1


def test_updated_arguments_are_kept_and_those_before_let_go_of(sim):
    stats = sim.context.driver.simStats
    with sim.stream() as s:
        x, y = sim.array(numbers(), stream=s), sim.empty((N,), stream=s)
        with s.capture() as graph:
            scale(sim, s, x, y, 2.0)
        ready = graph.instantiate()
        other = sim.array(numbers(5), stream=s)
        ready.launch(s)
        ready.update("scale", args=(other, y, 2.0, N))
        graph.close()
        del other, x
        gc.collect()
        s.synchronize()
        ready.launch(s)
        assert np.array_equal(y.numpy(s), 2 * numbers(5))
        with pytest.raises(Closed):
            ready.update("scale", args=(y, y, 1.0, N))
    assert stats().allocations >= 2


def test_an_array_or_module_closed_by_hand_is_an_error_at_the_launch(device, work):
    s, x = work.stream, work.x
    y, spare = device.zeros((N,), stream=s), device.zeros((N,), stream=s)
    own = device.load(module(device).cubin if device.kind == "gpu" else module(device).ptx, name="own")
    kernel = own["add"]
    with s.capture() as graph:
        scale(device, s, x, y, 2.0)
        kernel.launch(s, GRID, BLOCK, args=(x, y, N))
    ready = graph.instantiate()
    ready.launch(s)
    s.synchronize()
    spare.close()  # another device's does not matter
    ready.launch(s)
    y.close()
    for _ in range(2):
        with pytest.raises(GraphError, match="array that node 0: kernel scale"):
            ready.launch(s)
    z = work.z
    ready.update("scale", args=(x, z, 2.0, N))
    with pytest.raises(GraphError, match="array that node 1: kernel add"):
        ready.launch(s)
    ready.update("add", args=(x, z, N))
    ready.launch(s)
    assert np.allclose(z.numpy(s), 3 * work.host, rtol=1e-6)
    own.close()
    with pytest.raises(GraphError, match="was closed; capture again"):
        ready.launch(s)


def test_what_is_closed_says_so(sim):
    s = sim.stream()
    x = sim.zeros((N,), stream=s)
    with s.capture() as graph:
        scale(sim, s, x, x, 2.0)
    ready = graph.instantiate()
    spare = graph.instantiate()
    graph.close()
    graph.close()
    assert graph.closed
    with pytest.raises(Closed):
        graph.instantiate()
    ready.launch(s)
    ready.close()
    ready.close()
    for act in (lambda: ready.launch(s), lambda: ready.update(0, grid=1)):
        with pytest.raises(Closed):
            act()
    spare.launch(s)
    sim.close()
    with pytest.raises(Closed):
        spare.launch(s)


def test_graphs_that_are_left_are_leaks():
    with cudakit.Device("sim", fresh=True) as sim:
        s = sim.stream()
        x = sim.zeros((N,), stream=s)
        with s.capture() as graph:
            scale(sim, s, x, x, 2.0)
        with pytest.warns(cudakit.LeakWarning, match="graph, made at"):
            sim.close()
    assert graph.closed

"""Graphs: replays, properties of nodes, and the simulated device's checks of replays."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest
from graph_work import BLOCK, GRID, N, add, module, numbers, scale
from hypothesis import given
from hypothesis import strategies as st

from cudakit.errors import CudaError, GraphError

# Replays --------------------------------------------------------------------------------------------------------------


def test_nothing_runs_while_a_stream_is_captured_and_each_launch_runs_all_of_it(device, work):
    s, x, y, pinned = work.stream, work.x, work.y, device.pinned((N,))
    pinned[:] = -1
    with s.capture() as graph:
        scale(device, s, x, y, 2.0)
        add(device, s, x, y)
        y.copy_to(pinned, s)
    s.synchronize()
    assert (y.numpy(s) == 0).all()
    assert (pinned == -1).all()
    ready = graph.instantiate()
    for seed in range(3):
        host = numbers(seed)
        x.copy_from(host, s)
        ready.launch(s)
        s.synchronize()
        assert np.array_equal(pinned, 2 * host + host)


# An operation has a name and two arrays; after "fork", operations run on another stream.
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["scale", "add", "fill", "copy", "down", "up", "fork"]), *2 * [st.integers(0, 2)]),
    min_size=1,
    max_size=8,
)


def run_operations(device, stream, other, arrays, staging, operations):
    on, forked = stream, False
    for name, a, b in operations:
        if name == "fork":
            # later work on the other stream waits for all earlier work, so that results are deterministic
            now, then = (stream, other) if on is other else (other, stream)
            now.wait(then)
            on, forked = now, True
        elif name == "scale":
            scale(device, on, arrays[a], arrays[b], 0.5)
        elif name == "add":
            add(device, on, arrays[a], arrays[b])
        elif name == "fill":
            arrays[a].fill(0.1 + b, on)
        elif name == "copy":
            arrays[a].copy_from(arrays[b], on)
        elif name == "down":
            arrays[a].copy_to(staging[b], on)
        else:
            arrays[a].copy_from(staging[b], on)
    if forked and on is other:
        stream.wait(other)


@given(operations=OPERATIONS, replays=st.integers(1, 3))
def test_a_replay_is_what_was_queued(device, operations, replays):
    """The same operations, queued directly and replayed equally often, produce the same bytes."""
    results = []
    for captured in (False, True):
        with device.stream() as stream, device.stream() as other:
            arrays = [device.array(numbers(seed), stream=stream) for seed in range(3)]
            staging = [device.pinned((N,)) for _ in range(3)]
            for seed, pinned in enumerate(staging):
                pinned[:] = numbers(10 + seed)
            stream.synchronize()
            if captured:
                with stream.capture() as graph:
                    scale(device, stream, arrays[0], arrays[1], 1.0)
                    run_operations(device, stream, other, arrays, staging, operations)
                with graph, graph.instantiate() as ready:
                    for _ in range(replays):
                        ready.launch(stream)
                    stream.synchronize()
            else:
                for _ in range(replays):
                    scale(device, stream, arrays[0], arrays[1], 1.0)
                    run_operations(device, stream, other, arrays, staging, operations)
                stream.synchronize()
            results.append([array.numpy(stream) for array in arrays] + [pinned.copy() for pinned in staging])
    for queued, replayed in zip(*results, strict=True):
        assert np.array_equal(queued, replayed)


def test_nodes_say_what_they_are_and_what_they_wait_for(device, work):
    s, t, x, y, z = work.stream, work.other, work.x, work.y, work.z
    pinned = device.pinned((N,))
    with s.capture() as graph:
        with pytest.raises(GraphError, match="still being captured"):
            _ = graph.nodes
        scale(device, s, x, y, 2.0)
        t.wait(s)
        scale(device, t, x, z, 3.0)
        y.fill(1.5, s)
        s.wait(t)
        module(device)["block_sum"].launch(s, (2, 1), (BLOCK, 1), shared=4 * BLOCK, args=(z, y, N))
        y[:4].copy_to(pinned[:4], s)
    first, *between, last, copy = graph.nodes
    assert [node.kind for node in (first, last, copy)] == ["kernel", "kernel", "memcpy"]
    assert sorted(node.kind for node in between) == ["kernel", "memset"]
    assert {node.name for node in (first, *between)} == {"scale", "fill"}
    assert (last.name, last.grid, last.block, last.shared) == ("block_sum", (2, 1, 1), (BLOCK, 1, 1), 4 * BLOCK)
    assert first.kernel is module(device)["scale"]
    assert [node.index for node in graph.nodes] == list(range(5))
    assert [node.after for node in graph.nodes] == [(), (0,), (0,), (1, 2), (3,)]
    assert {node.nbytes for node in between} == {0, 4 * N}
    assert (copy.name, copy.nbytes) == ("copy device to host", 16)
    assert "block_sum" in str(last)
    with graph.instantiate() as ready:
        ready.launch(s)
        s.synchronize()
    assert pinned[0] == pytest.approx(3 * float(work.host[:BLOCK].sum(dtype=np.float64)), rel=1e-4)


def test_branches_of_a_graph_may_run_at_once_and_join(device, work):
    """Each branch works on its own, and what is after the join sees all of them; launch after launch."""
    s, t, x, y, z = work.stream, work.other, work.x, work.y, work.z
    with s.capture() as graph:
        t.wait(s)
        for _ in range(3):
            add(device, s, x, y)
            add(device, t, x, z)
        s.wait(t)
        add(device, s, z, y)
    ready = graph.instantiate()
    for _ in range(4):
        ready.launch(s)
    exact, y_, z_ = work.host, np.zeros(N, np.float32), np.zeros(N, np.float32)
    for _ in range(4):
        for _ in range(3):
            y_, z_ = y_ + exact, z_ + exact
        y_ = y_ + z_
    assert np.array_equal(y.numpy(s), y_)
    assert np.array_equal(z.numpy(s), z_)


def test_fills_that_take_a_block_of_the_host_are_captured_otherwise(device, work):
    """float64's 0.1 is not a repeated word; outside a capture it is copied from temporary host memory."""
    s = work.stream
    y = device.zeros((N,), "float64", stream=s)
    with s.capture() as graph:
        y.fill(0.1, s)
    with graph.instantiate() as ready:
        ready.launch(s)
        assert (y.numpy(s) == 0.1).all()


def test_prepared_cooperative_and_library_launches_are_captured(device, work):
    s, x, y, z = work.stream, work.x, work.y, work.z
    prepared = module(device)["scale"].prepare(grid=GRID, block=BLOCK, args=(x, y, 4.0, N))
    prepared.launch(s)
    s.synchronize()
    y.fill(0, s)
    with s.capture() as graph:
        prepared.launch(s)
        module(device)["add"].launch(s, GRID, BLOCK, args=(y, z, N), cooperative=True)
    assert [node.name for node in graph.nodes] == ["scale", "add"]
    with graph.instantiate() as ready:
        ready.launch(s)
        ready.launch(s)
        assert np.array_equal(z.numpy(s), 2 * (4 * work.host))


def test_products_of_a_library_are_captured(device):
    if device.kind == "gpu":
        pytest.importorskip("nvmath.bindings.cublas", reason="the libs extra is not installed", exc_type=ImportError)
    from cudakit.libs import blas

    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    with device.stream() as s:
        a, b, c = device.array(left, stream=s), device.array(right, stream=s), device.empty((16, 16), stream=s)
        blas.gemm(a, b, c, stream=s)  # a library allocates its workspace at its first use
        c.fill(0, s)
        s.synchronize()
        with s.capture() as graph:
            blas.gemm(a, b, c, stream=s)
            blas.gemm(c, b, a, stream=s)
        del b
        gc.collect()
        with graph, graph.instantiate() as ready:
            ready.launch(s)
            assert np.allclose(c.numpy(s), left @ right, atol=1e-4)
            assert np.allclose(a.numpy(s), left @ right @ right, atol=1e-3)


def test_one_executable_does_not_overlap_itself_on_two_streams(device, work):
    """The driver orders its launches, so there is no race, and no report of one."""
    s, t, x, y = work.stream, work.other, work.x, work.y
    with s.capture() as graph:
        add(device, s, x, y)
    with graph.instantiate() as ready:
        for stream in (s, t, s, t):
            ready.launch(stream)
        t.synchronize()
        s.synchronize()
        assert np.allclose(y.numpy(s), 4 * work.host, rtol=1e-6)


def test_threads_capture_at_once(device):
    """Each on its own stream; arrays that one thread drops do not affect the others."""
    results, begin = {}, threading.Barrier(4)

    def run(seed):
        with device.stream() as s:
            begin.wait()
            for turn in range(5):
                x, y = device.array(numbers(seed), stream=s), device.zeros((N,), stream=s)
                with s.capture() as graph:
                    scale(device, s, x, y, float(turn))
                    add(device, s, x, y)
                    del x
                with graph, graph.instantiate() as ready:
                    ready.launch(s)
                    ready.launch(s)
                    results[seed, turn] = y.numpy(s)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    for (seed, turn), result in results.items():
        assert np.allclose(result, (turn + 1) * numbers(seed), rtol=1e-6)


def test_the_default_stream_is_captured_as_any_other(device, work):
    with device.capture() as graph:
        scale(device, device.default_stream, work.x, work.y, 2.0)
    with graph.instantiate() as ready:
        ready.launch(device.default_stream)
        device.default_stream.synchronize()
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


# The simulated device's checks ----------------------------------------------------------------------------------------


def report_of(stream):
    with pytest.raises(CudaError) as caught:
        stream.synchronize()
    return caught.value.report


def test_a_race_with_a_graph_is_found_and_names_the_captured_line(sim):
    with sim.stream() as s, sim.stream() as t:
        x, y = sim.zeros((N,), stream=s), sim.zeros((N,), stream=s)
        with s.capture() as graph:
            scale(sim, s, x, y, 2.0)
        ready = graph.instantiate()
        s.synchronize()
        ready.launch(s)
        y.fill(1, t)  # without t.wait(s)
        report = report_of(s)
        assert report.kind == "race between streams"
        assert "kernel scale" in str(report)
        t.synchronize()
        t.wait(s)
        s.wait(t)
        ready.launch(s)
        s.synchronize()


def test_a_race_between_branches_is_found_at_each_launch_and_not_before(sim):
    with sim.stream() as s, sim.stream() as t:
        x, y = sim.zeros((N,), stream=s), sim.zeros((N,), stream=s)
        s.synchronize()
        with s.capture() as graph:
            t.wait(s)
            scale(sim, s, x, y, 2.0)
            y.fill(1, t)
            s.wait(t)
        s.synchronize()
        ready = graph.instantiate()
        for _ in range(2):
            ready.launch(s)
        report = report_of(s)
        assert report.kind == "race between streams"
        assert "on branch 2 of the graph" in str(report)


def test_pinned_memory_is_watched_at_each_launch(sim):
    with sim.stream() as s:
        x, source, target = sim.zeros((N,), stream=s), sim.pinned((N,)), sim.pinned((N,))
        source[:], target[:] = 1, 2
        with s.capture() as graph:
            x.copy_from(source, s)
            x.copy_to(target, s)
        ready = graph.instantiate()
        source[:] = 3  # between capture and launch the host may write it
        assert (target == 2).all()
        ready.launch(s)
        assert not (target == 2).any(), "in flight it holds poison"
        s.synchronize()
        assert (target == 3).all()
        ready.launch(s)
        source[:] = 4
        assert report_of(s).kind == "source changed in flight"


def test_memory_freed_behind_a_graphs_back_is_found(sim):
    """A free by a direct driver call, unknown to cudakit."""
    driver = sim.context.driver
    with sim.stream() as s:
        pointer = sim.context.call("cuMemAllocAsync", 4 * N, s.handle)
        x = sim.zeros((N,), stream=s)
        with s.capture() as graph:
            sim.context.call("cuMemcpyDtoDAsync", pointer, x.pointer, 4 * N, s.handle)
        ready = graph.instantiate()
        ready.launch(s)
        s.synchronize()
        sim.context.call("cuMemFreeAsync", pointer, s.handle)
        with pytest.raises(CudaError, match="was passed to cuMemFreeAsync already"):
            ready.launch(s)
        s.synchronize()
        assert driver.simStats().pending == 0, "nothing of it was queued"


def test_counters_count_replays(sim):
    with sim.stream() as s:
        x, y = sim.array(numbers(), stream=s), sim.empty((N,), stream=s)
        with s.capture() as graph:
            scale(sim, s, x, y, 2.0)
        ready = graph.instantiate()
        with sim.counters() as counters:
            for _ in range(3):
                ready.launch(s)
        assert counters["scale"].as_dict()["launches"] == 3


def test_a_launch_is_one_call_of_the_driver_however_many_nodes(sim):
    with sim.stream() as s:
        x = sim.zeros((N,), stream=s)
        costs = []
        for nodes in (1, 20):
            with s.capture() as graph:
                for _ in range(nodes):
                    scale(sim, s, x, x, 1.0)
            ready = graph.instantiate()
            ready.launch(s)
            calls = []

            def note(frame, event, argument, calls=calls):
                if event == "call":
                    calls.append((frame.f_code.co_filename, frame.f_code.co_name))

            sys.setprofile(note)
            try:
                ready.launch(s)
            finally:
                sys.setprofile(None)
            assert [name for file, name in calls if file.endswith("sim/driver/state.py")].count("enter") == 1
            costs.append([name for file, name in calls if "cudakit" in file and "/sim/" not in file])
            s.synchronize()
        assert costs[0] == costs[1], "no Python a node"


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_torch_tensors_in_a_graph(gpu):
    torch = pytest.importorskip("torch")
    with gpu.stream() as s:
        source = torch.arange(N, dtype=torch.float32, device="cuda")
        torch.cuda.synchronize()
        x, y = gpu.wrap(source, stream=s), gpu.zeros((N,), stream=s)
        with s.capture() as graph:
            scale(gpu, s, x, y, 2.0)
        del x
        gc.collect()
        with graph.instantiate() as ready:
            ready.launch(s)
            assert np.array_equal(y.numpy(s), 2 * np.arange(N, dtype=np.float32))

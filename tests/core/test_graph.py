"""Graphs: what is captured, what a replay does, updates, what is kept alive, and what breaks a capture."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver as cu
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit import graph as graphs
from cudakit import pipeline
from cudakit.errors import Closed, CudaError, DeviceMismatch, GraphError, LaunchError

N = 300
SOURCE = """
// y[i] = factor * x[i]
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}

// y[i] += x[i]
__global__ void add(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

// y[i] = the sum of the block's x, by dynamic shared memory
__global__ void block_sum(const float* x, float* y, int n) {
    extern __shared__ float part[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < blockDim.x; ++k) sum += part[k];
    if (i < n) y[i] = sum;
}
"""
GRID, BLOCK = 3, 128


def module(device):
    return device.compile(source=SOURCE, name="graph.cu")


def numbers(seed=0, n=N):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def scale(device, stream, x, y, factor):
    module(device)["scale"].launch(stream, GRID, BLOCK, args=(x, y, factor, N))


def add(device, stream, x, y):
    module(device)["add"].launch(stream, GRID, BLOCK, args=(x, y, N))


@pytest.fixture
def work(device):
    """Two streams, and three arrays of which the first has numbers."""
    with device.stream() as stream, device.stream() as other:
        host = numbers()
        x = device.array(host, stream=stream)
        y, z = device.zeros((N,), stream=stream), device.zeros((N,), stream=stream)
        stream.synchronize()
        yield SimpleNamespace(stream=stream, other=other, host=host, x=x, y=y, z=z)
        stream.synchronize()
        other.synchronize()


# What a replay does ---------------------------------------------------------------------------------------------------


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


# An operation is what it does and the two arrays it does it to; "fork" has what follows run on another stream.
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["scale", "add", "fill", "copy", "down", "up", "fork"]), *2 * [st.integers(0, 2)]),
    min_size=1,
    max_size=8,
)


def run_operations(device, stream, other, arrays, staging, operations):
    on, forked = stream, False
    for name, a, b in operations:
        if name == "fork":
            # what is queued next on the other stream comes after all there is, so that results do not depend on luck
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
    """The same operations queued as they are and replayed, as often: the same bytes everywhere."""
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
    """float64's 0.1 is no repeated word, and is otherwise copied from host memory, which is gone by a replay."""
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
        blas.gemm(a, b, c, stream=s)  # a library makes its workspace when it is first used
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
    """Each on its own stream; arrays that one drops meanwhile are nobody else's loss."""
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


# Updates --------------------------------------------------------------------------------------------------------------


def test_a_node_is_given_other_arguments_and_another_grid(device, work):
    s, x, y, z = work.stream, work.x, work.y, work.z
    with s.capture() as graph:
        scale(device, s, x, y, 2.0)
        add(device, s, x, y)
    ready = graph.instantiate()
    ready.update("scale", args=(x, y, 5.0, N))
    ready.launch(s)
    assert np.array_equal(y.numpy(s), 5 * work.host + work.host)
    ready.update(graph.nodes[1], args=(x, z, N))
    ready.update(0, grid=1)
    y.fill(-1, s)
    ready.launch(s)
    assert np.array_equal(y.numpy(s)[:BLOCK], 5 * work.host[:BLOCK])
    assert (y.numpy(s)[BLOCK:] == -1).all(), "one block of the new grid does no more"
    assert np.array_equal(z.numpy(s), work.host)
    ready.update(0, grid=GRID, args=(x, y, 3.0, N))
    ready.launch(s)
    assert np.array_equal(y.numpy(s), 3 * work.host)


def test_what_is_queued_keeps_the_arguments_it_had(device, work):
    s, x, y, z = work.stream, work.x, work.y, work.z
    with s.capture() as graph:
        add(device, s, x, y)
    ready = graph.instantiate()
    ready.launch(s)
    ready.update("add", args=(x, z, N))
    ready.launch(s)
    ready.launch(s)
    assert np.array_equal(y.numpy(s), work.host)
    assert np.array_equal(z.numpy(s), 2 * work.host)


@pytest.mark.parametrize("how", [{"cooperative": True}, {"cluster": 3}])
def test_an_update_leaves_a_launch_cooperative_or_in_clusters(device, work, how):
    """A cluster is an attribute of its node, and the kernel tells how many blocks it found in it."""
    text = """
#include <cooperative_groups.h>
__global__ void blocks_around(int* out) {
    if (threadIdx.x == 0) out[blockIdx.x] = cooperative_groups::this_cluster().num_blocks();
}
"""
    if device.kind == "gpu" and device.attribute("COMPUTE_CAPABILITY_MAJOR") < 9:
        pytest.skip("clusters need sm_90")
    kernel = device.compile(source=text, name="around.cu")["blocks_around"]
    s = work.stream
    x, y = (device.full((6,), -1, "int32", stream=s) for _ in range(2))
    with s.capture() as graph:
        kernel.launch(s, 3, 32, args=(x,), **how)
    with graph.instantiate() as ready:
        ready.update("blocks_around", args=(y,), grid=6)
        ready.launch(s)
        assert (x.numpy(s) == -1).all()
        assert (y.numpy(s) == how.get("cluster", 1)).all()


def test_dynamic_shared_memory_is_updated_past_the_default(device, work):
    s, x, y = work.stream, work.x, work.y
    kernel = module(device)["block_sum"]
    with s.capture() as graph:
        kernel.launch(s, GRID, BLOCK, shared=4 * BLOCK, args=(x, y, N))
    with graph.instantiate() as ready:
        ready.update("block_sum", shared=100_000)
        ready.launch(s)
        assert y.numpy(s)[0] == pytest.approx(float(work.host[:BLOCK].sum(dtype=np.float64)), rel=1e-4)
        with pytest.raises(LaunchError, match="dynamic shared memory"):
            ready.update("block_sum", shared=1 << 30)


@pytest.mark.parametrize(
    ("what", "changes", "error", "words"),
    [
        ("scale", {"args": ()}, LaunchError, "takes 4 arguments"),
        ("scale", {"args": (1, 2, 3.0, 4)}, LaunchError, "an int is not taken for an address"),
        ("scale", {"grid": 0}, LaunchError, "below 1"),
        ("scale", {"block": (512, 4)}, LaunchError, "2048 threads"),
        ("sale", {}, GraphError, "no node is 'sale'"),
        ("add", {}, GraphError, "several nodes are 'add'"),
        (7, {}, GraphError, "there is no node 7"),
        ("fill", {"args": ()}, GraphError, "no launch of a kernel"),
    ],
)
def test_a_wrong_update_is_refused_and_changes_nothing(device, work, what, changes, error, words):
    s, x, y = work.stream, work.x, work.y
    with s.capture() as graph:
        y.fill(0, s)
        scale(device, s, x, y, 2.0)
        add(device, s, x, y)
        add(device, s, x, y)
    ready = graph.instantiate()
    with pytest.raises(error, match=words):
        ready.update(what, **changes)
    ready.launch(s)
    assert np.allclose(y.numpy(s), 4 * work.host, rtol=1e-6)


def test_a_whole_graph_takes_anothers_operands(device, work):
    s, x, y, z = work.stream, work.x, work.y, work.z
    pinned = device.pinned((N,))

    def captured(target, factor):
        with s.capture() as graph:
            scale(device, s, x, target, factor)
            target.copy_to(pinned, s)
        return graph

    ready = captured(y, 2.0).instantiate()
    ready.launch(s)
    ready.update("scale", args=(x, y, 5.0, N))
    other = captured(z, 7.0)
    ready.update(other)
    for _ in range(2):
        z.fill(0, s)
        ready.launch(s)
        s.synchronize()
        assert np.array_equal(pinned, 7 * work.host)
        assert np.array_equal(z.numpy(s), 7 * work.host)
        ready.update(0, grid=GRID)  # with the other graph's arguments
    # and its nodes are updated from there
    ready.update(other.nodes[0], args=(x, z, 9.0, N))
    ready.launch(s)
    s.synchronize()
    assert np.array_equal(pinned, 9 * work.host)
    with pytest.raises(GraphError, match="either a graph, or a node"):
        ready.update(other, grid=1)


def test_a_graph_with_other_nodes_is_no_update(device, work):
    s, x, y = work.stream, work.x, work.y
    with s.capture() as graph:
        scale(device, s, x, y, 2.0)
    with s.capture() as longer:
        scale(device, s, x, y, 2.0)
        add(device, s, x, y)
    with s.capture() as filled:
        y.fill(0, s)
    ready = graph.instantiate()
    for other in (longer, filled):
        with pytest.raises(GraphError, match="Instantiate it instead"):
            ready.update(other)
    with pytest.raises(GraphError, match="of another graph"):
        ready.update(longer.nodes[0], args=(x, y, 1.0, N))
    ready.launch(s)
    assert np.array_equal(y.numpy(s), 2 * work.host)


# What breaks a capture ------------------------------------------------------------------------------------------------


def outside_event(device, work):
    work.stream.wait(work.event)


def captured_event(device, work):
    work.stream.record().query()


BREAKS = {
    "synchronize": (lambda device, work: work.stream.synchronize(), CudaError, "cuStreamSynchronize failed"),
    "query": (lambda device, work: work.stream.query(), CudaError, "cuStreamQuery failed"),
    "device": (lambda device, work: device.synchronize(), CudaError, "cuCtxSynchronize failed"),
    "event": (captured_event, CudaError, "cuEventQuery failed"),
    "isolation": (outside_event, CudaError, "recorded outside of the capture"),
}
REFUSED = {
    "numpy": (lambda device, work: work.x.numpy(work.stream), GraphError, "pageable"),
    "upload": (lambda device, work: work.x.copy_from(work.host, work.stream), GraphError, "pageable"),
    "strided": (
        lambda device, work: work.matrix.T.copy_to(work.pinned, work.stream), GraphError, "separate copies"
    ),
    "empty": (lambda device, work: device.empty((4,), stream=work.stream), GraphError, "Make the array before"),
    "copy": (lambda device, work: work.x.copy(work.stream), GraphError, "Make the array before"),
}  # fmt: skip


@pytest.fixture
def breakable(device, work):
    work.event = work.stream.record()
    work.matrix = device.zeros((20, 30), stream=work.stream)
    work.pinned = device.pinned((30, 20))
    work.stream.synchronize()
    return work


def captured(device, work, act):
    """A capture of a launch, and of what `act` does."""
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
        act(device, work)
    return graph


@pytest.mark.parametrize("name", [*BREAKS, *REFUSED])
def test_what_cannot_be_captured_says_so_and_the_stream_is_itself_again(device, breakable, name):
    work = breakable
    act, error, words = {**BREAKS, **REFUSED}[name]
    with pytest.raises(error, match=words):
        captured(device, work, act)
    work.stream.synchronize()
    assert (work.y.numpy(work.stream) == 0).all()
    scale(device, work.stream, work.x, work.y, 2.0)
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_capture_names_the_call_that_broke_it(device, breakable, name):
    work = breakable
    act, _, words = BREAKS[name]
    routine = {"isolation": "cuStreamWaitEvent"}.get(name, words.split()[0])

    def swallow(device, work):
        with pytest.raises(CudaError):
            act(device, work)

    with pytest.raises(GraphError, match=f"broken by {routine}"):
        captured(device, work, swallow)
    work.stream.synchronize()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_time_does_not_break_the_capture(device, breakable, name):
    work = breakable
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
        with pytest.raises(GraphError):
            REFUSED[name][0](device, work)
    assert [node.name for node in graph.nodes] == ["scale"]


def test_a_branch_must_be_joined(device, work):
    s, t = work.stream, work.other

    def fork(device, work):
        t.wait(s)
        scale(device, t, work.x, work.y, 2.0)

    with pytest.raises(GraphError, match=r"was not waited for: .*\.wait\(other\)"):
        captured(device, work, fork)
    for stream in (s, t):
        stream.synchronize()


def test_an_empty_graph_is_a_mistake(device, work):
    with pytest.raises(GraphError, match="nothing was captured"), work.stream.capture():
        scale(device, work.other, work.x, work.y, 2.0)  # on another stream
    work.other.synchronize()
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


def test_graphs_do_not_nest(device, work):
    s = work.stream
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
    ready = graph.instantiate()
    with pytest.raises(GraphError, match="do not nest"), s.capture():
        ready.launch(s)
    with pytest.raises(CudaError, match="ILLEGAL_STATE"), s.capture(), s.capture():
        pass
    ready.launch(s)
    assert np.array_equal(work.y.numpy(s), 2 * work.host)


def test_an_error_in_the_block_is_what_is_raised(device, work):
    with pytest.raises(ZeroDivisionError):
        captured(device, work, lambda device, work: 1 / 0)
    work.stream.synchronize()
    assert (work.y.numpy(work.stream) == 0).all()


def test_only_streams_of_the_device_are_captured_and_launched_on(device, work):
    with (
        pytest.raises(GraphError, match="legacy default stream"),
        device.capture(SimpleNamespace(__cuda_stream__=lambda: (0, 0))),
    ):
        pass
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
    ready = graph.instantiate()
    with cudakit.Device("sim", fresh=True) as elsewhere, elsewhere.stream() as stream, pytest.raises(DeviceMismatch):
        ready.launch(stream)
    with pytest.raises(TypeError):
        ready.launch(0)
    closed = device.stream()
    closed.close()
    with pytest.raises(Closed):
        ready.launch(closed)


# What is kept alive ---------------------------------------------------------------------------------------------------


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
    """Else the simulated device reports that memory is freed while work of another stream uses it."""
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
    spare.close()  # another's is no matter
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
    with pytest.raises(GraphError, match="was closed: capture again"):
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
        source[:] = 3  # between capture and launch it is the host's
        assert (target == 2).all()
        ready.launch(s)
        assert not (target == 2).any(), "in flight it holds poison"
        s.synchronize()
        assert (target == 3).all()
        ready.launch(s)
        source[:] = 4
        assert report_of(s).kind == "source changed in flight"


def test_memory_freed_behind_a_graphs_back_is_found(sim):
    """A free by the driver itself, of which cudakit knows nothing."""
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
        with pytest.raises(CudaError, match="was given to cuMemFreeAsync already"):
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


# The driver's own answers ---------------------------------------------------------------------------------------------

R, ACTIVE, BROKEN = cu.CUresult, 1, 2
# What an H200 answers to a call while `s` is captured in the relaxed mode, and the capture's state after it.
ANSWERS = {
    "cuStreamSynchronize": (lambda d, w: d.cuStreamSynchronize(w.stream.handle), 900, BROKEN),
    "cuStreamQuery": (lambda d, w: d.cuStreamQuery(w.stream.handle), 900, BROKEN),
    "cuCtxSynchronize": (lambda d, w: d.cuCtxSynchronize(), 900, BROKEN),
    "another stream": (lambda d, w: d.cuStreamSynchronize(w.other.handle), 0, ACTIVE),
    "an event outside": (lambda d, w: d.cuEventQuery(w.event.handle), 0, ACTIVE),
    "wait for one": (lambda d, w: d.cuStreamWaitEvent(w.stream.handle, w.event.handle, 0), 905, BROKEN),
    "wait for none": (lambda d, w: d.cuStreamWaitEvent(w.stream.handle, w.never.handle, 0), 0, ACTIVE),
    "an event inside": (lambda d, w: (w.never.record(w.stream), d.cuEventQuery(w.never.handle))[1], 907, BROKEN),
    "free": (lambda d, w: d.cuMemFreeAsync(w.x.pointer, w.stream.handle), 1, ACTIVE),
    "begin": (lambda d, w: d.cuStreamBeginCapture(w.stream.handle, relaxed(d)), 401, ACTIVE),
    "launch": (lambda d, w: d.cuGraphLaunch(w.ready.handle, w.stream.handle), 900, BROKEN),
}


def relaxed(driver):
    return driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@pytest.mark.parametrize("name", ANSWERS)
def test_the_driver_answers_as_an_h200(device, work, name):
    driver, s = device.context.driver, work.stream
    work.event, work.never = s.record(), device.event()
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
    work.ready = graph.instantiate()
    s.synchronize()
    call, code, state = ANSWERS[name]
    assert int(driver.cuStreamBeginCapture(s.handle, relaxed(driver))[0]) == 0
    scale(device, s, work.x, work.y, 2.0)
    answer = call(driver, work)
    status = driver.cuStreamIsCapturing(s.handle)
    ended = driver.cuStreamEndCapture(s.handle)
    assert int(answer[0]) == code
    assert (int(status[0]), int(status[1])) == (0, state)
    assert int(ended[0]) == (901 if state == BROKEN else 0)
    if state == ACTIVE:
        assert int(driver.cuGraphDestroy(ended[1])[0]) == 0
    assert int(driver.cuStreamIsCapturing(s.handle)[1]) == 0
    assert int(driver.cuStreamEndCapture(s.handle)[0]) == int(R.CUDA_ERROR_ILLEGAL_STATE)


def test_the_legacy_default_stream_waits_for_blocking_streams_that_are_captured(device, work):
    driver, default = device.context.driver, device.default_stream
    implicit = R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    assert driver.cuStreamBeginCapture(0, relaxed(driver))[0] == R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert int(driver.cuStreamBeginCapture(default.handle, relaxed(driver))[0]) == 0
    scale(device, default, work.x, work.y, 2.0)
    assert driver.cuStreamIsCapturing(0)[0] == implicit
    assert int(driver.cuStreamIsCapturing(default.handle)[1]) == ACTIVE
    assert driver.cuMemsetD8Async(work.z.pointer, 0, 4, 0)[0] == implicit
    assert driver.cuStreamEndCapture(default.handle)[0] == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    default.synchronize()


def test_the_driver_tells_what_a_graph_holds(device, work):
    driver, s, t = device.context.driver, work.stream, work.other
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
        t.wait(s)
        scale(device, t, work.x, work.z, 2.0)
        s.wait(t)
        work.y.copy_from(work.z, s)
    first, second, copy = graph.nodes
    code, nodes, count = driver.cuGraphGetNodes(graph.handle, 5)
    assert (int(code), count) == (0, 3)
    assert [int(node) for node in nodes[3:]] == [0, 0]
    assert {int(node) for node in nodes[:3]} == {int(node.handle) for node in graph.nodes}
    waits = driver.cuGraphNodeGetDependencies(copy.handle, 4)
    assert {int(node) for node in waits[1][: waits[-1]]} == {int(second.handle), int(first.handle)}
    params = driver.cuGraphKernelNodeGetParams(second.handle)[1]
    assert (int(params.func), params.gridDimX, params.blockDimX) == (int(second.kernel.handle), GRID, BLOCK)
    code, params = driver.cuGraphMemcpyNodeGetParams(copy.handle)
    assert (int(params.srcDevice), int(params.dstDevice)) == (work.z.pointer, work.y.pointer)
    assert driver.cuGraphMemcpyNodeGetParams(first.handle)[0] == R.CUDA_ERROR_INVALID_VALUE


# Captured functions ---------------------------------------------------------------------------------------------------


def test_a_captured_function_captures_once_for_each_set_of_arrays(device, work):
    s, x, y = work.stream, work.x, work.y
    queued = []

    @graphs.captured
    def step(stream, source, target, factor):
        """Scale."""
        queued.append(factor)
        scale(device, stream, source, target, factor)
        return target

    assert step.__doc__ == "Scale."
    for _ in range(3):
        assert step(s, x, y, 2.0) is y
        step(s, y, x, 0.5)
    assert queued == [2.0, 0.5]
    assert len(step) == 2
    step(s, x[:], y.reshape(N), 2.0)  # the same memory, shape, strides and dtype by other objects
    step(work.other, x, y, 2.0)
    work.other.synchronize()
    assert len(queued) == 2
    step(s, x, y, 3.0)
    step(s, x.view("int32").view("float32")[::1], y, 3.0)
    assert queued == [2.0, 0.5, 3.0]
    assert np.array_equal(y.numpy(s), 3 * work.host)
    # numbers are known again by their bits
    for factor in (0.0, -0.0, float("nan"), float("nan"), np.float32(3.0)):
        step(s, x, y, factor)
    assert len(queued) == 7
    step.close()
    assert len(step) == 0


def test_a_captured_function_keeps_a_bounded_number_of_graphs(device, work):
    s, x, y = work.stream, work.x, work.y
    step = graphs.captured(lambda stream, factor: scale(device, stream, x, y, factor), most=2)
    for factor in (1.0, 2.0, 3.0, 1.0):
        step(s, factor)
        assert np.array_equal(y.numpy(s), np.float32(factor) * work.host)
    assert len(step) == 2


def test_a_captured_function_works_on_the_stream_of_a_chunk(device, work):
    chunk = SimpleNamespace(stream=work.stream)
    step = graphs.captured(lambda chunk, x, y: scale(device, chunk.stream, x, y, 2.0))
    for _ in range(2):
        step(chunk, work.x, work.y)
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


def test_a_captured_function_in_a_pipeline(device):
    """A graph for each set of buffers, and one for the short chunk at the end; the rest of the chunks are replays."""
    items = np.stack([numbers(seed) for seed in range(20)])
    queued = []

    @graphs.captured
    def twice(chunk, x, y):
        queued.append(len(x))
        n = x.size
        module(device)["scale"].launch(chunk.stream, -(-n // BLOCK), BLOCK, args=(x, y, 2.0, n))
        module(device)["add"].launch(chunk.stream, -(-n // BLOCK), BLOCK, args=(x, y, n))

    result = np.zeros_like(items)
    pipeline.run(twice, items, result, devices=device, chunk=3, streams=2, measure=False)
    assert np.array_equal(result, 2 * items + items)
    assert 2 <= len(queued) == len(twice) <= 4 < len(items) // 3
    twice.close()


def test_a_captured_function_may_queue_nothing(device, work):
    queued = []
    step = graphs.captured(lambda stream, x, y, z: queued.append(x.size) or "nothing")
    assert [step(work.stream, work.x[:0], None, "text") for _ in range(2)] == ["nothing", "nothing"]
    assert queued == [0]


def test_a_captured_function_finds_a_new_array_at_an_old_address(device):
    with device.stream() as s:
        y = device.empty((N,), stream=s)
        step = graphs.captured(lambda stream, x, y: scale(device, stream, x, y, 2.0))
        for seed in range(3):
            with device.array(numbers(seed), stream=s) as x:
                step(s, x, y)
                assert np.array_equal(y.numpy(s), 2 * numbers(seed))


def test_a_captured_function_is_called_with_what_it_can_know_again(device, work):
    step = graphs.captured(lambda stream, x: None)
    with pytest.raises(TypeError, match="not a list"):
        step(work.stream, [work.x])
    with pytest.raises(TypeError, match="the stream comes first"):
        step(work.x, work.x)


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


def test_a_captured_function_that_queues_elsewhere_is_told(device) -> None:
    x, y = device.array(np.ones(8, np.float32)), device.zeros(8)
    elsewhere = device.stream()
    device.synchronize()
    step = graphs.captured(lambda stream, a, b: b.copy_from(a, elsewhere))
    with device.stream() as stream, pytest.raises(GraphError, match="has queued nothing on"):
        step(stream, x, y)
    with pytest.raises(TypeError, match="takes a function, not NoneType"):
        graphs.captured(None)
    with pytest.raises(ValueError, match="most=0"):
        graphs.captured(print, most=0)


def test_what_is_no_stream_and_no_node_is_told(device) -> None:
    y = device.zeros(8)
    with device.stream() as stream:
        with stream.capture() as graph:
            y.fill(1, stream)
        with graph.instantiate() as ready:
            with pytest.raises(TypeError, match="NoneType is no stream"):
                ready.launch(None)
            with pytest.raises(TypeError, match="takes a node, its name or index"):
                ready.update(None, grid=1)

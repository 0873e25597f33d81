"""Executable graphs: updates of a node and of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from graph_work import BLOCK, GRID, N, add, module, scale

from cudakit.errors import GraphError, LaunchError


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
    """A cluster is an attribute of its node; the kernel stores the number of blocks in its cluster."""
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
        ("scale", {"args": (1, 2, 3.0, 4)}, LaunchError, "an int is not accepted as an address"),
        ("scale", {"grid": 0}, LaunchError, "at least 1"),
        ("scale", {"block": (512, 4)}, LaunchError, "2048 threads"),
        ("sale", {}, GraphError, "no node is named 'sale'"),
        ("add", {}, GraphError, "several nodes are named 'add'"),
        (7, {}, GraphError, "there is no node 7"),
        ("fill", {"args": ()}, GraphError, "does not launch a kernel"),
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
        with pytest.raises(GraphError, match="instantiate it instead"):
            ready.update(other)
    with pytest.raises(GraphError, match="of another graph"):
        ready.update(longer.nodes[0], args=(x, y, 1.0, N))
    ready.launch(s)
    assert np.array_equal(y.numpy(s), 2 * work.host)


def test_what_is_no_stream_and_no_node_is_told(device) -> None:
    y = device.zeros(8)
    with device.stream() as stream:
        with stream.capture() as graph:
            y.fill(1, stream)
        with graph.instantiate() as ready:
            with pytest.raises(TypeError, match="a stream is needed, got NoneType"):
                ready.launch(None)
            with pytest.raises(TypeError, match="needs a node, its name or index"):
                ready.update(None, grid=1)

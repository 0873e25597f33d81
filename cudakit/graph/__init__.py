"""CUDA graphs: capture what is queued on a stream, instantiate it, and replay it with one call of the driver.

    with stream.capture() as graph:
        blur.launch(stream, grid=..., block=..., args=(x, y, n))
        y.copy_to(pinned, stream)
    ready = graph.instantiate()
    for _ in range(1000):
        ready.launch(stream)
    ready.update("blur", args=(y, x, n))

Nothing runs while a stream is captured. Launches, fills, copies of device and pinned memory and host functions become
nodes; a stream that waits for an event of the capture (`other.wait(stream.record())`) becomes part of it, and must be
waited for in turn before the block ends. Memory is made before the capture.

A graph keeps alive what its nodes name: arrays, pinned memory of device.pinned(), modules. Another library's arrays
it knows only if they were wrapped (device.wrap); `Graph.keep` keeps anything. Memory that was closed by hand while
a graph names it is an error at the next launch.
"""

from __future__ import annotations

from cudakit.errors import GraphError
from cudakit.graph.capturing import Captured, capture, captured
from cudakit.graph.graph import Executable, Graph
from cudakit.graph.nodes import Node

__all__ = ["Captured", "Executable", "Graph", "GraphError", "Node", "capture", "captured"]
